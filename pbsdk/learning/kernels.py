"""The inner loops over tokens, compiled.

Everything else in pbsdk is numpy; these loops (and those in `combinations`) are not, because numpy
can't say them without giving up the ideas that make them fast: they stop, skip and remember while
they read, and work on a few hundred bytes at a time, which stay in the processor's nearest cache.
In numpy a round takes tens of milliseconds; compiled, a fraction of one. That is how numba earns
its place.

- `scan` reads a coarse 8-bit copy of one template's answers and names the tokens that *may* enter
  a class's shortlist. Every estimate carries a bound on its error, so no token that belongs there
  is ever left out. It takes most of a round, and nearly all of it is one multiplication and one
  addition for each answer; so these are done 64 at a time, in sixteen bits (`vectors`).
- `entering` sorts out those that still may when all have been seen.
- `exact_scores` scores the few tokens that were named, in double precision, summed one example
  after another and never reordered: the result doesn't depend on the machine, nor on the number of
  threads. `shortlists` picks the best.
"""

# ruff: noqa: PLR0913, PLR0917 - compiled functions are called by position: numba is slow to sort out keywords

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

from pbsdk.learning.vectors import WIDTH, add_piece, ask_for, lowest_bit, reaching, winning

__all__ = ["SPAN", "entering", "exact_scores", "njit", "scan", "shortlists", "source_stamp"]

F = TypeVar("F", bound=Callable[..., Any])

COMPILED = ("vectors.py", "kernels.py", "combinations.py", "verbalizer.py")
"""The modules with compiled functions, and with what is compiled into them."""

SPAN = 128
"""How many examples have a scale together."""

PIECE = 16
"""How many examples are summed in sixteen bits before the sum is put aside."""

CODES_AT_ONCE = 32
"""How many codes the processor fetches at a time."""

FULL = 65000
"""What the weights of a piece sum to in sixteen bits, with room for their rounding."""


def source_stamp(folder: Path) -> str:
    """Return a digest of all modules with compiled functions."""
    return sha256(b"".join((folder / name).read_bytes() for name in COMPILED)).hexdigest()


def njit(function: F) -> F:
    """Compile a function on the first call, and keep the result on disk where that is possible and safe."""
    try:
        compiled: Any = numba.njit(cache=True)(function)
        # For numba, what is kept is good while the function's own file stays the same; but functions call each other
        # across files, and what is called is compiled in. Only a private attribute lets us say so.
        stamped = vars(compiled._cache._cache_file)  # noqa: SLF001
        if "_source_stamp" not in stamped:
            return cast("F", numba.njit(function))
        stamped["_source_stamp"] = source_stamp(Path(__file__).parent)
    except (RuntimeError, OSError, AttributeError):
        # Nowhere to keep it, no source, or a numba that keeps it otherwise: compile anew in each process.
        return cast("F", numba.njit(function))
    return cast("F", compiled)


@njit
def exact_scores(
    codes: npt.NDArray[np.uint16],  # (tokens, N)
    rows: npt.NDArray[np.int64],  # (K,): which tokens
    order: npt.NDArray[np.int64],  # (N,): the examples, sorted by class
    starts: npt.NDArray[np.int64],  # (C + 1,): where each class begins in `order`
    weights: npt.NDArray[np.float64],  # (N,), in `order`
    chances: npt.NDArray[np.float64],  # (65536,): the probability that a code stands for
) -> npt.NDArray[np.float64]:
    """Return the scores (C, K): twice a class's own mass less the mass of all."""
    n_classes = len(starts) - 1
    scores = np.empty((n_classes, len(rows)))
    flat, n_examples = codes.reshape(-1), codes.shape[1]
    for k in range(len(rows)):  # rows are far from each other: ask for all before the first is read
        for at in range(0, n_examples + CODES_AT_ONCE - 1, CODES_AT_ONCE):
            ask_for(flat, rows[k] * n_examples + min(at, n_examples - 1))
    for k in range(len(rows)):
        row = codes[rows[k]]
        total = 0.0
        for c in range(n_classes):
            mass = 0.0
            for i in range(starts[c], starts[c + 1]):
                mass += weights[i] * chances[row[order[i]]]
            scores[c, k] = mass
            total += mass
        for c in range(n_classes):
            scores[c, k] = 2.0 * scores[c, k] - total
    return scores


