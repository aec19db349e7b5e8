"""What `make soak` does at length, in brief."""

from __future__ import annotations

import pytest
from soak import Broken, crowd, disk, faulty, gate, growth, kills, promise


def test_a_promise_that_is_not_kept_is_an_error():
    promise(True, "fine")
    with pytest.raises(Broken, match="not fine"):
        promise(False, "not fine")


def test_killed_runs_lose_nothing_and_give_the_same_classifier():
    found = kills.run(4)
    assert found["killed"] + found["interrupted"] >= 4
    assert found["runs that came to their end"] >= 1


def test_a_crowd_keeps_to_one_budget_and_pays_once():
    found = crowd.run(2, 4, seconds=2, total=24)
    assert found["passes"] <= 24
    assert found["answers"] >= found["passes"]


def test_a_faulty_server_costs_attempts_and_no_answer():
    found = faulty.run(12, 2)
    assert found["faults"] > 0
    assert found["attempts"] >= found["requests"] > found["queries"] - found["faults"]


def test_a_team_at_two_gates_gets_its_allowances_and_not_one_pass_more():
    found = gate.run(1, processes=4, threads=2, allowance=8)
    assert found["passes"] <= 24
    assert found["answers"] >= found["passes"]


@pytest.mark.skipif(bool(disk.can_run()), reason=disk.can_run())
def test_a_failing_disk_loses_no_answer_and_no_budget():
    found = disk.run(step=97)
    assert found["strikes"] > 15


def test_a_growing_folder_stays_as_fast():
    *rows, verified = growth.run(4000, 1000)
    assert len(rows) == 4
    assert verified["verified"] == 4000
