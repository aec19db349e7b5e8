"""The three inner loops of training, compiled.

Everything else in pbsdk is numpy; these loops are not, because numpy can't say them without giving
up the idea that makes them fast. `scan` stops, skips and remembers while it reads; `search` cuts
branches; and both work on a few hundred bytes at a time that stay in the processor's nearest
cache. Written with numpy, a round takes tens of milliseconds; with numba, less than half of one.

- `scan` reads a coarse 8-bit copy of one template's answers and names the tokens that *may* enter
  a class's shortlist. Every estimate carries a bound on its error, so no token that belongs there
  is ever left out.
- `exact_scores` scores the few tokens that were named, in double precision.
- `search` finds the best combination of one token per class by branch and bound.

The results don't depend on the machine or on the number of threads. Errors are sums of whole
numbers. Scores are summed one example after another, never reordered. Only `scan` may fuse its
operations, and its bounds allow for that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

__all__ = ["WIDTH", "exact_scores", "scan", "search"]

F = TypeVar("F", bound=Callable[..., Any])

WIDTH = 64
"""How many tokens stand side by side in a block of the coarse copy."""


def njit(function: F) -> F:
    """Compile on the first call, and keep the result on disk where a folder can be written."""
    options = {"fastmath": {"contract"}} if function.__name__ == "scan" else {}
    try:
        return cast("F", numba.njit(cache=True, **options)(function))
    except RuntimeError:  # nowhere to keep it: compile anew in each process
        return cast("F", numba.njit(**options)(function))


@njit
def exact_scores(
    codes: npt.NDArray[np.uint16],  # (K, N): a row a token
    rows: npt.NDArray[np.int64],
    order: npt.NDArray[np.int64],  # examples, sorted by class
    starts: npt.NDArray[np.int64],  # (C + 1,): where each class begins in `order`
    weights: npt.NDArray[np.float64],  # (N,), in `order`
    chances: npt.NDArray[np.float64],  # (65536,)
) -> npt.NDArray[np.float64]:
    """Return the scores (C, len(rows)): twice a class's own mass less the mass of all."""
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


