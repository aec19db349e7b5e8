"""The best verbalizer under given weights: one token per class.

Three steps, as in the paper. *Score*: a token speaks for class c if it is probable where c is right
and improbable elsewhere: `S[c, v] = sum of w[i] * p[i, v] over class c, less the same over all other
classes`. (The paper prints the opposite sign; that picks the token that speaks against c.)
*Shortlist*: a token is a candidate only for the class of its highest score, and each class keeps
its m best. A class that is best for no token keeps its m best-scored ones. *Search*: over all
combinations of candidates, the one with the least weighted error when an example is given the class
whose token is most probable. For two classes the reversed pairs are tried too.

All of it is exact, ties included. Codes are whole numbers and smaller means more probable; weights
are whole numbers and so are errors. Between scores, and between combinations of one error, ties go
to the larger (summed) score and then to the lower tokens; between classes, to the lowest.

What makes it fast changes nothing: tokens are screened on a coarse copy with a bound on the error,
and only those that may enter a shortlist are scored. `best(weights, screened=False)` scores all.
These steps run in one compiled call, or one by one where the answers are on disk.

Up to 20 classes, that is. With more, `ascent` looks for a good verbalizer, which need not be the best.

>>> matrix = TokenMatrix.from_codes([[100, 2000], [2000, 100]])
>>> VerbalizerSearch(matrix, [0, 1], 2).best(uniform_weights(2)).tokens
(0, 1)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from pbsdk.backend import Codes, Floats, Tokens
from pbsdk.errors import InputError
from pbsdk.learning.coarse import CoarseCopy
from pbsdk.learning.combinations import search, search_pairs
from pbsdk.learning.kernels import SPAN, entering, exact_scores, njit, scan, shortlists
from pbsdk.learning.matrix import CHANCES, TokenMatrix
from pbsdk.learning.vectors import WIDTH

__all__ = [
    "TOTAL_WEIGHT",
    "Labels",
    "Verbalizer",
    "VerbalizerSearch",
    "Weights",
    "check_labels",
    "default_m",
    "kind_of_search",
    "says",
    "uniform_weights",
    "whole_weights",
]

Weights = npt.NDArray[np.int64]
Labels = npt.NDArray[np.int64]

TOTAL_WEIGHT = 2**52
"""What example weights sum to, about: whole numbers that are exact in double precision too."""

SEARCHABLE = 2**22
"""How many combinations may be searched at most, should no branch be cut."""

EXACT_CLASSES = 20
"""With how many classes all combinations can be searched, at least two candidates each; with more, see `ascent`."""

MANY = 10
"""How many candidates a class has by default where there are more classes."""

MOST_OF_MANY = 100
"""And how many it may have."""

AT_A_TIME = 1024
"""How many tokens of a spilled matrix are scored at a time."""


def default_m(n_classes: int) -> int:
    """Return how many candidates a class has: the paper's numbers, then as many as can be searched.

    >>> [default_m(n) for n in (2, 3, 4, 6, 10, 20, 50)]
    [50, 10, 10, 5, 3, 2, 10]
    """
    # 3**10 and 2**20 combinations are searched in well under a second; beyond, not all are.
    steps = ((2, 50), (4, 10), (6, 5), (10, 3), (EXACT_CLASSES, 2))
    return next((m for most, m in steps if n_classes <= most), MANY)


def checked_m(m: int | None, n_classes: int) -> int:
    """Return m, or its default; refuse one that can't be searched."""
    if m is None:
        return default_m(n_classes)
    if m < 1:
        raise InputError(f"m is {m}; a class needs at least 1 candidate token")
    if n_classes > EXACT_CLASSES:
        if m > MOST_OF_MANY:
            raise InputError(f"m={m} is too much for {n_classes} classes; use m={MOST_OF_MANY} or less")
    elif m**n_classes > SEARCHABLE:
        most = int(SEARCHABLE ** (1 / n_classes) + 1e-9)
        raise InputError(
            f"m={m} with {n_classes} classes makes {m}^{n_classes} combinations, too many to search exactly; "
            f"use m={most} or less (the default is {default_m(n_classes)})"
        )
    return m


