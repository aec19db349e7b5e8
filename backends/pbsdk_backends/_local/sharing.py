"""Ten prompts, one text: a causal model reads what prompts share only once.

The queries of one example mostly begin the same way: the text comes first, and the prompts differ after it.
Their tokens form a tree. A tree fits in one row of a batch: each token keeps the position it has in
its own query and sees only the tokens on its own path.

    It rained . | The weather is          position  0 1 2  3 4 5
                | This is                                  3 4

When queries are sorted, each shares with the tree so far exactly what it shares with the query before it;
that is all it takes to build the tree. Where tokens merge across the border of text and prompt, the ids
differ, and sharing simply ends one token earlier.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pbsdk_backends._tokens.reading import Reading

__all__ = ["Row", "single", "tree"]


class Row(NamedTuple):
    """One row of a batch: tokens, and the places in it that answer readings."""

    ids: list[int]
    asks: list[int]
    owners: list[int]
    """Which reading each ask answers."""
    depths: list[int] | None = None
    """A tree's positions; None for a plain row."""
    sight: npt.NDArray[np.bool_] | None = None
    """A tree's attention mask: `sight[i, j]` if token i sees token j."""


def single(owner: int, reading: Reading) -> Row:
    """Return the row of a single reading."""
    return Row(reading.ids, [reading.at], [owner])


def tree(owners: Iterable[int], readings: Sequence[Reading]) -> Row:
    """Return one row for all the readings of `owners`."""
    ids: list[int] = []
    depths: list[int] = []
    asks: dict[int, int] = {}
    paths: list[list[int]] = []
    path: list[int] = []
    for owner in sorted(owners, key=lambda owner: readings[owner].ids):
        tokens = readings[owner].ids
        shared = _common(tokens, [ids[node] for node in path])
        fresh = range(len(ids), len(ids) + len(tokens) - shared)
        path = [*path[:shared], *fresh]
        ids.extend(tokens[shared:])
        depths.extend(range(shared, len(tokens)))
        paths.append(path)
        asks[owner] = path[-1]
    sight = np.zeros((len(ids), len(ids)), dtype=np.bool_)
    for nodes in paths:
        at = np.asarray(nodes)
        sight[at[:, None], at] |= np.tri(len(at), dtype=np.bool_)
    return Row(ids, list(asks.values()), list(asks), depths, sight)


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """Return how many tokens two lists share at their start."""
    for place, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return place
    return min(len(left), len(right))
