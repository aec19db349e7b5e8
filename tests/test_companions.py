"""scikit-learn's own tools around the classifier: pipelines, calibration, votes, stacks, workers."""

import numpy as np
import pandas as pd
import pytest
from helpers.needs import needs_model
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import StackingClassifier, VotingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer

from pbsdk import connect
from pbsdk.classifier import PromptBoostingClassifier
from pbsdk.data.tickets import load_tickets
from pbsdk.errors import InputError
from pbsdk.metering.meter import MeteredBackend
from pbsdk.testing import FakeBackend

PROMPTS = [f"<input> {cue} <mask>" for cue in ("It was", "So", "The")]
TICKETS = load_tickets()
TEXTS, LABELS, NEW = TICKETS.train.texts[:24], TICKETS.train.labels[:24], TICKETS.test.texts[:6]


def classifier(lm, **parameters):
    return PromptBoostingClassifier(lm, PROMPTS, **{"head": "soft", "random_state": 1, **parameters})


def words():
    return make_pipeline(TfidfVectorizer(), LogisticRegression())


def companions(clf):
    """Return the classifier among scikit-learn's tools, and what each needs of it."""
    two = [("model", clf), ("words", words())]
    return {
        "pipeline": Pipeline(
            [("strip", FunctionTransformer(lambda rows: [row.strip() for row in rows])), ("model", clf)]
        ),
        "calibrated": CalibratedClassifierCV(clf, cv=2, method="sigmoid"),
        "votes": VotingClassifier(two, voting="soft"),
        "stack": StackingClassifier(two, cv=2, final_estimator=LogisticRegression()),
    }


def check(name, clf, texts, labels, new):
    made = companions(clf)[name]
    made.fit(texts, labels)
    assert made.classes_.tolist() == sorted(set(labels))
    shares = made.predict_proba(new)
    assert shares.shape == (len(new), len(set(labels)))
    assert np.allclose(shares.sum(axis=1), 1)
    assert set(made.predict(new).tolist()) <= set(labels)


@pytest.mark.parametrize("name", ["pipeline", "calibrated", "votes", "stack"])
def test_the_classifier_works_inside_of(name, tmp_path):
    lm = MeteredBackend(FakeBackend(), tmp_path / "run", 10)
    check(name, classifier(lm, keep="whole"), TEXTS, LABELS, NEW)
    assert sum(phase.attempts for phase in lm.audit().phases) == (len(TEXTS) + len(NEW)) * len(PROMPTS)


@pytest.mark.parametrize("name", ["calibrated", "votes", "stack"])
def test_weights_reach_it_through(name):
    weights = np.where(np.array(LABELS) == LABELS[0], 30.0, 1.0)
    seen = []

    class Seeing(PromptBoostingClassifier):
        def fit(self, X, y, sample_weight=None):
            seen.append(None if sample_weight is None else len(sample_weight) == len(X))
            return super().fit(X, y, sample_weight)

    clf = Seeing(FakeBackend(), PROMPTS, head="soft", random_state=1)
    made = companions(clf)[name]
    if name != "calibrated":  # the pipeline of words takes no weights by that name
        made.set_params(words="drop")
    made.fit(TEXTS, LABELS, sample_weight=weights)
    assert seen
    assert True in seen
    assert False not in seen


def test_every_kind_of_score_agrees():
    clf = classifier(FakeBackend()).fit(TEXTS, LABELS)
    shares = clf.predict_proba(NEW)
    assert np.allclose(np.exp(clf.predict_log_proba(NEW)), shares)
    assert (clf.decision_function(NEW).argmax(axis=1) == shares.argmax(axis=1)).all()
    two = classifier(FakeBackend()).fit(TEXTS[:6], ["a", "b"] * 3)
    assert two.decision_function(NEW).shape == (len(NEW),)
    assert ((two.decision_function(NEW) > 0) == (two.predict(NEW) == "b")).all()


def test_stages_end_with_the_whole():
    clf = classifier(FakeBackend(), head="boosting", rounds=8).fit(TEXTS, LABELS)
    labels, shares = list(clf.staged_predict(NEW)), list(clf.staged_predict_proba(NEW))
    assert len(labels) == len(shares) == clf.fitted_.size > 1
    assert (labels[-1] == clf.predict(NEW)).all()
    assert np.allclose(shares[-1], clf.predict_proba(NEW))
    assert [(one == LABELS[:6]).mean() for one in labels] == list(clf.staged_score(NEW, LABELS[:6]))
    assert [clf.classes_[one.argmax(axis=1)].tolist() for one in shares] == [one.tolist() for one in labels]
    with pytest.raises(InputError, match="has no stages"):
        list(classifier(FakeBackend()).fit(TEXTS, LABELS).staged_predict(NEW))


def test_set_output_of_the_steps_before_it_gives_frames_that_it_reads():
    """A classifier has no `transform`, so the setting is about the others; a frame of one column is texts."""
    steps = [("strip", FunctionTransformer(lambda frame: frame.apply(lambda column: column.str.strip())))]
    clf = classifier(FakeBackend())
    pipeline = Pipeline([*steps, ("model", clf)]).set_output(transform="pandas")
    frame = pd.DataFrame({"text": TEXTS})
    predicted = pipeline.fit(frame, LABELS).predict(pd.DataFrame({"text": NEW}))
    assert not hasattr(clf, "set_output")
    assert isinstance(predicted, np.ndarray)
    assert (predicted == classifier(FakeBackend()).fit(TEXTS, LABELS).predict(NEW)).all()


@needs_model
def test_the_embedded_model_works_inside_of_all_of_them_and_with_two_workers(tmp_path):
    texts, labels = TEXTS[:8], ["a", "b"] * 4
    with connect("smollm2", run=tmp_path / "run") as lm:
        clf = PromptBoostingClassifier(
            lm, ["<input> So <mask>", "<input> The <mask>"], head="soft", random_state=1, keep="whole"
        )
        for name in ("pipeline", "calibrated", "votes", "stack"):
            check(name, clf, texts, labels, NEW[:2])
        paid = sum(phase.attempts for phase in lm.audit().phases)
        assert paid == (len(texts) + 2) * 2
        alone = cross_val_predict(clf, texts, labels, cv=2, method="predict_proba")
        shared = cross_val_predict(clf, texts, labels, cv=2, method="predict_proba", n_jobs=2)
        assert np.array_equal(alone, shared)
        assert sum(phase.attempts for phase in lm.audit().phases) == paid
