"""Lots: passes inside a model, many to a record, counted exactly, refused in time, and verified like everything else."""

import json
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from pbsdk import QueryBudget
from pbsdk.audit.certificate import Certificate
from pbsdk.backend import MaskedQuery, Part, digest
from pbsdk.errors import BudgetExceeded, InputError, LedgerCorrupted, LedgerError
from pbsdk.ledger.folder_view import DATABASE
from pbsdk.ledger.lots import Lot, LotSums
from pbsdk.ledger.shares import Member
from pbsdk.ledger.writer import verify_run
from pbsdk.metering.meter import MeteredBackend
from pbsdk.metering.passes import PassMeter
from pbsdk.testing import FakeBackend

SCRIPT = Path(__file__).parents[2] / "docs" / "verify_ledger.py"
EXAMPLES = [digest(str(number)) for number in range(6)]


def opened(folder, **limits):
    return MeteredBackend(FakeBackend(), folder, QueryBudget(passes=3, **limits))


def query(number):
    return MaskedQuery((Part("input", f"text {number}"), Part("mask")), digest(f"text {number}"), "a prompt")


def charged(folder):
    """A run of queries and lots, and the certificate of its first half."""
    lm = opened(folder, forward=5, backward=2)
    lm.fill([query(1), query(2)])
    meter = PassMeter(lm.ledger, "bbt: desk, draw 13")
    meter.charge(dict.fromkeys(EXAMPLES, 2), dict.fromkeys(EXAMPLES[:3], 1), tokens=100)
    half = Certificate.of(folder)
    meter.charge({EXAMPLES[0]: 3, EXAMPLES[1]: 1}, tokens=10)
    PassMeter(lm.ledger, "dart: desk, draw 13").charge({EXAMPLES[5]: 1})
    return lm, half


def test_every_pass_of_every_example_is_counted(tmp_path):
    lm, _ = charged(tmp_path)
    with lm.ledger.reader() as reader:
        sums = LotSums(reader)
        forward = dict(zip(EXAMPLES, (5, 3, 2, 2, 2, 3), strict=True))
        assert sums.passes_of("forward") == forward
        assert sums.passes_of("backward") == Counter(EXAMPLES[:3])
        assert (sums.total, sums.tokens) == (20, 110)
        assert LotSums(reader, method="dart: desk, draw 13").total == 1
    report = lm.audit()
    phases = {phase.phase: phase for phase in report.phases}
    assert [phases[name].passes for name in ("train", "forward", "backward")] == [2, 17, 3]
    assert [phases[name].passes_an_example for name in ("forward", "backward")] == [5, 1]
    assert {(pair.passes, pair.examples) for pair in phases["forward"].distribution} == {(2, 3), (3, 2), (5, 1)}
    assert {prompt.prompt: prompt.passes for prompt in report.prompts} == {
        "a prompt": 2, "bbt: desk, draw 13": 19, "dart: desk, draw 13": 1
    }  # fmt: skip
    totals = {total.name: total.used for total in report.totals}
    assert (totals["passes"], totals["attempts"]) == (22, 22)
    assert "5 of 5 passes per example (forward)" in report.verdict
    assert "1 of 2 passes per example (backward)" in report.verdict
    assert "passes per example (forward)" in str(report)
    assert "forward" in report.to_html()


def test_a_lot_is_one_record_however_many_passes_it_has(tmp_path):
    lm = opened(tmp_path)
    before = lm.audit().records
    PassMeter(lm.ledger, "bbt").charge(dict.fromkeys(EXAMPLES, 8000))
    assert lm.audit().records == before + 1
    assert lm.audit().phases[0].passes == 48000
    assert lm.ledger.verify().records == before + 1


@pytest.mark.parametrize(
    ("limits", "what"),
    [
        ({"forward": 4}, r"forward, inside the model: 5 more asked for one where 4 are left.*QueryBudget\(forward=5\)"),
        ({"backward": 4}, r"backward, inside the model"),
        ({"total": 9}, "9 passes in all"),
        ({"tokens": 9}, "9 tokens in all"),
        ({"money": 9.0, "price_per_pass": 1.0}, "9 units of currency"),
    ],
)
def test_a_budget_refuses_before_anything_runs_and_nothing_is_written(tmp_path, limits, what):
    lm = opened(tmp_path, **limits)
    meter, before = PassMeter(lm.ledger, "bbt"), lm.audit().records
    with pytest.raises(BudgetExceeded, match=what):
        meter.charge({EXAMPLES[0]: 5}, {EXAMPLES[0]: 5}, tokens=10)
    assert lm.audit().records == before
    with pytest.raises(LedgerError, match="was not charged"):
        meter.spend("forward", EXAMPLES[:1])


def test_lots_that_are_charged_together_share_an_examples_limit(tmp_path):
    lm = opened(tmp_path, forward=5)
    lots = [Lot("forward", method, {EXAMPLES[0]: 3}) for method in ("bbt", "dart")]
    with pytest.raises(BudgetExceeded, match="6 more asked for one where 5 are left"):
        lm.ledger.charge(lots)
    lm.ledger.charge(lots[:1])


