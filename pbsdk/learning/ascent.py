"""A good verbalizer where classes are too many for the best: improved one class at a time.

From 21 classes on, combinations of words can't all be tried, and the paper's score says little: since a class is a
small part of the mass, the score is highest for tokens that are probable nowhere. So both steps are others here.

*Shortlist*, once per prompt: a token speaks for a class by how far its mean log-probability there stands above that of all
examples, in deviations. Each class keeps its m best. *Search*, under given weights: begin with each class's first, and for one
class after the other take the candidate with the least weighted error while all other classes keep theirs, until no class
changes. What is found can't be improved by changing one word. It need not be the best, which is why a model's facts call this
search "not exact".

Codes and weights are whole numbers, so are their sums and errors, and each tie goes to what is there already, then to the better
score, then to the lower token: the same is found on every machine, whether the answers are in memory or on disk.
"""

# ruff: noqa: PLR0913, PLR0917 - compiled functions are called by position: numba is slow to sort out keywords

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pbsdk.backend import STEPS_PER_NAT, Codes, Tokens
from pbsdk.learning.kernels import njit
from pbsdk.learning.matrix import TokenMatrix
from pbsdk.learning.verbalizer import Labels, Verbalizer, Weights, check_labels, checked_m

__all__ = ["AscentSearch"]

LEAST_DEVIATION = 0.1 * STEPS_PER_NAT
"""Added to each deviation: a token that hardly moves says hardly anything."""

NOBODY = 65536
"""More than any code: what the runner-up has where there is none."""


@njit
def _add_up(
    panel: Codes,  # (tokens, examples)
    labels: Labels,  # (examples,)
    sums: npt.NDArray[np.int64],  # (tokens, C): of codes ...
    squares: npt.NDArray[np.int64],  # (tokens,): ... and of their squares, added to
) -> None:
    """Add the examples of a panel to the sums of their classes."""
    for v in range(panel.shape[0]):
        for i in range(panel.shape[1]):
            code = np.int64(panel[v, i])
            sums[v, labels[i]] += code
            squares[v] += code * code


@njit
def _best_scored(
    sums: npt.NDArray[np.int64], squares: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], m: int
) -> Tokens:
    """Return the columns (C, m) that speak most for each class, the best first and the lower of equals."""
    n_columns, n_classes = sums.shape
    n_examples = counts.sum()
    scores = np.full((n_classes, m), -np.inf)
    columns = np.zeros((n_classes, m), dtype=np.int64)
    for v in range(n_columns):
        mean = sums[v].sum() / n_examples
        deviation = np.sqrt(max(squares[v] / n_examples - mean * mean, 0.0)) + LEAST_DEVIATION
        for c in range(n_classes):
            score = (mean - sums[v, c] / counts[c]) / deviation  # smaller codes are more probable
            if score <= scores[c, m - 1]:
                continue
            at = m - 1
            while at > 0 and scores[c, at - 1] < score:
                scores[c, at] = scores[c, at - 1]
                columns[c, at] = columns[c, at - 1]
                at -= 1
            scores[c, at] = score
            columns[c, at] = v
    return columns


@njit
def _settle(said: npt.NDArray[np.int64], leaders: npt.NDArray[np.int64]) -> None:
    """Write into `leaders` the least code (and its class) of those (C,) of an example, and the next; lower classes first."""
    leaders[0] = leaders[2] = NOBODY
    leaders[1] = leaders[3] = len(said)
    for c in range(len(said)):
        if said[c] < leaders[0]:
            leaders[2] = leaders[0]
            leaders[3] = leaders[1]
            leaders[0] = said[c]
            leaders[1] = c
        elif said[c] < leaders[2]:
            leaders[2] = said[c]
            leaders[3] = c


