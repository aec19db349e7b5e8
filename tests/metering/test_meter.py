"""The meter: recalls, charges, asks in order, retries, and gives what was stored."""

from __future__ import annotations

import copy
import pickle
import threading
from dataclasses import replace

import numpy as np
import pytest
from helpers.meter import grid, metered, query, rows, same, states
from helpers.tampering import edit

from pbsdk.backend import Abilities, MaskDistribution, MaskedLMBackend, OpenVocabulary, Phase
from pbsdk.errors import (
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    BadAnswer,
    BudgetExceeded,
    InputError,
    LedgerCorrupted,
    LedgerError,
    QueryRefused,
)
from pbsdk.ledger.budget import QueryBudget
from pbsdk.ledger.verifier import verify_run
from pbsdk.metering.meter import MeteredBackend
from pbsdk.testing import FakeBackend

TOKENS = np.array([3, 7, 20])


def test_the_meter_looks_like_the_model(tmp_path):
    backend = FakeBackend(vocabulary_size=50)
    lm = MeteredBackend(backend, tmp_path / "run")
    for name in ("identity", "vocabulary", "abilities", "mask_token"):
        assert getattr(lm, name) is getattr(backend, name)
    assert lm.count_tokens(query(1)) == backend.count_tokens(query(1))
    assert repr(lm) == f"MeteredBackend('fake', run={str(tmp_path / 'run')!r})"


@pytest.mark.in_postgres
def test_answers_are_the_models_and_a_replay_asks_nothing(run):
    queries = grid(5, 4)
    expected = FakeBackend(vocabulary_size=50).fill(queries)
    lm = metered(run, batch_size=3)
    assert all(map(same, lm.fill(queries), expected))
    assert lm.backend.calls == [3, 3, 3, 3, 3, 3, 2]
    assert lm.backend.asked == queries
    lm.close()
    again = metered(run)
    assert all(map(same, again.fill(queries), expected))
    assert again.backend.asked == []
    assert states(again) == {"reserved": 20, "sent": 20, "done": 20, "hit": 20}
    again.ledger.verify()


def test_a_query_twice_in_one_call_is_asked_once_and_hit_once(run):
    lm = metered(run, batch_size=2)
    one, two = query(1), query(2)
    answers = lm.fill([one, two, one, two, one])
    assert lm.backend.asked == [one, two]
    assert same(answers[0], answers[2])
    assert same(answers[1], answers[3])
    assert not same(answers[0], answers[1])
    assert states(lm)["hit"] == 3


def test_known_and_new_queries_mix_in_order(run):
    queries = grid(12, 5)
    lm = metered(run, batch_size=4)
    lm.fill(queries[::3])
    expected = FakeBackend(vocabulary_size=50).fill(queries)
    assert all(map(same, lm.fill(queries), expected))
    assert len(lm.backend.asked) == 60
    assert states(lm)["hit"] == 20


def test_an_empty_call_is_no_record(run):
    lm = metered(run)
    assert lm.fill([]) == []
    assert states(lm) == {}


def test_answers_come_while_later_batches_are_still_to_be_asked(run):
    lm = metered(run, batch_size=2)
    stream = lm.stream(grid(6, 1))
    next(stream)
    assert lm.backend.calls == [2]
    assert states(lm) == {"reserved": 6, "sent": 2, "done": 2}
    stream.close()
    assert states(lm) == {"reserved": 6, "sent": 2, "done": 2, "released": 4}
    assert rows(lm, "SELECT * FROM inflight") == []
    assert rows(lm, "SELECT passes, held, sent FROM totals") == [(2, 0, 2)]
    lm.ledger.verify()


def test_a_stream_never_begun_reserves_nothing(run):
    lm = metered(run)
    lm.stream(grid(3, 1)).close()
    assert states(lm) == {}


def test_two_streams_over_the_same_queries_in_one_thread_pay_once_and_never_wait(run):
    lm = metered(run, batch_size=2)
    queries = grid(5, 1)
    for one, two in zip(lm.stream(queries), lm.stream(queries[::-1]), strict=True):
        assert len(one.codes) == len(two.codes)
    assert sorted(q.example for q in lm.backend.asked) == sorted(q.example for q in queries)
    lm.ledger.verify()


