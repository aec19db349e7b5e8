"""The head `soft`: one regression on all prompts' answers, calibrated, saved and explained."""

import json

import numpy as np
import pytest
from helpers.answers import texts
from helpers.models import save_changed

from pbsdk.backend import MaskDistribution, Vocabulary
from pbsdk.classifier import PromptBoostingClassifier
from pbsdk.data.tickets import load_tickets
from pbsdk.errors import InputError, ModelFileError
from pbsdk.learning.heads import Trial
from pbsdk.learning.matrix import TokenMatrix
from pbsdk.learning.soft import Soft
from pbsdk.testing import FakeBackend

TICKETS = load_tickets()
TRAIN, DEV, TEST = TICKETS.train, TICKETS.validation, TICKETS.test
PROMPTS = ["<input> So <mask>.", "<input> The <mask>.", "<input> About <mask>.", "<input> It was <mask>."]


def fitted(backend=None, **parameters):
    clf = PromptBoostingClassifier(backend or FakeBackend(), PROMPTS, random_state=13, **{"head": "soft", **parameters})
    return clf.fit(TRAIN.texts, TRAIN.labels, validation=(DEV.texts, DEV.labels))


def noise(labels, seed, n_prompts=4, n_tokens=400):
    generator = np.random.default_rng(seed)
    codes = [generator.integers(0, 20_000, (len(labels), n_tokens)) for _ in range(n_prompts)]
    return [TokenMatrix.from_codes(one) for one in codes]


@pytest.mark.parametrize("top", [None, 20])
def test_it_learns_from_whole_answers_and_from_a_top_k(top):
    assert fitted(FakeBackend(top=top)).score(TEST.texts, TEST.labels) > 0.55


def test_it_learns_from_the_validation_set_too_and_is_the_same_every_time():
    soft = fitted()
    both = PromptBoostingClassifier(FakeBackend(), PROMPTS, head="soft", random_state=13)
    both.fit(TRAIN.texts + DEV.texts, TRAIN.labels + DEV.labels)
    assert (soft.predict(TEST.texts) == both.predict(TEST.texts)).mean() > 0.9
    again = fitted()
    assert (again.predict_proba(TEST.texts) == soft.predict_proba(TEST.texts)).all()
    assert 0.5 < soft.facts_.cross_validated_accuracy <= 1


def test_random_labels_stay_at_chance_in_cross_validation():
    labels = np.arange(120) % 2
    found = [
        Soft().fit(Trial(noise(labels, seed), labels, 2, seed)).facts["cross_validated_accuracy"] for seed in range(8)
    ]
    assert abs(np.mean(found) - 0.5) < 0.08


def test_noise_is_calibrated_to_no_confidence():
    labels = np.arange(120) % 2
    model = Soft().fit(Trial(noise(labels, 3), labels, 2, 3))
    unseen = model.probabilities(model.scores_of(noise(labels, 4), texts(labels)))
    assert unseen.max(axis=1).mean() < 0.65


@pytest.mark.parametrize("top", [None, 20])
def test_streamed_scores_are_those_of_the_matrices_and_of_the_file(tmp_path, top):
    clf = fitted(FakeBackend(top=top))
    clf.save(tmp_path / "model.json")
    assert json.loads((tmp_path / "model.json").read_text())["head"] == "soft"
    loaded = PromptBoostingClassifier.load(tmp_path / "model.json", FakeBackend(top=top))
    assert np.allclose(loaded.predict_proba(TEST.texts), clf.predict_proba(TEST.texts), atol=1e-9)
    assert loaded.explain() == clf.explain()
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == (tmp_path / "model.json").read_text()


def test_matrices_give_the_scores_that_streamed_answers_give():
    labels = np.arange(30) % 3
    pool = noise(labels, 1)
    model = Soft().fit(Trial(pool, labels, 3, 0))
    rows = [matrix.codes_of(np.arange(matrix.n_columns)) for matrix in pool]
    answers = (MaskDistribution(codes=codes[at]) for at in range(30) for codes in rows)
    assert np.allclose(np.array(list(model.scores(answers, texts(labels)))), model.scores_of(pool, texts(labels)))


def test_words_are_found_again_in_a_vocabulary_that_numbers_them_otherwise(tmp_path):
    clf = fitted()
    clf.save(tmp_path / "model.json")
    turned = FakeBackend()
    turned.vocabulary = Vocabulary([FakeBackend().vocabulary[token] for token in range(999, -1, -1)])
    moved = PromptBoostingClassifier.load(tmp_path / "model.json", turned)
    assert moved.explain().rows == clf.explain().rows
    assert (np.diff(moved.fitted_.tokens) > 0).all()
    for view in moved.fitted_.views:
        assert (np.diff(view.tokens) > 0).all()


def test_it_names_the_words_that_speak_for_a_class():
    explanation = fitted().explain()
    assert {row.prompt for row in explanation.rows} == set(PROMPTS)
    weights = [row.weight for row in explanation.rows]
    assert weights == sorted(weights, reverse=True)
    assert len(explanation.words("billing", 5)) == 5


@pytest.mark.parametrize("strength", [0, -1, float("inf"), "much"])
def test_a_strength_that_cannot_be_is_refused(strength):
    with pytest.raises(InputError, match="strength must be a number above 0"):
        Soft(strength=strength)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda learned: learned["bias"].pop(), "a bias for each of 4 classes"),
        (lambda learned: learned.update(prompts=[]), "and a prompt"),
        (lambda learned: learned["prompts"][0]["tokens"].pop(), r"prompts\.0 needs a word"),
        (lambda learned: learned["prompts"][1]["weights"][0].pop(), r"prompts\.1 .* weights for 4 classes"),
        (lambda learned: learned["prompts"][1].update(prompt=9), r"a prompt of the 4"),
        (lambda learned: learned["prompts"][0]["mean"].__setitem__(0, "x"), r"prompts\.0\.mean"),
    ],
)
def test_a_file_that_was_changed_is_refused(tmp_path, change, message):
    path = tmp_path / "model.json"
    save_changed(fitted(), path, change)
    with pytest.raises(ModelFileError, match=message):
        PromptBoostingClassifier.load(path, FakeBackend())


def test_seventy_seven_classes_are_learned_in_a_blink():
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(77), 4)
    pool = []
    for _ in range(4):
        codes = generator.integers(4000, 20_000, (len(labels), 500))
        codes[np.arange(len(labels)), labels] -= 3500
        pool.append(TokenMatrix.from_codes(codes))
    model = Soft().fit(Trial(pool, labels, 77, 0))
    assert model.scores_of(pool, texts(labels)).shape == (308, 77)
    assert (model.scores_of(pool, texts(labels)).argmax(axis=1) == labels).mean() > 0.9
