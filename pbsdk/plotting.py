"""Pictures with matplotlib: the accuracy as learners are added, the words of each class, and the bill.

`clf.plot_staged()`, `clf.plot_words()`, `report.plot()` and `results.plot()` draw here. A picture is a plain
`matplotlib.figure.Figure` that pyplot doesn't know about: nothing is shown, nothing has to be closed, and a
notebook displays it once, as the last expression of a cell. Text, background and grid follow the current
style (`plt.style.use("dark_background")`); the four colours are distinguishable by colour-blind readers and
stand out from white and from black.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pbsdk.errors import MissingExtra
from pbsdk.formatting import number

try:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.text import Text
    from matplotlib.ticker import MaxNLocator, PercentFormatter
except ImportError as error:
    raise MissingExtra(f'pictures need matplotlib ({error}); install it: pip install "pbsdk[plot]"') from error

if TYPE_CHECKING:
    from pbsdk.learning.calibration import Bin

__all__ = [
    "BLUE",
    "GREEN",
    "PURPLE",
    "RED",
    "Curve",
    "Picture",
    "bare",
    "draw_chances",
    "draw_confusions",
    "draw_curves",
    "draw_learning",
    "draw_passes",
    "draw_reliability",
    "draw_staged",
    "draw_words",
    "empty",
    "in_percent",
    "name_rows",
    "title",
    "whole_numbers",
]

# Those of Okabe and Ito's colours that have a contrast of 3 with both white and black.
BLUE, RED, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#b8609a"
_LONGEST = 18
_DPI = 90


class Picture(Figure):
    """A figure that a notebook displays, with or without pyplot."""

    def __init__(self, width: float, height: float) -> None:
        super().__init__(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08))

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=_DPI)
        return file.getvalue()


def draw_staged(
    curves: Mapping[str, Sequence[float]], alphas: Sequence[float], kept: int, ax: Axes | None = None
) -> Picture | Axes:
    """Draw the accuracy after 1, 2, ... learners, and below it the weight of each learner's vote.

    Args:
        curves: by name, the accuracies with the first learner, the first two, and so on.
        alphas: the weight of each learner.
        kept: how many learners the ensemble has; the others were tried and left out.
        ax: draw only the accuracy, into these axes.
    """
    if ax is not None:
        _accuracy(ax, curves, kept, len(alphas))
        ax.set_xlabel("learners")
        return ax
    figure = Picture(7.2, 4.6)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    _accuracy(top, curves, kept, len(alphas))
    places = range(1, len(alphas) + 1)
    bars = bottom.bar(places, alphas, width=0.8, color=BLUE)
    for bar in bars[kept:]:
        bar.set_alpha(0.4)
    bottom.set(xlabel="learners", ylabel="weight")
    bare(bottom)
    return figure


def _accuracy(ax: Axes, curves: Mapping[str, Sequence[float]], kept: int, tried: int) -> None:
    for (name, values), colour, line in zip(curves.items(), (BLUE, RED), ("-", "--"), strict=False):
        # A single point draws no line, so it needs a marker.
        marker = "o" if len(values) <= 20 else ""
        ax.plot(
            range(1, len(values) + 1), values, color=colour, linestyle=line, marker=marker, markersize=4, label=name
        )
    ax.axvline(kept, color=GREEN, linestyle=":", linewidth=2, label=f"kept: {number(kept)} of {number(tried)}")
    ax.set(ylabel="accuracy")
    in_percent(ax.yaxis)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.set_xlim(0.4, tried + 0.6)
    ax.grid(axis="y", alpha=0.3)
    ax.legend(frameon=False)
    bare(ax)


def draw_words(words: Mapping[Any, Mapping[str, float]], count: int, ax: Axes | None = None) -> Picture | Axes:
    """Draw one panel per class: its weightiest words and the summed weight of the learners that use them.

    Args:
        words: by class, the weight of each word, weightiest first.
        count: how many words to draw per class.
        ax: draw a single class into these axes.
    """
    tops = {label: dict(list(weights.items())[:count]) for label, weights in words.items()}
    if ax is not None:
        ((label, top),) = tops.items()
        _word_bars(ax, label, top, max(map(len, tops.values())))
        ax.set_xlabel("summed weight (alpha)")
        return ax
    rows = max(map(len, tops.values()))
    wide = 1.75 + 0.085 * max(len(_short(word)) for top in tops.values() for word in top)  # inches
    down = math.ceil(len(tops) / max(1, int(11 / wide)))
    across = math.ceil(len(tops) / down)
    figure = Picture(max(4.5, wide * across), down * (0.6 + 0.23 * rows) + 0.5)
    # All panels share one scale: a class recognised by many words has shorter bars.
    panels = figure.subplots(down, across, sharex=True, squeeze=False).flat
    for panel, (label, top) in zip(panels, tops.items(), strict=False):
        _word_bars(panel, label, top, rows)
    for panel in panels[len(tops) :]:
        panel.set_axis_off()
    for panel in panels[max(0, len(tops) - across) : len(tops)]:
        panel.tick_params(labelbottom=True)
    figure.supxlabel("summed weight (alpha) of the learners that use the word", fontsize="medium")
    return figure


def _word_bars(ax: Axes, label: Any, weights: Mapping[str, float], rows: int) -> None:
    places = range(len(weights))
    ax.barh(places, list(weights.values()), height=0.7, color=BLUE)
    name_rows(ax, [_short(word) for word in weights])
    ax.set_ylim(rows - 0.4, -0.6)
    _literally(title(ax, _short(str(label), 20)), *ax.get_yticklabels())
    ax.xaxis.set_major_locator(MaxNLocator(3))


@dataclass(frozen=True)
class Curve:
    """Scores in percent along an axis, with their deviations, and the scores that somebody else reports."""

    name: str
    scores: Mapping[float, tuple[float, float]]
    reported: Mapping[float, float]


def draw_curves(panels: Mapping[str, Sequence[Curve]], source: str) -> Picture:
    """Draw one panel per axis: each curve with its deviations, and what `source` reports as a dotted line."""
    most = max(len(lines) for lines in panels.values())
    figure = Picture(5.5 * len(panels), 4 + 0.4 * most)  # up to two lines of legend per curve
    for ax, (along, lines) in zip(figure.subplots(1, len(panels), squeeze=False).flat, panels.items(), strict=True):
        for at, line in enumerate(lines):
            colour = f"C{at}"
            means, deviations = zip(*line.scores.values(), strict=True)
            ax.errorbar(list(line.scores), means, deviations, color=colour, marker="o", capsize=3, label=line.name)
            if line.reported:
                name = f"{line.name}, {source}"
                ax.plot(
                    list(line.reported),
                    list(line.reported.values()),
                    color=colour,
                    linestyle=":",
                    marker="x",
                    label=name,
                )
        ax.set_xscale("log", base=2)
        ticks: list[float] = []
        for place in sorted({place for line in lines for place in (*line.scores, *line.reported)}, reverse=True):
            if not ticks or place < 0.8 * ticks[-1]:  # closer labels would overlap
                ticks.append(place)
        ax.set_xticks(ticks, [number(round(tick, 1)) for tick in ticks])
        ax.minorticks_off()
        ax.set(xlabel=along, ylabel="score, %")
        ax.grid(axis="y", alpha=0.3)
        ax.legend(frameon=False, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.14))
        bare(ax)
    return figure


def draw_passes(panels: Mapping[str, Sequence[tuple[str, Sequence[tuple[float, float]], bool]]]) -> Picture:
    """Draw scores in percent against passes, one panel per data set: lines for methods that look into the model, diamonds for those that only ask.

    A method without passes is a dotted line across its panel.
    """
    names = list(dict.fromkeys(name for lines in panels.values() for name, _, _ in lines))
    columns = 2 if len(panels) == 1 else 3
    figure = Picture(max(7.0, 4.6 * len(panels)), 4.4 + 0.22 * -(-len(names) // columns))
    axes = list(figure.subplots(1, len(panels), squeeze=False, sharey=True).flat)
    for ax, (panel, lines) in zip(axes, panels.items(), strict=True):
        for name, points, asks_only in lines:
            colour, mark = f"C{names.index(name) % 10}", "osv^P"[names.index(name) // 10 % 5]
            passes, scores = zip(*points, strict=True)
            if not passes[-1]:
                ax.axhline(scores[-1], color=colour, linestyle=":", label=name)
                continue
            size = 9 if asks_only else 5
            ax.plot(passes, scores, color=colour, marker="D" if asks_only else mark, markersize=size, label=name)
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(lambda place, _: number(place))
        ax.set(xlabel="passes of a training example, forward + backward")
        ax.grid(alpha=0.3)
        title(ax, panel)
        bare(ax)
    axes[0].set(ylabel="score, %")
    found = {name: handle for ax in axes for handle, name in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.legend(
        [found[name] for name in names],
        names,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize="small",
    )
    return figure


def draw_confusions(shares: npt.NDArray[np.float64], names: Sequence[str]) -> Picture:
    """Draw the shares (C, C) of each class that were taken for each."""
    side = min(3 + 0.35 * len(names), 16)
    figure = Picture(side + 1, side)
    ax = figure.subplots()
    ax.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    small = "small" if len(names) <= 20 else 4
    ax.set_xticks(range(len(names)), [_short(name) for name in names], rotation=90, fontsize=small)
    ax.set_yticks(range(len(names)), [_short(name) for name in names], fontsize=small)
    if len(names) <= 20:
        for (row, column), share in np.ndenumerate(shares):
            if share >= 0.005:
                ax.text(
                    column, row, f"{share:.0%}", ha="center", va="center", color="white" if share > 0.5 else "black"
                )
    ax.set(xlabel="taken for", ylabel="class")
    return figure


def draw_chances(chances: Sequence[float], at_most: float) -> Picture:
    """Draw the probability that each example's own label got, ascending, and the line of suspicion."""
    figure = Picture(6, 3.5)
    ax = figure.subplots()
    ax.plot(range(1, len(chances) + 1), chances, color=BLUE)
    ax.axhline(at_most, color=RED, linestyle=":")
    in_percent(ax.yaxis)
    ax.set(xlabel="labelled texts, least likely labels first", ylabel="probability of the label", ylim=(0, 1))
    bare(ax)
    return figure