def test_what_another_stream_reserved_for_another_phase_is_charged_to_whoever_sends_it(run):
    lm = metered(run, budget=QueryBudget(passes=2, predict=1), batch_size=2)
    training = lm.stream(grid(3, 2))
    next(training)
    lm.fill([query(2, 1, "predict")])
    lm.ledger.verify()
    with pytest.raises(BudgetExceeded, match="prediction"):
        lm.fill([query(2, 0, "predict")])
    assert len(list(training)) == 5
    assert [(phase.phase, phase.passes, phase.hits) for phase in lm.audit().phases] == [
        ("train", 5, 1),
        ("predict", 1, 0),
    ]
    assert rows(lm, "SELECT scope, sum(held), sum(sent) FROM passes GROUP BY scope ORDER BY scope") == [
        ("fit", 0, 5),
        ("predict", 0, 1),
    ]
    lm.ledger.verify()


def test_what_another_stream_reserved_without_a_limit_on_tokens_is_reserved_anew_under_one(run):
    free = metered(run, budget=None, batch_size=2)
    training = free.stream(grid(3, 1))
    next(training)
    with metered(run, budget=QueryBudget(passes=None, tokens=20)) as limited, pytest.raises(BudgetExceeded):
        limited.fill([query(2)])
    assert limited.backend.asked == []
    assert len(list(training)) == 2
    free.ledger.verify()


@pytest.mark.in_postgres
def test_a_batch_over_budget_is_refused_whole_and_sends_nothing(run):
    lm = metered(run, budget=3)
    with pytest.raises(BudgetExceeded, match=r"1 of 5 examples.*passes=4"):
        lm.fill([*grid(4, 3), *grid(5, 4)[16:]])
    assert lm.backend.asked == []
    assert states(lm) == {}
    lm.fill(grid(5, 3))
    with pytest.raises(BudgetExceeded):
        lm.fill([query(0, 3)])
    lm.fill([query(0, 0, "validate"), query(0, 9, "predict")])
    assert len(lm.backend.asked) == 16


def test_training_validation_and_refinement_share_a_scope_and_prediction_has_its_own(run):
    lm = metered(run, budget=QueryBudget(passes=3, predict=1))
    lm.fill([query(1, 0, "train"), query(1, 1, "validate"), query(1, 2, "refine"), query(1, 3, "predict")])
    for phase in ("train", "validate", "refine", "predict"):
        with pytest.raises(BudgetExceeded):
            lm.fill([query(1, 4, phase)])


def test_asking_again_for_other_tokens_is_another_attempt_not_another_pass(run):
    lm = metered(run, budget=1)
    lm.fill([query(1, 0, "predict")], TOKENS)
    lm.fill([query(1, 0, "predict")], np.array([1, 2]))
    (report,) = lm.audit().phases
    assert (report.passes, report.attempts) == (1, 2)


def test_strict_counts_it_as_another_pass(run):
    lm = metered(run, budget=QueryBudget(predict=1, strict=True))
    lm.fill([query(1, 0, "predict")], TOKENS)
    with pytest.raises(BudgetExceeded):
        lm.fill([query(1, 0, "predict")], np.array([1, 2]))


def test_a_higher_budget_on_the_same_folder_continues(run):
    metered(run, budget=1).fill([query(1, 0)])
    with pytest.raises(BudgetExceeded, match="0 are left"):
        metered(run, budget=1).fill([query(1, 1)])
    metered(run, budget=2).fill([query(1, 1)])


def test_tokens_are_narrowed_before_they_are_stored_and_mass_is_measured_before(run):
    lm = metered(run)
    (answer,) = lm.fill([query(1)], TOKENS)
    whole = FakeBackend(vocabulary_size=50).fill([query(1)])[0]
    assert same(answer, whole.narrowed(TOKENS))
    with lm.ledger.reader() as reader:
        assert list(reader.select("SELECT length(value) FROM stored WHERE key NOT LIKE 'tokens:%'")) == [(36 + 6,)]
    assert rows(lm, "SELECT mass FROM records WHERE state = 'done'") == [(1_000_000,)]
    lm.ledger.verify()


