"""What would help a classifier most, and how far to trust it: tables and plots at no pass.

Heads that cross-validate (`auto`, `soft`) keep what became of each labelled example when it was left out (`learning.study`). Here
it is put into tables: `confusions`, `suspects` (labels that are likely wrong), `learning_curve` (more texts or more prompts?) and
`reliability` (do probabilities mean what they say?). Each prints, shows in a notebook, gives plain data, and draws itself.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from pbsdk.errors import InputError
from pbsdk.formatting import aligned, html_table, number, one_line, percent
from pbsdk.learning.calibration import Confidences, Threshold
from pbsdk.learning.estimates import Estimate
from pbsdk.learning.heads import Fitted
from pbsdk.learning.model_file import TrainingFacts
from pbsdk.learning.study import CurvePoint, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Diagnosis", "Findings"]

SHOWN = 20
"""How many rows of a table are printed; `rows` has all."""

WIDTH = 80
"""How much of a text is printed."""


@dataclass(frozen=True)
class Findings:
    """A table with a sentence under it."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    said: str
    """What the table comes to."""
    draw: Callable[[], Figure]

    def plot(self) -> Figure:
        """Draw it. Needs matplotlib: `pip install "pbsdk[plot]"`."""
        return self.draw()

    def to_dict(self) -> dict[str, Any]:
        """Return the table as plain data."""
        return {
            "title": self.title,
            "rows": [dict(zip(self.header, row, strict=True)) for row in self.rows],
            "said": self.said,
        }

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        return "\n".join([self.title, aligned([self.header, *self._cells()]), *self._more(), one_line(self.said)])

    def _repr_html_(self) -> str:
        below = html.escape(" ".join([*self._more(), one_line(self.said)]))
        return f"{html_table(self.header, self._cells(), self.title)}<p>{below}</p>"

    def _cells(self) -> list[tuple[str, ...]]:
        return [tuple(map(_cell, row)) for row in self.rows[:SHOWN]]

    def _more(self) -> list[str]:
        return [f"... and {len(self.rows) - SHOWN} more"] if len(self.rows) > SHOWN else []


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return percent(value)
    if isinstance(value, str):
        line = one_line(value)
        return line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…"
    return number(value) if isinstance(value, int) and not isinstance(value, bool) else str(value)


