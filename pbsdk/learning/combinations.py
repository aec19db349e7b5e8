"""The best choice of one token per class, found among all combinations.

Errors are sums of whole numbers, so the least error is exact, and so are ties: they go to the larger
summed score, then to the lower tokens, class by class.

All rests on one observation. Two tokens of two classes spoil certain examples of these classes,
whatever the other classes do: each loses the examples of its own class where the other is more
probable. The errors of a combination are the union over its pairs. So sets of examples are kept as
bits, 64 to a word, and weighed a byte at a time with a table.

For two classes every pair is tried (`search_pairs`). For more, `search` settles one class
after the other and leaves branches that can't hold the best any more.
"""

# ruff: noqa: PLR0913, PLR0917 - compiled functions are called by position: numba is slow to sort out keywords

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pbsdk.learning.kernels import njit
from pbsdk.learning.vectors import WIDTH, below

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
def _lined_up(
    codes: npt.NDArray[np.uint16],
    rows: npt.NDArray[np.int64],
    places: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    order: npt.NDArray[np.int64],
) -> npt.NDArray[np.uint16]:
    """Return the codes (C, M, examples) of all candidates, the examples sorted and filled up to whole words."""
    n_classes, most = places.shape
    tried = np.zeros((n_classes, most, -(-len(order) // WIDTH) * WIDTH), dtype=np.uint16)
    for c in range(n_classes):
        for k in range(sizes[c]):
            row = codes[rows[places[c, k]]]
            for i in range(len(order)):
                tried[c, k, i] = row[order[i]]
    return tried


@njit
def _own_examples(starts: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Return, as bits (C, words), which examples are a class's own."""
    n_classes = len(starts) - 1
    own = np.zeros((n_classes, -(-starts[n_classes] // WIDTH)), dtype=np.uint64)
    for c in range(n_classes):
        for i in range(starts[c], starts[c + 1]):
            own[c, i // WIDTH] |= np.uint64(1) << np.uint64(i % WIDTH)
    return own


@njit
def _weight_table(weights: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the weight (words * 8, 256) of the examples in each byte of a set, for all values of the byte."""
    n_bytes = -(-len(weights) // WIDTH) * 8
    table = np.zeros((n_bytes, 256), dtype=np.int64)
    for i in range(8 * n_bytes):
        byte = table[i // 8]
        bit = 1 << (i % 8)
        weight = weights[i] if i < len(weights) else 0
        for x in range(bit):
            byte[bit + x] = byte[x] + weight
    return table


@njit
def _weigh_word(bits: np.uint64, word: int, table: npt.NDArray[np.int64]) -> int:
    """Return the weight of the examples in one word of a set."""
    weight = 0
    for k in range(8):
        weight += table[8 * word + k, (bits >> np.uint64(8 * k)) & np.uint64(255)]
    return weight


@njit
def _weigh(masks: npt.NDArray[np.uint64], row: int, table: npt.NDArray[np.int64]) -> int:
    """Return the weight of the examples in a set."""
    weight = 0
    for j in range(masks.shape[1]):
        weight += _weigh_word(masks[row, j], j, table)
    return weight


@njit
def _mark_wrong(
    codes: npt.NDArray[np.uint16],
    rows: npt.NDArray[np.int64],
    tokens: npt.NDArray[np.int64],
    order: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],
    best: npt.NDArray[np.int64],
    wrong: npt.NDArray[np.bool_],
) -> None:
    """Mark the examples that get another class than their own: the most probable token's, then the lowest."""
    row_of = np.empty(len(best), dtype=np.int64)
    for c in range(len(best)):
        for k in range(len(tokens)):
            if tokens[k] == best[c]:
                row_of[c] = rows[k]
    for c in range(len(best)):
        for at in range(starts[c], starts[c + 1]):
            i = order[at]
            said = 0
            for other in range(1, len(best)):
                if codes[row_of[other], i] < codes[row_of[said], i]:
                    said = other
            wrong[i] = said != c


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
    best: npt.NDArray[np.int64],  # (C,), overwritten with the tokens found ...
    wrong: npt.NDArray[np.bool_],  # (N,), ... and with who gets another class than its own
) -> int:
    """Try every pair of tokens, and every pair reversed; return the least error."""
    tried = _lined_up(codes, rows, places, sizes, order)
    own = _own_examples(starts)
    table = _weight_table(weights)
    best_error, best_sum = 2**62, -np.inf
    choice = np.empty(2, dtype=np.int64)
    for first in range(2):  # the class whose list gives the token for class 0
        second = 1 - first
        errors = np.zeros((sizes[first], sizes[second]), dtype=np.int64)
        for j in range(own.shape[1]):  # the words outside: a word's part of the table stays at hand
            for a in range(sizes[first]):
                for b in range(sizes[second]):
                    lost = below(tried[second, b], tried[first, a], j * WIDTH)
                    lost = (lost & own[0, j]) | (~lost & own[1, j])
                    errors[a, b] += _weigh_word(lost, j, table)
        for a in range(sizes[first]):
            for b in range(sizes[second]):
                if errors[a, b] > best_error:
                    continue
                choice[0] = tokens[places[first, a]]
                choice[1] = tokens[places[second, b]]
                summed = scores[0, places[first, a]] + scores[1, places[second, b]]
                if errors[a, b] < best_error or _wins_tie(summed, best_sum, choice, best):
                    best_error = errors[a, b]
                    best_sum = summed
                    best[:] = choice
    _mark_wrong(codes, rows, tokens, order, starts, best, wrong)
    return best_error


@njit
def _heaviest_first(
    own: npt.NDArray[np.uint64], table: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the class at each turn, and each class's turn."""
    n_classes = len(own)
    heft = np.empty(n_classes, dtype=np.int64)
    order = np.empty(n_classes, dtype=np.int64)
    turns = np.zeros(n_classes, dtype=np.int64)
    for c in range(n_classes):
        heft[c] = _weigh(own, c, table)
        for other in range(c):
            turns[other if heft[other] < heft[c] else c] += 1
    for c in range(n_classes):
        order[turns[c]] = c
    return order, turns


@njit
def _hope(
    taken: npt.NDArray[np.float64], tops: npt.NDArray[np.float64], turns: npt.NDArray[np.int64], turn: int
) -> float:
    """Return the summed score of the classes whose turn has come, and the most that the others can add."""
    summed = 0.0
    for c in range(len(taken)):  # in this order always: sums are compared, to the last bit
        summed += taken[c] if turns[c] <= turn else tops[c]
    return summed


@njit
def _spoilt_by_pairs(
    tried: npt.NDArray[np.uint16],
    own: npt.NDArray[np.uint64],
    queue: npt.NDArray[np.int64],
    n_tokens: npt.NDArray[np.int64],
) -> npt.NDArray[np.uint64]:
    """Return, as bits, what token j of a and token k of b > a spoil, at [a, b, j, k]; a and b are turns.

    Of equally probable tokens, the lowest class's is said.
    """
    n_classes, most, _ = tried.shape
    n_words = own.shape[1]
    spoilt = np.empty((n_classes, n_classes, most, most, n_words), dtype=np.uint64)
    for a in range(n_classes):
        for b in range(a + 1, n_classes):
            lower, higher = min(queue[a], queue[b]), max(queue[a], queue[b])
            for j in range(n_tokens[a]):
                for k in range(n_tokens[b]):
                    first, second = (j, k) if queue[a] == lower else (k, j)
                    for word in range(n_words):
                        lost = below(tried[higher, second], tried[lower, first], word * WIDTH)
                        spoilt[a, b, j, k, word] = (lost & own[lower, word]) | (~lost & own[higher, word])
    return spoilt


@njit
def _lost_without(
    spoilt: npt.NDArray[np.uint64], pick: npt.NDArray[np.int64], c: int, marks: npt.NDArray[np.uint64]
) -> None:
    """Write into `marks[0]` what a choice loses whatever is picked for c."""
    for j in range(marks.shape[1]):
        marks[0, j] = 0
        for a in range(len(pick)):
            for b in range(a + 1, len(pick)):
                if c not in (a, b):
                    marks[0, j] |= spoilt[a, b, pick[a], pick[b], j]


@njit
def _lost_with(
    spoilt: npt.NDArray[np.uint64], pick: npt.NDArray[np.int64], c: int, k: int, marks: npt.NDArray[np.uint64]
) -> None:
    """Write into `marks[1]` what the choice loses if k is picked for c."""
    for j in range(marks.shape[1]):
        marks[1, j] = marks[0, j]
        for a in range(c):
            marks[1, j] |= spoilt[a, c, pick[a], k, j]
        for b in range(c + 1, len(pick)):
            marks[1, j] |= spoilt[c, b, k, pick[b], j]


@njit
def _error_of_a_good_choice(
    spoilt: npt.NDArray[np.uint64], n_tokens: npt.NDArray[np.int64], table: npt.NDArray[np.int64]
) -> int:
    """Improve one class at a time until nothing changes; return the error."""
    n_classes = len(n_tokens)
    pick = np.zeros(n_classes, dtype=np.int64)
    marks = np.zeros((2, spoilt.shape[4]), dtype=np.uint64)
    known = 2**62
    improving = True
    while improving:
        improving = False
        for c in range(n_classes):
            _lost_without(spoilt, pick, c, marks)
            for k in range(n_tokens[c]):
                _lost_with(spoilt, pick, c, k, marks)
                error = _weigh(marks, 1, table)
                if error < known:
                    known = error
                    pick[c] = k
                    improving = True
    return known


@njit
def _best_scores(
    scores: npt.NDArray[np.float64], places: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Return the largest score (C,) among each class's candidates."""
    tops = np.full(len(sizes), -np.inf)
    for c in range(len(sizes)):
        for k in range(sizes[c]):
            tops[c] = max(tops[c], scores[c, places[c, k]])
    return tops


@njit
def search(  # noqa: C901, PLR0912, PLR0915 - one loop, for speed: see there
    codes: npt.NDArray[np.uint16],  # (tokens, N)
    rows: npt.NDArray[np.int64],  # (K,): where each scored token stands in `codes`
    tokens: npt.NDArray[np.int64],  # (K,): by which ties are settled
    scores: npt.NDArray[np.float64],  # (C, K)
    places: npt.NDArray[np.int64],  # (C, M): which of the K are tried for each class ...
    sizes: npt.NDArray[np.int64],  # (C,): ... and how many
    order: npt.NDArray[np.int64],  # (N,): the examples, sorted by class
    starts: npt.NDArray[np.int64],  # (C + 1,): where each class begins in `order`
    weights: npt.NDArray[np.int64],  # (N,), in `order`
    best: npt.NDArray[np.int64],  # (C,), overwritten with the tokens found ...
    wrong: npt.NDArray[np.bool_],  # (N,), ... and with who gets another class than its own
) -> int:
    """Find the choice with the least error, then the largest summed score, then the lowest tokens.

    Classes are settled one after another, the heaviest first. A branch is left when what is lost
    already, and what the open classes must lose of their own examples, weighs more than the best
    known; or as much, and the tie can't be won. In the same way, a token of an open class is closed
    for a branch where it would lose too much.
    """
    n_classes, most = places.shape
    tried = _lined_up(codes, rows, places, sizes, order)
    own = _own_examples(starts)
    table = _weight_table(weights)
    n_words = own.shape[1]
    last = n_classes - 1
    queue, turns = _heaviest_first(own, table)  # from here on a, b and c are turns
    n_tokens = sizes[queue]
    spoilt = _spoilt_by_pairs(tried, own, queue, n_tokens)
    tops = _best_scores(scores, places, sizes)

    # This error cuts from the start; the choice that belongs to it is set when it is met again.
    best_error, best_sum = _error_of_a_good_choice(spoilt, n_tokens, table), -np.inf
    best[:] = 2**62
    choice, taken = np.zeros(n_classes, dtype=np.int64), np.zeros(n_classes)  # tokens and their scores, by class
    lost = np.zeros((n_classes, n_words), dtype=np.uint64)  # by the classes settled
    threat = np.zeros((n_classes, n_classes, most, n_words), dtype=np.uint64)  # by an open class's token, at a turn
    toll = np.zeros((n_classes, n_classes), dtype=np.int64)  # what an open class loses of its own at least, at a turn
    still = np.zeros((n_classes, n_classes, most), dtype=np.uint64)  # the tokens that are open, at a turn ...
    n_still = np.zeros((n_classes, n_classes), dtype=np.int64)  # ... and how many
    for c in range(n_classes):
        n_still[0, c] = n_tokens[c]
        for k in range(n_tokens[c]):
            still[0, c, k] = k
    prices = np.zeros((n_classes, most), dtype=np.int64)  # what open tokens lose of their class's own examples
    pick = np.full(n_classes, -1)  # which of the open tokens is tried, by turn

    # Depth first, and in one piece: with all its steps as functions, a search took more than twice as long.
    turn = 0
    while turn >= 0:
        pick[turn] += 1
        if pick[turn] == n_still[turn, turn]:
            turn -= 1
            continue
        k = still[turn, turn, pick[turn]]
        choice[queue[turn]] = tokens[places[queue[turn], k]]
        taken[queue[turn]] = scores[queue[turn], places[queue[turn], k]]
        if turn == last:
            error = 0
            for j in range(n_words):
                error += _weigh_word(lost[last, j] | threat[last, last, k, j], j, table)
            if error > best_error:
                continue
            summed = _hope(taken, tops, turns, last)
            if error < best_error or _wins_tie(summed, best_sum, choice, best):
                best_error = error
                best_sum = summed
                best[:] = choice
            continue
        for j in range(n_words):
            lost[turn + 1, j] = lost[turn, j] | threat[turn, turn, k, j]
        bound = _weigh(lost, turn + 1, table)
        for c in range(turn + 1, n_classes):
            bound += toll[turn, c]
        for c in range(turn + 1, n_classes):
            if bound > best_error:
                break
            begin, end = starts[queue[c]] // 8, (starts[queue[c] + 1] + 7) // 8
            least = 2**62
            for at in range(n_still[turn, c]):
                other = still[turn, c, at]
                for j in range(n_words):
                    threat[turn + 1, c, other, j] = threat[turn, c, other, j] | spoilt[turn, c, k, other, j]
                price = 0
                for byte in range(begin, end):
                    bits = threat[turn + 1, c, other, byte // 8] & own[queue[c], byte // 8]
                    price += table[byte, (bits >> np.uint64(8 * (byte % 8))) & np.uint64(255)]
                prices[c, other] = price
                least = min(least, price)
            bound += least - toll[turn, c]
            toll[turn + 1, c] = least
        if bound > best_error or (bound == best_error and _hope(taken, tops, turns, turn) < best_sum):
            continue
        for c in range(turn + 1, n_classes):
            n_still[turn + 1, c] = 0
            for at in range(n_still[turn, c]):
                other = still[turn, c, at]
                if bound - toll[turn + 1, c] + prices[c, other] <= best_error:
                    still[turn + 1, c, n_still[turn + 1, c]] = other
                    n_still[turn + 1, c] += 1
        turn += 1
        pick[turn] = -1
    _mark_wrong(codes, rows, tokens, order, starts, best, wrong)
    return best_error
