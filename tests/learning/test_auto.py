"""The head `auto`: it chooses by cross-validation, averages what it can't tell apart, and says so."""

import numpy as np
import pytest
from helpers.answers import texts
from helpers.models import save_changed

from pbsdk.classifier import PromptBoostingClassifier
from pbsdk.data.tickets import load_tickets
from pbsdk.errors import ModelFileError
from pbsdk.learning import choosing
from pbsdk.learning.auto import Auto
from pbsdk.learning.heads import Trial
from pbsdk.learning.matrix import TokenMatrix
from pbsdk.queries.examples import Example
from pbsdk.testing import FakeBackend

TICKETS = load_tickets()
TRAIN, DEV, TEST = TICKETS.train, TICKETS.validation, TICKETS.test
PROMPTS = ["<input> So <mask>.", "<input> The <mask>.", "<input> About <mask>."]


def pool(labels, seed, lift=0, noise=9000, n_tokens=60):
    """Answers to three prompts in which the token of an example's class is likelier by up to `lift` steps."""
    generator = np.random.default_rng(seed)
    made = []
    for _ in range(3):
        codes = generator.integers(3000, 3001 + noise, (len(labels), n_tokens))
        codes[np.arange(len(labels)), labels] -= generator.integers(0, lift + 1, len(labels))
        made.append(TokenMatrix.from_codes(codes.clip(min=0)))
    return made


def trial(labels, seed=0, *, lift=0, said=None, **change):
    examples = texts(labels) if said is None else [Example(one) for one in said]
    return Trial(pool(labels, seed, lift), labels, int(labels.max()) + 1, seed, examples=examples, **change)


@pytest.fixture(scope="module")
def fitted():
    clf = PromptBoostingClassifier(FakeBackend(), PROMPTS, head="auto", random_state=13)
    return clf.fit(TRAIN.texts, TRAIN.labels, validation=(DEV.texts, DEV.labels))


def test_it_is_no_worse_than_its_parts_and_says_how_they_did(fitted):
    answers_alone = PromptBoostingClassifier(
        FakeBackend(), PROMPTS, head="auto", text_features=False, random_state=13
    ).fit(TRAIN.texts, TRAIN.labels, validation=(DEV.texts, DEV.labels))
    assert fitted.score(TEST.texts, TEST.labels) >= answers_alone.score(TEST.texts, TEST.labels) - 0.02
    selection = fitted.selection_
    assert selection.n_examples == len(TRAIN) + len(DEV)
    assert selection.nested
    assert sum(one.weight for one in selection.tried) == pytest.approx(1)
    assert {one.head for one in selection.tried} == {"soft", "boosting"}
    assert {one.settings.get("text") for one in selection.tried} == {None, 0.0, 0.25, 0.5, 0.75, 1.0}
    assert {one.settings.get("text") for one in answers_alone.selection_.tried} == {None}
    assert answers_alone.selection_.text_accuracy is None
    assert fitted.facts_.text_accuracy == selection.text_accuracy
    assert "TF-IDF" in selection.reason
    assert selection.reason in str(fitted.explain())


def test_two_runs_are_the_same_bit_for_bit(fitted):
    again = PromptBoostingClassifier(FakeBackend(), PROMPTS, head="auto", random_state=13)
    again.fit(TRAIN.texts, TRAIN.labels, validation=(DEV.texts, DEV.labels))
    assert again.selection_ == fitted.selection_
    assert (again.predict_proba(TEST.texts) == fitted.predict_proba(TEST.texts)).all()


def test_a_saved_one_predicts_and_abstains_the_same(fitted, tmp_path):
    file = tmp_path / "model.json"
    fitted.save(file)
    loaded = PromptBoostingClassifier.load(file, FakeBackend())
    assert loaded.head == "auto"
    assert loaded.selection_ == fitted.selection_
    assert (loaded.predict_proba(TEST.texts) == fitted.predict_proba(TEST.texts)).all()
    assert loaded.threshold(precision=0.8) == fitted.threshold(precision=0.8)
    save_changed(fitted, file, lambda learned: learned["learned"]["texts"]["weights"].pop())
    with pytest.raises(ModelFileError, match="weights for each n-gram"):
        PromptBoostingClassifier.load(file, FakeBackend())


@pytest.fixture(params=["few", "many"])
def counted(request, monkeypatch):
    """With few examples one regression reads both views; with many, the texts have one of their own."""
    if request.param == "many":
        monkeypatch.setattr(choosing, "MOST_COORDINATES", 20)
    return request.param