@njit
def _share_out(
    weights: npt.NDArray[np.float64],
    starts: npt.NDArray[np.int64],
    shares: npt.NDArray[np.uint32],  # (N,): the weight within the piece, in sixteen bits, twice
    ends: npt.NDArray[np.int64],  # of the pieces
    of_class: npt.NDArray[np.int64],
    units: npt.NDArray[np.float32],  # what 1 in a sum of sixteen bits stands for
    centres: npt.NDArray[np.float32],  # what rounding down takes from a sum on average
    offs: npt.NDArray[np.float32],  # how far off a sum is at most
) -> int:
    """Cut the examples into pieces of one class and one span, and write their weights in sixteen bits."""
    n_classes = len(starts) - 1
    rounding = (starts[n_classes] / 8 + n_classes + 64) * 2.0**-22  # of what is done in single precision
    n_pieces = 0
    begin = 0
    for c in range(n_classes):
        while begin < starts[c + 1]:
            end = min(begin + PIECE, starts[c + 1], (begin // SPAN + 1) * SPAN)
            total = 0.0
            for i in range(begin, end):
                total += weights[i]
            whole = total if total > 0.0 else 1.0  # a piece may weigh nothing
            for i in range(begin, end):
                shares[i] = np.uint32(weights[i] / whole * FULL + 0.5) * np.uint32(65537)
            unit = total * (256.0 / FULL)
            ends[n_pieces] = end
            of_class[n_pieces] = c
            units[n_pieces] = unit
            centres[n_pieces] = unit * (end - begin) / 2
            offs[n_pieces] = (total / 2 + unit * (end - begin)) * 1.001 + 255 * rounding * total
            n_pieces += 1
            begin = end
    return n_pieces


@njit
def _replace_least(heap: npt.NDArray[np.float32], value: float) -> None:
    """Put `value` in the place of the heap's least."""
    at = 0
    while True:
        child = 2 * at + 1
        if child >= len(heap):
            break
        if child + 1 < len(heap) and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= value:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = value


@njit
def scan(  # noqa: C901, PLR0912 - one loop over blocks, whose steps are `vectors`
    blocks: npt.NDArray[np.uint8],  # (B, N, WIDTH): probabilities; 255 is the token's greatest in a span of examples
    scales: npt.NDArray[np.float32],  # (B, spans, WIDTH): the greatest probability / 255; 0 where there is no token
    norms: npt.NDArray[np.float32],  # (B,), descending: the greatest length of a token's vector of probabilities
    columns: npt.NDArray[np.int64],  # (B * WIDTH,): which token stands where
    weights: npt.NDArray[np.float64],  # (N,), summing to 1, sorted by class
    starts: npt.NDArray[np.int64],  # (C + 1,)
    everywhere: npt.NDArray[np.bool_],  # (C,): classes that may take tokens which another class wins
    lows: npt.NDArray[np.float32],  # (C, m): heaps of the best scores that are certain, -inf at first
    found: npt.NDArray[np.int64],  # (C * tokens,): which tokens may enter ...
    found_for: npt.NDArray[np.int64],  # ... for which class ...
    found_high: npt.NDArray[np.float32],  # ... with which score at most
    n_found: int,
) -> tuple[int, bool]:
    """Name the tokens that may be among the m best of a class; say whether later blocks can be skipped.

    A probability is `scale * (q + d)` with `|d| <= 1/2`, so a weighted sum of them is off by at most
    half the weight, times the scale. Sums in sixteen bits add at most one unit per example.
    """
    n_blocks, n_examples, _ = blocks.shape
    n_spans = scales.shape[1]
    n_classes, _ = lows.shape
    all_bytes, all_scales = blocks.reshape(-1), scales.reshape(-1)
    shares = np.empty(n_examples, dtype=np.uint32)
    ends = np.empty(n_examples, dtype=np.int64)
    of_class = np.empty(n_examples, dtype=np.int64)
    units, centres, offs = np.empty((3, n_examples), dtype=np.float32)
    n_pieces = _share_out(weights, starts, shares, ends, of_class, units, centres, offs)
    span_offs = np.zeros(n_spans, dtype=np.float32)
    for piece in range(n_pieces):
        span_offs[(ends[piece] - 1) // SPAN] += offs[piece]
    steepest = 0.0  # the greatest length of a class's vector of weights
    for c in range(n_classes):
        square = 0.0
        for i in range(starts[c], starts[c + 1]):
            square += weights[i] * weights[i]
        steepest = max(steepest, np.sqrt(square))
    masses = np.empty(n_classes * WIDTH, dtype=np.float32)  # (C, WIDTH), flat
    rest = np.empty(WIDTH, dtype=np.float32)  # what a score is at most, less twice the mass
    for b in range(n_blocks):
        least = lows[0, 0]
        for c in range(1, n_classes):
            least = min(least, lows[c, 0])
        if steepest * norms[b] * 1.0001 < least:
            return n_found, True
        masses[:] = 0
        rest[:] = 0
        begin = 0
        for piece in range(n_pieces):
            add_piece(
                all_bytes, (b * n_examples + begin) * WIDTH, shares, begin, ends[piece] - begin,
                units[piece], centres[piece], offs[piece],
                all_scales, (b * n_spans + begin // SPAN) * WIDTH, masses, of_class[piece] * WIDTH, rest,
            )  # fmt: skip
            begin = ends[piece]
        for c in range(n_classes):
            left = reaching(masses, c * WIDTH, rest, lows[c, 0])
            if left and not everywhere[c]:
                left &= winning(masses, c * WIDTH, n_classes, rest)
            while left:
                t = lowest_bit(left)
                left &= left - np.uint64(1)
                mass = masses[c * WIDTH + t]
                high = mass + mass + rest[t]
                if high < lows[c, 0] or scales[b, 0, t] == 0:
                    continue
                found[n_found] = columns[b * WIDTH + t]
                found_for[n_found] = c
                found_high[n_found] = high
                n_found += 1
                slack = np.float32(0)  # how far off a mass, or a score, is at most
                for span in range(n_spans):
                    slack += scales[b, span, t] * span_offs[span]
                certain = True
                for other in range(n_classes):
                    if other != c and mass - slack <= masses[other * WIDTH + t] and not everywhere[c]:
                        certain = False
                sure = high - slack - slack
                if certain and sure > lows[c, 0]:
                    _replace_least(lows[c], sure)
    return n_found, False


@njit
def entering(
    found: npt.NDArray[np.int64],
    found_for: npt.NDArray[np.int64],
    found_high: npt.NDArray[np.float32],
    n_found: int,
    lows: npt.NDArray[np.float32],
) -> npt.NDArray[np.int64]:
    """Return the tokens, ascending, that may enter a shortlist after a whole scan."""
    kept = np.empty(n_found, dtype=np.int64)
    n_kept = 0
    for k in range(n_found):
        if found_high[k] >= lows[found_for[k], 0]:
            kept[n_kept] = found[k]
            n_kept += 1
    kept = np.sort(kept[:n_kept])
    n_different = 0
    for k in range(n_kept):
        if k == 0 or kept[k] != kept[k - 1]:
            kept[n_different] = kept[k]
            n_different += 1
    return kept[:n_different]


@njit
def _insert(best: npt.NDArray[np.int64], size: int, scores: npt.NDArray[np.float64], k: int) -> int:
    """Put place k into a list of the best-scored places, the lower first of equals; return its new size."""
    if size == len(best):
        if scores[k] <= scores[best[size - 1]]:
            return size
        size -= 1
    at = size
    while at > 0 and scores[best[at - 1]] < scores[k]:
        best[at] = best[at - 1]
        at -= 1
    best[at] = k
    return size + 1


@njit
def shortlists(
    scores: npt.NDArray[np.float64], m: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return each class's candidates (C, m), the best first, as places among the scored tokens (C, K).

    Return too how many each class has, and which classes won no token and had to fall back.
    """
    n_classes, n_tokens = scores.shape
    best = np.zeros((n_classes, min(m, n_tokens)), dtype=np.int64)
    sizes = np.zeros(n_classes, dtype=np.int64)
    for k in range(n_tokens):
        winner = 0
        for c in range(1, n_classes):
            if scores[c, k] > scores[winner, k]:
                winner = c
        sizes[winner] = _insert(best[winner], sizes[winner], scores[winner], k)
    none = sizes == 0
    for c in range(n_classes):
        if none[c]:
            for k in range(n_tokens):
                sizes[c] = _insert(best[c], sizes[c], scores[c], k)
    return best, sizes, none
