"""Two runs side by side: local against remote, before against after.

Shows their reports in two columns with the difference, and counts the passes that both made.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

from pbsdk.audit.report import AuditReport, PhaseReport
from pbsdk.audit.tables import PHASE_ROWS
from pbsdk.audit.text import aligned, markdown_table
from pbsdk.formatting import Cell, Table, number, one_line, size_text
from pbsdk.ledger.reader import LedgerReader

__all__ = ["AuditDiff", "Difference"]


class Difference(BaseModel):
    """One number of two runs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    where: str
    """A phase, or `all`."""
    name: str
    a: float | None
    b: float | None
    difference: float | None
    """`b - a`, where both are known."""


class AuditDiff(BaseModel):
    """Two reports, what differs, and which passes they share."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    a: AuditReport
    b: AuditReport
    model: str
    """What differs between the models; empty if nothing does."""
    passes_in_both: int
    """Distinct (scope, example, prompt) triples that both runs asked for."""
    passes_only_a: int
    passes_only_b: int
    differences: list[Difference]

    @classmethod
    def read(cls, a: str | os.PathLike[str], b: str | os.PathLike[str]) -> Self:
        """Compare two run folders, each under its own budget."""
        with LedgerReader(a) as one, LedgerReader(b) as other:
            model = one.model().differences(other.model())
            mine, theirs = _passes(one), _passes(other)
        first, second = AuditReport.read(a), AuditReport.read(b)
        return cls(
            a=first,
            b=second,
            model=model,
            passes_in_both=len(mine & theirs),
            passes_only_a=len(mine - theirs),
            passes_only_b=len(theirs - mine),
            differences=_differences(first, second),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain values."""
        return self.model_dump(mode="json")

    def _table(self) -> Table:
        written: dict[str, tuple[str, Callable[[Any], str]]] = {
            **{path: (label, write) for label, path, write in PHASE_ROWS},
            "bytes_on_disk": ("on disk", size_text),
        }
        there = [{"all", *(phase.phase for phase in report.phases)} for report in (self.a, self.b)]
        rows = []
        for row in self.differences:
            label, write = written.get(row.name, (row.name, number))
            values = [
                write(value) if row.where in known else "-" for value, known in zip((row.a, row.b), there, strict=True)
            ]
            rows.append([Cell(f"{row.where}: {label}"), *map(Cell, values), Cell(_signed(row, write))])
        return Table("Side by side", ["", "A", "B", "B - A"], rows)

    def _opening(self) -> list[str]:
        lines = [
            f"A: {self.a.model} in {self.a.run}: {self.a.verdict}",
            f"B: {self.b.model} in {self.b.run}: {self.b.verdict}",
            f"model: {self.model} (A is here, B is there)" if self.model else "model: the same",
            f"passes: {number(self.passes_in_both)} in both, {self.passes_only_a:,} only in A, {self.passes_only_b:,} only in B",
        ]
        return list(map(one_line, lines))

    def to_markdown(self) -> str:
        """Return the comparison as Markdown."""
        return "\n".join([*(f"- {line}" for line in self._opening()), "", *markdown_table(self._table())]) + "\n"

    def __str__(self) -> str:
        return "\n".join([*self._opening(), "", *aligned(self._table())])


def _passes(reader: LedgerReader) -> set[tuple[str, str, str]]:
    rows = reader.select("SELECT scope, example, prompt FROM passes WHERE sent > failed")
    return {(str(scope), str(example), str(prompt)) for scope, example, prompt in rows}


def _differences(a: AuditReport, b: AuditReport) -> list[Difference]:
    ones, others = {p.phase: p for p in a.phases}, {p.phase: p for p in b.phases}
    paths = [path for _, path, _ in PHASE_ROWS if path != "distribution" and (path != "money" or a.priced or b.priced)]
    found = [
        _difference(phase, path, _value(ones.get(phase), path), _value(others.get(phase), path))
        for phase in dict.fromkeys([*ones, *others])
        for path in paths
    ]
    used, used_too = {t.name: t.used for t in a.totals}, {t.name: t.used for t in b.totals}
    found += [
        _difference("all", name, used.get(name), used_too.get(name)) for name in dict.fromkeys([*used, *used_too])
    ]
    found += [
        _difference("all", name, getattr(a, name), getattr(b, name))
        for name in ("requests", "records", "bytes_on_disk")
    ]
    return found


def _value(phase: PhaseReport | None, path: str) -> float | None:
    value: Any = phase
    for name in path.split("."):
        value = None if value is None else getattr(value, name)
    return value if value is None else float(value)


def _difference(where: str, name: str, a: float | None, b: float | None) -> Difference:
    return Difference(where=where, name=name, a=a, b=b, difference=None if a is None or b is None else b - a)


def _signed(row: Difference, write: Callable[[Any], str]) -> str:
    if row.difference is None:
        return "-"
    return "0" if not row.difference else ("+" if row.difference > 0 else "-") + write(abs(row.difference))
