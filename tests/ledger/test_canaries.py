"""A model that changes behind its name is found, and its answers are not mixed with the old ones."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest
from helpers.meter import grid, rows

from pbsdk.backend import Phase
from pbsdk.errors import BackendUnavailable, BudgetExceeded, InputError, LedgerMismatch
from pbsdk.ledger.budget import QueryBudget
from pbsdk.ledger.canaries import TEXTS, TOLERANCE
from pbsdk.metering.meter import MeteredBackend
from pbsdk.metering.plan import Step, plan_steps
from pbsdk.testing import FakeBackend


class Provider(FakeBackend):
    """A model behind a name: what answers may change, what it says of itself does not."""

    def __init__(self, *, behind=0, longer=0, noise=0.0, **fake):
        super().__init__(vocabulary_size=60, seed=behind, **fake)
        self.identity = FakeBackend(vocabulary_size=60, seed=0, top=fake.get("top")).identity
        self._longer, self._noise = longer, noise

    def fill(self, queries, tokens=None):
        answers = [
            dataclasses.replace(a, read_tokens=a.read_tokens + self._longer) for a in super().fill(queries, tokens)
        ]
        if self._noise:
            return [dataclasses.replace(a, codes=(a.codes + np.uint16(self._noise * 1024))) for a in answers]
        return answers


def metered(run, canaries=True, budget=10, **provider):
    return MeteredBackend(Provider(**provider), run, budget, canaries=canaries, sleep=lambda _: None)


def probes(lm):
    return [query for query in lm.backend.asked if query.phase is Phase.PROBE]


def test_no_canary_is_asked_unless_told(tmp_path):
    lm = MeteredBackend(Provider(), tmp_path)
    lm.fill(grid(2, 2))
    assert probes(lm) == []
    assert lm.audit().canaries == []


def test_canaries_are_asked_before_anything_else_and_once(tmp_path):
    lm = metered(tmp_path)
    lm.fill(grid(2, 2))
    lm.fill(grid(3, 3))
    asked = [query.phase for query in lm.backend.asked]
    assert asked == [Phase.PROBE] * len(TEXTS) + [Phase.TRAIN] * 9
    lm.ledger.verify()


def test_a_run_that_asks_nothing_asks_no_canary(tmp_path):
    metered(tmp_path).fill(grid(2, 2))
    again = metered(tmp_path)
    again.fill(grid(2, 2))
    assert again.backend.asked == []


def test_they_are_passes_and_stand_in_the_report(tmp_path):
    lm = metered(tmp_path, budget=QueryBudget(price_per_pass=1.0))
    lm.fill(grid(1, 1))
    metered(tmp_path).fill(grid(1, 2))
    report = lm.audit()
    probe = next(phase for phase in report.phases if phase.phase == "probe")
    assert (probe.passes, probe.attempts, probe.examples, probe.money) == (3, 6, 3, 6.0)
    assert [(check.texts, check.distance, check.changed) for check in report.canaries] == [(3, 0.0, False)] * 2
    assert "the same" in str(report)
    lm.ledger.verify()


@pytest.mark.parametrize("change", [{"behind": 1}, {"longer": 1}, {"behind": 1, "top": 10}], ids=str)
def test_a_changed_model_is_refused_and_nothing_is_mixed(tmp_path, change):
    metered(tmp_path, top=change.get("top")).fill(grid(2, 2))
    changed = metered(tmp_path, **change)
    with pytest.raises(LedgerMismatch, match="not the one that this run began with"):
        changed.fill(grid(2, 3))
    assert len(probes(changed)) == len(changed.backend.asked) == 3
    with pytest.raises(LedgerMismatch):
        changed.fill(grid(2, 3))
    assert len(changed.backend.asked) == 3
    changed.fill(grid(2, 2))  # what is known may still be recalled
    report = changed.audit()
    assert [check.changed for check in report.canaries] == [False, True]
    assert report.phases[0].passes == 4
    assert "THE MODEL CHANGED" in str(report)
    assert "THE MODEL CHANGED" in report.to_html()
    assert rows(changed, "SELECT count(*) FROM inflight") == [(0,)]
    changed.ledger.verify()


def test_told_to_it_goes_on_with_a_warning(tmp_path):
    metered(tmp_path).fill(grid(2, 2))
    changed = metered(tmp_path, canaries="warn", behind=1)
    with pytest.warns(UserWarning, match="not the one"):
        changed.fill(grid(2, 3))
    assert changed.audit().phases[0].passes == 6


def test_a_change_in_the_middle_is_found_at_will_and_stops_the_run(tmp_path):
    lm = metered(tmp_path)
    lm.fill(grid(2, 2))
    assert not lm.check_canaries().changed
    lm._sender.backend = Provider(behind=1)
    found = lm.check_canaries()
    assert found.changed
    assert found.distance > TOLERANCE
    assert "apart" in found.describe()
    with pytest.raises(LedgerMismatch):
        lm.fill(grid(2, 3))


def test_at_will_needs_no_option(tmp_path):
    lm = metered(tmp_path, canaries=False)
    assert "as it did when the run began" in lm.check_canaries().describe()
    assert len(probes(lm)) == 3


def test_small_noise_is_no_change(tmp_path):
    metered(tmp_path).fill(grid(1, 1))
    noisy = metered(tmp_path, noise=0.01)
    noisy.fill(grid(1, 2))
    assert 0 < noisy.audit().canaries[-1].distance < TOLERANCE


def test_a_check_that_was_broken_off_is_no_baseline_for_texts_it_did_not_reach(tmp_path):
    failing = metered(tmp_path, batch_size=1, failures=[None, BackendUnavailable("down", retryable=False)])
    with pytest.raises(BackendUnavailable):
        failing.fill(grid(1, 1))
    lm = metered(tmp_path)
    lm.fill(grid(1, 1))
    assert [(check.texts, check.changed) for check in lm.audit().canaries] == [(1, False), (3, False)]
    lm.ledger.verify()


def test_canaries_are_charged_to_the_totals(tmp_path):
    lm = metered(tmp_path, budget=QueryBudget(total=4))
    with pytest.raises(BudgetExceeded):
        lm.fill(grid(1, 2))
    assert lm.backend.asked == []
    lm.fill(grid(1, 1))
    assert len(lm.backend.asked) == 4


def test_a_plan_has_them_too(tmp_path):
    lm = metered(tmp_path)
    canaries, step = plan_steps(lm, [Step("ask", grid(2, 2))]).steps
    assert (canaries.name, canaries.passes, canaries.requests, step.passes) == ("canaries", 3, 1, 4)
    lm.fill(grid(2, 2))
    report = lm.audit()
    assert sum(phase.passes for phase in report.phases) == 7
    assert [step.name for step in plan_steps(lm, [Step("ask", grid(2, 3))]).steps] == ["ask"]


def test_a_copy_in_another_process_keeps_the_option(tmp_path):
    lm = MeteredBackend(FakeBackend(), tmp_path, canaries="warn")
    assert lm.canaries == "warn"
    make, arguments = lm.__reduce__()
    assert make(*arguments).canaries == "warn"
    assert pickle.dumps(make)


def test_another_word_is_refused(tmp_path):
    with pytest.raises(InputError, match="canaries"):
        metered(tmp_path, canaries="maybe")
