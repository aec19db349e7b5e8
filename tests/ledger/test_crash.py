"""Processes that die, and processes that share: nothing is paid twice, nothing is lost."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter

import pytest
from helpers.meter import grid, metered, query, rows, same, start, states

from pbsdk.errors import BudgetExceeded
from pbsdk.ledger.budget import QueryBudget
from pbsdk.ledger.verifier import verify_run
from pbsdk.metering.meter import MeteredBackend
from pbsdk.testing import FakeBackend

PATIENCE = 240


def _lines(*jobs):
    return [line.split() for job in jobs for line in job.communicate(timeout=PATIENCE)[0].splitlines()]


def _resumed(run, **more):
    return MeteredBackend(FakeBackend(vocabulary_size=20, batch_size=4), run, **more)


@pytest.mark.in_postgres
def test_a_killed_run_resumes_and_asks_only_for_what_is_missing(run):
    job = start("die", run, 10, 3, 4, 4)
    said = _lines(job)
    assert job.returncode == -signal.SIGKILL
    assert len(said) == 16
    lm = _resumed(run)
    assert states(lm) == {"reserved": 30, "sent": 16, "done": 12, "unknown": 4, "released": 14}
    assert rows(lm, "SELECT passes, held, sent FROM totals") == [(16, 0, 16)]
    verify_run(run)
    answers = lm.fill(grid(10, 3))
    assert [(q.example, q.prompt) for q in lm.backend.asked] == [(q.example, q.prompt) for q in grid(10, 3)[12:]]
    assert all(map(same, answers, FakeBackend(vocabulary_size=20).fill(grid(10, 3))))
    (report,) = lm.audit().phases
    assert (report.passes, report.attempts, report.unknown) == (30, 34, 4)
    verify_run(run)


def test_what_a_killed_run_had_sent_counts_as_spent(run):
    _lines(start("die", run, 1, 2, 4, 1))
    lm = _resumed(run, budget=2)
    with pytest.raises(BudgetExceeded, match="0 are left"):
        lm.fill([query(0, 5)])
    lm.fill(grid(1, 2))
    strict = _resumed(run, budget=QueryBudget(passes=3, strict=True))
    with pytest.raises(BudgetExceeded):
        strict.fill([query(0, 5)])


def test_a_run_killed_again_and_again_ends_with_the_same_answers(run):
    for call in (1, 3, 2):
        _lines(start("die", run, 6, 2, 1, call))
        verify_run(run)
    lm = _resumed(run)
    done = states(lm)["done"]
    assert done == 3
    assert all(map(same, lm.fill(grid(6, 2)), FakeBackend(vocabulary_size=20).fill(grid(6, 2))))
    assert len(lm.backend.asked) == 12 - done
    verify_run(run)


def test_processes_share_a_total_exactly(run):
    limit, workers, each = 60, 4, 25
    said = _lines(*[start("one_by_one", run, 1000 * n, each, limit) for n in range(workers)])
    counts = Counter(line[0] for line in said)
    assert counts == {"asked": limit, "refused": workers * each - limit}
    lm = _resumed(run)
    assert rows(lm, "SELECT passes, held, sent FROM totals") == [(limit, 0, limit)]
    verify_run(run)


def test_processes_that_want_the_same_pay_once(run):
    said = _lines(*[start("all_at_once", run, 12, 5, 3, 0.02) for _ in range(3)])
    assert set(Counter(map(tuple, said)).values()) == {1}
    assert len(said) == 60
    lm = _resumed(run)
    assert states(lm) == {"reserved": 60, "sent": 60, "done": 60, "hit": 120}
    verify_run(run)


@pytest.mark.in_postgres
def test_a_query_at_a_live_process_is_waited_for_and_taken_over_when_it_dies(run):
    other = start("hang", run, 1, 2)
    said = other.stdout.readline() + other.stdout.readline()
    assert said.count("asked") == 2
    lm = _resumed(run)
    assert "unknown" not in states(lm)
    answers = []
    waiting = threading.Thread(target=lambda: answers.extend(lm.fill(grid(1, 2))))
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    assert lm.backend.asked == []
    other.kill()
    other.communicate()
    waiting.join(PATIENCE)
    assert len(answers) == 2
    assert len(lm.backend.asked) == 2
    assert states(lm) == {"reserved": 4, "sent": 4, "unknown": 2, "done": 2}
    assert rows(lm, "SELECT passes FROM totals") == [(2,)]
    verify_run(run)


def test_sessions_of_the_dead_leave_no_files_behind(tmp_path):
    _lines(start("die", tmp_path, 1, 2, 4, 1))
    assert len(list((tmp_path / "sessions").iterdir())) == 1
    lm = metered(tmp_path, vocabulary_size=20)
    assert [path.stem for path in (tmp_path / "sessions").iterdir()] == [lm.ledger.session]
    lm.close()
    assert list((tmp_path / "sessions").iterdir()) == []


def test_a_dead_process_is_dead_even_if_a_child_of_its_lives_on(run):
    job = start("orphan", run)
    child = int(job.stdout.readline())
    try:
        assert job.wait(PATIENCE) == -signal.SIGKILL
        lm = _resumed(run)
        assert states(lm) == {"reserved": 2, "sent": 2, "unknown": 2}
        assert len(lm.fill(grid(1, 2))) == 2
    finally:
        os.kill(child, signal.SIGKILL)
        job.stdout.close()