def kind_of_search(n_classes: int) -> Literal["exact", "not exact"]:
    """Say whether the verbalizers of so many classes are the best, or good ones (`ascent`)."""
    return "exact" if n_classes <= EXACT_CLASSES else "not exact"


def check_labels(labels: npt.ArrayLike, n_classes: int, n_examples: int) -> Labels:
    """Return labels as whole numbers below `n_classes`, every class among them."""
    values = np.asarray(labels, dtype=np.int64)
    if values.shape != (n_examples,):
        raise InputError(f"there are {len(values)} labels for {n_examples} examples; give one each")
    if n_classes < 2:
        raise InputError(f"there are labels of {n_classes} class; a classifier needs at least 2")
    counts = np.bincount(values, minlength=n_classes) if values.min() >= 0 else np.zeros(0)
    if len(counts) != n_classes or (counts == 0).any():
        raise InputError(f"labels must be 0 to {n_classes - 1}, and each must have an example")
    return values


def uniform_weights(n_examples: int) -> Weights:
    """Return equal weights."""
    return np.full(n_examples, TOTAL_WEIGHT // n_examples, dtype=np.int64)


def whole_weights(shares: Floats | None, n_examples: int) -> Weights:
    """Return whole-number weights in proportion to shares, so that multiples stay exact ones; equal without shares.

    >>> whole_weights(np.array([0.5, 1.5, 1.0]), 3) // whole_weights(np.array([0.5, 1.5, 1.0]), 3).min()
    array([1, 3, 2])
    """
    if shares is None:
        return uniform_weights(n_examples)
    ratios = np.round(shares / shares.min(), 9)
    unit = TOTAL_WEIGHT // int(np.ceil(ratios.sum()))
    whole: Weights = np.maximum(np.rint(ratios * unit), 1).astype(np.int64)
    return whole


def says(codes: Codes) -> npt.NDArray[np.intp]:
    """Return the class (N,) that a verbalizer's codes (N, C) speak for: most probable, then lowest."""
    classes: npt.NDArray[np.intp] = codes.argmin(axis=1)
    return classes


@dataclass(frozen=True, eq=False)
class Verbalizer:
    """One token per class, and how it does."""

    tokens: tuple[int, ...]
    error: int
    """The weight of the examples that it gets wrong."""
    wrong: npt.NDArray[np.bool_]
    """Which these are."""


Listed = tuple[Tokens, Floats, npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Columns (K,), their scores (C, K), and of these each class's candidates as places (C, m) and how many (C,)."""


@njit
def _shares(weights: Weights) -> Floats:
    """Return the weights as shares of their sum."""
    total = 0
    for weight in weights:
        total += weight
    shares = np.empty(len(weights))
    for i in range(len(weights)):
        shares[i] = weights[i] / float(total)
    return shares


@njit
def _list_at_once(  # noqa: PLR0913, PLR0917 - called by position: numba is slow to sort out keywords
    chunk: tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32], npt.NDArray[np.float32], Tokens],  # the coarse copy
    found: tuple[Tokens, Tokens, npt.NDArray[np.float32]],  # room for `scan`
    m: int,
    codes: Codes,  # (tokens, N)
    order: Tokens,  # (N,)
    starts: Tokens,  # (C + 1,)
    weights: Weights,  # (N,), in `order`
    chances: Floats,
) -> Listed:
    """Screen, score and shortlist in one call: between two, Python would take as long as some of the steps."""
    n_classes = len(starts) - 1
    shares = _shares(weights)
    everywhere = np.zeros(n_classes, dtype=np.bool_)
    lows = np.empty((n_classes, m), dtype=np.float32)
    while True:
        lows[:] = -np.inf
        n_found, _ = scan(*chunk, shares, starts, everywhere, lows, *found, 0)
        columns = entering(*found, n_found, lows)
        scores = exact_scores(codes, columns, order, starts, shares, chances)
        places, sizes, none = shortlists(scores, m)
        if everywhere.any() or not none.any():
            return columns, scores, places, sizes
        everywhere = none  # what these classes fall back on may not have been named


