"""The report: what the ledger shows was asked, against the budget.

It needs a run folder and nothing else: no model, no network, and it may be made while the run goes
on. Its last line is the verdict.
"""

from __future__ import annotations

import os
from html import escape
from typing import Self

from pydantic import BaseModel, ConfigDict

from pbsdk.backend import ModelIdentity, Phase
from pbsdk.budget import FIT, PREDICT, QueryBudget
from pbsdk.reading import LedgerReader

__all__ = ["AuditReport", "PhaseReport", "ScopeReport"]


class PhaseReport(BaseModel):
    """What was asked in one phase."""

    model_config = ConfigDict(frozen=True)

    phase: str
    examples: int
    prompts: int
    passes: int
    """Distinct (example, prompt) that ran or may have run."""
    passes_an_example: int
    """The most passes that one example had."""
    hits: int
    attempts: int
    """Sends, retries included."""
    failed: int
    """Sends that surely did not run."""
    unknown: int
    """Sends that may have run and brought no answer; they count as spent."""
    tokens_read: int
    texts_cut: int
    mass_seen: float | None
    """Mean probability that whole and top-k answers showed; None if there were none."""


class ScopeReport(BaseModel):
    """One purse: what an example may have, and what the dearest one has used."""

    model_config = ConfigDict(frozen=True)

    scope: str
    examples: int
    passes: int
    most: int
    limit: int | None
    left: int | None
    """Passes that every example still has."""


class LimitReport(BaseModel):
    """One limit on the whole run folder."""

    model_config = ConfigDict(frozen=True)

    name: str
    used: float
    limit: float | None
    left: float | None


class AuditReport(BaseModel):
    """What a run folder's ledger shows was asked, against the budget."""

    model_config = ConfigDict(frozen=True)

    run: str
    model: str
    records: int
    head: str
    """The hash of the last record: it stands for all of them."""
    budget: str
    phases: list[PhaseReport]
    scopes: list[ScopeReport]
    totals: list[LimitReport]
    within_budget: bool
    verdict: str

    @classmethod
    def read(cls, run: str | os.PathLike[str], budget: QueryBudget | None = None) -> Self:
        """Read a run folder; without a budget, that of the session that opened it last counts."""
        with LedgerReader(run) as reader:
            budget = budget or reader.budget()
            records, head = reader.head()
            scopes = _scopes(reader, budget)
            totals = _totals(reader, budget)
            within, verdict = _verdict(scopes, totals)
            return cls(
                run=str(reader.folder),
                model=ModelIdentity.from_json(reader.meta()["model"]).name,
                records=records,
                head=head,
                budget=budget.describe(),
                phases=_phases(reader),
                scopes=scopes,
                totals=totals,
                within_budget=within,
                verdict=verdict,
            )

    def to_dict(self) -> dict[str, object]:
        """Return the report as plain values."""
        return self.model_dump(mode="json")

    def to_json(self) -> str:
        """Return the report as JSON."""
        return self.model_dump_json(indent=2)

    def _tables(self) -> list[list[list[str]]]:
        phases = [["phase", "examples", "prompts", "passes", "most/example", "hits", "attempts", "failed", "unknown",
                   "tokens read", "texts cut", "mass seen"]]  # fmt: skip
        phases += [
            [p.phase, *map(_number, (p.examples, p.prompts, p.passes, p.passes_an_example, p.hits, p.attempts, p.failed,
                                     p.unknown, p.tokens_read, p.texts_cut)),
             "-" if p.mass_seen is None else f"{p.mass_seen:.1%}"]
            for p in self.phases
        ]  # fmt: skip
        limits = [["limit", "used", "limit", "left"]]
        limits += [[f"passes an example ({s.scope})", *map(_number, (s.most, s.limit, s.left))] for s in self.scopes]
        limits += [[f"{t.name} in all", *map(_number, (t.used, t.limit, t.left))] for t in self.totals]
        return [phases, limits]

    def __str__(self) -> str:
        phases, limits = map(_aligned, self._tables())
        head = f"{self.model} in {self.run}: {self.records:,} records, head {self.head[:16]}"
        return "\n".join([head, f"budget: {self.budget}", "", *phases, "", *limits, "", self.verdict])

    def _repr_html_(self) -> str:
        def row(cells: list[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        tables = "".join(
            f"<table><thead>{row(table[0], 'th')}</thead><tbody>{''.join(row(cells, 'td') for cells in table[1:])}"
            "</tbody></table>"
            for table in self._tables()
        )
        return (
            f"<div><p><b>{escape(self.model)}</b> in {escape(self.run)}: {self.records:,} records</p>"
            f"<p>Budget: {escape(self.budget)}</p>{tables}<p><b>{escape(self.verdict)}</b></p></div>"
        )


def _phases(reader: LedgerReader) -> list[PhaseReport]:
    counted = reader.phases()
    known = [phase for phase in Phase if phase in counted]
    return [
        PhaseReport(
            phase=phase,
            examples=c["examples"],
            prompts=c["prompts"],
            passes=c["passes"],
            passes_an_example=c["most"],
            hits=c["hits"],
            attempts=c["attempts"],
            failed=c["failed"],
            unknown=c["unknown"],
            tokens_read=c["read"],
            texts_cut=c["cut"],
            mass_seen=c["mass"] / c["showing"] / 1e6 if c["showing"] else None,
        )
        for phase in [*known, *sorted(set(counted) - set(known))]
        for c in [counted[phase]]
    ]


def _scopes(reader: LedgerReader, budget: QueryBudget) -> list[ScopeReport]:
    counted = reader.scopes(strict=budget.strict)
    reports = []
    for scope in (FIT, PREDICT):
        c = counted.get(scope, {"examples": 0, "passes": 0, "most": 0})
        limit = budget.limit(scope)
        left = None if limit is None else max(0, limit - c["most"])
        reports.append(ScopeReport(scope=scope, limit=limit, left=left, **c))
    return reports


def _totals(reader: LedgerReader, budget: QueryBudget) -> list[LimitReport]:
    spent = reader.totals()
    amounts: list[tuple[str, float, float | None]] = [
        ("passes", budget.counted(spent), budget.total),
        ("attempts", spent.sends, budget.attempts),
        ("tokens", spent.tokens, budget.tokens),
    ]
    if budget.priced:
        amounts.append(("money", budget.cost(spent), budget.money))
    return [
        LimitReport(name=name, used=used, limit=limit, left=None if limit is None else max(0.0, limit - used))
        for name, used, limit in amounts
    ]


def _verdict(scopes: list[ScopeReport], totals: list[LimitReport]) -> tuple[bool, str]:
    lines = [(f"{s.most} of {s.limit} passes an example ({s.scope})", s.most, s.limit) for s in scopes]
    lines += [(f"{_number(t.used)} of {_number(t.limit)} {t.name} in all", t.used, t.limit) for t in totals]  # type: ignore[misc]  # floats beside ints
    over = [text for text, used, limit in lines if limit is not None and used > limit]
    if over:
        return False, f"OVER BUDGET: {'; '.join(over)}"
    limited = [text for text, _, limit in lines if limit is not None]
    return True, f"within budget: at most {'; '.join(limited)}" if limited else "within budget: no limit is set"


def _number(value: float | None) -> str:
    if value is None:
        return "no limit"
    return f"{int(value):,}" if value == int(value) else f"{value:,.4f}"


def _aligned(table: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]