def test_a_whole_answer_or_one_to_more_tokens_serves_fewer(run):
    lm = metered(run)
    (whole,) = lm.fill([query(1)])
    (chosen,) = lm.fill([query(2)], TOKENS)
    assert same(lm.fill([query(1)], TOKENS)[0], whole.narrowed(TOKENS))
    assert same(lm.fill([query(2)], TOKENS[:2])[0], chosen.narrowed(TOKENS[:2]))
    assert len(lm.backend.asked) == 2
    lm.fill([query(2)], np.array([3, 8]))
    lm.fill([query(2)])
    assert len(lm.backend.asked) == 4


@pytest.mark.parametrize("tokens", [None, TOKENS, np.array([49])])
def test_a_top_answer_is_stored_censored_and_replayed_so(run, tokens):
    lm = metered(run, top=5)
    queries = grid(4, 2)
    first = lm.fill(queries, tokens)
    expected = FakeBackend(vocabulary_size=50, top=5).fill(queries)
    if tokens is not None:
        expected = [answer.narrowed(tokens) for answer in expected]
    assert all(map(same, first, expected))
    assert all(map(same, lm.fill(queries, tokens), expected))
    assert len(lm.backend.asked) == 8
    assert first[0].rest is not None
    if tokens is not None:
        assert [a.at(tokens).tolist() for a in first] == [
            a.at(tokens).tolist() for a in FakeBackend(vocabulary_size=50, top=5).fill(queries)
        ]
    assert 0 < rows(lm, "SELECT mass FROM records WHERE state = 'done'")[0][0] < 1_000_000
    lm.ledger.verify()


@pytest.mark.parametrize("tokens", [[], [3, 3], [5, 2], [-1, 2], [50], [1.5], [[1]]])
def test_tokens_that_make_no_sense_are_refused_before_anything_is_sent(run, tokens):
    lm = metered(run)
    with pytest.raises(InputError, match="token"):
        lm.fill([query(1)], np.array(tokens))
    assert lm.backend.asked == []


def test_what_is_retryable_is_asked_again_after_growing_waits(run):
    slept = []
    lm = metered(run, sleep=slept, failures=[BackendUnavailable("busy"), BackendUnavailable("busy")])
    lm.fill(grid(2, 1))
    assert len(lm.backend.calls) == 3
    assert 0.5 <= slept[0] <= 1.0 <= slept[1] <= 1.5
    assert states(lm) == {"reserved": 6, "sent": 6, "failed": 4, "done": 2}
    (report,) = lm.audit().phases
    assert (report.passes, report.attempts, report.failed, report.unknown) == (2, 6, 4, 0)
    assert rows(lm, "SELECT DISTINCT attempt FROM records WHERE state = 'done'") == [(3,)]
    lm.ledger.verify()


def test_the_wait_that_the_backend_names_is_kept(run):
    slept = []
    failures = [BackendUnavailable("busy", retry_after=7.25), BackendUnavailable("busy", retry_after=-1)]
    lm = metered(run, sleep=slept, failures=failures)
    lm.fill([query(1)])
    assert slept == [7.25, 0.0]


def test_a_wait_that_passes_the_deadline_is_refused(run):
    slept = []
    lm = metered(run, sleep=slept, deadline=10.0, failures=[BackendUnavailable("loading", retry_after=11)])
    with pytest.raises(BackendUnavailable, match="loading"):
        lm.fill([query(1)])
    assert slept == []
    waits = [BackendUnavailable("loading", retry_after=6)] * 3
    lm = metered(run, sleep=slept, deadline=10.0, failures=waits)
    with pytest.raises(BackendUnavailable):
        lm.fill([query(1)])
    assert slept == [6.0]
    assert rows(lm, "SELECT passes, held FROM totals") == [(0, 0)]


def test_retries_end_and_the_error_says_what_is_kept(run):
    failures = [None] + [BackendUnavailable("down")] * 3
    lm = metered(run, batch_size=2, retries=2, failures=failures)
    with pytest.raises(BackendUnavailable, match="down") as caught:
        lm.fill(grid(6, 1))
    assert caught.value.__notes__[-1].startswith("2 answers were returned; of 6 to ask for, 4 are missing")
    assert lm.backend.calls == [2, 2, 2, 2]
    assert rows(lm, "SELECT passes, held FROM totals") == [(2, 0)]
    lm.fill(grid(6, 1))
    assert lm.backend.calls[4:] == [2, 2]
    lm.ledger.verify()


