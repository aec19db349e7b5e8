"""Queries that begin alike: a causal model reads what they share only once.

The queries of one example mostly begin with its text, and the prompts differ after it. Their tokens
form a tree. A tree fits in one row of a batch: each token keeps the position it has in its own query
and sees only the tokens on its own path.

    It rained . | The weather is          position  0 1 2  3 4 5
                | This is                                  3 4

Sorted, a query shares with the tree so far what it shares with the query before it; that is all it
takes to build the tree. Where tokens merge across the border of text and prompt, the ids differ,
and sharing simply ends a token earlier.

What several rows share, such as demonstrations before every text, is a `Beginning`: it is read
apart, and the rows see its keys and values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pbsdk_backends._tokens.reading import Reading

__all__ = ["Beginning", "Row", "chain", "common", "single", "tree"]


class Beginning(NamedTuple):
    """The tokens with which several rows begin; `after` is the shorter beginning it goes on from."""

    ids: tuple[int, ...]
    after: Beginning | None = None


class Row(NamedTuple):
    """One row of a batch: tokens, and the places in it that answer readings."""

    ids: list[int]
    asks: list[int]
    owners: list[int]
    """Which reading each ask answers."""
    depths: list[int] | None = None
    """A tree's positions; None for a plain row."""
    sight: npt.NDArray[np.bool_] | None = None
    """A tree's sight: `sight[i, j]` if token i sees token j."""
    after: Beginning | None = None
    """What all the row's tokens see before each other; the row then is a tree."""

    @property
    def start(self) -> int:
        """How many tokens come before the row's own."""
        return len(self.after.ids) if self.after else 0


def single(owner: int, reading: Reading) -> Row:
    """Return the row of a single reading."""
    return Row(reading.ids, [reading.at], [owner])


def chain(beginning: Beginning) -> Row:
    """Return the row that reads a beginning; it asks nothing."""
    start = len(beginning.after.ids) if beginning.after else 0
    ids = list(beginning.ids[start:])
    sight = np.tri(len(ids), dtype=np.bool_)
    return Row(ids, [], [], list(range(start, start + len(ids))), sight, beginning.after)


def tree(owners: Iterable[int], readings: Sequence[Reading], after: Beginning | None = None) -> Row:
    """Return one row for all the readings of `owners`, which begin with `after`."""
    start = len(after.ids) if after else 0
    ids: list[int] = []
    depths: list[int] = []
    asks: dict[int, int] = {}
    paths: list[list[int]] = []
    path: list[int] = []
    for owner in sorted(owners, key=lambda owner: readings[owner].ids):
        tokens = readings[owner].ids[start:]
        shared = common(tokens, [ids[node] for node in path])
        fresh = range(len(ids), len(ids) + len(tokens) - shared)
        path = [*path[:shared], *fresh]
        ids.extend(tokens[shared:])
        depths.extend(range(start + shared, start + len(tokens)))
        paths.append(path)
        asks[owner] = path[-1]
    sight = np.zeros((len(ids), len(ids)), dtype=np.bool_)
    for nodes in paths:
        at = np.asarray(nodes)
        sight[at[:, None], at] |= np.tri(len(at), dtype=np.bool_)
    return Row(ids, list(asks.values()), list(asks), depths, sight, after)


def common(left: Sequence[int], right: Sequence[int]) -> int:
    """Return how many tokens two lists share at their start."""
    for place, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return place
    return min(len(left), len(right))
