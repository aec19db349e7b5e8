"""Charts as inline SVG: bars along a line, and columns over a scale.

No script, no font, no picture from elsewhere. Text has the colour of the page around it, so a chart
suits a light page, a dark one and paper. Each has a title and a description for screen readers,
labelled axes, and its numbers written out or in the table beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from pbsdk.formatting import number

__all__ = ["Bar", "Series", "bars", "columns"]

_WIDTH = 400
_LEFT, _RIGHT, _TOP = 46, 10, 26


@dataclass(frozen=True)
class Bar:
    """A bar: its name, its length, the words at its end, and its kind (one of the page's colours)."""

    label: str
    value: float
    text: str
    kind: str = "answers"
    track: float | None = None
    """How far it may go, if there is a limit."""


@dataclass(frozen=True)
class Series:
    """One layer of the columns."""

    name: str
    kind: str
    values: Sequence[float]


def bars(name: str, title: str, rows: Sequence[Bar], axis: str) -> str:
    """Draw bars, each under its label; one with a limit fills its own track, the others share a scale."""
    most = max([row.value for row in rows if row.track is None], default=0) or 1
    full = _WIDTH - _RIGHT
    drawn = []
    for at, row in enumerate(rows):
        y = 12 + 36 * at
        share = min(1.0, row.value / row.track if row.track else row.value / most if row.track is None else 1.0)
        drawn.append(
            f'<text x="0" y="{y}">{escape(row.label)}</text>'
            f'<text x="{full}" y="{y}" text-anchor="end">{escape(row.text)}</text>'
            + (f'<rect class="track" x="0" y="{y + 5}" width="{full}" height="10"/>' if row.track is not None else "")
            + f'<rect class="{row.kind}" x="0" y="{y + 5}" width="{share * full:.1f}" height="10"/>'
        )
    height = 12 + 36 * len(rows) + 8
    drawn.append(f'<text class="axis" x="0" y="{height - 4}">{escape(axis)}</text>')
    told = "; ".join(f"{row.label}: {row.text}" for row in rows)
    return _svg(name, title, told, height, "".join(drawn))


def columns(  # noqa: PLR0913 - independent settings, all keywords
    name: str,
    title: str,
    labels: Sequence[str],
    series: Sequence[Series],
    *,
    x_axis: str,
    y_axis: str,
    mark: int | None = None,
) -> str:
    """Draw stacked columns over a scale; a limit is drawn after the column `mark`.

    As many labels as fit are written under the columns, always including the first and the last.
    """
    count = len(labels)
    tops = [sum(layer.values[at] for layer in series) for at in range(count)]
    ticks = _ticks(max(tops, default=0))
    height, floor = 230 if len(series) > 1 else 214, 176
    room, wide = floor - _TOP, (_WIDTH - _LEFT - _RIGHT) / max(1, count)
    drawn = [f'<text class="axis" x="0" y="10">{escape(y_axis)}</text>']
    for tick in ticks:
        y = floor - room * tick / ticks[-1]
        drawn.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{_LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{number(tick)}</text>'
        )
    for at in range(count):
        y = float(floor)
        for layer in series:
            tall = room * layer.values[at] / ticks[-1]
            y -= tall
            if tall:
                drawn.append(
                    f'<rect class="{layer.kind}" x="{_LEFT + at * wide + wide * 0.08:.1f}" y="{y:.1f}"'
                    f' width="{wide * 0.84:.1f}" height="{tall:.1f}"/>'
                )
    drawn += _under(labels, wide, floor)
    if mark is not None:
        x = _LEFT + mark * wide
        drawn.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{floor}"/>')
    drawn.append(
        f'<text class="axis" x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{floor + 32}" text-anchor="middle">{escape(x_axis)}</text>'
    )
    drawn += _legend(series, height - 8)
    told = f"{y_axis} by {x_axis}. " + "; ".join(
        f"{layer.name}: {number(sum(layer.values))} in all" for layer in series
    )
    return _svg(name, title, told, height, "".join(drawn))


def _under(labels: Sequence[str], wide: float, floor: int) -> list[str]:
    longest = max(map(len, labels), default=1) * 7 + 10
    every = max(1, math.ceil(longest / wide))
    drawn = []
    for at, label in enumerate(labels):
        last = at == len(labels) - 1
        if (at % every == 0 and (len(labels) - 1 - at) * wide >= longest) or last:
            x = _LEFT + (at + 0.5) * wide
            place = (
                (_WIDTH - _RIGHT, "end")
                if last and longest > wide
                else (_LEFT, "start")
                if not at and longest > wide
                else (x, "middle")
            )
            drawn.append(f'<text x="{place[0]:.1f}" y="{floor + 15}" text-anchor="{place[1]}">{escape(label)}</text>')
    return drawn


def _legend(series: Sequence[Series], y: int) -> list[str]:
    if len(series) < 2:
        return []
    drawn, x = [], float(_LEFT)
    for layer in series:
        drawn.append(
            f'<rect class="{layer.kind}" x="{x:.0f}" y="{y - 9}" width="10" height="10"/>'
            f'<text x="{x + 14:.0f}" y="{y}">{escape(layer.name)}</text>'
        )
        x += 30 + 7 * len(layer.name)
    return drawn


def _ticks(most: float) -> list[float]:
    """Return a few round numbers from 0 to at least the largest value.

    >>> _ticks(0), _ticks(7), _ticks(1280)
    ([0, 1], [0, 2, 4, 6, 8], [0, 500, 1000, 1500])
    """
    if most <= 0:
        return [0, 1]
    rough = most / 4
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    step = max(1, round(step))
    return [step * at for at in range(math.ceil(most / step) + 1)]


def _svg(name: str, title: str, told: str, height: int, inside: str) -> str:
    return (
        f'<svg role="img" aria-labelledby="{name}-t {name}-d" viewBox="0 0 {_WIDTH} {height}"'
        f' xmlns="http://www.w3.org/2000/svg"><title id="{name}-t">{escape(title)}</title>'
        f'<desc id="{name}-d">{escape(told)}</desc>{inside}</svg>'
    )
