"""The bill as a picture: how much of each limit is used, what was asked, how many passes examples had."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pbsdk.audit.tables import outcomes, passes_spread, used_of_limits
from pbsdk.formatting import number
from pbsdk.plotting import BLUE, GREEN, PURPLE, RED, Picture, bare, empty, in_percent, name_rows, title, whole_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from pbsdk.audit.report import AuditReport

__all__ = ["draw_report"]

_COLOURS = {"passes": BLUE, "hits": GREEN, "failed": RED, "unknown": PURPLE}


def draw_report(report: AuditReport) -> Picture:
    """Draw how much of each limit is used, the queries of each phase, and how many passes examples had."""
    limited, asked, spread = used_of_limits(report), outcomes(report), passes_spread(report)
    heights = [0.5 + 0.34 * max(1, len(limited)), 0.5 + 0.3 * max(1, len(asked)), *([2.2] if spread else [])]
    figure = Picture(7.2, sum(heights) + 0.8)
    parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False).flat
    _draw_limits(parts[0].subplots(), limited)
    _draw_outcomes(parts[1].subplots(), asked)
    if spread:
        for panel, one in zip(parts[2].subplots(1, len(spread), squeeze=False).flat, spread, strict=True):
            _draw_spread(panel, *one)
    return figure


def _draw_limits(ax: Axes, limited: Sequence[tuple[str, float, float]]) -> None:
    title(ax, "Used of each limit")
    if not limited:
        return empty(ax, "no limit is set")
    shares = [used / limit if limit else math.inf if used else 1.0 for _, used, limit in limited]
    places = range(len(limited))
    ax.barh(places, [1.0] * len(limited), height=0.62, color="grey", alpha=0.25)
    ax.barh(places, [min(share, 1.0) for share in shares], height=0.62, color=[RED if s > 1 else BLUE for s in shares])
    for place, (_, used, limit) in zip(places, limited, strict=True):
        ax.text(1.02, place, f"{number(used)} of {number(limit)}", va="center")
    name_rows(ax, [name for name, _, _ in limited])
    ax.set_xlim(0, 1.3)
    ax.set_xticks([0, 0.5, 1])
    in_percent(ax.xaxis)
    return None


def _draw_outcomes(ax: Axes, asked: Sequence[tuple[str, str, int]]) -> None:
    title(ax, "Queries by phase")
    if not asked:
        return empty(ax, "nothing was asked")
    bars = ax.barh(
        range(len(asked)), [n for _, _, n in asked], height=0.62, color=[_COLOURS[kind] for _, kind, _ in asked]
    )
    ax.bar_label(bars, [number(n) for _, _, n in asked], padding=3)
    name_rows(ax, [f"{phase}: {kind}" for phase, kind, _ in asked])
    ax.margins(x=0.14)
    ax.set_xlabel("queries")
    whole_numbers(ax.xaxis)
    ax.xaxis.set_major_formatter(lambda count, _: number(count))
    return None


def _draw_spread(ax: Axes, scope: str, counts: Mapping[int, int], limit: int | None) -> None:
    ax.bar(list(counts), list(counts.values()), width=0.8, color=BLUE)
    ax.set_xlim(0.4, max(counts) + 1.0)
    if limit is not None and limit <= max(counts):
        ax.axvline(limit + 0.5, color=RED, linestyle="--", label=f"limit: {number(limit)}")
        ax.margins(y=0.3)  # room for the legend
        ax.legend(loc="upper left")
    ax.set(xlabel="passes that an example had", ylabel="examples")
    for axis in (ax.xaxis, ax.yaxis):
        whole_numbers(axis)
    bare(ax)
    title(ax, f"Passes per example ({scope})")