def test_a_final_refusal_is_not_asked_again_and_gives_the_pass_back(run):
    lm = metered(run, budget=1, failures=[QueryRefused("no")])
    with pytest.raises(QueryRefused):
        lm.fill([query(1, 0)])
    assert len(lm.backend.calls) == 1
    lm.fill([query(1, 1)])
    lm.ledger.verify()


def test_a_time_out_stays_spent(run):
    lm = metered(run, budget=1, retries=0, failures=[BackendTimeout("late")])
    with pytest.raises(BackendTimeout):
        lm.fill([query(1, 0)])
    with pytest.raises(BudgetExceeded):
        lm.fill([query(1, 1)])
    lm.fill([query(1, 0)])
    (report,) = lm.audit().phases
    assert (report.passes, report.attempts, report.unknown) == (1, 2, 1)
    lm.ledger.verify()


@pytest.mark.in_postgres
def test_half_a_batch_that_succeeded_is_kept(run):
    queries = grid(4, 1)
    answers = FakeBackend(vocabulary_size=50).fill(queries)
    failure = BackendTimeout("late", answered={0: answers[0], 2: answers[2], 9: answers[0]})
    lm = metered(run, failures=[failure])
    assert all(map(same, lm.fill(queries), answers))
    assert lm.backend.calls == [4, 2]
    assert states(lm) == {"reserved": 6, "sent": 6, "unknown": 2, "done": 4}


def test_strict_charges_each_further_attempt_before_it_is_sent(run):
    budget = QueryBudget(passes=2, strict=True)
    lm = metered(run, budget=budget, failures=[BackendUnavailable("busy")] * 3)
    with pytest.raises(BudgetExceeded) as caught:
        lm.fill([query(1)])
    assert isinstance(caught.value.__cause__, BackendUnavailable)
    assert len(lm.backend.calls) == 2
    assert states(lm) == {"reserved": 2, "sent": 2, "failed": 2}
    lm.ledger.verify()


def test_attempts_are_limited_with_retries_included(run):
    lm = metered(run, budget=QueryBudget(attempts=3), failures=[None, BackendUnavailable("busy")])
    lm.fill([query(1)])
    lm.fill([query(2)])
    with pytest.raises(BudgetExceeded, match="attempts=4"):
        lm.fill([query(3)])
    lm = metered(run, budget=QueryBudget(attempts=4), failures=[BackendUnavailable("busy")])
    with pytest.raises(BudgetExceeded, match="attempts=5"):
        lm.fill([query(3)])
    assert len(lm.backend.calls) == 1


def test_the_last_attempt_raises_the_models_error_not_the_budgets(run):
    lm = metered(run, budget=QueryBudget(attempts=1), retries=0, failures=[BackendUnavailable("busy")])
    with pytest.raises(BackendUnavailable):
        lm.fill([query(1)])


class Charging(FakeBackend):
    """Counts tokens by the interface's default, and then reports what it is told to."""

    count_tokens = MaskedLMBackend.count_tokens
    most_tokens = MaskedLMBackend.most_tokens

    def __init__(self, reads=None, **options):
        super().__init__(vocabulary_size=50, **options)
        self.reads = reads

    def fill(self, queries, tokens=None):
        return [
            replace(answer, read_tokens=self.reads or answer.read_tokens) for answer in super().fill(queries, tokens)
        ]


def test_the_most_that_tokens_can_cost_is_reserved_and_what_was_read_is_settled(run):
    lm = MeteredBackend(Charging(), run, QueryBudget(tokens=100))
    most = lm.most_tokens(query(1))
    (answer,) = lm.fill([query(1)])
    assert most > lm.count_tokens(query(1)) > answer.read_tokens > 0
    assert rows(lm, "SELECT read FROM records WHERE state = 'reserved'") == [(most,)]
    assert rows(lm, "SELECT tokens FROM totals") == [(answer.read_tokens,)]
    with pytest.raises(BudgetExceeded, match=f"tokens in all doesn't allow it: up to {12 * most - most} more asked"):
        lm.fill(grid(4, 3))
    lm.ledger.verify()


