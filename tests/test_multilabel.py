"""Several labels per text: on the same answers and passes, in scikit-learn's forms."""

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.metrics import f1_score
from sklearn.model_selection import cross_val_score
from sklearn.preprocessing import MultiLabelBinarizer

from pbsdk.classifier import PromptBoostingClassifier
from pbsdk.data.tickets import load_tickets
from pbsdk.errors import InputError, ModelFileError
from pbsdk.learning.multilabel import best_threshold
from pbsdk.metering.meter import MeteredBackend
from pbsdk.multilabel import MultiLabelPromptClassifier
from pbsdk.testing import FakeBackend

PROMPTS = [f"<input> {cue} <mask>." for cue in ("It was", "So", "About", "The")]
TICKETS = load_tickets()
TEAMS = sorted(set(TICKETS.train.labels))


def joined(part, count, seed=0):
    """Return texts of none, one or two tickets, and the tickets' teams."""
    generator = np.random.default_rng(seed)
    texts, sets = [], []
    for at in range(count):
        picked = generator.permutation(len(part.texts))[: generator.integers(0, 3)]
        texts.append(" ".join(part.texts[one] for one in picked) or f"Hello, just saying so {seed} {at}.")
        sets.append({part.labels[one] for one in picked})
    return texts, sets


TEXTS, SETS = joined(TICKETS.train, 72)
NEW, TRUE = joined(TICKETS.test, 40, seed=1)
BINARIZER = MultiLabelBinarizer(classes=TEAMS)
TABLE, TRUE_TABLE = BINARIZER.fit_transform(SETS), BINARIZER.transform(TRUE)


def classifier(backend=None, **parameters):
    return MultiLabelPromptClassifier(
        backend or FakeBackend(signal=6), PROMPTS, **{"head": "soft", "random_state": 2, **parameters}
    )


@pytest.fixture(scope="module")
def fitted():
    return classifier().fit(TEXTS, SETS)


def test_it_tells_several_labels_and_none(fitted):
    said = fitted.predict(NEW)
    assert said.shape == TRUE_TABLE.shape
    assert set(np.unique(said)) == {0, 1}
    assert f1_score(TRUE_TABLE, said, average="macro") > 0.5
    noise = classifier(FakeBackend(signal=0)).fit(TEXTS, SETS).predict(NEW)
    assert f1_score(TRUE_TABLE, noise, average="macro", zero_division=0) < 0.4
    assert {0, 1, 2} <= set(said.sum(axis=1).tolist())
    assert fitted.predict_sets(NEW) == [tuple(TEAMS[at] for at in np.flatnonzero(row)) for row in said]
    assert fitted.score(NEW, TRUE) == (said == TRUE_TABLE).all(axis=1).mean()


def test_it_asks_what_one_label_would_ask_and_no_more(tmp_path):
    lm = MeteredBackend(FakeBackend(), tmp_path / "run", 10)
    clf = classifier(lm).fit(TEXTS, SETS)
    assert sum(phase.passes for phase in lm.audit().phases) == len(set(TEXTS)) * len(PROMPTS)
    clf.predict_proba(NEW[:3])
    PromptBoostingClassifier(lm, PROMPTS, head="soft").fit(TEXTS, ["a", "b"] * 36)
    assert sum(phase.passes for phase in lm.audit().phases) == (len(set(TEXTS)) + len(set(NEW[:3]))) * len(PROMPTS)


