"""Drift: whether all whole answers can come from one model, told from the answers alone.

A language model's logits are a matrix of its output weights times a hidden state of some hundred numbers. So its answers,
of fifty thousand log-probabilities each, all lie in one flat span of as many dimensions as the model is wide, give or
take the rounding to the grid, whose size is known. Once more answers are stored than that, each of them can be tested at
no query: one that leaves the span of the others was not made with the same output weights.

The dimension is found, not assumed: singular values far above what rounding explains, none in between, and the rest as
large as rounding makes it. Where that picture doesn't show (too few answers for the model's width; a model that computes
in sixteen bits, or a provider that rounds, coarser than the grid), nothing is claimed. A change of the hidden layers alone
moves answers within the span and stays unseen; canaries (`canaries.py`) see that.

What is looked at is bounded: a seeded choice of tokens, and answers spread evenly over the run.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh, eigh_tridiagonal, ldl

from pbsdk.backend import LEAST, Codes, Floats
from pbsdk.ledger.codec import decode
from pbsdk.ledger.reader import LedgerReader

__all__ = ["Drift", "find_drift"]

_TOKENS = 2048
"""How many tokens of an answer are looked at."""
_ANSWERS = 8192
"""How many answers are looked at."""
_BASE = 1536
"""The most answers that a span is found from: enough for a width of 1,200."""
_FEWEST = 64
_GROWTH = 1.25
_MARGIN = 32
"""A span of r dimensions is found from at least 1.25 r + 32 answers."""
_VARIANCE = 1 / 12
"""Of a value rounded to whole steps of the grid."""
_NOISE, _SIGNAL = 2.5, 8.0
"""Singular values are below or above these, in units of the largest that rounding alone has: none may lie between."""
_LIMIT = 2.0
"""An answer leaves the span if it is further away than this: its squared distance over the one that rounding explains.

Of answers of SmolLM2 that took no part in finding the span, it was 1.00 times that in the median and 1.15 times at most."""


@dataclass(frozen=True)
class Drift:
    """Whether a run's whole answers lie in one span."""

    answers: int
    """Distinct whole answers that were looked at."""
    others: int
    """Answers that were not: of chosen tokens or the top k, with a probability at the grid's end, equal to one that was, or more than are looked at."""
    dimension: int | None
    """Of the span; None if none was found."""
    leaving: int
    """How many of the answers leave it."""
    first: int | None
    """The record of the first answer that leaves it."""
    last: int | None
    """The record of the last."""

    @property
    def changed(self) -> bool:
        """Whether some answers were made with other output weights than the rest."""
        return self.leaving > 0

    def __str__(self) -> str:
        return self._finding() + (
            f"; not tested: {self.others:,} answers that don't show the whole vocabulary, repeat another, or weren't picked"
            if self.others
            else ""
        )

    def _finding(self) -> str:
        answers = f"{self.answers:,} distinct whole answers"
        if self.dimension is None:
            too_few = self.answers < _FEWEST
            why = "are too few" if too_few else "show no span: too few for the model's width, or rounded too coarsely"
            return f"drift: can't be told; {answers} {why}"
        if self.changed:
            return (
                f"THE MODEL CHANGED: {self.leaving:,} of {self.answers:,} whole answers, from record {self.first:,} to record "
                f"{self.last:,}, leave the span of {self.dimension:,} dimensions in which the others lie"
            )
        return f"drift: none; {self.answers:,} of {self.answers:,} whole answers lie in one span of {self.dimension:,} dimensions"

    def to_dict(self) -> dict[str, object]:
        """Return the finding as plain values."""
        return {**asdict(self), "changed": self.changed}


def find_drift(run: str | os.PathLike[str]) -> Drift:
    """Test whether all whole answers of a run folder can come from one model."""
    with LedgerReader(run) as reader:
        records, codes = _read(reader)
        others = reader.rows("answers") - len(records)
    # From the first answers on. Then from the last ones back: where a change came early, the first span holds both models.
    span = _Span.of(codes)
    away = None if span is None else span.leave(codes)
    if away is None or not away.any():
        back = _Span.of(codes[::-1], span)
        if back is not None:
            span, away = back, back.leave(codes)
    left = [] if away is None else [record for record, leaves in zip(records, away, strict=True) if leaves]
    return Drift(
        answers=len(records),
        others=others,
        dimension=None if span is None else span.dimension,
        leaving=len(left),
        first=left[0] if left else None,
        last=left[-1] if left else None,
    )


