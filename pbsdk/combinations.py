"""The best choice of one token per class, found among all combinations.

Errors are sums of whole numbers, so the least error is exact, and so are ties: they go to the larger
summed score, then to the lower tokens, class by class.

For two classes every pair is tried, all partners of a token at once (`search_pairs`). For more,
`search` cuts branches. It rests on one observation. Two tokens of two classes spoil certain examples
of these classes, whatever the other classes do: each loses the examples of its own class where the
other is more probable. The errors of a combination are the union over its pairs. So sets of examples
are kept as bits, and weighed a byte at a time with a table.
"""

# ruff: noqa: PLR0917 - compiled functions are called by position: numba is slow to sort out keywords

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pbsdk.kernels import njit

__all__ = ["search", "search_pairs"]


@njit
def _wins_tie(
    summed: float,
    best_sum: float,
    choice: npt.NDArray[np.int64],
    best: npt.NDArray[np.int64],
) -> bool:
    """Say whether a choice is better than another of the same error: larger sum, then lower tokens."""
    if summed != best_sum:
        return summed > best_sum
    for c in range(len(choice)):
        if choice[c] != best[c]:
            return bool(choice[c] < best[c])
    return False


@njit
def search_pairs(
    codes: npt.NDArray[np.uint16],  # (tokens, N)
    rows: npt.NDArray[np.int64],  # (K,): where each scored token stands in `codes`
    tokens: npt.NDArray[np.int64],  # (K,): by which ties are settled
    scores: npt.NDArray[np.float64],  # (C, K)
    places: npt.NDArray[np.int64],  # (C, M): which of the K are tried for each class ...
    sizes: npt.NDArray[np.int64],  # (C,): ... and how many
    order: npt.NDArray[np.int64],  # (N,): the examples, sorted by class
    starts: npt.NDArray[np.int64],  # (C + 1,): where each class begins in `order`
    weights: npt.NDArray[np.int64],  # (N,), in `order`
    best: npt.NDArray[np.int64],  # (C,), overwritten with the tokens found
) -> int:
    """Try every pair of tokens, and every pair reversed; return the least error."""
    best_error, best_sum = 2**62, -np.inf
    choice = np.empty(2, dtype=np.int64)
    for first in range(2):  # the class whose list gives the token for class 0
        second = 1 - first
        partners = np.empty((len(order), sizes[second]), dtype=np.uint16)  # side by side: all are tried at once
        for i in range(len(order)):
            for b in range(sizes[second]):
                partners[i, b] = codes[rows[places[second, b]], order[i]]
        errors = np.empty(sizes[second], dtype=np.int64)
        for a in range(sizes[first]):
            errors[:] = 0
            for i in range(len(order)):
                weight, code, row = weights[i], codes[rows[places[first, a]], order[i]], partners[i]
                if i < starts[1]:
                    for b in range(len(errors)):
                        errors[b] += weight if row[b] < code else 0
                else:
                    for b in range(len(errors)):
                        errors[b] += weight if row[b] >= code else 0
            for b in range(len(errors)):
                if errors[b] > best_error:
                    continue
                choice[0] = tokens[places[first, a]]
                choice[1] = tokens[places[second, b]]
                summed = scores[0, places[first, a]] + scores[1, places[second, b]]
                if errors[b] < best_error or _wins_tie(summed, best_sum, choice, best):
                    best_error = errors[b]
                    best_sum = summed
                    best[:] = choice
    return best_error


@njit
def _weigh(masks: npt.NDArray[np.uint64], row: int, table: npt.NDArray[np.int64]) -> int:
    """Return the weight of the examples in a mask; `table[j, x]` is that of byte x at place j."""
    weight = 0
    for j in range(masks.shape[1]):
        word = masks[row, j]
        for k in range(8):
            weight += table[8 * j + k, (word >> np.uint64(8 * k)) & np.uint64(255)]
    return weight