@pytest.mark.parametrize(
    "form",
    [
        TABLE, TABLE.tolist(), csr_matrix(TABLE), TABLE.astype(bool), pd.DataFrame(TABLE, columns=TEAMS),
        [sorted(one) for one in SETS], [tuple(one) for one in SETS],
    ],
    ids=["matrix", "lists of 0 and 1", "sparse", "booleans", "frame", "lists", "tuples"],
)  # fmt: skip
def test_labels_come_in_every_usual_form(form, fitted):
    clf = classifier().fit(TEXTS, form)
    assert np.allclose(clf.predict_proba(NEW), fitted.predict_proba(NEW))
    named = (
        isinstance(form, pd.DataFrame)
        or isinstance(form[0], tuple)
        or (isinstance(form, list) and isinstance(form[1][0], str))
    )
    assert clf.classes_.tolist() == (TEAMS if named else [0, 1, 2, 3])


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (["a"] * 72, "labels\\[0\\] is 'a'; give a set of labels"),
        (np.zeros(72), "must be an indicator matrix of 0 and 1"),
        (np.full((72, 2), 2), "must be an indicator matrix of 0 and 1"),
        (TABLE[:5], "there are 72 texts and 5 rows of labels"),
        ([set()] * 72, "no text has a label"),
        (np.ones((72, 2), dtype=int), "every label is on all texts or on none"),
        ("abc", "must be an indicator matrix, or a set"),
    ],
)
def test_labels_that_are_no_sets_are_refused(labels, said):
    with pytest.raises(InputError, match=said):
        classifier().fit(TEXTS, labels)


def test_the_report_is_of_texts_left_out_and_thresholds_are_used(fitted):
    reports = fitted.report_.to_dict()
    assert [reports[team]["texts"] for team in TEAMS] == TABLE.sum(axis=0).tolist()
    assert 0.4 < np.mean([one["f1"] for one in reports.values()]) < 0.95  # what it learned from would be all right
    thresholds = np.array([one["threshold"] for one in reports.values()])
    assert (fitted.predict(NEW) == (fitted.predict_proba(NEW) >= thresholds)).all()
    assert ((fitted.decision_function(NEW) >= 0) == (fitted.predict(NEW) == 1)).all()
    assert fitted.predict(NEW, threshold=0).all()
    assert not fitted.predict(NEW, threshold=1).any()
    lines = str(fitted.report_).splitlines()
    assert lines[0].split() == ["label", "texts", "threshold", "precision", "recall", "F1"]
    assert len(lines) == 5
    plain = classifier(head="boosting", rounds=5).fit(TEXTS, SETS)
    assert plain.report_.to_dict()["billing"] == {
        "texts": int(TABLE[:, 1].sum()),
        "threshold": 0.5,
        "precision": None,
        "recall": None,
        "f1": None,
    }
    assert plain.predict(NEW).any()


def test_the_best_threshold_is_the_best():
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, 60)
    probabilities = np.clip(0.3 * labels + generator.random(60) * 0.6, 0, 1)
    best = f1_score(labels, probabilities >= best_threshold(probabilities, labels))
    assert best == max(f1_score(labels, probabilities >= tried) for tried in np.linspace(0.01, 0.99, 397))
    assert best_threshold(np.full(4, 0.2), np.zeros(4, dtype=int)) == 0.5


@pytest.mark.parametrize("head", ["auto", "knn", "boosting"])
def test_it_is_saved_and_loaded_by_its_own_kind_alone(head, tmp_path):
    clf = classifier(head=head, rounds=5).fit(TEXTS[:24], SETS[:24])
    clf.save(tmp_path / "m.json")
    again = MultiLabelPromptClassifier.load(tmp_path / "m.json", clf.backend)
    assert np.allclose(again.predict_proba(NEW), clf.predict_proba(NEW), atol=1e-6)
    assert again.predict_sets(NEW) == clf.predict_sets(NEW)
    assert str(again.report_) == str(clf.report_)
    assert again.head == head
    with pytest.raises(ModelFileError, match="load it with MultiLabelPromptClassifier"):
        PromptBoostingClassifier.load(tmp_path / "m.json", clf.backend)
    one = PromptBoostingClassifier(clf.backend, PROMPTS, head="voting").fit(TEXTS[:8], ["a", "b"] * 4)
    one.save(tmp_path / "one.json")
    with pytest.raises(ModelFileError, match="load it with PromptBoostingClassifier"):
        MultiLabelPromptClassifier.load(tmp_path / "one.json", clf.backend)