def test_where_only_the_texts_tell_it_reads_the_texts(counted):
    labels = np.arange(60) % 3
    said = [f"number {k} about {('parcels', 'football', 'music')[label]}" for k, label in enumerate(labels)]
    found = Auto().fit(trial(labels, said=said))
    assert found.selection.accuracy > 0.9
    assert sum(one.weight for one in found.selection.tried if one.settings.get("text", 0) > 0) > 0.99


def test_where_only_the_answers_tell_it_reads_the_answers(counted):
    labels = np.arange(60) % 3
    found = Auto().fit(trial(labels, lift=9000))
    assert found.selection.accuracy > found.selection.text_accuracy + 0.3
    assert found.selection.tried[-1].weight < 0.5


def test_what_both_tell_is_added_up(counted):
    labels = np.arange(90) % 3
    said = [f"{k} {('parcels', 'parcels', 'music')[label]}" for k, label in enumerate(labels)]  # answers tell 0 from 1
    matrices = pool(np.where(labels == 2, 1, labels), 3, 6000)
    examples = [Example(one) for one in said]
    found = Auto().fit(Trial(matrices, labels, 3, 0, examples=examples))
    alone = max(one.accuracy for one in found.selection.tried if one.settings.get("text") in (0, 1))
    assert found.selection.accuracy > alone + 0.15
    assert (found.scores_of(matrices, examples).argmax(axis=1) == labels).mean() > 0.9


def test_random_labels_stay_at_chance():
    accuracies = []
    for seed in range(6):
        labels = np.random.default_rng(seed).permutation(np.arange(60) % 2)
        accuracies.append(Auto().fit(trial(labels, seed)).selection.accuracy)
    assert 0.38 < np.mean(accuracies) < 0.62


def test_an_answer_that_is_no_evidence_is_not_read():
    labels = np.arange(40) % 2
    silent = np.zeros((40, 3), dtype=bool)
    silent[:5, 1] = True
    one = trial(labels, lift=6000, silent=silent)
    other = trial(labels, lift=6000, silent=silent)
    other.answers[1].codes[:, :5] = other.answers[1].codes[:, 20:25]
    a, b = (np.concatenate(Auto(text_features=False).fit(t).inner.weights) for t in (one, other))
    assert np.abs(a - b).max() < 0.2 * np.abs(a).max()  # the view's scale still sees a stand-in, the weights don't
    model = Auto(text_features=False).fit(one)
    asked = [next(matrix.answers()) for matrix in one.answers]
    without = model.scores_of_one([asked[0], None, asked[2]], Example("text 0"))
    parts = zip(model.inner.views, model.inner.weights, asked, strict=True)
    contributions = [view.features_of_one(answer) @ weights for view, weights, answer in parts]
    assert np.allclose(without, model.inner.bias + contributions[0] + contributions[2])


def test_boosting_is_tried_too_where_prompts_show_examples():
    labels = np.arange(40) % 2
    silent = np.random.default_rng(1).random((40, 3)) < 0.3
    silent[0] = True  # all prompts show it
    one, other = trial(labels, lift=9000, silent=silent), trial(labels, lift=9000, silent=silent)
    for place, matrix in enumerate(other.answers):
        gaps = silent[:, place]
        matrix.codes[labels[gaps], np.flatnonzero(gaps)] = 9999  # a stand-in says nothing of the class
    boosted = [[two for two in Auto().fit(t).selection.tried if two.head == "boosting"] for t in (one, other)]
    assert len({(two.settings["m"], two.settings["rounds"]) for two in boosted[0]}) == 6
    assert max(two.accuracy for two in boosted[0]) > 0.6
    assert [two.accuracy for two in boosted[0]] == [two.accuracy for two in boosted[1]]


@pytest.mark.parametrize(("n_classes", "each"), [(20, 8), (77, 4), (150, 2)])
def test_many_classes_need_few_texts_and_seconds(n_classes, each):
    labels = np.arange(n_classes * each) % n_classes
    found = Auto().fit(Trial(pool(labels, 1, 3000, 500, n_classes), labels, n_classes, 0, examples=texts(labels)))
    assert found.selection.accuracy > 0.5
    assert {one.head for one in found.selection.tried} == {"soft"}


@pytest.mark.parametrize("labels", [[0, 1], [0, 1, 0, 1], [0, 1, 1, 1, 1, 1, 1]])
def test_one_text_per_class_is_enough_to_run(labels):
    labels = np.array(labels)
    found = Auto().fit(trial(labels, lift=9000))
    assert not found.selection.nested
    assert found.scores_of(pool(labels, 0, 9000), texts(labels)).shape == (len(labels), 2)