@pytest.mark.parametrize(
    "limit", [{"tokens": 1500}, {"money": 1.5, "price_per_1k_tokens": 1.0}], ids=["tokens", "money"]
)
def test_a_model_that_reports_more_than_was_reserved_is_stopped_before_the_next_batch(run, limit):
    lm = MeteredBackend(Charging(reads=500, batch_size=2), run, QueryBudget(passes=None, **limit))
    with pytest.raises(BudgetExceeded) as refused:
        lm.fill(grid(20, 1))
    # Two batches cost 2,000; only the second went over the limit.
    assert lm.backend.calls == [2, 2]
    assert (refused.value.sent, refused.value.kept, refused.value.left) == (4, 4, 0)
    assert "4 queries were sent before that, retries included, and 4 answers came and are kept" in str(refused.value)
    assert len(lm.fill(grid(4, 1))) == 4
    with pytest.raises(BudgetExceeded):
        lm.fill([query(99)])
    assert lm.backend.calls == [2, 2]
    raised = QueryBudget(**{**lm.budget.to_dict(), refused.value.limit: refused.value.needed})
    lm.backend.reads = None
    assert len(MeteredBackend(lm.backend, run, raised).fill(grid(20, 1))) == 20
    lm.ledger.verify()


def test_a_batch_goes_on_as_long_as_what_is_left_covers_it(run):
    """Every answer costs a little more than was reserved: not all fit any more, but the next does."""
    probe = Charging()
    most = probe.most_tokens(query(1))
    lm = MeteredBackend(Charging(reads=most + 10, batch_size=1), run, QueryBudget(passes=None, tokens=9 * most))
    with pytest.raises(BudgetExceeded):
        lm.fill(grid(9, 1))
    used = lm.audit().totals[2].used
    assert len(lm.backend.calls) == 8 * most // (most + 10) + 1
    assert used <= 9 * most + 10


def test_what_is_counted_exactly_never_exceeds_a_limit(run):
    exact = FakeBackend(vocabulary_size=50, batch_size=4)
    each = exact.count_tokens(query(1))
    lm = MeteredBackend(exact, run, QueryBudget(passes=None, tokens=10 * each))
    with pytest.raises(BudgetExceeded, match=r"None of it was sent"):
        lm.fill(grid(11, 1))
    lm.fill(grid(10, 1))
    assert rows(lm, "SELECT tokens FROM totals") == [(10 * each,)]


def test_an_answer_that_does_not_say_what_it_read_costs_what_was_reserved(run):
    lm = MeteredBackend(Charging(), run, QueryBudget(tokens=1000))
    lm.backend.fill = lambda queries, tokens: [
        replace(answer, read_tokens=0) for answer in FakeBackend(vocabulary_size=50).fill(queries, tokens)
    ]
    lm.fill([query(1)])
    assert rows(lm, "SELECT tokens FROM totals") == [(lm.most_tokens(query(1)),)]


def test_money_is_limited(run):
    lm = metered(run, budget=QueryBudget(money=0.25, price_per_pass=0.1))
    with pytest.raises(BudgetExceeded, match="units of currency"):
        lm.fill(grid(3, 1))
    lm.fill(grid(2, 1))
    assert lm.audit().totals[-1].used == pytest.approx(0.2)


class Broken(FakeBackend):
    """Answers by a rule of the test's."""

    rule = None

    def fill(self, queries, tokens=None):
        return self.rule(super().fill(queries, tokens))


def broken(run, rule, **options):
    backend = Broken(vocabulary_size=50, batch_size=2)
    backend.rule = rule
    return MeteredBackend(backend, run, retries=1, sleep=lambda _: None, **options)


def _leak(_):
    raise RuntimeError("key=sk-123")


def test_a_foreign_exception_is_wrapped_and_counts_as_unknown(run):
    lm = broken(run, _leak)
    with pytest.raises(BackendError, match="RuntimeError") as caught:
        lm.fill(grid(2, 1))
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert "sk-123" not in str(caught.value)
    assert states(lm) == {"reserved": 2, "sent": 2, "unknown": 2}
    assert not rows(lm, "SELECT 1 FROM records WHERE note LIKE '%sk-123%'")


def _input_error(_):
    raise InputError("a text holds the mask")


def test_an_input_error_of_the_adapter_passes_through_and_costs_nothing(run):
    lm = broken(run, _input_error)
    with pytest.raises(InputError, match="mask"):
        lm.fill(grid(2, 1))
    assert states(lm) == {"reserved": 2, "sent": 2, "failed": 2}
    assert rows(lm, "SELECT passes FROM totals") == [(0,)]


