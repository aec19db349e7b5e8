"""The report in words and columns: for a terminal, for a pipe, and as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table as RichTable
from rich.text import Text

from pbsdk.audit.tables import amounts, tables
from pbsdk.formatting import Table, duration, moment, number, one_line, size_text
from pbsdk.visible import visible

if TYPE_CHECKING:
    from pbsdk.audit.report import AuditReport

__all__ = ["alarm", "aligned", "escaped", "held", "markdown", "markdown_table", "opening", "plain", "rich", "sparkline"]

_BARS = " ▁▂▃▄▅▆▇█"
_PROMPTS = 20
"""How many prompts a text shows; the JSON form has all."""
_PROMPT_COLUMNS = ("prompt", "passes", "hits", "attempts", "tokens", "mass", "money")


def opening(report: AuditReport) -> list[str]:
    """Return the lines above the tables."""
    lines = [
        f"{report.model} in {report.run}: {number(report.records)} records, head {report.head[:16]}",
        f"budget: {report.budget}",
        *held(report),
        f"{number(report.requests)} requests; {size_text(report.bytes_on_disk)} on disk",
    ]
    if report.reserved or report.under_way:
        lines.append(f"now: {number(report.under_way)} queries at the model, {number(report.reserved)} reserved")
    if report.remaining:
        lines.append(f"left at the server, as of {moment(report.remaining.time)}: {amounts(report.remaining.left)}")
    time = report.timeline
    lines.append(f"from {moment(time.start)} to {moment(time.end)}")
    if any(stretch.answers for stretch in time.stretches):
        bars = sparkline([stretch.answers for stretch in time.stretches])
        lines.append(f"answers every {duration(time.seconds_a_stretch)}: {bars}")
    return list(map(one_line, lines))


def held(report: AuditReport) -> list[str]:
    """Return a line for each of several limits that held, one after the other."""
    return [
        f"limits from {moment(limits.since)} to {moment(limits.until)}, {number(limits.queries)} queries sent: {limits.verdict}"
        for limits in report.held
        if len(report.held) > 1
    ]


def sparkline(values: list[int]) -> str:
    """Return a bar for each value, the tallest for the largest.

    >>> sparkline([0, 1, 4, 8])
    ' ▁▄█'
    """
    most = max(values, default=0) or 1
    return "".join(_BARS[-(-value * (len(_BARS) - 1) // most)] for value in values)


def plain(report: AuditReport) -> str:
    """Return the report as aligned text without colour."""
    lines = opening(report)
    for table in _shortened(report):
        lines += ["", f"{table.title}:", *aligned(table)]
    return "\n".join([*lines, "", *alarm(report), report.verdict])


def rich(report: AuditReport) -> Group:
    """Return the report for a rich console."""
    parts: list[Text | RichTable] = [Text(line) for line in opening(report)]
    for table in _shortened(report):
        shown = RichTable(title=table.title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
        for at, name in enumerate(table.header):
            shown.add_column(name, justify="left" if at == 0 else "right", overflow="fold", no_wrap=at > 0)
        for row in table.rows:
            shown.add_row(*(Text(cell.text) for cell in row))
        parts += [Text(), shown]
    parts += [Text(), *(Text(line, style="bold red") for line in alarm(report))]
    parts.append(Text(report.verdict, style="bold green" if report.within_budget else "bold red"))
    return Group(*parts)


def markdown(report: AuditReport) -> str:
    """Return the report as Markdown."""
    title = f"# Audit of {escaped(report.run)}"
    verdict = f"**{escaped('; '.join([*alarm(report), report.verdict]))}**"
    lines = [title, "", verdict, ""]
    lines += [f"- {escaped(line)}" for line in opening(report)]
    for table in tables(report):
        lines += ["", f"## {table.title}", "", *markdown_table(table)]
    return "\n".join(lines) + "\n"


def markdown_table(table: Table) -> list[str]:
    """Return a table's lines in Markdown."""

    def line(cells: list[str]) -> str:
        return f"| {' | '.join(escaped(cell) for cell in cells)} |"

    head, *rows = table.texts()
    return [line(head), f"|---{'|--:' * (len(head) - 1)}|", *map(line, rows)]


def aligned(table: Table) -> list[str]:
    """Return a table's lines, the first column to the left and the others to the right."""
    texts = table.texts()
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in texts
    ]


def alarm(report: AuditReport) -> list[str]:
    """Return a line if the canaries say that the model changed."""
    changed = [check for check in report.canaries if check.changed]
    return [one_line(f"THE MODEL CHANGED: {changed[-1].describe()}")] if changed else []


def _shortened(report: AuditReport) -> list[Table]:
    """Return the tables, shortened for a terminal: only the first prompts, and their main columns."""
    return [_narrowed(table) if table.title == "Prompts" else table for table in tables(report)]


def _narrowed(table: Table) -> Table:
    kept = [at for at, name in enumerate(table.header) if name in _PROMPT_COLUMNS]
    more = len(table.rows) - _PROMPTS
    return Table(
        table.title if more <= 0 else f"{table.title}: the first {_PROMPTS}, and {more} more",
        [table.header[at] for at in kept],
        [[row[at] for at in kept] for row in table.rows[:_PROMPTS]],
    )


def escaped(text: str) -> str:
    """Return a text that Markdown shows as it is."""
    for mark in "\\`*_<>|#[]":
        text = text.replace(mark, f"\\{mark}")
    return visible(text.replace("\n", " "))
