"""The report's tables: which number goes where.

Terminal, Markdown and HTML all print these tables, so they can't disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pbsdk.formatting import Cell, Table, duration, limit, milliseconds, moment, number, one_line, percent, rate

if TYPE_CHECKING:
    from pbsdk.audit.report import AuditReport

__all__ = ["PHASE_ROWS", "amounts", "outcomes", "passes_spread", "tables", "used_of_limits"]


def spread(pairs: list[Any]) -> str:
    """Write how many examples had how many passes, the most frequent first."""
    often = sorted(pairs, key=lambda pair: -pair.examples)
    shown = ", ".join(f"{number(pair.examples)} with {pair.passes}" for pair in often[:2])
    return (shown or "-") + (", ..." if len(often) > 2 else "")


PHASE_ROWS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("examples", "examples", number),
    ("prompts", "prompts", number),
    ("passes", "passes", number),
    ("passes per example, most", "passes_an_example", number),
    ("passes per example, limit", "limit", limit),
    ("examples with so many passes", "distribution", spread),
    ("hits (recalled, free)", "hits", number),
    ("attempts (sends)", "attempts", number),
    ("failed (did not run)", "failed", number),
    ("unknown (counted as spent)", "unknown", number),
    ("tokens read", "tokens_read", number),
    ("texts cut", "texts_cut", number),
    ("mass seen", "mass_seen", percent),
    ("latency of a query, median", "latency.p50", milliseconds),
    ("latency of a query, 90th percentile", "latency.p90", milliseconds),
    ("latency of a query, 99th percentile", "latency.p99", milliseconds),
    ("time at the model", "seconds", duration),
    ("answers per second", "throughput", rate),
    ("money", "money", number),
)

_MEMBER_COLUMNS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("member", "name", one_line),
    ("passes", "passes", number),
    ("hits", "hits", number),
    ("attempts", "attempts", number),
    ("failed", "failed", number),
    ("unknown", "unknown", number),
    ("tokens", "tokens", number),
    ("money", "money", number),
)

_PROMPT_COLUMNS = (
    ("prompt", "prompt", one_line),
    ("examples", "examples", number),
    ("passes", "passes", number),
    ("hits", "hits", number),
    ("attempts", "attempts", number),
    ("failed", "failed", number),
    ("unknown", "unknown", number),
    ("tokens", "tokens_read", number),
    ("cut", "texts_cut", number),
    ("mass", "mass_seen", percent),
    ("money", "money", number),
)


def used_of_limits(report: AuditReport) -> list[tuple[str, float, float]]:
    """Return the name of each limit that is set, how much of it is used, and the limit."""
    amounts = [(f"passes per example ({scope.scope})", float(scope.most), scope.limit) for scope in report.scopes]
    amounts += [(f"{total.name} in all", total.used, total.limit) for total in report.totals]  # type: ignore[misc] # floats beside ints
    return [(name, used, limit) for name, used, limit in amounts if limit is not None]


def outcomes(report: AuditReport) -> list[tuple[str, str, int]]:
    """Return, by phase and kind (passes, hits, failed, unknown), how many there were, where there were any."""
    return [
        (phase.phase, kind, getattr(phase, kind))
        for phase in report.phases
        for kind in ("passes", "hits", "failed", "unknown")
        if getattr(phase, kind)
    ]


def passes_spread(report: AuditReport) -> list[tuple[str, dict[int, int], int | None]]:
    """Return, for each scope that was used, how many examples had 1, 2, ... passes, and the limit.

    The counts extend to the limit, unless that is far away.
    """
    found = []
    for scope in report.scopes:
        counts = {pair.passes: pair.examples for pair in scope.distribution}
        if counts:
            last = max(scope.most, scope.limit or 0)
            last = scope.most if last > 40 else last
            found.append((scope.scope, {passes: counts.get(passes, 0) for passes in range(1, last + 1)}, scope.limit))
    return found


def tables(report: AuditReport) -> list[Table]:
    """Return the report's tables: limits, members if there are any, phases, prompts, and canaries if any were asked."""
    found = [_limits(report), _members(report), _phases(report), _prompts(report), _canaries(report)]
    return [table for table in found if table.rows and len(table.header) > 1]


def _cell(thing: Any, at: str, path: str, write: Any) -> Cell:
    value = thing
    for name in path.split("."):
        value = None if value is None else getattr(value, name)
    if isinstance(value, list):
        return Cell(write(value))
    return Cell(write(value), f"{at}.{path}", value)


def _limits(report: AuditReport) -> Table:
    rows = [
        [
            Cell(f"passes per example ({scope.scope})"),
            _cell(scope, f"scopes.{at}", "most", number),
            _cell(scope, f"scopes.{at}", "limit", limit),
            _cell(scope, f"scopes.{at}", "left", number),
            _cell(scope, f"scopes.{at}", "examples", number),
        ]
        for at, scope in enumerate(report.scopes)
    ]
    rows += [
        [
            Cell(f"{total.name} in all"),
            *(
                _cell(total, f"totals.{at}", name, limit if name == "limit" else number)
                for name in ("used", "limit", "left")
            ),
            Cell("-"),
        ]
        for at, total in enumerate(report.totals)
    ]
    return Table("Limits", ["limit", "used", "limit", "left", "examples"], rows)


def _members(report: AuditReport) -> Table:
    columns = [column for column in _MEMBER_COLUMNS if column[1] != "money" or report.priced]
    rows = [
        [
            *(_cell(member, f"members.{at}", path, write) for _, path, write in columns),
            Cell(amounts(member.left) or "any"),
        ]
        for at, member in enumerate(report.members)
    ]
    return Table("Members", [*(name for name, _, _ in columns), "left"], rows)


def amounts(named: Mapping[str, float]) -> str:
    """Write amounts by name: `12 passes, 0.5 money`."""
    return ", ".join(f"{number(amount)} {name}" for name, amount in named.items())


def _phases(report: AuditReport) -> Table:
    rows = [
        [Cell(label), *(_cell(phase, f"phases.{at}", path, write) for at, phase in enumerate(report.phases))]
        for label, path, write in PHASE_ROWS
        if path != "money" or report.priced
    ]
    return Table("Phases", ["", *(phase.phase for phase in report.phases)], rows)


def _prompts(report: AuditReport) -> Table:
    columns = [column for column in _PROMPT_COLUMNS if column[1] != "money" or report.priced]
    rows = [
        [_cell(prompt, f"prompts.{at}", path, write) for _, path, write in columns]
        for at, prompt in enumerate(report.prompts)
    ]
    return Table("Prompts", [name for name, _, _ in columns], rows)


def _canaries(report: AuditReport) -> Table:
    rows = [
        [
            Cell(f"check {at + 1}, {moment(check.time)}"),
            _cell(check, f"canaries.{at}", "texts", number),
            _cell(check, f"canaries.{at}", "distance", percent),
            Cell("changed" if check.changed else "the same"),
        ]
        for at, check in enumerate(report.canaries)
    ]
    return Table("Canaries", ["check", "texts", "furthest from the first", "the model is"], rows)