def _with(**changes):
    def rule(answers):
        first = answers[0]
        fields = {"codes": first.codes, "tokens": first.tokens, "rest": first.rest, **changes}
        return [MaskDistribution(**fields), *answers[1:]]

    return rule


@pytest.mark.parametrize(
    "rule",
    [
        lambda answers: answers[:1],
        lambda answers: [*answers, answers[0]],
        lambda answers: [None, *answers[1:]],
        _with(codes=np.zeros(49, np.uint16)),
        _with(codes=np.zeros(50, np.int64)),
        _with(codes=np.zeros(2, np.uint16), tokens=np.array([1, 2])),
        _with(codes=np.zeros(2, np.uint16), tokens=np.array([1, 50]), rest=1),
        _with(codes=np.zeros(2, np.uint16), tokens=np.array([2, 1]), rest=1),
        _with(read_tokens=-1),
    ],
)
def test_an_answer_that_cannot_be_right_is_never_stored(run, rule):
    lm = broken(run, rule)
    with pytest.raises(BadAnswer):
        lm.fill(grid(2, 1))
    counts = states(lm)
    assert counts["sent"] == counts["unknown"] + counts.get("done", 0)
    assert counts.get("done", 0) <= 1
    lm.ledger.verify()


def test_an_answer_without_the_tokens_asked_for_is_bad(run):
    lm = broken(run, _with(codes=np.zeros(2, np.uint16), tokens=np.array([3, 7])))
    with pytest.raises(BadAnswer, match="tokens"):
        lm.fill([query(1)], TOKENS)


def _interrupt(_):
    raise KeyboardInterrupt


@pytest.mark.in_postgres
def test_an_interrupt_leaves_the_batch_unknown_and_the_rest_released(run):
    lm = broken(run, _interrupt)
    with pytest.raises(KeyboardInterrupt):
        lm.fill(grid(5, 1))
    assert states(lm) == {"reserved": 5, "sent": 2, "unknown": 2, "released": 3}
    lm.backend.rule = lambda answers: answers
    assert len(lm.fill(grid(5, 1))) == 5
    lm.ledger.verify()


