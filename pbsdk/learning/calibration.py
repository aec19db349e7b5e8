"""Cross-validation and calibration: how good scores are on texts they weren't learned from, and what they are worth.

Folds are stratified and seeded. A temperature is the factor on the scores that makes the labels likeliest, found on a fixed grid,
on scores of examples that were left out. `Confidences` are what remains of such scores in a saved model: how sure it was of each
example, and whether it was right, from which any threshold for "don't know" can be read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from pbsdk.backend import Floats
from pbsdk.learning.regression import log_softmax

__all__ = [
    "Bin",
    "Confidences",
    "SavedConfidences",
    "Threshold",
    "expected_calibration_error",
    "loss",
    "stratified_folds",
    "temperature",
]

TEMPERATURES: Floats = np.exp(np.linspace(np.log(0.25), np.log(8), 60))

Labels = npt.NDArray[np.intp]


def stratified_folds(labels: Labels, n_folds: int, repeats: int, seed: int) -> Labels:
    """Return the fold (repeats, N) of each example: every class is dealt out in turn, in seeded order.

    >>> np.bincount(stratified_folds(np.array([0] * 6 + [1] * 4), 5, 1, seed=0)[0]).tolist()
    [2, 2, 2, 2, 2]
    """
    generator = np.random.default_rng(seed)
    folds = np.empty((repeats, len(labels)), dtype=np.intp)
    for one in folds:
        dealt = np.concatenate([generator.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)])
        one[dealt] = np.arange(len(labels)) % n_folds
    return folds


def loss(log_probabilities: Floats, labels: Labels, weights: Floats | None = None) -> float:
    """Return the mean negative log-likelihood of the labels, which may weigh (N,) differently."""
    return float(-np.average(log_probabilities[np.arange(len(labels)), labels], weights=weights))


def temperature(scores: Floats, labels: Labels, weights: Floats | None = None) -> float:
    """Return the factor on scores (N, C) under whose softmax the labels are likeliest."""
    low, high = 0, len(TEMPERATURES) - 1  # the loss is convex in the factor
    while low < high:
        middle = (low + high) // 2
        here, further = (
            loss(log_softmax(scores * factor), labels, weights) for factor in TEMPERATURES[middle : middle + 2]
        )
        low, high = (low, middle) if here <= further else (middle + 1, high)
    return float(TEMPERATURES[low])


@dataclass(frozen=True)
class Threshold:
    """A probability below which to say "don't know", and what cross-validation expects of it."""

    value: float
    """Above 1 if no threshold is precise enough: then nothing is answered."""
    precision: float | None
    """The share of answers that are right; None if nothing is answered."""
    coverage: float
    """The share of examples that are answered."""


@dataclass(frozen=True)
class Bin:
    """Examples of which a model is about equally sure."""

    confidence: float
    """How sure it is of them, on average."""
    accuracy: float
    """How often it is right."""
    count: int


class SavedConfidences(BaseModel):
    """Confidences as a file holds them."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    sure: tuple[Annotated[float, Field(ge=0, le=1)], ...]
    right: tuple[bool, ...]


@dataclass(frozen=True)
class Confidences:
    """How sure (N,) a model was of examples that were left out, and whether it was right."""

    sure: Floats
    right: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, probabilities: Floats, labels: Labels) -> Confidences:
        """Read them off probabilities (N, C)."""
        return cls(np.round(probabilities.max(axis=1), 6), probabilities.argmax(axis=1) == labels)

    def saved(self) -> SavedConfidences:
        """Return what a file holds."""
        return SavedConfidences(sure=tuple(self.sure.tolist()), right=tuple(self.right.tolist()))

    @classmethod
    def restored(cls, saved: SavedConfidences) -> Confidences:
        """Return the confidences of a file."""
        if len(saved.sure) != len(saved.right):
            raise ValueError("confidences needs a verdict for each number")
        return cls(np.array(saved.sure), np.array(saved.right, dtype=np.bool_))

    def threshold(self, precision: float) -> Threshold:
        """Return the lowest threshold above which answers are right this often.

        Shares of few examples are drawn towards a half, by one right and one wrong (Laplace): three right of three don't
        prove a precision of 100%.

        >>> sure = np.array([0.99] * 60 + [0.6] * 40)
        >>> Confidences(sure, sure > 0.7).threshold(0.95)
        Threshold(value=0.99, precision=1.0, coverage=0.6)
        """
        order = np.argsort(-self.sure, kind="stable")
        right = np.cumsum(self.right[order])
        answered = np.arange(1, len(order) + 1)
        ends = np.append(np.diff(self.sure[order]) < 0, True)  # equally sure ones are answered together
        fit = np.flatnonzero(ends & ((right + 1) / (answered + 2) >= precision))
        if not len(fit):
            return Threshold(1.000001, None, 0.0)
        last = int(fit[-1])
        return Threshold(
            float(self.sure[order][last]), float(right[last] / answered[last]), float(answered[last] / len(order))
        )

    def at(self, value: float) -> Threshold:
        """Return what to expect of a threshold."""
        answered = self.sure >= value
        precision = float(self.right[answered].mean()) if answered.any() else None
        return Threshold(value, precision, float(answered.mean()))

    def bins(self, count: int = 10) -> list[Bin]:
        """Return the bins of equal width that hold an example."""
        place = np.minimum((self.sure * count).astype(int), count - 1)
        members = [place == one for one in range(count) if (place == one).any()]
        return [Bin(float(self.sure[m].mean()), float(self.right[m].mean()), int(m.sum())) for m in members]

    def error(self, count: int = 15) -> float:
        """Return the expected calibration error: by how much confidence and accuracy differ, bin by bin."""
        return sum(abs(one.confidence - one.accuracy) * one.count for one in self.bins(count)) / len(self.sure)


def expected_calibration_error(probabilities: Floats, labels: Labels) -> float:
    """Return how far the probability (N, C) of the likeliest class is from how often it is right, in 15 bins of equal width.

    >>> round(expected_calibration_error(np.array([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6]]), np.array([0, 1, 1])), 6)
    0.4
    """
    return Confidences.of(probabilities, labels).error()
