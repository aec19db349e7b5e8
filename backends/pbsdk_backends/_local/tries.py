"""One trie for a batch: which queries make a row together, and which beginnings are read apart.

The token sequences of a call form one trie: demonstrations and class names common to all examples,
then the texts, then the prompts' tails. Wherever it forks there are three things to do:

- one row: everything below is a tree in one row, whose tokens look past each other;
- apart: each branch is on its own, and reads again what it has in common with the others;
- a cut: the way down to the fork is a `Beginning`, read once, whose keys and values the branches see.

Each has a price, in tokens: a token of a row costs one, and its look at the tokens in reach some more.
The cheapest whole is taken, by dynamic programming from the root down. Beginnings that are
still at hand from earlier calls are free. The tokens of a long one that the call before had too are half price, since
the next will have them as well: a stream of single examples comes to share its demonstrations this way.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise

from pbsdk_backends._local.sharing import Beginning, Row, common, single, tree
from pbsdk_backends._tokens.reading import Reading

__all__ = ["Trie", "rows_of"]

KEYS = 1500
"""A look at this many tokens costs as much as all else that is done for a token."""
COPIED = 128
"""A row's copy of this many tokens' keys and values costs as much as one token."""
CUT = 32
"""A pass of its own costs this many tokens more than the same tokens in another pass."""
AGAIN = 64
"""What comes again in the next call has at least this many tokens: texts are shorter, mostly, and don't."""
DEEP = 50
"""Forks below so many others are not looked at: their queries stay apart."""

Found = Callable[[Sequence[int]], list[int]]
"""Gives the lengths of the beginnings at hand with which a sequence begins."""


def rows_of(
    readings: Sequence[Reading], *, limit: int, found: Found | None, before: Sequence[list[int]] = ()
) -> list[Row]:
    """Return rows that answer all readings, at the lowest price.

    Args:
        readings: What to answer.
        limit: Tokens of a tree at most.
        found: What is at hand; None if nothing can be cut.
        before: The sequences of the call before, sorted.
    """
    return list(Trie(readings, limit=limit, found=found, before=before).rows()) if readings else []


class Trie:
    """The readings of one call, sorted: a node of the trie is a range of neighbours."""

    def __init__(
        self, readings: Sequence[Reading], *, limit: int, found: Found | None, before: Sequence[list[int]] = ()
    ) -> None:
        self._readings = readings
        self._owners = sorted(range(len(readings)), key=lambda owner: readings[owner].ids)
        self._ids = [readings[owner].ids for owner in self._owners]
        self._shared = [0, *(common(left, right) for left, right in pairwise(self._ids))]  # with the one before
        fresh = (len(ids) - shared for ids, shared in zip(self._ids, self._shared, strict=True))
        self._nodes = [0, *accumulate(fresh)]
        self._limit = limit
        self._found = found
        self._before = before
        self._choices: dict[tuple[int, int, int], tuple[float, int | None]] = {}

    def rows(self) -> Iterator[Row]:
        """Yield the rows of the cheapest whole."""
        yield from self._rows(0, len(self._ids), None, 0)

    def _rows(self, first: int, last: int, after: Beginning | None, level: int) -> Iterator[Row]:
        cut = len(after.ids) if after else 0
        choice = self._choose(first, last, cut, level)[1]
        if choice is None:
            for branch in self._branches(first, last, level):
                yield from self._rows(*branch, after, level + 1)
        elif choice > cut:
            yield from self._rows(first, last, Beginning(tuple(self._ids[first][:choice]), after), level)
        elif last - first == 1 and after is None:
            yield single(self._owners[first], self._readings[self._owners[first]])
        else:
            yield tree(self._owners[first:last], self._readings, after)

    def _choose(self, first: int, last: int, cut: int, level: int) -> tuple[float, int | None]:
        """Return the lowest price below a cut, and the choice: where to cut next, here (a row), or None (apart)."""
        place = (first, last, cut)
        if place not in self._choices:
            self._choices[place] = min(self._offers(first, last, cut, level), key=lambda offer: offer[0])
        return self._choices[place]

    def _offers(self, first: int, last: int, cut: int, level: int) -> Iterator[tuple[float, int | None]]:
        alone = last - first == 1
        fork = len(self._ids[first]) if alone else min(self._shared[first + 1 : last])
        size = self._nodes[last] - self._nodes[first] + (self._shared[first] - cut)
        if alone or size <= self._limit:
            yield _price(size, cut), cut
        if not alone:
            branches = self._branches(first, last, level)
            yield sum(self._choose(*branch, cut, level + 1)[0] for branch in branches), None
        if self._found is None:
            return
        deepest = min(fork, len(self._ids[first]) - 1)  # the shortest comes first, and is asked at its last token
        for depth, part in self._cuts(first, deepest, alone=alone):
            if depth > cut and depth - cut <= self._limit:
                price = part * _price(depth - cut, cut) + (CUT if part else 0)
                yield price + self._choose(first, last, depth, level)[0], depth

    def _cuts(self, first: int, deepest: int, *, alone: bool) -> Iterator[tuple[int, float]]:
        """Yield depths to cut at, and which part of the price is to be paid."""
        ids = self._ids[first]
        if self._found is not None:
            yield max((depth for depth in self._found(ids) if depth <= deepest), default=0), 0.0
        if self._before:
            at = bisect_left(self._before, ids)
            neighbours = self._before[max(at - 1, 0) : at + 1]
            again = min(deepest, max(common(ids, other) for other in neighbours))
            yield again if again >= AGAIN else 0, 0.5
        if not alone:
            yield deepest, 1.0

    def _branches(self, first: int, last: int, level: int) -> list[tuple[int, int]]:
        """Return the ranges that go on from a fork each in its own way."""
        fork = min(self._shared[first + 1 : last])
        borders = [at for at in range(first + 1, last) if self._shared[at] == fork or level > DEEP]
        return list(pairwise([first, *borders, last]))


def _price(size: int, start: int) -> float:
    return size * (1 + (start + size) / KEYS) + start / COPIED