@pytest.mark.in_postgres
def test_threads_that_want_the_same_pay_once(run):
    lm = metered(run, batch_size=3)
    lm.backend._latency, lm.backend._sleep = 0.01, threading.Event().wait
    queries = grid(10, 3)
    expected = FakeBackend(vocabulary_size=50).fill(queries)
    wrong = []

    def work(order):
        answers = dict(zip([q.content for q in queries[::order]], lm.fill(queries[::order]), strict=True))
        wrong.extend(q for q, e in zip(queries, expected, strict=True) if not same(answers[q.content], e))

    threads = [threading.Thread(target=work, args=(order,)) for order in (1, -1, 1, -1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(lm.backend.asked) == 30
    assert states(lm) == {"reserved": 30, "sent": 30, "done": 30, "hit": 90}
    lm.ledger.verify()


@pytest.mark.in_postgres
def test_threads_share_a_total_exactly(run):
    lm = metered(run, budget=QueryBudget(passes=None, total=37))
    refused = []

    def work(first):
        for i in range(first, first + 20):
            try:
                lm.fill([query(i)])
            except BudgetExceeded:
                refused.append(i)

    threads = [threading.Thread(target=work, args=(first,)) for first in (0, 100, 200, 300)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lm.backend.asked) == 37
    assert len(refused) == 80 - 37
    lm.ledger.verify()


def test_waiting_for_another_ends_at_the_deadline(run):
    lm = metered(run, deadline=0.05)
    blocked, go = threading.Event(), threading.Event()

    class Stuck(FakeBackend):
        def fill(self, queries, tokens=None):
            blocked.set()
            go.wait(60)
            return super().fill(queries, tokens)

    other = MeteredBackend(Stuck(vocabulary_size=50), run)
    thread = threading.Thread(target=other.fill, args=([query(1)],))
    thread.start()
    blocked.wait(60)
    try:
        with pytest.raises(BackendUnavailable, match="another process"):
            lm.fill([query(1)])
    finally:
        go.set()
        thread.join()
    assert len(lm.fill([query(1)])) == 1
    assert lm.backend.asked == []


@pytest.mark.in_postgres
def test_copies_share_the_meter_and_a_pickled_one_opens_the_folder_again(run):
    lm = metered(run)
    assert copy.deepcopy(lm) is lm
    lm.fill([query(1)])
    again = pickle.loads(pickle.dumps(MeteredBackend(Picklable(), lm.ledger.folder, lm.budget)))
    assert again.ledger.session != lm.ledger.session
    assert again.budget == lm.budget
    again.fill([query(1)])
    assert states(lm)["hit"] == 1


class Picklable(FakeBackend):
    """A fake that can be sent to another process."""

    def __init__(self):
        super().__init__(vocabulary_size=50)

    def __reduce__(self):
        return Picklable, ()


@pytest.mark.parametrize("wrong", [{"retries": -1}, {"retries": 1.5}, {"deadline": 0}, {"deadline": "5"}])
def test_settings_that_make_no_sense_are_refused(tmp_path, wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        MeteredBackend(FakeBackend(), tmp_path / "run", **wrong)
    assert not (tmp_path / "run").exists()


def test_a_closed_meter_says_so_and_closing_twice_is_fine(run):
    closed = []
    with metered(run) as lm:
        lm.backend.close = lambda: closed.append(1)
        stream = lm.stream(grid(50, 1))
        next(stream)
    lm.close()
    assert closed == [1, 1]
    with pytest.raises(LedgerError, match="closed"):
        lm.fill([query(99)])
    stream.close()


def test_phases_and_batch_sizes_come_from_the_queries_and_the_model(run):
    lm = metered(run)
    lm.abilities = Abilities(batch_size=1)
    lm.fill([query(1, phase=phase) for phase in ("train", "refine")])
    assert lm.backend.calls == [1]
    assert rows(lm, "SELECT phase, state FROM records WHERE phase <> '' AND state IN ('done', 'hit')") == [
        (Phase.TRAIN, "done"),
        (Phase.REFINE, "hit"),
    ]


class _Words(FakeBackend):
    """A provider that shows words, and no numbers for them."""

    def __init__(self, **options):
        super().__init__(top=5, **options)
        self.known, self.vocabulary = self.vocabulary, OpenVocabulary()

    def fill(self, queries, tokens=None):
        return [
            MaskDistribution.from_logprobs(
                answer.logprobs, [self.vocabulary.token_of(self.known[token]) for token in answer.tokens], top=True
            )
            for answer in super().fill(queries, tokens)
        ]


@pytest.mark.in_postgres
def test_the_words_of_an_open_vocabulary_are_kept_with_the_answers(run):
    with MeteredBackend(_Words(), run) as lm:
        first = lm.fill([query(1)])[0]
        said = [lm.vocabulary[token] for token in first.tokens.tolist()]
    replay = _Words()
    with MeteredBackend(replay, run) as lm:
        again = lm.fill([query(1)])[0]
        assert replay.asked == []
        assert [lm.vocabulary[token] for token in again.tokens.tolist()] == said
        narrow = lm.fill([query(2)], again.tokens[:2])[0]
        assert narrow.rest is not None
    assert verify_run(run).records
    one, other = first.tokens[:2].tolist()
    swapped = f"CASE token WHEN {one} THEN ? WHEN {other} THEN ? ELSE word END"
    edit(run, (f"UPDATE words SET word = {swapped}", said[1], said[0]))
    with pytest.raises(LedgerCorrupted, match="the words of the vocabulary"):
        verify_run(run)


def test_the_mass_seen_is_of_what_a_provider_shows_and_not_of_what_was_asked_for(tmp_path):
    with metered(tmp_path / "top", top=5) as lm:
        shown = lm.fill([query(1)])[0].mass
        assert lm.audit().phases[0].mass_seen == pytest.approx(shown, abs=1e-3)
    with metered(tmp_path / "chosen", chosen=True) as lm:
        lm.fill([query(1)], np.array([1, 2]))
        assert lm.audit().phases[0].mass_seen is None


def test_probes_and_generation_have_no_limit_an_example_but_count_in_all(run):
    with metered(run, budget=QueryBudget(passes=1, predict=1, total=7)) as lm:
        lm.fill(grid(1, 3, "probe"))
        lm.fill([query(1, j, "generate") for j in range(3)])
        lm.fill([query(2)])
        with pytest.raises(BudgetExceeded, match="7 passes in all"):
            lm.fill([query(3, 0, "probe")])
    assert verify_run(run).records
