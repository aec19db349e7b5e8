"""A full data set is asked about in full for a pilot alone; accuracy, budget, plans, replays and refits hold."""

from __future__ import annotations

import numpy as np
import pytest

from pbsdk import PromptBoostingClassifier
from pbsdk.data.tickets import load_tickets
from pbsdk.errors import BudgetExceeded, InputError
from pbsdk.ledger.budget import QueryBudget
from pbsdk.metering.meter import MeteredBackend
from pbsdk.metering.plan import plan_classifier
from pbsdk.multilabel import MultiLabelPromptClassifier
from pbsdk.testing import FakeBackend
from pbsdk.testing.recording import Recording
from pbsdk.testing.replay import ReplayBackend

TICKETS = load_tickets()
TEXTS, LABELS = list(TICKETS.train.texts), list(TICKETS.train.labels)
PROMPTS = ["<input> So <mask>.", "<input> The <mask>"]
VOCABULARY, SIZE = 5000, 2 * 5000


@pytest.fixture
def lm(tmp_path):
    with MeteredBackend(FakeBackend(vocabulary_size=VOCABULARY), tmp_path / "run", 4) as metered:
        yield metered


def fitted(lm, screen=20, texts=TEXTS, labels=LABELS, **parameters):
    clf = PromptBoostingClassifier(lm, PROMPTS, screen=screen, random_state=1, progress=False, **parameters)
    return clf.fit(texts, labels)


def sent(lm):
    return len(lm.backend.asked)


def stored(lm):
    return sum(size for (size,) in lm.ledger.reader().select("SELECT length(value) FROM Cache"))


def test_all_but_a_pilot_keep_the_likely_tokens_alone(lm):
    clf = fitted(lm)
    kept = len(clf.screen_.tokens)
    assert clf.screen_.texts == 20
    assert 1000 <= kept <= 2000
    assert clf.facts_.screened_tokens == kept
    assert sent(lm) == 2 * len(TEXTS)  # one pass per text and prompt, as ever
    in_full, others = 2 * 20, 2 * (len(TEXTS) - 20)
    assert stored(lm) == in_full * (36 + SIZE) + others * (36 + 2 * kept) + 8 * kept
    assert lm.ledger.verify()


def test_it_learns_what_it_learns_from_whole_answers_where_it_reads_the_same_tokens(lm, tmp_path):
    """The fake's tokens are nearly alike, so which are likeliest is chance; with few texts left out, it is the same."""
    screened = fitted(lm, screen=len(TEXTS) - 1)
    with MeteredBackend(FakeBackend(vocabulary_size=VOCABULARY), tmp_path / "whole", 4) as other:
        whole = fitted(other, screen=0)
        assert whole.screen_ is None
        texts = TICKETS.test.texts[:40]
        assert np.allclose(screened.predict_proba(texts), whole.predict_proba(texts), atol=1e-6)


def test_small_fits_are_not_screened(lm):
    assert fitted(lm, screen=None).screen_ is None
    assert stored(lm) == 2 * len(TEXTS) * (36 + SIZE)


def test_another_order_or_seed_asks_nothing_new(lm):
    fitted(lm)
    before = sent(lm)
    clf = PromptBoostingClassifier(lm, PROMPTS, screen=20, random_state=7, progress=False)
    clf.fit(TEXTS[::-1], LABELS[::-1])
    assert sent(lm) == before


def test_a_part_of_the_texts_and_more_of_them_use_the_same_screen(lm):
    clf = fitted(lm)
    before, names = sent(lm), [sorted(tokens.tolist()) for tokens in lm.token_sets()]
    part = fitted(lm, texts=TEXTS[:50], labels=LABELS[:50])
    assert (part.screen_.tokens == clf.screen_.tokens).all()
    new_to_the_pilot = sent(lm) - before
    assert 0 < new_to_the_pilot <= 2 * 20
    part.add(TEXTS[50:], LABELS[50:])
    assert sent(lm) == before + new_to_the_pilot
    assert [sorted(tokens.tolist()) for tokens in lm.token_sets()] == names