def test_what_runs_must_have_been_charged(tmp_path):
    meter = PassMeter(opened(tmp_path).ledger, "bbt")
    meter.charge({EXAMPLES[0]: 2})
    meter.spend("forward", [EXAMPLES[0]])
    assert meter.unspent == 1
    for phase, example in (("backward", EXAMPLES[0]), ("forward", EXAMPLES[1])):
        with pytest.raises(LedgerError, match=f"a {phase} pass of example {example} was not charged"):
            meter.spend(phase, [example])
    with pytest.raises(LedgerError, match="no ledger"):
        PassMeter(None, "bbt").charge({EXAMPLES[0]: 1})


def test_two_processes_cannot_both_have_the_last_pass(tmp_path):
    one, other = (PassMeter(opened(tmp_path, forward=3).ledger, name) for name in ("bbt", "dart"))
    one.charge({EXAMPLES[0]: 2})
    with pytest.raises(BudgetExceeded, match="1 are left"):
        other.charge({EXAMPLES[0]: 2})
    other.charge({EXAMPLES[0]: 1})


def test_each_session_is_judged_by_the_limits_that_it_had(tmp_path):
    with opened(tmp_path, forward=2) as lm:
        PassMeter(lm.ledger, "bbt").charge({EXAMPLES[0]: 2})
    with opened(tmp_path, forward=9) as lm:
        PassMeter(lm.ledger, "bbt").charge({EXAMPLES[0]: 6})
        report = lm.audit()
    assert [held.within for held in report.held] == [True, True]
    assert ["2 of 2 passes per example (forward)" in report.held[0].verdict, "8 of 9" in report.held[1].verdict] == [
        True
    ] * 2
    assert report.within_budget


def test_members_of_a_team_may_not_look_inside(tmp_path):
    lm = MeteredBackend(FakeBackend(), tmp_path, member=Member("ann", QueryBudget()))
    with pytest.raises(LedgerError, match="a run of your own"):
        PassMeter(lm.ledger, "bbt").charge({EXAMPLES[0]: 1})


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_no_query_is_asked_in_a_phase_of_passes_inside(phase):
    with pytest.raises(InputError, match=f"not asked in the phase {phase}"):
        MaskedQuery((Part("mask"),), "x", "y", phase)


def test_certificates_and_the_verifier_that_needs_no_pbsdk_count_the_same(tmp_path):
    lm, half = charged(tmp_path / "run")
    whole = Certificate.of(tmp_path / "run")
    assert whole.passes == {"fit": 2, "forward": 17, "backward": 3}
    assert whole.most == {"fit": 1, "forward": 5, "backward": 1}
    assert half.passes == {"fit": 2, "forward": 12, "backward": 3}
    half.check(tmp_path / "run")
    lm.ledger.export(tmp_path / "ledger.jsonl")
    for name, certificate in (("half", half), ("whole", whole)):
        certificate.save(tmp_path / name)
        done = subprocess.run(
            [sys.executable, SCRIPT, tmp_path / "ledger.jsonl", tmp_path / name],
            capture_output=True,
            text=True,
            check=True,
        )
        assert json.loads(done.stdout)["passes"] == whole.passes
    lines = (tmp_path / "ledger.jsonl").read_text().splitlines()
    top = json.loads(lines[0])
    group = next(name for name, text in top["prompts"].items() if "\n" in text)
    top["prompts"][group] = top["prompts"][group].split("\n")[0]
    (tmp_path / "less.jsonl").write_text("\n".join([json.dumps(top), *lines[1:]]) + "\n")
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path / "less.jsonl"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "was changed" in done.stderr


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (
            "UPDATE passes SET sent = sent - 1 WHERE scope = 'forward' AND sent = 5",
            "counters of passes inside the model",
        ),
        ("UPDATE totals SET passes = passes - 1", "totals"),
        ("UPDATE totals SET tokens = tokens - 1", "totals"),
        ("DELETE FROM names WHERE text LIKE '%' || char(10) || '%'", "the examples that it charges"),
        ("DELETE FROM names WHERE text LIKE 'dart%'", "name of its method is missing"),
        (
            "UPDATE names SET text = substr(text, 1, 32) WHERE text LIKE '%' || char(10) || '%'",
            "the examples that it charges",
        ),
    ],
)
def test_whatever_is_changed_is_found(tmp_path, change, what):
    lm, _ = charged(tmp_path)
    lm.close()
    with sqlite3.connect(tmp_path / DATABASE) as con:
        assert con.execute(change).rowcount >= 1
    con.close()
    with pytest.raises(LedgerCorrupted, match=what):
        verify_run(tmp_path)


def test_a_changed_count_breaks_the_chain(tmp_path):
    lm, _ = charged(tmp_path)
    lm.close()
    with sqlite3.connect(tmp_path / DATABASE) as con:
        trigger = con.execute("SELECT sql FROM sqlite_master WHERE name = 'records_hold'").fetchone()[0]
        con.execute("DROP TRIGGER records_hold")
        con.execute("UPDATE records SET attempt = 1 WHERE state = 'ran' AND attempt = 2")
        con.execute(trigger)
    con.close()
    with pytest.raises(LedgerCorrupted, match="doesn't match its hash"):
        verify_run(tmp_path)