def draw_learning(curves: Mapping[str, Mapping[int, tuple[float, float]]]) -> Picture:
    """Draw accuracies with their deviations, one panel per axis."""
    figure = Picture(5 * len(curves), 3.5)
    for ax, (along, points) in zip(figure.subplots(1, len(curves), squeeze=False).flat, curves.items(), strict=True):
        means, deviations = zip(*points.values(), strict=True)
        ax.errorbar(list(points), means, deviations, color=BLUE, marker="o", capsize=3)
        ax.set_xscale("log", base=2)
        ax.set_xticks(list(points), [number(place) for place in points])
        ax.minorticks_off()
        in_percent(ax.yaxis)
        ax.set(xlabel=along, ylabel="accuracy on examples left out")
        bare(ax)
    return figure


def draw_reliability(bins: Sequence[Bin]) -> Picture:
    """Draw accuracy against confidence; a calibrated classifier lies on the diagonal."""
    figure = Picture(4.5, 4.5)
    ax = figure.subplots()
    ax.plot([0, 1], [0, 1], color="gray", linestyle=":")
    most = max(one.count for one in bins)
    ax.scatter(
        [one.confidence for one in bins],
        [one.accuracy for one in bins],
        s=[30 + 270 * one.count / most for one in bins],
        color=BLUE,
        alpha=0.8,
    )
    in_percent(ax.xaxis)
    in_percent(ax.yaxis)
    ax.set(xlabel="confidence", ylabel="accuracy on examples left out", xlim=(0, 1.03), ylim=(0, 1.03))
    bare(ax)
    return figure


