"""The report: numbers that are right, forms that can be read."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from _meter_helpers import grid, metered, query

from pbsdk.audit import AuditReport
from pbsdk.backend import ModelIdentity
from pbsdk.budget import QueryBudget
from pbsdk.errors import BackendTimeout, BackendUnavailable, LedgerError
from pbsdk.ledger import QueryLedger


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
    assert train.model_dump(exclude={"tokens_read", "mass_seen"}) == {
        "phase": "train", "examples": 2, "prompts": 4, "passes": 8, "passes_an_example": 4, "hits": 8, "attempts": 16,
        "failed": 4, "unknown": 4, "texts_cut": 0,
    }  # fmt: skip
    answers = lm.backend.fill(grid(2, 4))
    assert train.tokens_read == sum(answer.read_tokens for answer in answers)
    assert train.mass_seen == pytest.approx(np.mean([answer.mass for answer in answers]), abs=1e-6)
    assert (validate.examples, validate.passes, validate.passes_an_example, validate.hits) == (2, 3, 2, 1)
    assert (predict.examples, predict.prompts, predict.passes, predict.passes_an_example) == (3, 2, 6, 2)
    fit, own = report.scopes
    assert (fit.examples, fit.passes, fit.most, fit.limit, fit.left) == (3, 11, 5, 10, 5)
    assert (own.examples, own.passes, own.most, own.limit, own.left) == (3, 6, 2, 10, 8)
    assert {total.name: total.used for total in report.totals} == {
        "passes": 17,
        "attempts": 25,
        "tokens": sum(p.tokens_read for p in report.phases),
    }


def test_the_report_needs_the_folder_alone_and_knows_the_last_budget(lm):
    report = lm.audit()
    lm.close()
    assert AuditReport.read(lm.ledger.folder) == report
    QueryLedger(lm.ledger.folder, lm.identity, QueryBudget(passes=4)).close()
    later = AuditReport.read(lm.ledger.folder)
    assert not later.within_budget
    assert later.verdict == "OVER BUDGET: 5 of 4 passes an example (fit)"


def test_the_verdict_names_every_limit(lm):
    assert (
        lm.audit().verdict
        == "within budget: at most 5 of 10 passes an example (fit); 2 of 10 passes an example (predict)"
    )
    everything = QueryBudget(total=16, attempts=25, tokens=10_000, money=2.0, price_per_pass=0.1, strict=True)
    report = AuditReport.read(lm.ledger.folder, everything)
    assert report.verdict == (
        "OVER BUDGET: 13 of 10 passes an example (fit); 25 of 16 passes in all; 2.1000 of 2 money in all"
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


def test_the_table_is_aligned_and_has_no_colour(lm):
    text = str(lm.audit())
    assert "\x1b" not in text
    head, train = next(re.findall(r"^(phase .*)\n(train .*)$", text, re.MULTILINE).__iter__())
    assert len(head) == len(train)
    for word, number in (("passes", "8"), ("hits", "8"), ("attempts", "16"), ("failed", "4")):
        assert train[: head.index(word) + len(word)].endswith(f" {number}")
    assert text.splitlines()[-1].startswith("within budget")
    assert lm.budget.describe() in text


def test_json_and_html_say_the_same(lm):
    report = lm.audit()
    assert json.loads(report.to_json()) == report.to_dict()
    assert AuditReport.model_validate_json(report.to_json()) == report
    html = report._repr_html_()
    cells = re.findall(r"<td>(.*?)</td>", html)
    assert cells[:9] == ["train", "2", "4", "8", "4", "8", "16", "4", "4"]
    assert report.verdict in html


def test_everything_in_the_html_is_escaped(tmp_path):
    run = tmp_path / "<script>alert(1)<"
    QueryLedger(run, ModelIdentity("<img src=x onerror=alert(1)>")).close()
    html = AuditReport.read(run)._repr_html_()
    assert "<script" not in html
    assert "<img" not in html
    assert "&lt;script&gt;" in html


def test_no_run_folder_no_report(tmp_path):
    with pytest.raises(LedgerError, match="not a run folder"):
        AuditReport.read(tmp_path)
