"""What a classifier says about itself at no pass: confusions, suspicious labels, curves, reliability, thresholds."""

import numpy as np
import pytest

from pbsdk.classifier import PromptBoostingClassifier
from pbsdk.data.tickets import load_tickets
from pbsdk.errors import InputError
from pbsdk.testing import FakeBackend

TICKETS = load_tickets()
TEXTS, LABELS = TICKETS.train.texts + TICKETS.validation.texts, TICKETS.train.labels + TICKETS.validation.labels
PROMPTS = ["<input> So <mask>.", "<input> The <mask>.", "<input> About <mask>."]


def classifier(labels=LABELS, **parameters):
    clf = PromptBoostingClassifier(FakeBackend(), PROMPTS, random_state=13, **{"head": "soft", **parameters})
    return clf.fit(TEXTS, labels)


@pytest.fixture(scope="module")
def fitted():
    return classifier()


def test_confusions_count_the_examples_left_out_that_were_wrong(fitted):
    found = fitted.confusions()
    wrong = round((1 - fitted.facts_.cross_validated_accuracy) * len(LABELS))
    assert sum(row[2] for row in found.rows) == wrong > 0
    assert all(row[0] != row[1] for row in found.rows)
    assert [row[2] for row in found.rows] == sorted((row[2] for row in found.rows), reverse=True)
    assert f"{found.rows[0][0]} was taken for {found.rows[0][1]}" in str(found)


def test_the_estimate_is_that_of_cross_validation_and_is_saved(fitted, tmp_path):
    found = fitted.estimate_
    assert (found.kind, found.texts, found.chance) == ("cross-validated", len(LABELS), 0.25)
    assert found.accuracy == fitted.facts_.cross_validated_accuracy
    fitted.save(tmp_path / "m.json")
    assert PromptBoostingClassifier.load(tmp_path / "m.json", FakeBackend()).estimate_ == found


def test_the_estimate_of_a_head_that_validates_is_of_the_validation_set():
    clf = PromptBoostingClassifier(FakeBackend(), PROMPTS, head="voting", random_state=13)
    assert clf.fit(TEXTS[:64], LABELS[:64]).estimate_ is None
    held = TEXTS[64:76], ["account"] * 9 + LABELS[73:76]
    found = clf.fit(TEXTS[:64], LABELS[:64], validation=held).estimate_
    assert (found.kind, found.texts, found.accuracy) == ("validation", 12, clf.facts_.validation_accuracy)
    assert found.chance >= 0.75