class VerbalizerSearch:
    """Finds the best verbalizer of one template, again and again under changing weights.

    What doesn't change between rounds (the coarse copy, the order of the examples) is made once.
    """

    def __init__(self, matrix: TokenMatrix, labels: npt.ArrayLike, n_classes: int, m: int | None = None) -> None:
        self._matrix = matrix
        self._nowhere = np.zeros(n_classes, dtype=np.bool_)
        self._labels = check_labels(labels, n_classes, matrix.n_examples)
        self._m = checked_m(m, n_classes)
        self._order = np.argsort(self._labels, kind="stable")
        self._starts = np.searchsorted(self._labels[self._order], np.arange(n_classes + 1))
        self._coarse = CoarseCopy(matrix, self._order, WIDTH, SPAN)
        room = n_classes * len(self._coarse.columns)
        self._found = (np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.float32))

    def close(self) -> None:
        """Give back the disk space of the coarse copy."""
        self._coarse.close()

    def best(self, weights: Weights, *, screened: bool = True) -> Verbalizer:
        """Return the verbalizer with the least weighted error."""
        sorted_weights = weights[self._order]
        codes = self._matrix.codes
        if codes is not None and screened:
            (chunk,) = self._coarse.chunks()
            columns, scores, places, sizes = _list_at_once(
                chunk, self._found, self._m, codes, self._order, self._starts, sorted_weights, CHANCES
            )
        else:
            columns, scores, places, sizes = self._list_by_steps(_shares(sorted_weights), screened=screened)
        rows = columns
        if codes is None:
            used = np.unique(np.concatenate([listed[:size] for listed, size in zip(places, sizes, strict=True)]))
            codes, rows = self._matrix.rows(columns[used]), np.zeros(len(columns), dtype=np.int64)
            rows[used] = np.arange(len(used))
        chosen, wrong = np.empty(len(sizes), dtype=np.int64), np.empty(len(weights), dtype=np.bool_)
        find = search_pairs if len(sizes) == 2 else search
        error = find(
            codes, rows, columns, scores, places, sizes, self._order, self._starts, sorted_weights, chosen, wrong
        )
        return Verbalizer(tuple(map(self._matrix.token, chosen.tolist())), error, wrong)

    def _list_by_steps(self, shares: Floats, *, screened: bool) -> Listed:
        """Do what `_list_at_once` does where not all can be held in memory, or without screening."""
        columns = self._named(shares, self._nowhere) if screened else np.arange(self._matrix.n_columns)
        scores = self._scores(columns, shares)
        places, sizes, none = shortlists(scores, self._m)
        if screened and none.any():
            columns = self._named(shares, none)
            scores = self._scores(columns, shares)
            places, sizes, _ = shortlists(scores, self._m)
        return columns, scores, places, sizes

    def _scores(self, columns: Tokens, shares: Floats) -> Floats:
        """Return the scores (C, K) of some columns."""
        if self._matrix.codes is not None:
            return exact_scores(self._matrix.codes, columns, self._order, self._starts, shares, CHANCES)
        parts = []
        for at in range(0, len(columns), AT_A_TIME):
            rows = self._matrix.rows(columns[at : at + AT_A_TIME])
            parts.append(exact_scores(rows, np.arange(len(rows)), self._order, self._starts, shares, CHANCES))
        return np.concatenate(parts, axis=1)

    def _named(self, shares: Floats, everywhere: npt.NDArray[np.bool_]) -> Tokens:
        """Return, ascending, the columns that may enter a shortlist; for some classes, whoever wins them."""
        lows = np.full((len(everywhere), self._m), -np.inf, dtype=np.float32)
        n_found = 0
        for chunk in self._coarse.chunks():
            n_found, done = scan(*chunk, shares, self._starts, everywhere, lows, *self._found, n_found)
            if done:
                break
        return entering(*self._found, n_found, lows)