def test_texts_come_one_by_one_and_bad_ones_can_be_recorded(fitted):
    found = list(fitted.predict_iter([*NEW[:3], None], on_error="record"))
    assert [one.label for one in found] == [*fitted.predict_sets(NEW[:3]), None]
    assert found[3].error


def test_a_label_that_all_texts_have_or_none_is_always_so():
    table = np.column_stack([TABLE[:, 0], np.ones(72, dtype=int), np.zeros(72, dtype=int)])
    said = classifier().fit(TEXTS, table).predict(NEW)
    assert said[:, 1].all()
    assert not said[:, 2].any()


def test_weights_and_balance_move_the_probabilities():
    plain = classifier().fit(TEXTS, SETS).predict_proba(NEW)[:, 0].mean()
    has = np.array([TEAMS[0] in one for one in SETS])
    heavier = classifier().fit(TEXTS, SETS, np.where(has, 5.0, 1.0)).predict_proba(NEW)[:, 0].mean()
    balanced = classifier(class_weight="balanced").fit(TEXTS, SETS).predict_proba(NEW)[:, 0].mean()
    assert heavier > plain
    assert balanced > plain
    with pytest.raises(InputError, match='must be "balanced" or None'):
        classifier(class_weight={TEAMS[0]: 2}).fit(TEXTS, SETS)


def test_a_text_of_weight_0_may_be_the_last_with_its_labels():
    clf = classifier().fit([*TEXTS, "odd"], [*SETS, set(TEAMS)], [1.0] * 72 + [0.0])
    assert clf.n_train_ == 72


def test_texts_are_added_with_known_labels(tmp_path):
    fake = FakeBackend()
    lm = MeteredBackend(fake, tmp_path / "run", 10)
    clf = classifier(lm).fit(TEXTS[:60], SETS[:60], validation=(NEW[:4], TRUE[:4]))
    fake.asked.clear()
    clf.add(TEXTS[60:], TABLE[60:])
    assert len(fake.asked) == len(set(TEXTS[60:]) - set(TEXTS[:60])) * len(PROMPTS)
    whole = classifier(lm).fit(TEXTS, SETS, validation=(NEW[:4], TRUE[:4]))
    assert np.allclose(clf.predict_proba(NEW), whole.predict_proba(NEW))
    with pytest.raises(InputError, match="labels that aren't known: new"):
        clf.add(["x"], [{"new"}])


def test_scikit_learn_clones_and_scores_it():
    scores = cross_val_score(clone(classifier()), np.array(TEXTS), TABLE, cv=3, scoring="f1_macro")
    assert (scores > 0.3).all()


def test_what_is_about_one_label_says_so(fitted):
    for call in (fitted.confusions, fitted.suspects, lambda: fitted.threshold(precision=0.9)):
        with pytest.raises(InputError, match="report_ says how each label does"):
            call()
    with pytest.raises(InputError, match="a demonstration shows one label"):
        classifier(demonstrations=1).fit(TEXTS, SETS)
    with pytest.raises(InputError, match="MultiLabelPromptClassifier"):
        PromptBoostingClassifier(FakeBackend(), PROMPTS, head="multilabel").fit(TEXTS[:8], ["a", "b"] * 4)
    named = MultiLabelPromptClassifier(FakeBackend(), ["<labels>: <input> <mask>"], head="soft").fit(TEXTS, SETS)
    assert named.templates_[0].labels == tuple(TEAMS)


def test_its_card_and_its_words_are_by_label(fitted):
    card = str(fitted.card())
    assert "Gives texts any of 4 labels, or none: account, billing, shipping, technical." in card
    assert "| billing | " in card
    assert "share of votes" not in card
    assert "Calibration" not in card
    assert all(fitted.explain().words(team) for team in TEAMS)
