"""What cross-validation knows beyond a figure: confusions, suspicious labels, and whether more texts or more prompts would help.

A `Study` holds the labelled examples as features, and the probabilities that each got from models that never saw it. All
of it was paid for when the answers came: nothing here asks. It lives with a fitted classifier and isn't saved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pbsdk.backend import Floats
from pbsdk.learning.calibration import Confidences, stratified_folds
from pbsdk.learning.choosing import Chosen, Solver, Way
from pbsdk.learning.heads import Trial
from pbsdk.learning.linear import Material
from pbsdk.learning.regression import one_thread
from pbsdk.queries.examples import Example

__all__ = ["Confusion", "CurvePoint", "Study", "Suspect"]

SIZES = (0.125, 0.25, 0.5)
"""Parts of the labelled examples that a learning curve learns from, besides those of cross-validation."""

REPEATS = 5
"""How often each part is drawn."""

PROMPTS = (1, 2, 3, 5, 7, 10, 15, 20)
"""After how many prompts a learning curve looks."""


@dataclass(frozen=True)
class Suspect:
    """An example whose label cross-validation doubts: another class is likelier by far."""

    row: int
    """Its place among the labelled examples, those of the validation set last."""
    label: int
    likelier: int
    probability: float
    """Of its own label."""


@dataclass(frozen=True)
class Confusion:
    """Examples of one class that were taken for another."""

    label: int
    taken_for: int
    count: int
    share: float
    """Of all examples of the class."""


@dataclass(frozen=True)
class CurvePoint:
    """The accuracy on examples left out, with so many texts and prompts to learn from."""

    texts: int
    prompts: int
    accuracy: float
    deviation: float
    """The standard deviation over draws, or folds."""


@dataclass(frozen=True)
class Study:
    """Labelled examples, and their probabilities (N, C) by models that never saw them."""

    material: Material
    probabilities: Floats
    way: Way
    seed: int
    examples: Sequence[Example]

    @classmethod
    def of(cls, material: Material, chosen: Chosen, trial: Trial) -> Study:
        """Return the study of what was chosen."""
        examples = trial.examples or [Example("")] * len(material.labels)
        return cls(material, np.exp(chosen.left_out), chosen.way, trial.seed, examples)

    @property
    def accuracy(self) -> float:
        """The share of examples left out that were right."""
        return float(self.confidences.right.mean())

    @property
    def confidences(self) -> Confidences:
        """How sure the models were, and whether they were right."""
        return Confidences.of(self.probabilities, self.material.labels)

    def confusions(self) -> list[Confusion]:
        """Return which classes were taken for which, the most frequent first."""
        labels, said = self.material.labels, self.probabilities.argmax(axis=1)
        table = np.zeros((self.material.n_classes,) * 2, dtype=np.int64)
        np.add.at(table, (labels, said), 1)
        of_class = table.sum(axis=1)
        np.fill_diagonal(table, 0)
        pairs = sorted(zip(*np.nonzero(table), strict=True), key=lambda pair: (-table[pair], pair))
        return [Confusion(int(a), int(b), int(table[a, b]), float(table[a, b] / of_class[a])) for a, b in pairs]

    @property
    def confusion_counts(self) -> tuple[tuple[int, int, int], ...]:
        """The same as plain numbers: class, taken for, count."""
        return tuple((one.label, one.taken_for, one.count) for one in self.confusions())

    def suspects(self, at_most: float = 0.1) -> list[Suspect]:
        """Return examples whose own label has a probability of `at_most` this much, the least likely first."""
        labels = self.material.labels
        own = self.probabilities[np.arange(len(labels)), labels]
        said = self.probabilities.argmax(axis=1)
        rows = [
            row for row in np.argsort(own, kind="stable").tolist() if own[row] <= at_most and said[row] != labels[row]
        ]
        return [Suspect(row, int(labels[row]), int(said[row]), float(own[row])) for row in rows]

    @one_thread()
    def curve_of_texts(self) -> list[CurvePoint]:
        """Return the accuracy after learning from ever more of the texts, under all prompts."""
        solver = Solver(self.material)
        return [self._point(solver, rows, len(self.material.views)) for rows in self._parts()]

    @one_thread()
    def curve_of_prompts(self) -> list[CurvePoint]:
        """Return the accuracy with ever more of the prompts, as they come in the pool, from all texts but a fold."""
        *_, rows = self._parts()
        everything = len(self.material.views)
        counts = sorted({count for count in PROMPTS if count < everything} | {everything})
        return [self._point(Solver(self.material.of_prompts(range(count))), rows, count) for count in counts]

    def _parts(self) -> Iterator[Sequence[npt.NDArray[np.bool_]]]:
        """Yield, part by part, which examples are learned from in each draw; the last are cross-validation's folds."""
        labels = self.material.labels
        generator = np.random.default_rng(self.seed)
        fewest = int(np.bincount(labels, minlength=self.material.n_classes).min())
        for size in SIZES:
            if round(size * fewest) >= 1:
                yield [_part(labels, size, generator) for _ in range(REPEATS)]
        n_folds = max(2, min(5, fewest))
        (folds,) = stratified_folds(labels, n_folds, 1, self.seed)
        yield [folds != fold for fold in range(n_folds)]

    def _point(self, solver: Solver, rows: Sequence[npt.NDArray[np.bool_]], prompts: int) -> CurvePoint:
        """Learn from some examples, and test on the others; draw by draw."""
        labels = self.material.labels
        solution = solver.solve(self.way, np.array(rows, dtype=np.float64))
        right = [
            (scores[~used].argmax(axis=1) == labels[~used]).mean()
            for used, scores in zip(rows, solution.scores, strict=True)
        ]
        texts = int(np.mean([used.sum() for used in rows]))
        return CurvePoint(texts, prompts, float(np.mean(right)), float(np.std(right)))


def _part(labels: npt.NDArray[np.intp], size: float, generator: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Draw a part of each class, at least one example of each."""
    chosen = np.zeros(len(labels), dtype=np.bool_)
    for label in np.unique(labels):
        rows = generator.permutation(np.flatnonzero(labels == label))
        chosen[rows[: max(1, round(size * len(rows)))]] = True
    return chosen