def test_a_planted_wrong_label_is_among_the_suspects(fitted):
    sure = fitted.fitted_.study
    row = int(np.argmax(sure.probabilities[np.arange(len(LABELS)), sure.material.labels]))
    wrong = list(LABELS)
    wrong[row] = next(label for label in sorted(set(LABELS)) if label != LABELS[row])
    doubted = classifier(wrong)
    found, few = doubted.suspects(0.3), doubted.suspects(0.05)
    assert all(one[3] <= 0.3 for one in found.rows)
    assert few.rows == tuple(one for one in found.rows if one[3] <= 0.05)
    assert len(few.rows) < len(found.rows)
    (planted,) = [one for one in found.rows if one[0] == row]
    assert planted[1:3] == (wrong[row], LABELS[row])
    assert planted[4] == TEXTS[row]
    assert planted in found.rows[: max(3, len(found.rows) // 2)]
    assert [one[3] for one in found.rows] == sorted(one[3] for one in found.rows)


def test_a_learning_curve_rises_and_asks_nothing(fitted):
    served = fitted.backend.served if hasattr(fitted.backend, "served") else None
    found = fitted.learning_curve()
    by_texts = [row for row in found.rows if row[1] == len(PROMPTS)]
    assert [row[0] for row in by_texts] == sorted(row[0] for row in by_texts)
    assert by_texts[-1][2] > by_texts[0][2]
    assert {row[1] for row in found.rows} == {1, 2, 3}
    assert "per doubling of the texts" in found.said
    assert served is None or fitted.backend.served == served


def test_reliability_adds_up(fitted):
    found = fitted.reliability()
    assert sum(row[0] for row in found.rows) == len(LABELS)
    assert "Expected calibration error" in found.said
    assert fitted.fitted_.confidences.error() < 0.25


@pytest.mark.parametrize("name", ["confusions", "suspects", "learning_curve", "reliability"])
def test_each_table_prints_shows_draws_and_is_data(fitted, name):
    pytest.importorskip("matplotlib")
    found = getattr(fitted, name)()
    assert found.title in str(found)
    assert "<table>" in found._repr_html_()
    assert len(found.to_dict()["rows"]) == len(found)
    assert found.plot().axes


def test_what_is_too_uncertain_is_not_answered(fitted):
    expected = fitted.threshold(precision=0.8)
    assert 0 < expected.coverage < 1
    assert expected.precision >= 0.8
    texts, labels = TICKETS.test.texts, np.array(TICKETS.test.labels)
    answers = fitted.predict(texts, precision=0.8)
    given = answers != None  # noqa: E711 - elementwise
    assert 0 < given.mean() < 1
    assert (answers[given] == labels[given]).mean() > fitted.score(texts, labels)
    sure = fitted.predict_proba(texts).max(axis=1)
    assert (given == (sure >= expected.value)).all()
    marked = fitted.predict(texts, abstain_below=0.9, unsure="?")
    assert ((marked != "?") == (sure >= 0.9)).all()
    assert set(fitted.predict(texts, abstain_below=0.01).tolist()) <= set(LABELS)


def test_a_precision_that_nothing_reaches_answers_nothing(fitted):
    assert fitted.threshold(precision=1.0).coverage == 0
    assert (fitted.predict(TICKETS.test.texts, precision=1.0) == None).all()  # noqa: E711 - elementwise


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "either precision or abstain_below"),
        ({"precision": 0.9, "abstain_below": 0.5}, "either precision or abstain_below"),
        ({"precision": 1.5}, "precision must be above 0"),
        ({"abstain_below": 0}, "abstain_below must be above 0"),
        ({"precision": "high"}, "precision must be above 0"),
    ],
)
def test_thresholds_that_mean_nothing_are_refused(fitted, given, message):
    with pytest.raises(InputError, match=message):
        fitted.threshold(**given)


def test_heads_that_do_not_cross_validate_say_so():
    clf = classifier(head="boosting", rounds=5)
    with pytest.raises(InputError, match="'boosting' doesn't cross-validate; fit with head='auto'"):
        clf.confusions()
    with pytest.raises(InputError, match="doesn't cross-validate"):
        clf.predict(TEXTS[:2], precision=0.9)
    assert (clf.predict(TEXTS[:5], abstain_below=0.01) == clf.predict(TEXTS[:5])).all()
    with pytest.raises(AttributeError, match="chooses among nothing"):
        _ = clf.selection_


def test_a_loaded_classifier_abstains_and_says_what_it_lacks(fitted, tmp_path):
    fitted.save(tmp_path / "model.json")
    loaded = PromptBoostingClassifier.load(tmp_path / "model.json", FakeBackend())
    assert loaded.threshold(precision=0.8) == fitted.threshold(precision=0.8)
    assert loaded.reliability().rows == fitted.reliability().rows
    with pytest.raises(InputError, match="doesn't keep its texts; fit it again"):
        loaded.suspects()


def test_scores_agree_with_probabilities(fitted):
    texts = TICKETS.test.texts[:6]
    scores = fitted.decision_function(texts)
    assert scores.shape == (6, 4)
    assert (scores.argmax(axis=1) == fitted.predict_proba(texts).argmax(axis=1)).all()
    assert np.allclose(np.exp(fitted.predict_log_proba(texts)), fitted.predict_proba(texts))
    two = [label if label == "billing" else "other" for label in LABELS]
    binary = classifier(two)
    assert binary.decision_function(texts).shape == (6,)
    assert ((binary.decision_function(texts) > 0) == (binary.predict(texts) == binary.classes_[1])).all()
