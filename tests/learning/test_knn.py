"""The head `knn`: the nearest examples vote, are saved and explained."""

import numpy as np
import pytest
from helpers.answers import texts
from helpers.models import save_changed

from pbsdk.backend import MaskDistribution, Vocabulary
from pbsdk.classifier import PromptBoostingClassifier
from pbsdk.data.tickets import load_tickets
from pbsdk.errors import InputError, ModelFileError
from pbsdk.learning import knn
from pbsdk.learning.heads import Trial
from pbsdk.learning.knn import Nearest
from pbsdk.learning.matrix import TokenMatrix
from pbsdk.testing import FakeBackend

TICKETS = load_tickets()
TRAIN, DEV, TEST = TICKETS.train, TICKETS.validation, TICKETS.test
PROMPTS = ["<input> So <mask>.", "<input> The <mask>.", "<input> About <mask>."]


def fitted(backend=None, **parameters):
    clf = PromptBoostingClassifier(backend or FakeBackend(), PROMPTS, random_state=13, **{"head": "knn", **parameters})
    return clf.fit(TRAIN.texts, TRAIN.labels, validation=(DEV.texts, DEV.labels))


def lifted(n_tokens=200, n_classes=150, count=12):
    return np.argsort(np.random.default_rng(7).random((n_classes, n_tokens)), axis=1)[:, :count]


def pool(labels, seed=0, lift=3500, n_prompts=3, n_tokens=200):
    """Answers in which each class lifts some tokens."""
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(n_prompts):
        codes = generator.integers(4000, 12_000, (len(labels), n_tokens))
        codes[np.arange(len(labels))[:, None], lifted(n_tokens)[labels]] -= lift
        found.append(TokenMatrix.from_codes(codes))
    return found


@pytest.mark.parametrize("top", [None, 20])
def test_it_learns_from_whole_answers_and_from_a_top_k(top):
    assert fitted(FakeBackend(top=top)).score(TEST.texts, TEST.labels) > 0.45


def test_the_nearest_by_cosine_vote_with_their_similarity():
    labels = np.arange(40) % 4
    matrices = pool(labels)
    model = Nearest(neighbours=5).fit(Trial(matrices, labels, 4, 0))
    rows = np.hstack([view.features(matrix) for view, matrix in zip(model.views, matrices, strict=True)])
    unseen = pool(labels, seed=1)
    asked = np.hstack([view.features(matrix) for view, matrix in zip(model.views, unseen, strict=True)])
    cosines = asked @ rows.T / np.linalg.norm(asked, axis=1)[:, None] / np.linalg.norm(rows, axis=1)
    expected = np.full((40, 4), model.doubt / 4)
    for i, row in enumerate(cosines):
        for near in np.argsort(-row)[:5]:
            expected[i, labels[near]] += max(row[near], 0)
    assert np.allclose(model.scores_of(unseen, texts(labels)), expected, atol=2e-3)


def test_an_example_does_not_vote_on_itself_when_it_is_left_out():
    labels = np.arange(120) % 2
    found = [
        Nearest(1).fit(Trial(pool(labels, seed, lift=0), labels, 2, 0)).facts["left_out_accuracy"] for seed in range(8)
    ]
    assert abs(np.mean(found) - 0.5) < 0.08


def test_how_many_vote_is_what_does_best_on_examples_left_out():
    labels = np.arange(60) % 3
    trial = Trial(pool(labels, lift=1500), labels, 3, 0)
    alone = {count: Nearest(count).fit(trial).facts["left_out_accuracy"] for count in knn.NEIGHBOURS}
    chosen = Nearest().fit(trial)
    assert chosen.facts["left_out_accuracy"] == max(alone.values()) == alone[chosen.neighbours]
    assert min(alone.values()) < max(alone.values())


def test_noise_gives_no_confidence_and_a_signal_does():
    labels = np.arange(120) % 2
    shares = {}
    for lift in (0, 3500):
        model = Nearest().fit(Trial(pool(labels, 3, lift), labels, 2, 0))
        shares[lift] = model.probabilities(model.scores_of(pool(labels, 4, lift), texts(labels)))
        assert np.allclose(shares[lift].sum(axis=1), 1)
    assert shares[0].max(axis=1).mean() < 0.75
    assert shares[3500][np.arange(120), labels].mean() > shares[0].max(axis=1).mean()


def test_equal_examples_are_taken_in_their_order(monkeypatch):
    known = np.array([[0, 1], [1, 0], [1, 0], [1, 0]], dtype=np.float32)
    rows, similarities = knn._nearest(known[1:2], known, 2)
    assert rows.tolist() == [[1, 2]]
    assert similarities.tolist() == [[1, 1]]
    rows, _ = knn._nearest(known, known, 2, left_out=True)
    assert rows.tolist() == [[1, 2], [2, 3], [1, 3], [1, 2]]
    monkeypatch.setattr(knn, "AT_A_TIME", 3)
    assert knn._nearest(known, known, 2, left_out=True)[0].tolist() == rows.tolist()