def _read(reader: LedgerReader) -> tuple[list[int], Codes]:
    """Return the records of distinct whole answers, and the codes of the tokens that are looked at, a row for each."""
    # Only whole and top-k answers show a mass. Equal answers say nothing new: a causal model asked before its text, say.
    listed = list(
        reader.select(
            "SELECT min(seq), query FROM records WHERE state = 'done' AND mass > 0 GROUP BY answer ORDER BY 1"
        )
    )
    thinned = [listed[at] for at in np.linspace(0, len(listed) - 1, min(len(listed), _ANSWERS)).astype(int)]
    records: list[int] = []
    rows: list[Codes] = []
    tokens: npt.NDArray[np.int64] | None = None
    size = 0
    for record, query in thinned:
        data = reader.stored(query)
        if data is not None and data[3] == 0:  # the header's kind: whole
            answer = decode(data, lambda _: None)
            if tokens is None:
                size = len(answer.codes)
                tokens = np.random.default_rng(0).permutation(size)
                tokens = np.sort(tokens[answer.codes[tokens] < LEAST][:_TOKENS])
            if len(answer.codes) == size and (answer.codes[tokens] < LEAST).all():
                records.append(int(record))
                rows.append(answer.codes[tokens])
    return records, np.array(rows, dtype=np.uint16).reshape(len(rows), 0 if tokens is None else len(tokens))


class _Span:
    """The span of some answers, around their mean."""

    def __init__(self, rows: Floats, dimension: int) -> None:
        self.answers, tokens = rows.shape
        self.dimension = dimension
        self._mean = rows.mean(axis=0)
        self._room = tokens - 1 - dimension
        """The directions that are left to rounding."""
        differences = rows - self._mean
        values, vectors = eigh(differences @ differences.T, driver="evd")
        self._lengths = np.sqrt(values[-dimension:])
        self._axes = differences.T @ (vectors[:, -dimension:] / self._lengths)
        self.rest = float(values[:-dimension].sum()) / (_VARIANCE * self._room * (self.answers - 1 - dimension))
        """What the answers have outside of the span, as a share of what rounding explains."""

    @classmethod
    def of(cls, codes: Codes, than: _Span | None = None) -> _Span | None:
        """Return the span of as few of the first answers as determine it; only a smaller one `than` another if that is given."""
        size = float(_FEWEST)
        while size <= min(len(codes), _BASE if than is None else than.answers):
            rows = _centred(codes[: int(size)])
            dimension = _dimension(rows)
            fits = dimension and dimension * _GROWTH + _MARGIN <= len(rows) and dimension * 2 <= rows.shape[1]
            if dimension and fits and (than is None or dimension < than.dimension):
                span = cls(rows, dimension)
                if 0.5 <= span.rest <= 1.5:
                    return span
            size *= _GROWTH
        return None

    def leave(self, codes: Codes) -> npt.NDArray[np.bool_]:
        """Return which answers are further away from the span than rounding explains."""
        parts = [codes[at : at + 256] for at in range(0, len(codes), 256)]
        return np.concatenate([self._distances(_centred(part)) > _LIMIT for part in parts])

    def _distances(self, rows: Floats) -> Floats:
        """Return each answer's squared distance, as a multiple of what rounding explains."""
        differences = rows - self._mean
        inside = differences @ self._axes
        outside = (differences**2).sum(axis=1) - (inside**2).sum(axis=1)
        # The span itself is known only up to the rounding of its answers, and the less, the further out.
        doubt = 1 / self.answers + ((inside / self._lengths) ** 2).sum(axis=1)
        distances: Floats = outside / (_VARIANCE * self._room * (1 + doubt))
        return distances


def _centred(codes: Codes) -> Floats:
    """Return answers without what the normalisation of their probabilities adds to all tokens alike."""
    rows = codes.astype(np.float64)
    rows -= rows.mean(axis=1, keepdims=True)
    return rows


def _dimension(rows: Floats) -> int | None:
    """Return how many dimensions the answers have beyond rounding; None if that is not clear-cut."""
    differences = rows - rows.mean(axis=0)
    gram = differences @ differences.T
    edge = _VARIANCE * (np.sqrt(len(rows)) + np.sqrt(rows.shape[1])) ** 2
    low, high = (_count_above(gram, edge * times**2) for times in (_NOISE, _SIGNAL))
    return low if low == high else None


def _count_above(matrix: Floats, bound: float) -> int:
    """Return how many eigenvalues are above a bound, from the signs of a factorisation, a tenth of the time of finding them."""
    shifted = matrix - bound * np.eye(len(matrix))
    blocks = ldl(shifted, overwrite_a=True, check_finite=False)[1]
    signs = eigh_tridiagonal(blocks.diagonal(), blocks.diagonal(1), eigvals_only=True)
    return int((signs > 0).sum())
