"""L2-regularised softmax regressions, many at once, over few examples and many features.

Ten prompts with hundreds of tokens each are thousands of features, and the labelled examples are often few. What the examples
can tell apart spans no more dimensions than there are examples, so a `Space` turns the features into orthogonal coordinates
first, largest variance first, by way of whichever Gram matrix is smaller: that of examples or that of features. A
regression in these coordinates is exactly the one in the features. `duals` turns it back: weights of features are `features.T @ duals`.

`fit_many` minimises, for each problem with a strength C and row weights w,

    sum_i w_i * (logsumexp(F_i) - F_i[y_i]) + |W|^2 / (2 C),     F = Z W + b

In orthogonal, centred coordinates the softmax loss has a diagonal bound on its curvature that holds for any row weights
of at most 1 (Böhning 1992). So one step size per coordinate serves all folds and strengths, an accelerated gradient needs no
line search, and all problems run side by side in one matrix product. It is the same on every run: `one_thread` keeps BLAS
from splitting sums as the machine's load has it, which for matrices of this size is also faster, by far on busy cores.

>>> features = np.array([[1.0, 0.0], [0.8, 0.1], [-1.0, 0.2], [-0.8, -0.3]])
>>> space = Space.of(features - features.mean(axis=0))
>>> (solution,) = fit_many(space.coordinates, np.array([0, 0, 1, 1]), 2, [10.0])
>>> (space.coordinates @ solution[:-1] + solution[-1]).argmax(axis=1)
array([0, 0, 1, 1])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ContextDecorator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh
from threadpoolctl import threadpool_limits

from pbsdk.backend import Floats

__all__ = ["LOOSE", "MOST_COORDINATES", "Space", "fit_many", "log_softmax", "one_thread", "per_length"]

LEAST_VARIANCE = 1e-7
"""Coordinates with a smaller share of the largest variance are the rounding of single precision."""

MOST_COORDINATES = 600
"""How many coordinates are kept; those of less variance change no verdict."""

SPARE = 50
POWERS = 3
"""How many directions more than coordinates are tried, and how often they are multiplied, where examples are too many to compare all."""

STEPS = 500
TOLERANCE = 1e-5
"""Of the gradient, per example."""

LOOSE = 3e-4
"""The tolerance of regressions that are fitted only to be compared."""


def one_thread() -> ContextDecorator:
    """Return what keeps BLAS on one thread, as a decorator or in a `with` block."""
    limits: ContextDecorator = threadpool_limits.wrap(limits=1, user_api="blas")
    return limits


def per_length(mean_square: float) -> float:
    """Return the factor that brings features of this mean square length to 1; 1 if they have none."""
    return 1 / float(np.sqrt(mean_square)) if mean_square > 0 else 1.0


def log_softmax(scores: Floats) -> Floats:
    """Return the logarithm of the softmax over the last axis."""
    shifted = scores - scores.max(axis=-1, keepdims=True)
    found: Floats = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return found


@dataclass(frozen=True)
class Space:
    """Orthogonal coordinates (N, rank) of centred features."""

    coordinates: Floats

    @classmethod
    def of(cls, features: npt.NDArray[np.floating]) -> Space:
        """Return the coordinates of centred features (N, D)."""
        n_examples, n_features = features.shape
        if n_examples <= n_features:
            return cls.of_gram(features @ features.T)
        _, vectors = _largest(features.T @ features)
        return cls(features @ vectors)

    @classmethod
    def of_gram(cls, gram: npt.NDArray[np.floating]) -> Space:
        """Return the coordinates of centred features whose inner products (N, N) are given."""
        variances, vectors = _largest(gram)
        return cls(vectors * np.sqrt(variances))

    @classmethod
    def of_products(cls, times: Callable[[Floats], Floats], size: int) -> Space:
        """Return the coordinates of centred features whose inner products (N, N) are too many to hold: `times` multiplies them.

        The largest variances are found in the span of random directions that were multiplied a few times.
        """
        directions = np.random.default_rng(0).normal(size=(size, min(size, MOST_COORDINATES + SPARE)))
        for _ in range(POWERS):
            directions, _ = np.linalg.qr(times(directions))
        variances, vectors = _largest(directions.T @ times(directions))
        return cls((directions @ vectors) * np.sqrt(variances))

    @cached_property
    def _back(self) -> Floats:
        variances = np.einsum("ij,ij->j", self.coordinates, self.coordinates)
        back: Floats = self.coordinates / np.maximum(variances, np.finfo(np.float64).tiny)
        return back

    def duals(self, solution: Floats) -> Floats:
        """Return the weight (N, C) of each example, given those of the coordinates."""
        return self._back @ solution

    def within(self, duals: Floats) -> Floats:
        """Return the part of some duals that this space can express."""
        return self._back @ (self.coordinates.T @ duals)


def _largest(gram: npt.NDArray[np.floating]) -> tuple[Floats, Floats]:
    """Return the largest eigenvalues and their vectors, in descending order; at least one."""
    size = len(gram)
    values, vectors = eigh(
        gram.astype(np.float64), subset_by_index=(max(0, size - MOST_COORDINATES), size - 1), driver="evr"
    )
    values, vectors = values[::-1], vectors[:, ::-1]
    count = max(1, int((values > LEAST_VARIANCE * max(values[0], 0.0)).sum()))
    # A space without any variance keeps one coordinate, which is 0 for all.
    return np.maximum(values[:count], 0.0), vectors[:, :count]


def fit_many(  # noqa: PLR0913 - a problem, and how exactly it is solved
    coordinates: Floats,
    labels: npt.NDArray[np.intp],
    n_classes: int,
    strengths: Sequence[float],
    weights: npt.ArrayLike | None = None,
    *,
    tolerance: float = TOLERANCE,
) -> Floats:
    """Solve one problem per strength (B,), each with its own row weights (B, N) in [0, 1].

    Return (B, rank + 1, C): the weights of the coordinates, and the bias last. `coordinates` must be orthogonal and centred.
    """
    n_examples, rank = coordinates.shape
    n_problems = len(strengths)
    row_weights = np.ones((n_problems, n_examples)) if weights is None else np.asarray(weights, dtype=np.float64)
    ridge = np.zeros((n_problems, rank + 1))
    ridge[:, :rank] = 1 / np.asarray(strengths, dtype=np.float64)[:, None]
    whole = np.hstack([coordinates, np.ones((n_examples, 1))])
    bound = 0.5 * np.einsum("ij,ij->j", whole, whole) + ridge
    targets = np.eye(n_classes)[labels]
    total = np.maximum(row_weights.sum(axis=1), 1)
    solved = np.zeros((n_problems, rank + 1, n_classes))
    alive = np.arange(n_problems)
    now = ahead = solved.copy()
    pace = np.ones(n_problems)
    for _ in range(STEPS):
        slope = _slope(whole, ahead, targets, row_weights[alive]) + ridge[alive, :, None] * ahead
        stepped = ahead - slope / bound[alive, :, None]
        moved = stepped - now
        uphill = np.einsum("bij,bij->b", slope, moved) > 0  # the momentum went too far: start anew
        next_pace = np.where(uphill, 1.0, 0.5 * (1 + np.sqrt(1 + 4 * pace**2)))
        momentum = np.where(uphill, 0.0, (pace - 1) / next_pace)
        now, ahead, pace = stepped, stepped + momentum[:, None, None] * moved, next_pace
        gain = np.einsum("bij,bij,bi->b", slope, slope, 1 / bound[alive]) / total[alive]
        left = gain >= 10 * tolerance**2
        if not left.all():
            solved[alive[~left]] = now[~left]
            alive, now, ahead, pace = alive[left], now[left], ahead[left], pace[left]
            if not len(alive):
                return solved
    solved[alive] = now
    return solved


def _slope(whole: Floats, ahead: Floats, targets: Floats, weights: Floats) -> Floats:
    """Return the gradient (B, rank + 1, C) of the loss, all problems in two products."""
    n_problems, width, n_classes = ahead.shape
    scores = (whole @ ahead.transpose(1, 0, 2).reshape(width, -1)).reshape(-1, n_problems, n_classes)
    scores -= scores.max(axis=2, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=2, keepdims=True)
    scores -= targets[:, None]
    scores *= weights.T[:, :, None]
    slope: Floats = (whole.T @ scores.reshape(len(whole), -1)).reshape(width, n_problems, n_classes).transpose(1, 0, 2)
    return slope
