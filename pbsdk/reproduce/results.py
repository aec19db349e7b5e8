"""Results: the cells of a reproduction, as a table, as JSON and as a picture.

A cell is one method on one draw. Tables show the mean over draws in percent, the standard deviation in
parentheses (divided by n - 1; none for one draw), and after a slash what the paper reports for
RoBERTa-large on whole test sets. A second table has the expected calibration errors of the same cells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from pbsdk.audit.text import markdown_table
from pbsdk.errors import InputError
from pbsdk.formatting import Cell, Table, duration, number
from pbsdk.reproduce.efficiency import EFFICIENCY, curves, efficiency
from pbsdk.reproduce.figures import MODEL, ROWS, TITLES, figure
from pbsdk.reproduce.figures import Figure as PaperFigure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["CurvePoint", "ResultCell", "Results", "ResultsFile", "Summary"]


class CurvePoint(BaseModel):
    """How far a rival had come when it was tested, and how it did."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    forward: float
    backward: float
    seconds: float
    validation: float
    score: float


class ResultCell(BaseModel):
    """One method on one draw of a data set under one set of prompts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    """A digest of everything that the score depends on."""
    dataset: str
    prompts: str
    """The set of prompts."""
    pool: str
    """The pool that the first of them come from."""
    method: str
    k: int | None
    """How many texts per class were drawn for training; None for all but a tenth."""
    seed: int
    model: str
    measure: Literal["accuracy", "F1"]
    score: float
    calibration_error: float
    """The expected calibration error of its probabilities on the test rows."""
    learners: int
    classes: int
    train: int
    validation: int
    test: int
    n_prompts: int
    passes: int
    """Forward passes that training and validation need with this method alone."""
    metered: bool
    """Whether these passes are in the ledger: those of a white box are not."""
    asking_seconds: float
    """How long those passes took at the model."""
    training_seconds: float
    """How long the method took after that."""
    access: str = "text"
    """What it needed of the model."""
    parameters: int | None = None
    """How many numbers it trained; None if nobody counted."""
    forward: float | None = None
    """Forward passes of a training example, on average; None if that is the number of prompts."""
    backward: float = 0.0
    """Backward passes of a training example, on average."""
    title: str = ""
    """What tables call the method, if it is not one of theirs."""
    settings: dict[str, Any] = {}
    """A rival's settings."""
    curve: tuple[CurvePoint, ...] = ()
    """How a rival did on the way."""


@dataclass(frozen=True)
class ResultsFile:
    """The cells of a run, one per line, each written as soon as it is known."""

    path: Path

    def read(self) -> Iterator[ResultCell]:
        """Yield the cells; a line that an interrupted run left unfinished is skipped, and its cell is computed again."""
        if not self.path.is_file():
            return
        for line in self.path.read_text("utf-8").splitlines():
            try:
                yield ResultCell.model_validate_json(line)
            except ValueError:
                continue

    def append(self, cell: ResultCell) -> None:
        """Write a cell on a line of its own."""
        try:
            with self.path.open("a+", encoding="utf-8") as file:
                file.seek(max(0, file.tell() - 1))
                unfinished = file.read() not in {"", "\n"}  # left by an interrupted run
                file.write(("\n" if unfinished else "") + cell.model_dump_json() + "\n")
        except OSError as error:
            raise InputError(f"{self.path} can't be written: {error.strerror}; choose another folder") from error


@dataclass(frozen=True)
class Summary:
    """A method on a data set, over all draws."""

    dataset: str
    prompts: str
    method: str
    cells: tuple[ResultCell, ...]

    @property
    def mean(self) -> float:
        """The mean score in percent."""
        return 100 * fmean(cell.score for cell in self.cells)

    @property
    def deviation(self) -> float | None:
        """The standard deviation in percent; None for one draw."""
        return 100 * stdev(cell.score for cell in self.cells) if len(self.cells) > 1 else None

    @property
    def paper(self) -> PaperFigure | None:
        """What the paper reports."""
        return figure(self.method, self.dataset, self.prompts)

    @property
    def calibration_error(self) -> float:
        """The mean expected calibration error in percent."""
        return 100 * fmean(cell.calibration_error for cell in self.cells)

    def __str__(self) -> str:
        reported = self.paper
        own = _written(PaperFigure(self.mean, self.deviation))
        return own if reported is None else f"{own} / {_written(reported)}"