@njit
def scan(
    blocks: npt.NDArray[np.uint8],  # (B, N, WIDTH): roots of probabilities, 255 the token's greatest
    scales: npt.NDArray[np.float32],  # (B, WIDTH): the greatest probability / 255^2; 0 where there is no token
    norms: npt.NDArray[np.float32],  # (B,): the greatest length of a token's vector of probabilities
    first: int,  # the number of the first block
    weights: npt.NDArray[np.float32],  # (N,), summing to about 1, sorted by class
    starts: npt.NDArray[np.int64],  # (C + 1,)
    steepest: float,  # the greatest length of a class's vector of weights
    everywhere: npt.NDArray[np.bool_],  # (C,): classes that may take tokens which another class wins
    lows: npt.NDArray[np.float32],  # (C, m): heaps of the best scores that are certain, -inf at first
    found: npt.NDArray[np.int64],  # (C * tokens,): which tokens may enter ...
    found_for: npt.NDArray[np.int64],  # ... for which class ...
    found_high: npt.NDArray[np.float32],  # ... with which score at most
    n_found: int,
) -> tuple[int, bool]:
    """Name the tokens that may be among the m best of a class; say whether later blocks can be skipped.

    A probability is `scale * (q + d)**2` with `|d| <= 1/2`, so the estimate `scale * q**2` is off by
    at most `scale * (q + 1/4)`, and a weighted sum by at most `scale * (sqrt(sum w q**2) + 1/4)`, as
    the weights sum to 1 (Cauchy and Schwarz).
    """
    n_blocks, n_examples, width = blocks.shape
    n_classes, m = lows.shape
    rounding = np.float32((n_examples + 16) * 2.0**-23)  # of the sums in single precision
    masses = np.empty((n_classes, WIDTH), dtype=np.float32)
    total = np.empty(WIDTH, dtype=np.float32)
    best = np.empty(WIDTH, dtype=np.float32)
    off = np.empty(WIDTH, dtype=np.float32)
    flags = np.empty(WIDTH, dtype=np.uint8)
    two, quarter, inflate = np.float32(2), np.float32(0.25), np.float32(1.001)
    for b in range(n_blocks):
        ceiling = lows[:, 0].min()
        if steepest * norms[b] * 1.0001 < ceiling:  # norms descend: no later token can enter either
            return n_found, True
        for c in range(n_classes):
            stop = starts[c + 1]
            i = starts[c]
            mass = masses[c]
            for t in range(WIDTH):
                mass[t] = 0
            while i + 4 <= stop:
                w0, w1, w2, w3 = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
                for t in range(WIDTH):
                    q0 = np.float32(blocks[b, i, t])
                    q1 = np.float32(blocks[b, i + 1, t])
                    q2 = np.float32(blocks[b, i + 2, t])
                    q3 = np.float32(blocks[b, i + 3, t])
                    mass[t] += (w0 * (q0 * q0) + w1 * (q1 * q1)) + (w2 * (q2 * q2) + w3 * (q3 * q3))
                i += 4
            while i < stop:
                w0 = weights[i]
                for t in range(WIDTH):
                    q0 = np.float32(blocks[b, i, t])
                    mass[t] += w0 * (q0 * q0)
                i += 1
        for t in range(WIDTH):
            total[t] = masses[0, t]
            best[t] = masses[0, t]
            flags[t] = 0
        for c in range(1, n_classes):
            for t in range(WIDTH):
                total[t] += masses[c, t]
                best[t] = max(best[t], masses[c, t])
        for t in range(WIDTH):
            off[t] = (np.sqrt(total[t]) + quarter) * inflate + rounding * total[t]
        for c in range(n_classes):
            low = lows[c, 0]
            anyway = everywhere[c]
            for t in range(WIDTH):
                high = scales[b, t] * (two * masses[c, t] - total[t] + off[t])
                flags[t] |= (high >= low) & ((masses[c, t] + off[t] >= best[t]) | anyway)
        some = np.uint8(0)
        for t in range(WIDTH):
            some |= flags[t]
        if some == 0:
            continue
        for t in range(WIDTH):
            if flags[t] == 0 or scales[b, t] == 0:
                continue
            for c in range(n_classes):
                if not everywhere[c] and masses[c, t] + off[t] < best[t]:
                    continue
                score = two * masses[c, t] - total[t]
                high = scales[b, t] * (score + off[t])
                if not high >= lows[c, 0]:
                    continue
                found[n_found] = (first + b) * WIDTH + t
                found_for[n_found] = c
                found_high[n_found] = high
                n_found += 1
                certain = True
                for other in range(n_classes):
                    if other != c and not everywhere[c] and masses[c, t] - off[t] <= masses[other, t]:
                        certain = False
                low = scales[b, t] * (score - off[t])
                if certain and low > lows[c, 0]:
                    at = 0  # put it in the place of the heap's least, and sift it down
                    while True:
                        child = 2 * at + 1
                        if child >= m:
                            break
                        if child + 1 < m and lows[c, child + 1] < lows[c, child]:
                            child += 1
                        if lows[c, child] >= low:
                            break
                        lows[c, at] = lows[c, child]
                        at = child
                    lows[c, at] = low
    return n_found, False