def title(ax: Axes, text: str) -> Text:
    """Set a panel's title."""
    return ax.set_title(text, loc="left", fontsize="medium", fontweight="bold")


def empty(ax: Axes, text: str) -> None:
    """Say in a panel that there is nothing to draw."""
    ax.set_axis_off()
    ax.text(0, 0.5, text, transform=ax.transAxes, va="center")


def name_rows(ax: Axes, names: Sequence[str]) -> None:
    """Label horizontal bars, the first on top."""
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.tick_params(axis="y", length=0)
    bare(ax)


def in_percent(axis: Axis) -> None:
    """Label an axis in percent."""
    axis.set_major_formatter(PercentFormatter(1, decimals=0))


def whole_numbers(axis: Axis) -> None:
    """Label an axis with whole numbers."""
    axis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))


def bare(ax: Axes) -> None:
    """Remove the top and right borders of a panel."""
    ax.spines[["top", "right"]].set_visible(False)


def _literally(*texts: Text) -> None:
    """Show dollar signs literally instead of as formulas."""
    for text in texts:
        text.set_parse_math(False)


def _short(text: str, longest: int = _LONGEST) -> str:
    r"""Return a word that fits beside its bar.

    >>> _short("late"), _short("internationalisation"), _short("a\nb"), _short("")
    ('late', 'internationalisat…', 'a\\nb', "''")
    """
    shown = repr(text)[1:-1] if not text.isprintable() else text
    return (shown if len(shown) <= longest else f"{shown[: longest - 1]}…") or "''"