@dataclass(frozen=True)
class Results:
    """All cells of a reproduction."""

    cells: tuple[ResultCell, ...]
    model: str

    def summaries(self) -> list[Summary]:
        """Return each method on each data set, in the order of the paper's tables."""
        groups: dict[tuple[str, str, str], list[ResultCell]] = {}
        for cell in self.cells:
            groups.setdefault((cell.prompts, cell.method, cell.dataset), []).append(cell)
        ordered = sorted(groups, key=lambda group: (self._sets().index(group[0]), _place(ROWS, group[1])))
        return [
            Summary(dataset, prompts, method, tuple(groups[prompts, method, dataset]))
            for prompts, method, dataset in ordered
        ]

    def title(self, method: str) -> str:
        """Return what tables call a method."""
        return ROWS.get(method) or next((c.title for c in self.cells if c.method == method and c.title), method)

    def table(self) -> Table:
        """Return the scores: one row per method, one column per data set."""
        measures = {cell.dataset: cell.measure for cell in self.cells}
        heads = [TITLES.get(name, name) + (", F1" if measures[name] == "F1" else "") for name in self._datasets()]
        return Table("Scores", ["method", *heads], self._rows(str))

    def calibration(self) -> Table:
        """Return the expected calibration errors: one row per method, one column per data set."""
        heads = [TITLES.get(name, name) for name in self._datasets()]
        rows = self._rows(lambda summary: f"{summary.calibration_error:.1f}")
        return Table("Expected calibration errors", ["method", *heads], rows)

    def _rows(self, written: Callable[[Summary], str]) -> list[list[Cell]]:
        found = {(summary.prompts, summary.method, summary.dataset): summary for summary in self.summaries()}
        rows = []
        for prompts, method in dict.fromkeys((prompts, method) for prompts, method, _ in found):
            named = self.title(method)
            title = named if len(self._sets()) == 1 else f"{named}, {prompts} prompts"
            there = (found.get((prompts, method, dataset)) for dataset in self._datasets())
            rows.append([Cell(title), *(Cell("-" if one is None else written(one)) for one in there)])
        return rows

    def costs(self) -> Table:
        """Return the costs: one row for each kind of training set of each data set."""
        header = ["data set", "prompts", "texts per class", "draws", "train + validation", "test"]
        header += ["prompts per text", "passes to train", "at the model", "learning"]
        groups: dict[tuple[str, str, int | None], list[ResultCell]] = {}
        for cell in self.cells:
            if not cell.curve:  # a rival asks for itself
                groups.setdefault((cell.dataset, cell.prompts, cell.k), []).append(cell)
        rows = []
        for (dataset, _, k), cells in sorted(groups.items(), key=lambda group: _place(TITLES, group[0][0])):
            largest = max(cells, key=lambda cell: (cell.metered, cell.passes))
            alike = [cell for cell in cells if cell.method == largest.method]
            texts = [
                TITLES.get(dataset, dataset),
                largest.pool,
                "all" if k is None else str(k),
                str(len({cell.seed for cell in cells})),
                f"{number(largest.train)} + {number(largest.validation)}",
                number(largest.test),
                number(round(largest.passes / (largest.train + largest.validation), 1)),
                number(largest.passes),
                duration(fmean(cell.asking_seconds for cell in alike)),
                duration(median(cell.training_seconds for cell in cells)),
            ]
            rows.append([Cell(text) for text in texts])
        return Table("What a draw takes", header, rows)

    def to_markdown(self) -> str:
        """Return the tables with a line about each."""
        scores = (
            f"Model: {self.model}. Mean over draws in percent (standard deviation); after the slash, what the paper reports "
            f"for {MODEL}."
        )
        calibration = (
            "Expected calibration errors in percent, means over draws: how far the probability of a verdict is from how often "
            "it is right. The probability of an ensemble is its share of votes."
        )
        costs = (
            "What one draw takes, with the method that needs the most passes (the others use the same answers): passes and "
            "time at the model for training and validation, and the median time that methods took to learn."
        )
        if not all(cell.metered for cell in self.cells):
            scores += " The white box reads the model itself: its passes are not in the ledger."
        written = [(scores, self.table()), (calibration, self.calibration()), (costs, self.costs())]
        if any(cell.curve for cell in self.cells):
            written.append((EFFICIENCY, efficiency(self)))
        tables = ([said, "", *markdown_table(table), ""] for said, table in written)
        return "\n".join(line for lines in tables for line in lines)

    def to_dict(self) -> dict[str, Any]:
        """Return summaries and cells as plain values."""
        return {
            "model": self.model,
            "summaries": [
                {
                    "dataset": summary.dataset,
                    "prompts": summary.prompts,
                    "method": summary.method,
                    "measure": summary.cells[0].measure,
                    "draws": len(summary.cells),
                    "mean": round(summary.mean, 4),
                    "deviation": None if summary.deviation is None else round(summary.deviation, 4),
                    "calibration_error": round(summary.calibration_error, 4),
                    "paper": None if summary.paper is None else summary.paper._asdict(),
                }
                for summary in self.summaries()
            ],
            "cells": [cell.model_dump() for cell in self.cells],
        }

    def plot(self) -> Figure | None:
        """Draw the scores against training size and number of prompts; None if no data set has two points on an axis.

        Needs matplotlib: `pip install "pbsdk[plot]"`.
        """
        panels = {along: list(self._series(kind)) for along, kind in _PANELS}
        panels = {along: lines for along, lines in panels.items() if lines}
        if not panels:
            return None
        from pbsdk.plotting import Curve, draw_curves  # noqa: PLC0415 - matplotlib is an extra

        return draw_curves(
            {
                along: [
                    Curve(
                        name,
                        {place: (one.mean, one.deviation or 0) for place, one in points.items()},
                        {
                            _asked(one.method, place): one.paper.mean
                            for place, one in points.items()
                            if one.paper is not None
                        },
                    )
                    for name, points in lines
                ]
                for along, lines in panels.items()
            },
            f"{MODEL} in the paper",
        )

    def plot_passes(self) -> Figure | None:
        """Draw the scores against the passes of a training example, one panel per data set; None where no rival competed.

        Needs matplotlib: `pip install "pbsdk[plot]"`.
        """
        if not any(cell.curve for cell in self.cells):
            return None
        from pbsdk.plotting import draw_passes  # noqa: PLC0415 - matplotlib is an extra

        return draw_passes({TITLES.get(name, name): curves(self, name) for name in self._datasets()})

    def _series(self, kind: Literal["size", "prompts"]) -> Iterator[tuple[str, dict[float, Summary]]]:
        """Yield, for each data set and set of prompts, its summaries along one axis, if there are two or more."""
        chosen: dict[tuple[str, str], dict[float, Summary]] = {}
        for summary in self.summaries():
            first = summary.cells[0]
            if kind == "size" and (summary.method in {"boosting", "full"} or summary.method.startswith("k-")):
                place = first.train / first.classes
            elif kind == "prompts" and summary.method in {f"boosting-{d}" for d in (1, 5, 10, 20)}:
                place = first.n_prompts
            else:
                continue
            chosen.setdefault((summary.dataset, summary.prompts), {})[place] = summary
        for (dataset, prompts), points in chosen.items():
            if len(points) > 1:
                name = TITLES.get(dataset, dataset)
                yield (name if len(self._sets()) == 1 else f"{name}, {prompts} prompts"), dict(sorted(points.items()))

    def _sets(self) -> list[str]:
        return list(dict.fromkeys(cell.prompts for cell in self.cells))

    def _datasets(self) -> list[str]:
        return sorted({cell.dataset for cell in self.cells}, key=lambda name: (_place(TITLES, name), name))


_PANELS: tuple[tuple[str, Literal["size", "prompts"]], ...] = (
    ("training texts per class", "size"),
    ("prompts", "prompts"),
)


def _place(names: Iterable[str], name: str) -> int:
    order = list(names)
    return order.index(name) if name in order else len(order)


def _asked(method: str, place: float) -> float:
    """Return the paper's place on the axis: a pool may have fewer than twenty prompts, but the paper's had twenty."""
    return float(method.removeprefix("boosting-")) if method.startswith("boosting-") else place


def _written(score: PaperFigure) -> str:
    return f"{score.mean:.1f}" + ("" if score.deviation is None else f" ({score.deviation:.1f})")
