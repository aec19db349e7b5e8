"""The inner loops over tokens, compiled.

Everything else in pbsdk is numpy; these loops (and those in `combinations`) are not, because numpy
can't say them without giving up the ideas that make them fast: they stop, skip and remember while
they read, and work on a few hundred bytes at a time, which stay in the processor's nearest cache.
In numpy a round takes tens of milliseconds; compiled, a fraction of one. That is how numba earns
its place.

- `scan` reads a coarse 8-bit copy of one template's answers and names the tokens that *may* enter
  a class's shortlist. Every estimate carries a bound on its error, so no token that belongs there
  is ever left out.
- `entering` sorts out those that still may when all have been seen.
- `exact_scores` scores the few tokens that were named, in double precision, summed one example
  after another and never reordered: the result doesn't depend on the machine, nor on the number of
  threads. `shortlists` picks the best.
"""

# ruff: noqa: PLR0917 - compiled functions are called by position: numba is slow to sort out keywords

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic as untyped_intrinsic

__all__ = ["WIDTH", "entering", "exact_scores", "njit", "scan", "shortlists"]

F = TypeVar("F", bound=Callable[..., Any])
intrinsic: Any = untyped_intrinsic

WIDTH = 64
"""How many tokens stand side by side in a block of the coarse copy."""

PIECE = 16
"""How many examples are summed in sixteen bits before the sum is put aside."""

FULL = 65000
"""What the weights of a piece sum to in sixteen bits, with room for their rounding."""


def njit(function: F) -> F:
    """Compile a function on the first call, and keep the result on disk where a folder can be written."""
    try:
        return cast("F", numba.njit(cache=True)(function))
    except RuntimeError:  # nowhere to keep it: compile anew in each process
        return cast("F", numba.njit(function))


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


# Four steps of `scan` are spelled out in vectors of WIDTH lanes. As loops they are widened to 32 bits, and each is
# preceded by a dozen checks that its arrays don't overlap; together that takes three times as long.

BYTES, SHORTS, WORDS = (ir.VectorType(ir.IntType(bits), WIDTH) for bits in (8, 16, 32))
FLOATS = ir.VectorType(ir.FloatType(), WIDTH)


def _lanes(  # pragma: no cover - runs while compiling
    context: Any, builder: Any, signature: Any, args: Any, k: int, at: Any, kind: Any
) -> Any:
    """Return a pointer to WIDTH lanes of the array that is argument k, from place `at` on."""
    array = context.make_array(signature.args[k])(context, builder, args[k])
    return builder.bitcast(builder.gep(array.data, [at]), kind.as_pointer())


def _spread(builder: Any, value: Any, kind: Any) -> Any:  # pragma: no cover - runs while compiling
    """Return a vector with the value in every lane."""
    nothing = ir.Constant(kind, ir.Undefined)
    return builder.shuffle_vector(
        builder.insert_element(nothing, value, ir.IntType(32)(0)), nothing, ir.Constant(WORDS, [0] * WIDTH)
    )


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]  # pragma: no cover - runs while compiling
def _add_products(_: Any, roots: Any, at: Any, shares: Any, first: Any, sums: Any, count: Any) -> Any:
    """Do `sums[t] += roots[at + i * WIDTH + t]**2 * shares[first + i] >> 16` for `count` examples i."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target = _lanes(context, builder, signature, args, 4, ir.IntType(64)(0), SHORTS)
        weights = context.make_array(signature.args[2])(context, builder, args[2])
        total = builder.load(target, align=2)
        for row in range(count.literal_value):
            place = builder.add(args[1], ir.IntType(64)(row * WIDTH))
            root = builder.load(_lanes(context, builder, signature, args, 0, place, BYTES), align=1)
            root = builder.zext(root, SHORTS)
            share = builder.load(builder.gep(weights.data, [builder.add(args[3], ir.IntType(64)(row))]))
            product = builder.mul(
                builder.zext(builder.mul(root, root), WORDS), builder.zext(_spread(builder, share, SHORTS), WORDS)
            )
            total = builder.add(total, builder.trunc(builder.lshr(product, ir.Constant(WORDS, [16] * WIDTH)), SHORTS))
        builder.store(total, target, align=2)
        return context.get_dummy_value()

    return types.void(roots, at, shares, first, sums, count), generate


@intrinsic  # type: ignore[untyped-decorator]  # pragma: no cover - runs while compiling
def _put_aside(_: Any, sums: Any, unit: Any, centre: Any, masses: Any, at: Any, total: Any) -> Any:
    """Add `sums[t] * unit + centre` to `masses[at + t]` and to `total[t]`, and set the sums to 0."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source = _lanes(context, builder, signature, args, 0, ir.IntType(64)(0), SHORTS)
        value = builder.uitofp(builder.load(source, align=2), FLOATS)
        value = builder.fadd(builder.fmul(value, _spread(builder, args[1], FLOATS)), _spread(builder, args[2], FLOATS))
        for k, place in ((3, args[4]), (5, ir.IntType(64)(0))):
            target = _lanes(context, builder, signature, args, k, place, FLOATS)
            builder.store(builder.fadd(builder.load(target, align=4), value), target, align=4)
        builder.store(ir.Constant(SHORTS, [0] * WIDTH), source, align=2)
        return context.get_dummy_value()

    return types.void(sums, unit, centre, masses, at, total), generate


