"""What each method needed: the paper's table of efficiency, and the curves of its argument, filled by measurement.

Passes are those of a training example, as the ledger has them: forward ones, and backward ones where a method asks for gradients. What methods of the tables ask is the
number of their prompts. A rival is tested on its way, so it has a curve; at each place it stands for the point that the validation set had chosen up to there.
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from pbsdk.formatting import Cell, Table, duration, number
from pbsdk.reproduce.figures import TITLES

if TYPE_CHECKING:
    from pbsdk.reproduce.results import ResultCell, Results

__all__ = ["EFFICIENCY", "curves", "efficiency"]

EFFICIENCY = (
    "What each method needed, means over draws: what it saw of the model, how many numbers it trained, the passes of a training example, forward and backward, and "
    "the time that took with learning, tests left out."
)

Line = tuple[str, list[tuple[float, float]], bool]
"""A method's title, its scores in percent by passes, and whether it only asks."""


def efficiency(results: Results) -> Table:
    """Return what each method needed: one row per method and data set."""
    groups: dict[tuple[str, str], list[ResultCell]] = {}
    for summary in results.summaries():
        groups.setdefault((summary.dataset, summary.method), []).extend(summary.cells)
    rows = []
    for (dataset, method), cells in groups.items():
        first = cells[0]
        rows.append(
            [
                Cell(results.title(method)),
                Cell(TITLES.get(dataset, dataset)),
                Cell("hidden states" if not first.metered else first.access),
                Cell("-" if first.parameters is None else number(first.parameters)),
                Cell(number(round(fmean(map(_forward, cells)), 1))),
                Cell(number(round(fmean(cell.backward for cell in cells), 1))),
                Cell(duration(fmean(cell.asking_seconds + cell.training_seconds for cell in cells))),
                Cell(f"{100 * fmean(cell.score for cell in cells):.1f}"),
            ]
        )
    header = ["method", "data set", "access", "trained numbers", "forward", "backward", "time", "score"]
    return Table("Efficiency", header, rows)


def _forward(cell: ResultCell) -> float:
    """Return the forward passes of a training example."""
    return cell.n_prompts if cell.forward is None else cell.forward


def curves(results: Results, dataset: str) -> list[Line]:
    """Return each method's scores in percent by the passes of a training example, the mean of all draws."""
    lines: list[Line] = []
    for summary in results.summaries():
        if summary.dataset != dataset:
            continue
        found: dict[float, list[float]] = {}
        for cell in summary.cells:
            for passes, score in _places(cell):
                found.setdefault(passes, []).append(100 * score)
        asks_only = not any(cell.curve for cell in summary.cells)
        lines.append((results.title(summary.method), [(at, fmean(found[at])) for at in sorted(found)], asks_only))
    return lines


def _places(cell: ResultCell) -> list[tuple[float, float]]:
    """Return a cell's scores by passes, forward and backward together."""
    if not cell.curve:
        return [(_forward(cell), cell.score)]
    places, best = [], None
    for point in cell.curve:
        if best is None or point.validation >= best.validation:
            best = point
        places.append((point.forward + point.backward, best.score))
    return places
