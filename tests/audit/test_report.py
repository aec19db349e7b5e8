"""The report: numbers that are right, forms that can be read."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from helpers.meter import grid, metered, query, rows
from helpers.tampering import unguarded
from pydantic import ValidationError
from rich.console import Console

from pbsdk.audit.report import AuditReport
from pbsdk.backend import MaskedQuery, ModelIdentity, Part
from pbsdk.errors import BackendTimeout, BackendUnavailable, LedgerError
from pbsdk.ledger.budget import QueryBudget
from pbsdk.ledger.writer import QueryLedger
from pbsdk.queries.examples import Example
from pbsdk.queries.templates import Template


@pytest.fixture
def lm(tmp_path):
    failures = [None, BackendUnavailable("busy"), BackendTimeout("late")]
    lm = metered(tmp_path / "run", batch_size=4, failures=failures, top=10)
    lm.fill(grid(2, 4))  # a batch; a batch that failed, timed out, and came
    lm.fill([query(i, j, "validate") for i in (1, 5) for j in (0, 9)])
    lm.fill(grid(2, 4))
    lm.fill([query(i, j, "predict") for i in (6, 7, 8) for j in (0, 1)], np.array([1, 2]))
    return lm


def test_the_numbers_are_right(lm):
    report = lm.audit()
    train, validate, predict = report.phases
    assert train.model_dump(exclude={"tokens_read", "mass_seen", "latency", "seconds", "throughput"}) == {
        "phase": "train", "examples": 2, "prompts": 4, "passes": 8, "passes_an_example": 4,
        "distribution": [{"passes": 4, "examples": 2}], "limit": 10, "hits": 8, "attempts": 16,
        "failed": 4, "unknown": 4, "texts_cut": 0, "money": None,
    }  # fmt: skip
    answers = lm.backend.fill(grid(2, 4))
    assert train.tokens_read == sum(answer.read_tokens for answer in answers)
    assert train.mass_seen == pytest.approx(np.mean([answer.mass for answer in answers]), abs=1e-6)
    assert (validate.examples, validate.passes, validate.passes_an_example, validate.hits) == (2, 3, 2, 1)
    assert (predict.examples, predict.prompts, predict.passes, predict.passes_an_example) == (3, 2, 6, 2)
    fit, own = report.scopes
    assert (fit.examples, fit.passes, fit.most, fit.limit, fit.left) == (3, 11, 5, 10, 5)
    assert [(pair.passes, pair.examples) for pair in fit.distribution] == [(2, 1), (4, 1), (5, 1)]
    assert (own.examples, own.passes, own.most, own.limit, own.left) == (3, 6, 2, 10, 8)
    assert {total.name: total.used for total in report.totals} == {
        "passes": 17,
        "attempts": 25,
        "tokens": sum(p.tokens_read for p in report.phases),
    }


def test_the_report_needs_the_folder_alone_and_limits_that_nothing_was_asked_under_change_nothing(lm):
    report = lm.audit()
    lm.close()
    assert AuditReport.read(lm.ledger.folder) == report
    QueryLedger(lm.ledger.folder, lm.identity, QueryBudget(passes=4)).close()
    later = AuditReport.read(lm.ledger.folder)
    changed = ("records", "head", "timeline", "bytes_on_disk")
    assert later.model_dump(exclude=changed) == report.model_dump(exclude=changed)


def test_the_verdict_names_every_limit_and_by_how_much(lm):
    assert lm.audit().verdict == (
        "within budget: at most 5 of 10 passes per example (fit), 5 left; 2 of 10 passes per example (predict), 8 left"
    )
    everything = QueryBudget(total=16, attempts=25, tokens=10_000, money=2.0, price_per_pass=0.1, strict=True)
    report = AuditReport.read(lm.ledger.folder, everything)
    assert report.verdict == (
        "OVER BUDGET: 13 of 10 passes per example (fit), 3 over; 25 of 16 passes in all, 9 over; "
        "2.10 of 2 money in all, 0.10 over"
    )
    assert report.scopes[0].most == 13
    assert AuditReport.read(lm.ledger.folder, QueryBudget.of(None)).verdict == "within budget: no limit is set"


def test_a_ledger_without_a_query_has_a_report(tmp_path):
    QueryLedger(tmp_path, ModelIdentity("m")).close()
    report = AuditReport.read(tmp_path)
    assert report.phases == []
    assert report.within_budget
    assert "1 records" in str(report)


def test_a_phase_of_hits_alone_is_shown(lm):
    lm.fill(grid(1, 2, "refine"))
    refine = next(phase for phase in lm.audit().phases if phase.phase == "refine")
    assert (refine.hits, refine.passes, refine.attempts, refine.mass_seen) == (2, 0, 0, None)
    assert "-" in str(lm.audit())


def test_prompts_add_up_to_phases(lm):
    report = AuditReport.read(lm.ledger.folder, QueryBudget(price_per_pass=0.1, price_per_1k_tokens=0.02))
    assert [prompt.prompt for prompt in report.prompts][:2] == ["<input> It was 0 <mask>", "<input> It was 1 <mask>"]
    for name in ("hits", "attempts", "failed", "unknown", "tokens_read", "texts_cut", "money"):
        assert sum(getattr(prompt, name) for prompt in report.prompts) == pytest.approx(
            sum(getattr(phase, name) for phase in report.phases)
        )
    money = next(total for total in report.totals if total.name == "money")
    assert sum(phase.money for phase in report.phases) == pytest.approx(money.used)


def test_latency_and_throughput_come_from_the_records(tmp_path):
    lm = metered(tmp_path, batch_size=2)
    lm.fill(grid(5, 2))
    _set_times(lm, latencies=[1000, 2000, 3000, 4000, 50_000], starts=[0, 500, 10_000, 20_000, 100_000])
    (train,) = lm.audit().phases
    # Two queries a batch, and each takes half of its time.
    assert (train.latency.p50, train.latency.p90, train.latency.p99, train.latency.most) == (1.5, 25.0, 25.0, 25.0)
    # The first two overlap: 2.5 ms; then 3, 4 and 50.
    assert train.seconds == pytest.approx(0.0595)
    assert train.throughput == pytest.approx(10 / 0.0595)
    assert lm.audit().requests == 5


def _set_times(lm, latencies, starts):
    """Move the batches in time, as no record may be moved: the hashes no longer fit."""
    con = lm.ledger._run.con
    moments = [moment for (moment,) in rows(lm, "SELECT DISTINCT time FROM records WHERE state = 'done' ORDER BY 1")]
    with unguarded(con):
        for moment, latency, start in zip(moments, latencies, starts, strict=True):
            con.execute(
                "UPDATE records SET latency = ?, time = ? WHERE state = 'done' AND time = ?",
                (latency, 1_700_000_000_000_000 + start + latency, moment),
            )


def test_the_timeline_counts_everything_once(lm):
    report = lm.audit()
    cut = report.timeline
    assert sum(stretch.answers for stretch in cut.stretches) == 17
    assert sum(stretch.hits for stretch in cut.stretches) == sum(phase.hits for phase in report.phases)
    assert sum(stretch.failed + stretch.unknown for stretch in cut.stretches) == 8
    assert len(cut.stretches) <= 48
    assert cut.start < cut.end


def test_a_run_that_is_going_on_shows_what_is_under_way(tmp_path):
    lm = metered(tmp_path, batch_size=2)
    stream = lm.stream(grid(4, 2))
    next(stream)
    report = AuditReport.read(tmp_path)
    assert (report.reserved, report.under_way, report.phases[0].passes) == (6, 0, 2)
    assert "now: 0 queries at the model, 6 reserved" in str(report)
    assert "6 are reserved" in report.to_html()
    stream.close()
    assert AuditReport.read(tmp_path).reserved == 0


def test_the_text_is_aligned_has_no_colour_and_ends_with_the_verdict(lm):
    text = str(lm.audit())
    assert "\x1b" not in text
    lines = text.splitlines()
    head = next(line for line in lines if line.split() == ["train", "validate", "predict"])
    for name, numbers in (("passes ", "8 3 6"), ("hits", "8 1 0"), ("attempts", "16 3 6"), ("failed", "4 0 0")):
        row = next(line for line in lines if line.startswith(name) and line.endswith(numbers.split()[-1]))
        assert row.split()[-3:] == numbers.split()
        assert len(row) == len(head)
    assert lines[-1] == lm.audit().verdict
    assert lm.budget.describe() in text


def test_a_terminal_of_eighty_columns_shows_every_number_whole(lm):
    console = Console(width=80, file=io.StringIO(), color_system=None)
    console.print(lm.audit())
    text = console.file.getvalue()
    assert all(len(line) <= 80 for line in text.splitlines())
    for words in ("train validate predict", "attempts (sends) 16 3 6", "<input> It was 9 <mask> 2 0 2 16"):
        assert words in re.sub(r" +", " ", text)


def test_markdown_has_the_tables_and_escapes_what_is_not_its_own(lm):
    text = lm.audit().to_markdown()
    assert "| passes | 8 | 3 | 6 |" in text
    assert r"| \<input\> It was 0 \<mask\> |" in text
    for line in re.findall(r"^\|.*", text, re.MULTILINE):
        assert line.endswith("|")
    assert lm.audit().verdict.replace("_", r"\_") in text


def test_many_prompts_are_shortened_in_text_alone(tmp_path):
    lm = metered(tmp_path, budget=None)
    lm.fill(grid(1, 30))
    report = lm.audit()
    assert len(report.prompts) == 30
    assert str(report).count("<mask>") == 20
    assert "the first 20, and 10 more" in str(report)
    assert report.to_html().count('scope="row"><data value="&lt;input&gt;') == 30


def test_json_has_the_published_schema(lm):
    report = lm.audit()
    assert json.loads(report.to_json()) == report.to_dict()
    assert AuditReport.model_validate_json(report.to_json()) == report
    published = json.loads((Path(__file__).parents[2] / "docs" / "audit.schema.json").read_text("utf-8"))
    assert published == AuditReport.model_json_schema(), "write it anew: pbsdk audit schema > docs/audit.schema.json"
    assert set(report.to_dict()) == set(published["properties"])
    with pytest.raises(ValidationError):
        AuditReport.model_validate({**report.to_dict(), "surprise": 1})


def test_a_notebook_shows_the_same_numbers(lm):
    html = lm.audit()._repr_html_()
    cells = re.findall(r'data-path="phases\.0\.(\w+)">(.*?)</data>', html)
    assert dict(cells)["attempts"] == "16"
    assert lm.audit().verdict in html
    assert "<svg" in html


def test_everything_in_the_html_is_escaped(tmp_path):
    run = tmp_path / "<script>alert(1)<"
    QueryLedger(run, ModelIdentity("<img src=x onerror=alert(1)>")).close()
    lm = metered(tmp_path / "prompts")
    lm.fill([MaskedQuery((Part("mask"),), "e", "</script><script>alert(1)</script> <mask>")])
    for report in (AuditReport.read(run), lm.audit()):
        for html in (report._repr_html_(), report.to_html()):
            assert "<script>" not in html
            assert "<img" not in html
            assert "&lt;script&gt;" in html


def test_no_run_folder_no_report(tmp_path):
    with pytest.raises(LedgerError, match="not a run folder"):
        AuditReport.read(tmp_path)


def test_a_prompt_of_two_lines_stays_in_its_row(tmp_path):
    with metered(tmp_path / "run") as lm:
        lm.fill([Template("<input>\nTopic: <mask>").query(Example("a text"))])
        report = lm.audit()
    assert report.prompts[0].prompt == "<input>\nTopic: <mask>"
    assert "<input>\\nTopic: <mask>" in str(report)
    assert "Topic: \\<mask\\> | 1 |" in report.to_markdown()