def test_the_budget_is_refused_as_a_whole_before_the_pilot(tmp_path):
    budget = QueryBudget(passes=2, total=2 * len(TEXTS) - 1)
    with MeteredBackend(FakeBackend(vocabulary_size=VOCABULARY), tmp_path, budget) as lm:
        with pytest.raises(BudgetExceeded):
            fitted(lm)
        assert sent(lm) == 0
        assert lm.ledger.verify()


def test_what_is_known_needs_no_budget(tmp_path):
    budget = QueryBudget(passes=2, attempts=2 * len(TEXTS))
    with MeteredBackend(FakeBackend(vocabulary_size=VOCABULARY), tmp_path, budget) as lm:
        fitted(lm)
        fitted(lm)
        assert sent(lm) == 2 * len(TEXTS)


def test_a_plan_knows_what_the_fit_takes_and_that_nothing_is_left_afterwards(lm):
    clf = PromptBoostingClassifier(lm, PROMPTS, screen=20, random_state=1, progress=False)
    (planned,) = plan_classifier(clf, (TEXTS, LABELS)).steps
    assert (planned.passes, planned.in_full) == (2 * len(TEXTS), 2 * 20)
    assert "asked in full" in str(plan_classifier(clf, (TEXTS, LABELS)))
    clf.fit(TEXTS, LABELS)
    assert 0.7 * planned.bytes_stored < stored(lm) <= planned.bytes_stored
    (again,) = plan_classifier(clf, (TEXTS, LABELS)).steps
    assert (again.passes, again.attempts, again.recalled, again.bytes_stored) == (0, 0, 2 * len(TEXTS), 0)


def test_scoring_keeps_what_training_would_need(lm):
    clf = fitted(lm)
    before = stored(lm)
    clf.score(TICKETS.test.texts[:10], TICKETS.test.labels[:10])
    assert stored(lm) - before == 2 * 10 * (36 + 2 * len(clf.screen_.tokens))


def test_scoring_with_a_saved_classifier_keeps_what_it_reads(lm, tmp_path):
    fitted(lm).save(tmp_path / "model.json")
    loaded = PromptBoostingClassifier.load(tmp_path / "model.json", lm)
    before = stored(lm)
    loaded.score(TICKETS.test.texts[:10], TICKETS.test.labels[:10])
    assert stored(lm) - before <= 2 * 10 * (36 + 2 * len(loaded.fitted_.tokens)) + 8 * len(loaded.fitted_.tokens)


def test_a_recording_replays_bit_for_bit(lm, tmp_path):
    clf = fitted(lm)
    Recording.of(lm).save(tmp_path / "fit.pbrec")
    with MeteredBackend(ReplayBackend(tmp_path / "fit.pbrec"), tmp_path / "replayed", 4) as replayed:
        again = fitted(replayed)
        texts = TEXTS[:10]
        assert (again.screen_.tokens == clf.screen_.tokens).all()
        assert (again.predict_proba(texts) == clf.predict_proba(texts)).all()


def test_several_labels_are_screened_too(lm):
    clf = MultiLabelPromptClassifier(lm, PROMPTS, head="soft", screen=20, random_state=1, progress=False)
    clf.fit(TEXTS, [{label} for label in LABELS])
    assert clf.screen_.texts == 20


def test_words_that_boosting_finds_are_among_the_kept(lm):
    clf = fitted(lm, head="boosting", rounds=20)
    assert np.isin(clf.fitted_.tokens, clf.screen_.tokens).all()


@pytest.mark.parametrize("screen", [-1, 2.5, True, "all"])
def test_a_screen_that_is_no_count_is_refused(lm, screen):
    with pytest.raises(InputError, match="screen must be"):
        fitted(lm, screen=screen)
