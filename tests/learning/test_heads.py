"""Heads: the paper's three, one from elsewhere, and what the seam promises to each."""

from dataclasses import dataclass
from importlib import metadata
from typing import ClassVar

import numpy as np
import pytest
from helpers.answers import texts

from pbsdk.backend import MaskDistribution
from pbsdk.classifier import PromptBoostingClassifier
from pbsdk.data.tickets import load_tickets
from pbsdk.errors import InputError
from pbsdk.learning.boosting import Boosting, boost
from pbsdk.learning.explanation import Explanation, LearnerRow
from pbsdk.learning.heads import Fitted, Head, Trial, head_from
from pbsdk.learning.matrix import TokenMatrix
from pbsdk.learning.voting import Best, Voting, best_single, vote
from pbsdk.testing import FakeBackend

TICKETS = load_tickets()
PROMPTS = ["<input> So <mask>.", "<input> The <mask>.", "<input> About <mask>."]


def trial(n_classes=3, seed=5, **change):
    generator = np.random.default_rng(seed)
    labels = np.arange(30) % n_classes
    pool = [generator.integers(0, 9000, (30, 40)) for _ in range(4)]
    for codes in pool:
        codes[np.arange(30), labels] -= generator.integers(0, 4000, 30).clip(max=codes[np.arange(30), labels])
    return Trial([TokenMatrix.from_codes(codes) for codes in pool], labels, n_classes, seed=seed, **change)


class Centroid(Fitted):
    """The class whose mean answer is nearest, in whole answers to the first prompt."""

    prompts = (0,)
    tokens = None
    facts: ClassVar = {"distance": "euclidean"}

    def __init__(self, means):
        self.means = means
        self.n_classes = self.size = len(means)

    def scores_of_one(self, answers, example):
        distances = ((self.means - answers[0].codes) ** 2).sum(axis=1)
        return 1 / (1 + distances)

    def state(self, word):
        return {"means": self.means.tolist(), "last": word(self.means.shape[1] - 1)}

    def explain(self, classes, prompts, word):
        words = tuple(word(int(mean.argmin())) for mean in self.means)
        return Explanation(tuple(classes), (LearnerRow(prompts[0], words, 1.0),))


@dataclass(frozen=True)
class CentroidHead(Head):
    name: ClassVar[str] = "centroid"

    m: int | None = None

    def fit(self, trial):
        trial.report()
        codes = trial.answers[0].codes_of(np.arange(trial.answers[0].n_columns)).astype(float)
        return Centroid(np.array([codes[trial.labels == label].mean(axis=0) for label in range(trial.n_classes)]))

    @classmethod
    def restore(cls, state, n_classes, n_prompts, token_of):
        return Centroid(np.array(state["means"]))


@pytest.fixture
def registered(monkeypatch):
    """Register `CentroidHead` as another package would."""
    entry = metadata.EntryPoint("centroid", f"{__name__}:CentroidHead", "pbsdk.heads")
    monkeypatch.setattr(metadata.EntryPoint, "load", lambda self: CentroidHead if self == entry else _load(self))
    found = metadata.entry_points
    monkeypatch.setattr(
        metadata, "entry_points", lambda **given: (*found(**given), *([entry] if given["group"] == entry.group else []))
    )


_load = metadata.EntryPoint.load


def test_the_papers_heads_are_its_functions():
    one = trial()
    boosted = Boosting(rounds=30, m=4).fit(one)
    assert boosted.ensemble == boost(one.answers, one.labels, 3, rounds=30, m=4, seed=5).ensemble
    assert boosted.size == len(boosted.ensemble.learners)
    assert boosted.facts["rounds_run"] == len(boosted.history) == 30
    assert Voting(m=4).fit(one).ensemble == vote(one.answers, one.labels, 3, m=4)
    assert Best(m=4).fit(one).ensemble == best_single(one.answers, one.labels, 3, m=4)
    assert Best(m=4).fit(one).size == 1


@pytest.mark.parametrize("head", [Boosting(rounds=9, m=4), Voting(m=4), Best(m=4)])
def test_a_fitted_head_comes_back_from_its_state_and_scores_the_same(head):
    one = trial()
    fitted = head.fit(one)
    again = type(head).restore(fitted.state(str), 3, 4, lambda token, word: int(word))
    assert again.ensemble == fitted.ensemble
    assert again.prompts == fitted.prompts
    answers = [next(_answer(one, prompt, at)) for at in range(30) for prompt in fitted.prompts]
    streamed = np.array(list(again.scores(answers, texts(one.labels))))
    assert (streamed == fitted.scores_of(one.answers, texts(one.labels))).all()
    assert np.allclose(fitted.probabilities(streamed).sum(axis=1), 1)
    assert (streamed.argmax(axis=1) == one.labels).mean() > 0.5