@intrinsic  # type: ignore[untyped-decorator]  # pragma: no cover - runs while compiling
def _reaching(_: Any, masses: Any, at: Any, rest: Any, scales: Any, from_: Any, low: Any) -> Any:
    """Return, as bits, where `scales[from_ + t] * (2 * masses[at + t] + rest[t]) >= low`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        mass, rest, scale = (
            builder.load(_lanes(context, builder, signature, args, k, place, FLOATS), align=4)
            for k, place in ((0, args[1]), (2, ir.IntType(64)(0)), (3, args[4]))
        )
        high = builder.fmul(scale, builder.fadd(builder.fadd(mass, mass), rest))
        return builder.bitcast(builder.fcmp_ordered(">=", high, _spread(builder, args[5], FLOATS)), ir.IntType(64))

    return types.uint64(masses, at, rest, scales, from_, low), generate


@intrinsic  # type: ignore[untyped-decorator]  # pragma: no cover - runs while compiling
def _lowest_bit(_: Any, bits: Any) -> Any:
    """Return the place of the lowest bit that is set."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.IntType(1)(1))

    return types.int64(bits), generate


@njit
def _share_out(
    weights: npt.NDArray[np.float64],
    starts: npt.NDArray[np.int64],
    shares: npt.NDArray[np.uint16],
    ends: npt.NDArray[np.int64],
    units: npt.NDArray[np.float32],
) -> float:
    """Cut each class into pieces, write their weights in sixteen bits, and bound what that blurs."""
    blur = 0.0
    n_pieces = 0
    for c in range(len(starts) - 1):
        begin = starts[c]
        while begin < starts[c + 1]:
            end = min(begin + PIECE, starts[c + 1])
            total = 0.0
            for i in range(begin, end):
                total += weights[i]
            for i in range(begin, end):
                shares[i] = np.uint16(weights[i] / total * FULL + 0.5)
            ends[n_pieces] = end
            units[n_pieces] = total * (65536.0 / FULL)
            blur += total * (65536.0 / FULL) * (end - begin)
            n_pieces += 1
            begin = end
    return blur


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
def scan(
    blocks: npt.NDArray[np.uint8],  # (B, N, WIDTH): roots of probabilities; 255 is the token's greatest
    scales: npt.NDArray[np.float32],  # (B, WIDTH): the greatest probability / 255^2; 0 where there is no token
    norms: npt.NDArray[np.float32],  # (B,), descending: the greatest length of a token's vector of probabilities
    first: int,  # the number of the first block
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

    A probability is `scale * (q + d)**2` with `|d| <= 1/2`, so the estimate `scale * q**2` is off by
    at most `scale * (q + 1/4)`, and a sum weighted by w by at most `scale * (sqrt(sum w q**2) + 1/4)`,
    as the weights sum to 1 (Cauchy and Schwarz). Sums in sixteen bits add at most one unit an example.
    """
    n_blocks, n_examples, _ = blocks.shape
    n_classes, _ = lows.shape
    roots, all_scales = blocks.reshape(-1), scales.reshape(-1)
    shares = np.empty(n_examples, dtype=np.uint16)
    ends = np.empty(n_examples, dtype=np.int64)
    units = np.empty(n_examples, dtype=np.float32)
    blur = np.float32(_share_out(weights, starts, shares, ends, units) * 1.001)
    steepest = 0.0  # the greatest length of a class's vector of weights
    for c in range(n_classes):
        square = 0.0
        for i in range(starts[c], starts[c + 1]):
            square += weights[i] * weights[i]
        steepest = max(steepest, np.sqrt(square))
    rounding = np.float32((n_examples + 64) * 2.0**-23)  # of what is done in single precision
    sums = np.zeros(WIDTH, dtype=np.uint16)
    masses = np.empty(n_classes * WIDTH, dtype=np.float32)  # (C, WIDTH), flat
    total = np.empty(WIDTH, dtype=np.float32)
    slack = np.empty(WIDTH, dtype=np.float32)  # how far off a mass, or a score, is at most
    rest = np.empty(WIDTH, dtype=np.float32)
    half, quarter, inflate = np.float32(0.5), np.float32(0.25), np.float32(1.001)
    for b in range(n_blocks):
        least = lows[0, 0]
        for c in range(1, n_classes):
            least = min(least, lows[c, 0])
        if steepest * norms[b] * 1.0001 < least:
            return n_found, True
        masses[:] = 0
        total[:] = 0
        piece = 0
        i = 0
        for c in range(n_classes):
            while i < starts[c + 1]:
                centre = units[piece] * half * np.float32(ends[piece] - i)
                while i + 4 <= ends[piece]:
                    _add_products(roots, (b * n_examples + i) * WIDTH, shares, i, sums, 4)
                    i += 4
                while i < ends[piece]:
                    _add_products(roots, (b * n_examples + i) * WIDTH, shares, i, sums, 1)
                    i += 1
                _put_aside(sums, units[piece], centre, masses, c * WIDTH, total)
                piece += 1
        for t in range(WIDTH):
            slack[t] = (np.sqrt(total[t] + blur) + quarter) * inflate + blur + rounding * total[t]
            rest[t] = slack[t] - total[t]
        left = np.uint64(0)
        for c in range(n_classes):
            left |= _reaching(masses, c * WIDTH, rest, all_scales, b * WIDTH, lows[c, 0])
        while left:
            t = _lowest_bit(left)
            left &= left - np.uint64(1)
            scale = scales[b, t]
            if scale == 0:
                continue
            best = masses[t]
            for c in range(1, n_classes):
                best = max(best, masses[c * WIDTH + t])
            for c in range(n_classes):
                mass = masses[c * WIDTH + t]
                high = scale * (mass + mass + rest[t])
                if high < lows[c, 0] or (mass + slack[t] < best and not everywhere[c]):
                    continue
                found[n_found] = (first + b) * WIDTH + t
                found_for[n_found] = c
                found_high[n_found] = high
                n_found += 1
                certain = True
                for other in range(n_classes):
                    if other != c and mass - slack[t] <= masses[other * WIDTH + t] and not everywhere[c]:
                        certain = False
                sure = scale * (mass + mass - total[t] - slack[t])
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
    columns: npt.NDArray[np.int64],  # (slots,): the column at each place of the blocks
) -> npt.NDArray[np.int64]:
    """Return the columns, ascending, that may enter a shortlist after a whole scan."""
    kept = np.empty(n_found, dtype=np.int64)
    n_kept = 0
    for k in range(n_found):
        if found_high[k] >= lows[found_for[k], 0]:
            kept[n_kept] = columns[found[k]]
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