@njit
def _weigh_candidates(
    codes: Codes,  # (N, m): of the candidates of class c
    c: int,
    labels: Labels,  # (N,)
    weights: Weights,  # (N,)
    leaders: npt.NDArray[np.int64],  # (N, 4)
    errors: npt.NDArray[np.int64],  # (m,), overwritten
) -> None:
    """Weigh what each candidate gets wrong, of the examples that depend on it."""
    errors[:] = 0
    for i in range(len(labels)):
        rival, rival_class = leaders[i, 0], leaders[i, 1]
        if rival_class == c:
            rival, rival_class = leaders[i, 2], leaders[i, 3]
        if labels[i] == c:
            most = rival if c < rival_class else rival - 1
            for k in range(len(errors)):
                errors[k] += weights[i] if codes[i, k] > most else 0
        elif labels[i] == rival_class:
            least = rival if rival_class < c else rival + 1
            for k in range(len(errors)):
                errors[k] += weights[i] if codes[i, k] < least else 0


@njit
def _ascend(
    codes: Codes,  # (C, N, m)
    labels: Labels,  # (N,)
    weights: Weights,  # (N,)
    picks: npt.NDArray[np.int64],  # (C,): where to begin; overwritten with what is found ...
    wrong: npt.NDArray[np.bool_],  # (N,): ... and with who gets another class than its own
) -> int:
    """Improve one class at a time until nothing changes; return the error."""
    n_classes, n_examples, m = codes.shape
    said = np.empty((n_examples, n_classes), dtype=np.int64)
    leaders = np.empty((n_examples, 4), dtype=np.int64)
    errors = np.empty(m, dtype=np.int64)
    for i in range(n_examples):
        for c in range(n_classes):
            said[i, c] = codes[c, i, picks[c]]
        _settle(said[i], leaders[i])
    unchanged, c = 0, 0
    while unchanged < n_classes:
        _weigh_candidates(codes[c], c, labels, weights, leaders, errors)
        best = picks[c]
        for k in range(m):
            if errors[k] < errors[best]:
                best = k
        unchanged += 1
        if best != picks[c]:
            picks[c] = best
            unchanged = 0
            for i in range(n_examples):
                said[i, c] = codes[c, i, best]
                if leaders[i, 1] == c or leaders[i, 3] == c or said[i, c] <= leaders[i, 2]:
                    _settle(said[i], leaders[i])
        c = (c + 1) % n_classes
    error = 0
    for i in range(n_examples):
        wrong[i] = leaders[i, 1] != labels[i]
        error += weights[i] if wrong[i] else 0
    return error


class AscentSearch:
    """Finds a good verbalizer of one template, again and again under changing weights; see `VerbalizerSearch`."""

    def __init__(self, matrix: TokenMatrix, labels: npt.ArrayLike, n_classes: int, m: int | None = None) -> None:
        self._matrix = matrix
        self._labels = check_labels(labels, n_classes, matrix.n_examples)
        sums = np.zeros((matrix.n_columns, n_classes), dtype=np.int64)
        squares = np.zeros(matrix.n_columns, dtype=np.int64)
        for start, panel in matrix.panels():
            _add_up(panel, self._labels[start : start + panel.shape[1]], sums, squares)
        m = min(checked_m(m, n_classes), matrix.n_columns)
        self._columns = _best_scored(sums, squares, np.bincount(self._labels), m)
        self._kept = None if matrix.spilled else self._candidates()

    def _candidates(self) -> Codes:
        """Return the codes (C, N, m) of all candidates."""
        n_classes, m = self._columns.shape
        used, places = np.unique(self._columns, return_inverse=True)
        rows = self._matrix.rows(used)
        codes = np.empty((n_classes, self._matrix.n_examples, m), dtype=np.uint16)
        for c, listed in enumerate(places.reshape(n_classes, m)):
            codes[c] = rows[listed].T
        return codes

    def close(self) -> None:
        """Give nothing back: all of it is in memory."""

    def best(self, weights: Weights) -> Verbalizer:
        """Return a verbalizer that no change of one token improves."""
        codes = self._candidates() if self._kept is None else self._kept
        picks, wrong = np.zeros(len(self._columns), dtype=np.int64), np.empty(len(weights), dtype=np.bool_)
        error = _ascend(codes, self._labels, weights, picks, wrong)
        chosen = np.take_along_axis(self._columns, picks[:, None], axis=1)[:, 0]
        return Verbalizer(tuple(map(self._matrix.token, chosen.tolist())), error, wrong)