@njit
def search(
    values: npt.NDArray[np.int32],  # (C, M, N): codes, less 1 where a lower class than the example's own
    sizes: npt.NDArray[np.int64],  # (C,): how many candidates each class has
    scores: npt.NDArray[np.float64],  # (C, M)
    tokens: npt.NDArray[np.int64],  # (C, M)
    weights: npt.NDArray[np.int64],  # (N,)
    starts: npt.NDArray[np.int64],  # (C + 1,): examples are sorted by class
    best_error: int,
    best_sum: float,
    best_tokens: npt.NDArray[np.int64],  # (C,), overwritten
) -> tuple[int, float]:
    """Find the combination with the least error, then the largest summed score, then the lowest tokens.

    An example is right if its own class's value is at most every rival's value. Classes are set one
    after another. A branch is left when even its best case, in which every class still open has its
    best value for its own examples and its worst for the others, is worse than the best known.
    """
    n_classes, _, n_examples = values.shape
    last = n_classes - 1
    reach = np.empty(n_examples, dtype=np.int32)  # the best value an example's own class can have
    cap = np.full((n_classes + 1, n_examples), np.int32(2**30), dtype=np.int32)  # what rivals from c on leave at best
    tops = np.empty(n_classes)
    for c in range(last, -1, -1):
        tops[c] = scores[c, : sizes[c]].max()
        for i in range(n_examples):
            least = values[c, 0, i]
            most = values[c, 0, i]
            for k in range(1, sizes[c]):
                least = min(least, values[c, k, i])
                most = max(most, values[c, k, i])
            if starts[c] <= i < starts[c + 1]:
                reach[i] = least
                cap[c, i] = cap[c + 1, i]
            else:
                cap[c, i] = min(cap[c + 1, i], most)

    # A good start: improve one class at a time until nothing changes.
    pick = np.zeros(n_classes, dtype=np.int64)
    own = np.empty(n_examples, dtype=np.int32)
    rivals = np.empty((n_classes + 1, n_examples), dtype=np.int32)
    known = best_error
    reached = np.int64(2**62)
    improving = True
    while improving:
        improving = False
        for c in range(n_classes):
            rival = rivals[0]
            for i in range(n_examples):
                rival[i] = 2**30
            for other in range(n_classes):
                if other != c:
                    row = values[other, pick[other]]
                    for i in range(n_examples):
                        inside = starts[other] <= i < starts[other + 1]
                        own[i] = row[i] if inside else own[i]
                        rival[i] = rival[i] if inside else min(rival[i], row[i])
            for k in range(sizes[c]):
                row = values[c, k]
                error = np.int64(0)
                for i in range(starts[c]):
                    error += weights[i] if own[i] > min(rival[i], row[i]) else 0
                for i in range(starts[c], starts[c + 1]):
                    error += weights[i] if row[i] > rival[i] else 0
                for i in range(starts[c + 1], n_examples):
                    error += weights[i] if own[i] > min(rival[i], row[i]) else 0
                if error < reached:
                    reached = error
                    pick[c] = k
                    improving = True
    known = min(known, reached)

    # Depth first. `known` bounds the error; the best combination is only set when it is met again.
    sums = np.zeros(n_classes + 1)
    risk = np.empty(n_examples, dtype=np.int64)
    for i in range(n_examples):
        rivals[0, i] = 2**30
    pick[0] = -1
    level = 0
    while level >= 0:
        rival = rivals[level]
        begin, end = starts[level], starts[level + 1]
        if level == last:
            base = np.int64(0)
            for i in range(begin):
                wrong = own[i] > rival[i]
                base += weights[i] if wrong else 0
                risk[i] = 0 if wrong else weights[i]
            for k in range(sizes[last]):
                row = values[last, k]
                error = base
                for i in range(begin):
                    error += risk[i] if row[i] < own[i] else 0
                for i in range(begin, end):
                    error += weights[i] if row[i] > rival[i] else 0
                if error > known:
                    continue
                pick[last] = k
                summed = sums[last] + scores[last, k]
                better = error < best_error or summed > best_sum
                if not better and summed == best_sum:
                    for c in range(n_classes):
                        token = tokens[c, pick[c]]
                        if token != best_tokens[c]:
                            better = token < best_tokens[c]
                            break
                if better:
                    known = best_error = error
                    best_sum = summed
                    for c in range(n_classes):
                        best_tokens[c] = tokens[c, pick[c]]
            level -= 1
            continue
        pick[level] += 1
        k = pick[level]
        if k == sizes[level]:
            level -= 1
            continue
        row = values[level, k]
        after = rivals[level + 1]
        limit = cap[level + 1]
        bound = np.int64(0)
        for i in range(begin):
            value = min(rival[i], row[i])
            after[i] = value
            bound += weights[i] if own[i] > min(value, limit[i]) else 0
        for i in range(begin, end):
            own[i] = row[i]
            after[i] = rival[i]
            bound += weights[i] if row[i] > min(rival[i], limit[i]) else 0
        for i in range(end, n_examples):
            value = min(rival[i], row[i])
            after[i] = value
            bound += weights[i] if reach[i] > min(value, limit[i]) else 0
        if bound > known:
            continue
        sums[level + 1] = sums[level] + scores[level, k]
        if bound == best_error:
            most_sum = sums[level + 1]
            for c in range(level + 1, n_classes):
                most_sum += tops[c]
            if most_sum < best_sum:  # it may tie, and can't win the tie
                continue
        level += 1
        pick[level] = -1
    return best_error, best_sum
