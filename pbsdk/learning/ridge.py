"""Ridge regressions on many texts: least squares instead of a softmax, and no feature left out.

A softmax regression over a few hundred coordinates is as good as one over all of them where features go together, as the
log-probabilities of a model do. N-grams hardly do: with thousands of texts every direction says something, and those that a
softmax regression can afford lose several points. Least squares costs one linear system per class instead, and tells the classes
of texts apart as well.

The features stay as they are, sparse: conjugate gradients need only their products with vectors, and these go to and fro between
examples and features. For each problem with row weights w (0 where a row is left out),

    minimise  sum_i w_i |F_i - Y_i|^2 + PENALTY |W|^2,     F = Z W + b

where Y is 1 at an example's class and else 0, and b the weighed share of each class. Scores are stretched by `STRETCH`, so that a
temperature near 1 makes them log-probabilities.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix

from pbsdk.backend import Floats
from pbsdk.learning.regression import Space, per_length

__all__ = ["PENALTY", "Ridges", "unit_scale"]

PENALTY = 0.3
"""For features of mean square length 1; from 0.1 to 1 it hardly matters."""

STRETCH = 10.0

STEPS = 100
TOLERANCE = 1e-3
"""Of the residual, as a share of the targets."""

MOST_COMPARED = 3000
"""How many examples are compared each with each, once; with more, every product goes by way of the features."""


def unit_scale(features: csr_matrix) -> float:
    """Return the factor that brings features, once centred, to a mean square length of 1."""
    mean = np.asarray(features.mean(axis=0)).ravel()
    return per_length(float(features.multiply(features).sum() / features.shape[0] - mean @ mean))


class Ridges:
    """Solves any number of problems over the same texts.

    Args:
        features: sparse features (N, D).
        labels: the class (N,) of each text.
        n_classes: how many there are.
        weights: how much each text counts (N,), above 0; None: all alike.
    """

    def __init__(
        self, features: csr_matrix, labels: npt.NDArray[np.intp], n_classes: int, weights: Floats | None = None
    ) -> None:
        self._features = features
        self._squared_scale = unit_scale(features) ** 2
        self._compared = features.shape[0] <= MOST_COMPARED
        self._targets = np.eye(n_classes)[labels]
        self._weights = np.ones(len(labels)) if weights is None else weights

    @cached_property
    def gram(self) -> Floats:
        """The inner products (N, N) of the features, centred, with a mean square length of 1."""
        products: Floats = (self._features @ self._features.T).toarray() * self._squared_scale
        mean = products.mean(axis=0)
        centred: Floats = products + mean.mean() - mean[:, None] - mean
        return centred

    @cached_property
    def space(self) -> Space:
        """The coordinates of the features, for a softmax regression."""
        if self._compared:
            return Space.of_gram(self.gram)
        return Space.of_products(self._times, len(self._targets))

    def solve(self, used: npt.NDArray[np.bool_]) -> tuple[Floats, Floats, Floats]:
        """Learn from the rows in use (N,): return the scores (N, C) of all, the duals (N, C), and the bias (C,)."""
        shares = np.average(self._targets[used], axis=0, weights=self._weights[used])
        penalties = PENALTY / self._weights[:, None]
        wanted = np.where(used[:, None], self._targets - shares, 0.0)
        duals = np.zeros_like(wanted)
        left, ahead = wanted.copy(), wanted.copy()
        squares = np.einsum("ij,ij->j", left, left)
        enough = TOLERANCE**2 * np.maximum(squares, np.finfo(np.float64).tiny)
        for _ in range(STEPS):
            if (squares <= enough).all():
                break
            moved = np.where(used[:, None], self._times(ahead), 0.0) + penalties * ahead
            pace = squares / np.maximum(np.einsum("ij,ij->j", ahead, moved), np.finfo(np.float64).tiny)
            duals += pace * ahead
            left -= pace * moved
            before, squares = squares, np.einsum("ij,ij->j", left, left)
            ahead = left + squares / np.maximum(before, np.finfo(np.float64).tiny) * ahead
        return STRETCH * (self._times(duals) + shares), STRETCH * duals, STRETCH * shares

    def _times(self, duals: Floats) -> Floats:
        """Return the centred inner products (N, C) of all examples with weighted ones."""
        if self._compared:
            product: Floats = self.gram @ duals
            return product
        across = self._features @ (self._features.T @ (duals - duals.mean(axis=0)))
        found: Floats = self._squared_scale * (across - across.mean(axis=0))
        return found