@njit
def search(
    codes: npt.NDArray[np.uint16],  # (tokens, N)
    rows: npt.NDArray[np.int64],  # (K,): where each scored token stands in `codes`
    tokens: npt.NDArray[np.int64],  # (K,): by which ties are settled
    scores: npt.NDArray[np.float64],  # (C, K)
    places: npt.NDArray[np.int64],  # (C, M): which of the K are tried for each class ...
    sizes: npt.NDArray[np.int64],  # (C,): ... and how many
    order: npt.NDArray[np.int64],  # (N,): the examples, sorted by class
    starts: npt.NDArray[np.int64],  # (C + 1,): where each class begins in `order`
    weights: npt.NDArray[np.int64],  # (N,), in `order`
    best: npt.NDArray[np.int64],  # (C,), overwritten with the tokens found
) -> int:
    """Find the choice with the least error, then the largest summed score, then the lowest tokens.

    Classes are settled one after another. A branch is left when what is lost already, and what the
    open classes must lose of their own examples, weighs more than the best known; or as much, and
    the tie can't be won.
    """
    n_classes, most = places.shape
    n_examples = len(order)
    last = n_classes - 1
    n_words = (n_examples + 63) // 64
    tried = np.empty((n_classes, most, n_examples), dtype=np.uint16)  # the codes
    for c in range(n_classes):
        for k in range(sizes[c]):
            for i in range(n_examples):
                tried[c, k, i] = codes[rows[places[c, k]], order[i]]
    table = np.zeros((8 * n_words, 256), dtype=np.int64)
    for i in range(n_examples):
        byte = table[i // 8]
        bit = 1 << (i % 8)
        for x in range(bit):
            byte[bit + x] = byte[x] + weights[i]
    for i in range(n_examples, 64 * n_words):
        byte = table[i // 8]
        bit = 1 << (i % 8)
        for x in range(bit):
            byte[bit + x] = byte[x]

    inside = np.zeros((n_classes, 8 * n_words), dtype=np.uint64)  # which bits of a byte are a class's own examples
    for c in range(n_classes):
        for i in range(starts[c], starts[c + 1]):
            inside[c, i // 8] |= np.uint64(1 << (i % 8))

    # spoilt[a, b, j, k]: by token j of class a against token k of class b > a
    spoilt = np.zeros((n_classes, n_classes, most, most, n_words), dtype=np.uint64)
    for a in range(n_classes):
        for b in range(a + 1, n_classes):
            for j in range(sizes[a]):
                row_a = tried[a, j]
                for k in range(sizes[b]):
                    row_b = tried[b, k]
                    mask = spoilt[a, b, j, k]
                    for word in range(starts[a] // 64, (starts[a + 1] + 63) // 64):
                        bits = np.uint64(0)
                        for i in range(max(starts[a], 64 * word), min(starts[a + 1], 64 * word + 64)):
                            bits |= np.uint64(row_b[i] < row_a[i]) << np.uint64(i & 63)
                        mask[word] |= bits
                    for word in range(starts[b] // 64, (starts[b + 1] + 63) // 64):
                        bits = np.uint64(0)
                        for i in range(max(starts[b], 64 * word), min(starts[b + 1], 64 * word + 64)):
                            bits |= np.uint64(row_a[i] <= row_b[i]) << np.uint64(i & 63)
                        mask[word] |= bits

    # A good start: improve one class at a time until nothing changes.
    pick = np.zeros(n_classes, dtype=np.int64)
    marks = np.zeros((2, n_words), dtype=np.uint64)  # the examples lost by some, and by some more
    known = 2**62
    improving = True
    while improving:
        improving = False
        for c in range(n_classes):
            for j in range(n_words):
                marks[0, j] = 0
                for a in range(n_classes):
                    for b in range(a + 1, n_classes):
                        if c not in (a, b):
                            marks[0, j] |= spoilt[a, b, pick[a], pick[b], j]
            for k in range(sizes[c]):
                for j in range(n_words):
                    marks[1, j] = marks[0, j]
                    for a in range(c):
                        marks[1, j] |= spoilt[a, c, pick[a], k, j]
                    for b in range(c + 1, n_classes):
                        marks[1, j] |= spoilt[c, b, k, pick[b], j]
                error = _weigh(marks, 1, table)
                if error < known:
                    known = error
                    pick[c] = k
                    improving = True

    # Depth first. `known` cuts from the start; the best choice is set when it is met again.
    tops = np.empty(n_classes)
    for c in range(n_classes):
        tops[c] = -np.inf
        for k in range(sizes[c]):
            tops[c] = max(tops[c], scores[c, places[c, k]])
    best_error, best_sum = known, -np.inf
    best[:] = 2**62
    sums = np.zeros(n_classes)
    choice = np.zeros(n_classes, dtype=np.int64)
    lost = np.zeros((n_classes, n_words), dtype=np.uint64)  # by the classes settled
    threat = np.zeros((n_classes, n_classes, most, n_words), dtype=np.uint64)  # by an open class's token, at a level
    toll = np.zeros((n_classes, n_classes), dtype=np.int64)  # what an open class loses of its own at least, at a level
    pick[0] = -1
    level = 0
    while level >= 0:
        if level == last:
            for k in range(sizes[last]):
                for j in range(n_words):
                    marks[0, j] = lost[last, j] | threat[last, last, k, j]
                error = _weigh(marks, 0, table)
                if error > best_error:
                    continue
                choice[last] = tokens[places[last, k]]
                summed = sums[last] + scores[last, places[last, k]]
                if error < best_error or _wins_tie(summed, best_sum, choice, best):
                    best_error = error
                    best_sum = summed
                    best[:] = choice
            level -= 1
            continue
        pick[level] += 1
        k = pick[level]
        if k == sizes[level]:
            level -= 1
            continue
        for j in range(n_words):
            lost[level + 1, j] = lost[level, j] | threat[level, level, k, j]
        bound = _weigh(lost, level + 1, table)
        for c in range(level + 1, n_classes):
            bound += toll[level, c]
        for c in range(level + 1, n_classes):
            if bound > best_error:
                break
            least = 2**62
            for other in range(sizes[c]):
                for j in range(n_words):
                    threat[level + 1, c, other, j] = threat[level, c, other, j] | spoilt[level, c, k, other, j]
                own = 0
                for byte in range(starts[c] // 8, (starts[c + 1] + 7) // 8):
                    bits = threat[level + 1, c, other, byte // 8] >> np.uint64(8 * (byte % 8))
                    own += table[byte, bits & inside[c, byte]]
                least = min(least, own)
            bound += least - toll[level, c]
            toll[level + 1, c] = least
        if bound > best_error:
            continue
        summed = sums[level] + scores[level, places[level, k]]
        if bound == best_error:
            highest = summed
            for c in range(level + 1, n_classes):
                highest += tops[c]
            if highest < best_sum:
                continue
        choice[level] = tokens[places[level, k]]
        level += 1
        sums[level] = summed
        pick[level] = -1
    return best_error
