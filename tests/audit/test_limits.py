"""Which limits held when: each session is judged by its own."""

from __future__ import annotations

import pytest
from helpers.meter import grid, metered, query, states

from pbsdk.audit.report import AuditReport
from pbsdk.errors import BackendUnavailable, BudgetExceeded
from pbsdk.ledger.budget import QueryBudget
from pbsdk.metering.meter import MeteredBackend
from pbsdk.metering.plan import Step, plan_steps
from pbsdk.testing import FakeBackend


def ask(run, budget, *lots, **fake):
    with metered(run, budget=budget, **fake) as lm:
        for lot in lots:
            lm.fill(lot)
        return lm.audit()


def test_a_plan_under_other_limits_leaves_the_verdict_alone(tmp_path):
    fitted = ask(tmp_path, 10, grid(3, 8))
    with metered(tmp_path, budget=2) as lm:
        assert not plan_steps(lm, [Step("more", grid(3, 10))]).allowed
        assert "8 of 10 passes per example (fit), 2 left" in lm.audit().verdict
    report = AuditReport.read(tmp_path)
    assert (report.verdict, report.budget, report.held) == (fitted.verdict, fitted.budget, fitted.held)
    assert "8 of 10 passes per example (fit), 2 left" in report.verdict
    assert [limits.queries for limits in report.held] == [24]


def test_a_prediction_under_other_limits_is_held_to_its_own_and_the_fit_to_its_own(tmp_path):
    ask(tmp_path, 10, grid(3, 8))
    here = ask(tmp_path, 2, [query(20 + i, j, "predict") for i in range(5) for j in range(2)])
    there = AuditReport.read(tmp_path)
    for report in (here, there):
        assert report.within_budget
        assert [(scope.most, scope.limit) for scope in report.scopes] == [(8, 10), (2, 2)]
        assert [limits.queries for limits in report.held] == [24, 10]
        first, second = report.held
        assert first.until <= second.since
        assert "8 of 10 passes per example (fit)" in first.verdict
        assert "2 of 2 passes per example (predict), 0 left" in second.verdict
        for form in (str(report), report.to_markdown(), report.to_html()):
            assert "24 queries sent" in form
            assert "10 queries sent" in form


def test_a_lower_limit_later_does_not_judge_what_was_asked_before(tmp_path):
    ask(tmp_path, 8, grid(2, 8))
    report = ask(tmp_path, 3, [query(9, j) for j in range(3)])
    assert report.within_budget
    assert (report.scopes[0].most, report.scopes[0].limit) == (8, 8)
    assert "3 of 3 passes per example (fit)" in report.held[1].verdict
    with pytest.raises(BudgetExceeded):
        ask(tmp_path, 3, [query(9, 3)])


def test_a_raised_limit_shows_beside_the_first(tmp_path):
    ask(tmp_path, 4, grid(2, 4))
    report = ask(tmp_path, 6, grid(2, 6))
    assert ["4 of 4 passes per example (fit)" in report.held[0].verdict, report.held[0].within] == [True, True]
    assert "6 of 6 passes per example (fit)" in report.held[1].verdict
    assert "6 of 6 passes per example (fit)" in report.verdict


def test_who_is_over_a_limit_stays_over_it_whoever_comes_later(tmp_path):
    class Dear(FakeBackend):
        """Reports more tokens than it said that it would."""

        def count_tokens(self, query):
            return 1

    lm = MeteredBackend(Dear(batch_size=2), tmp_path, QueryBudget(tokens=10))
    lm.fill(grid(2, 1))
    lm.close()
    first = AuditReport.read(tmp_path)
    assert not first.within_budget
    report = ask(tmp_path, QueryBudget(tokens=1000), grid(1, 3, "predict"), vocabulary_size=1000)
    assert [limits.within for limits in report.held] == [False, True]
    assert not report.within_budget
    assert report.verdict.startswith("OVER BUDGET: 16 of 10 tokens in all, 6 over (limits from ")


def test_totals_are_judged_as_they_were_when_the_session_last_asked(tmp_path):
    priced = QueryBudget(passes=None, total=5, money=0.5, price_per_pass=0.1)
    ask(tmp_path, priced, grid(5, 1))
    report = ask(tmp_path, QueryBudget(total=50), grid(10, 2))
    first, second = (limits.verdict for limits in report.held)
    assert "5 of 5 passes in all, 0 left; 0.50 of 0.50 money in all, 0 left" in first
    assert "20 of 50 passes in all, 30 left" in second
    assert report.within_budget


@pytest.mark.parametrize("strict", [False, True])
def test_sends_that_did_not_run_are_given_back_in_each_session_s_account(tmp_path, strict):
    budget = QueryBudget(passes=2, strict=strict)
    ask(tmp_path, budget, grid(1, 1), failures=[BackendUnavailable("busy")])
    report = ask(tmp_path, 9, grid(1, 4))
    assert f"{2 if strict else 1} of 2 passes per example (fit)" in report.held[0].verdict
    assert "4 of 9 passes per example (fit)" in report.held[1].verdict


def test_both_ways_of_counting_agree(tmp_path):
    """What one session asked alone is counted from the totals, and beside another from the records."""
    failures = [None, BackendUnavailable("busy")]
    ask(
        tmp_path,
        QueryBudget(attempts=40),
        grid(4, 3),
        [query(20 + i, 0, "predict") for i in range(4)],
        failures=failures,
        batch_size=4,
    )
    alone = AuditReport.read(tmp_path).held[0]
    ask(tmp_path, 9, [query(8, 0)])
    beside = AuditReport.read(tmp_path).held[0]
    assert beside.verdict == alone.verdict
    assert "20 of 40 attempts in all" in alone.verdict


def test_two_sessions_at_once_are_judged_by_what_was_theirs(tmp_path):
    wide, narrow = metered(tmp_path, budget=4), metered(tmp_path, budget=1)
    stream = wide.stream(grid(1, 4))
    narrow.fill([query(5)])
    next(stream)
    stream.close()
    narrow.fill(grid(1, 4))  # all of it was asked and charged by the other
    report = narrow.audit()
    assert states(narrow)["hit"] == 4
    assert report.within_budget
    assert "1 of 1 passes per example (fit)" in report.held[-1].verdict + report.held[0].verdict
