"""How numbers, times and tables are written, wherever they are printed.

A cell knows the text that people read, and the path and value of the same number in the JSON form.

>>> number(1234567), number(0.12345), number(None)
('1,234,567', '0.1235', '-')
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pbsdk.visible import visible

__all__ = [
    "Cell",
    "Table",
    "aligned",
    "counted",
    "duration",
    "html_table",
    "limit",
    "milliseconds",
    "moment",
    "number",
    "one_line",
    "percent",
    "rate",
    "size_text",
]


@dataclass(frozen=True)
class Cell:
    """The text of a cell, on one line and safe to print, and where the JSON form holds its value."""

    text: str
    path: str = ""
    value: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", one_line(self.text))


@dataclass(frozen=True)
class Table:
    """A titled table; its first column names the rows."""

    title: str
    header: list[str]
    rows: list[list[Cell]]

    def texts(self) -> list[list[str]]:
        """Return header and rows as plain strings."""
        return [self.header, *([cell.text for cell in row] for row in self.rows)]


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Write lines of cells in columns, each cell on one line and safe to print.

    >>> print(aligned([("word", "weight"), ("late", "1.5")]))
    word  weight
    late  1.5
    """
    lines = [list(map(one_line, line)) for line in lines]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def html_table(header: Sequence[str], lines: Iterable[Sequence[str]], caption: str = "") -> str:
    """Write a table for a notebook; cells are escaped.

    >>> html_table(["a"], [["<b>"]])
    '<table><thead><tr><th>a</th></tr></thead><tbody><tr><td>&lt;b&gt;</td></tr></tbody></table>'
    """

    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(visible(cell))}</{tag}>" for cell in cells) + "</tr>"

    title = f"<caption>{html.escape(visible(caption))}</caption>" if caption else ""
    body = "".join(row(cells, "td") for cells in lines)
    return f"<table>{title}<thead>{row(header, 'th')}</thead><tbody>{body}</tbody></table>"


def number(value: float | None) -> str:
    """Write a count or an amount; '-' for none."""
    if value is None:
        return "-"
    if value == int(value):
        return f"{int(value):,}"
    text = f"{value:,.4f}"
    return text.removesuffix("00")


def counted(count: int, one: str, many: str = "") -> str:
    """Write how many of something there are.

    >>> counted(1, "text"), counted(1200, "query", "queries")
    ('1 text', '1,200 queries')
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def one_line(text: str) -> str:
    r"""Write a prompt, or whatever else may hold anything, on one line that is safe to print.

    >>> print(one_line("<input>\nTopic: <mask>"))
    <input>\nTopic: <mask>
    """
    return visible(text.replace("\n", "\\n").replace("\t", "\\t"))


def limit(value: float | None) -> str:
    """Write a limit."""
    return "no limit" if value is None else number(value)


def percent(value: float | None) -> str:
    """Write a fraction as a percentage."""
    return "-" if value is None else f"{value:.1%}"


def milliseconds(value: float | None) -> str:
    """Write a short time.

    >>> milliseconds(0.0421), milliseconds(1500.0), milliseconds(None)
    ('0.0421 ms', '1,500 ms', '-')
    """
    if value is None:
        return "-"
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def rate(value: float | None) -> str:
    """Write answers per second."""
    return "-" if value is None else f"{value:,.0f}/s" if value >= 10 else f"{value:.2g}/s"


def duration(seconds: float | None) -> str:
    """Write a stretch of time.

    >>> [duration(value) for value in (0.034, 12.3, 754.0, 9000.0, None)]
    ['0.034 s', '12.3 s', '12.6 min', '2.5 h', '-']
    """
    if seconds is None:
        return "-"
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.3g} s"


def size_text(count: float | None) -> str:
    """Write a number of bytes.

    >>> size_text(538_090_408), size_text(12), size_text(None)
    ('538.1 MB', '12 bytes', '-')
    """
    if count is None:
        return "-"
    for unit, step in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if count >= step:
            return f"{count / step:.1f} {unit}"
    return f"{count:.0f} bytes"


def moment(text: str) -> str:
    """Write a time from the JSON form for people.

    >>> moment("2026-03-01T12:30:05.250000Z")
    '2026-03-01 12:30:05 UTC'
    """
    return f"{datetime.fromisoformat(text).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