def test_where_an_example_was_not_asked_it_has_no_features():
    labels = np.arange(30) % 3
    matrices = pool(labels)
    silent = np.zeros((30, 3), dtype=bool)
    silent[4, 1] = silent[7] = True
    model = Nearest().fit(Trial(matrices, labels, 3, 0, silent=silent))
    assert not model.features[1][4].any()
    assert model.features[0][4].any()
    assert not any(block[7].any() for block in model.features)
    assert model.scores_of_one([None] * 3, texts(labels)[0]) == pytest.approx([model.doubt / 3] * 3)


def test_matrices_give_the_scores_that_streamed_answers_give():
    labels = np.arange(30) % 3
    matrices = pool(labels)
    model = Nearest().fit(Trial(matrices, labels, 3, 0))
    unseen = pool(labels, seed=2)
    answers = (MaskDistribution(codes=matrix.codes.T[at].copy()) for at in range(30) for matrix in unseen)
    streamed = np.array(list(model.scores(answers, texts(labels))))
    assert np.allclose(streamed, model.scores_of(unseen, texts(labels)), atol=1e-4)


@pytest.mark.parametrize("top", [None, 20])
def test_it_comes_back_from_its_file(tmp_path, top):
    clf = fitted(FakeBackend(top=top))
    clf.save(tmp_path / "model.json")
    loaded = PromptBoostingClassifier.load(tmp_path / "model.json", FakeBackend(top=top))
    assert (loaded.predict_proba(TEST.texts) == clf.predict_proba(TEST.texts)).all()
    assert loaded.explain() == clf.explain()
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == (tmp_path / "model.json").read_text()


def test_words_are_found_again_in_a_vocabulary_that_numbers_them_otherwise(tmp_path):
    clf = fitted()
    clf.save(tmp_path / "model.json")
    turned = FakeBackend()
    turned.vocabulary = Vocabulary([FakeBackend().vocabulary[token] for token in range(999, -1, -1)])
    moved = PromptBoostingClassifier.load(tmp_path / "model.json", turned)
    assert moved.explain() == clf.explain()
    assert (np.diff(moved.fitted_.tokens) > 0).all()


def test_it_says_which_prompts_make_neighbours_and_what_stands_out_in_each_class():
    labels = np.arange(40) % 4
    matrices = pool(labels)
    matrices[1] = TokenMatrix.from_codes(np.full((40, 200), 3000))  # says nothing
    model = Nearest().fit(Trial(matrices, labels, 4, 0))
    rows = model.explain("abcd", ["first", "second", "third"], str).rows
    assert {row.prompt for row in rows} == {"first", "second", "third"}
    assert (rows[-1].prompt, rows[-1].weight) == ("second", 0)
    for row in rows[:2]:
        assert all(int(word) in lifted()[c] for c, word in enumerate(row.words))
    assert rows[0].weight >= rows[1].weight > 0


def test_few_examples_have_fewer_neighbours():
    labels = np.array([0, 1, 1])
    assert Nearest().fit(Trial(pool(labels), labels, 2, 0)).neighbours <= 2
    assert Nearest(50).fit(Trial(pool(labels), labels, 2, 0)).neighbours == 2


@pytest.mark.parametrize("n_classes", [77, 150])
def test_many_classes_are_learned(n_classes):
    labels = np.repeat(np.arange(n_classes), 4)
    model = Nearest().fit(Trial(pool(labels, n_tokens=400, n_prompts=5), labels, n_classes, 0))
    unseen = pool(labels, seed=5, n_tokens=400, n_prompts=5)
    assert (model.scores_of(unseen, texts(labels)).argmax(axis=1) == labels).mean() > 0.3


@pytest.mark.parametrize("neighbours", [0, -1, 2.5, "few"])
def test_a_number_of_neighbours_that_cannot_be_is_refused(neighbours):
    with pytest.raises(InputError, match="neighbours must be a whole number of at least 1"):
        Nearest(neighbours=neighbours)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda learned: learned.update(prompts=[]), "it needs a prompt"),
        (lambda learned: learned.update(neighbours=9999), "as many labels as neighbours"),
        (lambda learned: learned.update(doubt=0), "a doubt above 0"),
        (lambda learned: learned["labels"].__setitem__(0, 9), "labels must be 0 to 3"),
        (lambda learned: learned["prompts"][0]["tokens"].pop(), r"prompts\.0 needs a word"),
        (lambda learned: learned["prompts"][1]["features"].pop(), r"prompts\.1 needs \d+ features"),
        (lambda learned: learned["prompts"][1]["features"][3].pop(), r"prompts\.1 needs \d+ features"),
        (lambda learned: learned["prompts"][1].update(prompt=9), r"a prompt of the 3"),
    ],
)
def test_a_file_that_was_changed_is_refused(tmp_path, change, message):
    path = tmp_path / "model.json"
    save_changed(fitted(), path, change)
    with pytest.raises(ModelFileError, match=message):
        PromptBoostingClassifier.load(path, FakeBackend())