def _answer(one, prompt, at):
    codes = one.answers[prompt].codes_of(np.arange(one.answers[prompt].n_columns))[at]
    yield MaskDistribution(codes=codes)


def test_validation_is_reported_by_each_head():
    held_out = trial(seed=6)
    for head in (Boosting(rounds=9, m=4), Voting(m=4), Best(m=4)):
        fitted = head.fit(trial(validation=(held_out.answers, held_out.labels)))
        right = (fitted.scores_of(held_out.answers, texts(held_out.labels)).argmax(axis=1) == held_out.labels).mean()
        assert fitted.validation_accuracy == pytest.approx(right)


def test_boosting_reports_each_round():
    rounds = []
    Boosting(rounds=12, m=4).fit(trial(report=lambda: rounds.append(1)))
    assert len(rounds) == Boosting(rounds=12).steps == 12


def test_a_named_head_takes_the_parameters_it_knows():
    made = head_from("boosting", {"rounds": 7, "m": 3, "backend": None, "draw": "independent"})
    assert made == Boosting(rounds=7, m=3, draw="independent")
    assert head_from("best", {"rounds": 7, "m": 3}) == Best(m=3)
    given = Voting(m=2)
    assert head_from(given, {"m": 9}) is given


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("bosting", "no head is called 'bosting'. Did you mean 'boosting'"),
        (3, "head must be a name"),
        (Voting, "a Head"),
    ],
)
def test_what_is_no_head_is_refused_before_anything_is_sent(head, message):
    fake = FakeBackend()
    with pytest.raises(InputError, match=message):
        PromptBoostingClassifier(fake, PROMPTS, head=head).fit(TICKETS.train.texts, TICKETS.train.labels)
    assert not fake.asked


def test_words_that_cannot_be_searched_are_refused_before_anything_is_sent():
    fake = FakeBackend()
    with pytest.raises(InputError, match="too many to search exactly"):
        PromptBoostingClassifier(fake, PROMPTS, head="boosting", m=500).fit(TICKETS.train.texts, TICKETS.train.labels)
    assert not fake.asked


@pytest.mark.parametrize("head", ["voting", "best", Boosting(rounds=5)])
def test_the_classifier_takes_a_head_and_its_file_names_it(tmp_path, head):
    clf = PromptBoostingClassifier(FakeBackend(), PROMPTS, head=head, random_state=1)
    clf.fit(TICKETS.train.texts, TICKETS.train.labels)
    clf.save(tmp_path / "model.json")
    loaded = PromptBoostingClassifier.load(tmp_path / "model.json", FakeBackend())
    assert loaded.head == (head if isinstance(head, str) else "boosting")
    assert (loaded.predict_proba(TICKETS.test.texts) == clf.predict_proba(TICKETS.test.texts)).all()
    assert loaded.explain() == clf.explain()


def test_a_head_of_another_package_trains_predicts_is_saved_and_explains_itself(registered, tmp_path):
    clf = PromptBoostingClassifier(FakeBackend(), PROMPTS, head="centroid", m=3, random_state=1)
    clf.fit(TICKETS.train.texts, TICKETS.train.labels)
    assert clf.score(TICKETS.test.texts, TICKETS.test.labels) > 0.5
    assert clf.facts_.distance == "euclidean"
    clf.save(tmp_path / "model.json")
    loaded = PromptBoostingClassifier.load(tmp_path / "model.json", FakeBackend())
    assert (loaded.predict(TICKETS.test.texts) == clf.predict(TICKETS.test.texts)).all()
    assert len(loaded.explain().rows) == 1
    assert (
        clf.fitted_.scores_of([TokenMatrix.from_codes(clf.fitted_.means)], texts(range(4))).argmax(axis=1) == range(4)
    ).all()
    with pytest.raises(InputError, match="no stages"):
        list(clf.staged_score(TICKETS.test.texts, TICKETS.test.labels))
    with pytest.raises(AttributeError, match="'centroid' makes no ensemble"):
        clf.ensemble_  # noqa: B018


def test_what_is_registered_must_be_a_head(monkeypatch):
    monkeypatch.setattr(metadata.EntryPoint, "load", lambda _: print)
    with pytest.raises(InputError, match="not a subclass"):
        head_from("boosting", {})