class Diagnosis:
    """`estimate_`, `confusions`, `suspects`, `learning_curve`, `reliability` and `threshold` for an estimator whose head cross-validates."""

    fitted_: Fitted
    facts_: TrainingFacts
    classes_: Any
    head_name_: str

    @property
    def estimate_(self) -> Estimate | None:
        """The accuracy that `fit` measured on texts it left out, and how far to believe it; None if it measured none."""
        check_is_fitted(self)
        return self.facts_.estimate

    def confusions(self) -> Findings:
        """Return which classes were taken for which when examples were left out, the most frequent first."""
        study = self._study()
        names = self.classes_.tolist()
        found = study.confusions()
        rows = tuple((names[one.label], names[one.taken_for], one.count, one.share) for one in found)
        said = "No example was taken for another class."
        if rows:
            said = f"{percent(1 - study.accuracy)} of {len(study.material.labels)} examples left out were wrong; most often {rows[0][0]} was taken for {rows[0][1]}."

        def draw() -> Figure:
            from pbsdk.plotting import draw_confusions  # noqa: PLC0415 - matplotlib is an extra

            table = np.zeros((len(names), len(names)))
            np.add.at(table, (study.material.labels, study.probabilities.argmax(axis=1)), 1)
            return draw_confusions(table / table.sum(axis=1, keepdims=True), list(map(str, names)))

        return Findings("Confusions", ("class", "taken for", "examples", "share of the class"), rows, said, draw)

    def suspects(self, at_most: float = 0.1) -> Findings:
        """Return labelled texts whose label is likely wrong: left out, it got a probability of `at_most` this much.

        Rows count from 0, in the order in which `fit` was given the texts; those of a validation set come last.
        """
        if not 0 < at_most < 1:
            raise InputError(f"at_most must be a probability between 0 and 1, not {at_most!r}")
        study = self._study()
        names = self.classes_.tolist()
        rows = tuple(
            (one.row, names[one.label], names[one.likelier], one.probability, " | ".join(study.examples[one.row].texts))
            for one in study.suspects(at_most)
        )
        said = (
            f"{len(rows)} of {len(study.material.labels)} labels are doubtful: wrong, or hard for this classifier. Read the texts to tell which."
            if rows
            else f"No label has a probability of {percent(at_most)} or less."
        )

        def draw() -> Figure:
            from pbsdk.plotting import draw_chances  # noqa: PLC0415 - matplotlib is an extra

            own = study.probabilities[np.arange(len(study.material.labels)), study.material.labels]
            return draw_chances(np.sort(own).tolist(), at_most)

        header = ("row", "label", "likelier", "probability of the label", "text")
        return Findings("Suspicious labels", header, rows, said, draw)

    def learning_curve(self) -> Findings:
        """Return how accuracy grows with texts and with prompts, on examples left out; nothing is asked."""
        study = self._study()
        texts, prompts = study.curve_of_texts(), study.curve_of_prompts()
        rows = tuple((one.texts, one.prompts, one.accuracy, one.deviation) for one in (*texts, *prompts[:-1]))

        def draw() -> Figure:
            from pbsdk.plotting import draw_learning  # noqa: PLC0415 - matplotlib is an extra

            return draw_learning(
                {
                    "texts to learn from": {one.texts: (one.accuracy, one.deviation) for one in texts},
                    "prompts": {one.prompts: (one.accuracy, one.deviation) for one in prompts},
                }
            )

        return Findings(
            "Learning curve", ("texts", "prompts", "accuracy", "deviation"), rows, _advice(texts, prompts), draw
        )

    def reliability(self, bins: int = 10) -> Findings:
        """Return how sure the classifier was of examples left out, and how often it was right."""
        found = self._confidences()
        rows = tuple((one.count, one.confidence, one.accuracy) for one in found.bins(bins))

        def draw() -> Figure:
            from pbsdk.plotting import draw_reliability  # noqa: PLC0415 - matplotlib is an extra

            return draw_reliability(found.bins(bins))

        said = f"Expected calibration error {percent(found.error())} over {len(found.sure)} examples left out."
        return Findings("Reliability", ("examples", "confidence", "accuracy"), rows, said, draw)

    def threshold(self, *, precision: float | None = None, abstain_below: float | None = None) -> Threshold:
        """Return below which probability to abstain, with the precision and coverage that cross-validation expects.

        Args:
            precision: how often answers should be right; the lowest threshold that promises it is found.
            abstain_below: a threshold of your own.
        """
        if (precision is None) == (abstain_below is None):
            raise InputError("give either precision or abstain_below")
        name, given = ("precision", precision) if precision is not None else ("abstain_below", abstain_below)
        if not (isinstance(given, int | float) and 0 < given <= 1):
            raise InputError(f"{name} must be above 0 and at most 1, not {given!r}")
        if precision is not None:
            return self._confidences().threshold(precision)
        assert abstain_below is not None  # noqa: S101 - for the type checker
        known = self.fitted_.confidences
        return Threshold(float(abstain_below), None, 1.0) if known is None else known.at(float(abstain_below))

    def _study(self) -> Study:
        check_is_fitted(self)
        study: Study | None = self.fitted_.study
        if study is None:
            self._confidences()
            raise InputError(
                "a saved classifier doesn't keep its texts; fit it again: the run folder has the answers, and they cost nothing"
            )
        return study

    def _confidences(self) -> Confidences:
        check_is_fitted(self)
        if self.fitted_.confidences is None:
            raise InputError(
                f"the head {self.head_name_!r} doesn't cross-validate; fit with head='auto' or head='soft': "
                "the run folder has the answers, and they cost nothing"
            )
        return self.fitted_.confidences


def _advice(texts: Sequence[CurvePoint], prompts: Sequence[CurvePoint]) -> str:
    """Say which of the two curves still rises."""
    noise = max(texts[-1].deviation / np.sqrt(5), 0.005)
    gains = {}
    for name, curve in (("texts", texts), ("prompts", prompts)):
        if len(curve) > 1:
            first, last = curve[-2], curve[-1]
            size = np.log2(getattr(last, name) / getattr(first, name))
            gains[name] = (last.accuracy - first.accuracy) / max(size, 0.1)
    said = ", ".join(f"{gain:+.1%} per doubling of the {name}" for name, gain in gains.items())
    rising = [name for name, gain in gains.items() if gain > noise]
    if not rising:
        return f"Neither curve rises clearly any more ({said}); better prompts or a better model would help more."
    best = max(rising, key=lambda name: gains[name])
    return f"More {best} would help most ({said}, over the last step of each curve)."
