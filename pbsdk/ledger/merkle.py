"""A Merkle tree over the records (RFC 6962, RFC 9162): short proofs about a record that needn't be shown whole.

The chain proves that nothing was changed to whoever holds every record. The root of a tree over the same records
proves more to whoever holds less: that one record is among them (an inclusion proof), and that a longer record
begins with all of a shorter one (a consistency proof). Either is a list of some twenty hashes for a million records.

A leaf is SHA-256 of a zero byte and the record's canonical form, a node SHA-256 of a one byte and its two children.
Every hash in a proof covers one run of leaves. So a proof is first a list of runs, and then one walk over the
leaves, in order, that remembers no more than one hash per level of the tree.

>>> leaves = [leaf_hash(letter) for letter in (b"a", b"b", b"c")]
>>> path = hash_runs(leaves, inclusion_runs(1, 3))
>>> root_from_path(leaves[1], 1, 3, path) == hash_runs(leaves, [(0, 3)])[0]
True
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

__all__ = [
    "Runs",
    "consistency_runs",
    "hash_runs",
    "inclusion_runs",
    "is_consistent",
    "leaf_hash",
    "node_hash",
    "root_from_path",
]

Run = tuple[int, int]
"""The first leaf, counted from 0, and the one after the last."""


def leaf_hash(data: bytes) -> bytes:
    """Return the hash of a leaf.

    >>> leaf_hash(b"").hex()[:16]
    '6e340b9cffb37a98'
    """
    return hashlib.sha256(b"\0" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of a node with these children."""
    return hashlib.sha256(b"\1" + left + right).digest()


class _Tree:
    """A tree that grows leaf by leaf and holds the roots of its complete parts, the largest first."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._leaves = 0

    def add(self, leaf: bytes) -> None:
        self._leaves = size = self._leaves + 1
        while not size & 1:
            leaf = hashlib.sha256(b"\1" + self._parts.pop() + leaf).digest()
            size >>= 1
        self._parts.append(leaf)

    def root(self) -> bytes:
        if not self._parts:
            return hashlib.sha256(b"").digest()
        *rest, root = self._parts
        for part in reversed(rest):
            root = node_hash(part, root)
        return root


class Runs:
    """The hashes of runs of leaves that don't overlap, found while leaves are added one by one."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self._trees = {run: _Tree() for run in runs}
        self._order = sorted(self._trees, reverse=True)
        self._leaves = 0

    def add(self, leaf: bytes) -> None:
        """Add the hash of the next leaf."""
        if self._order:
            run = self._order[-1]
            if self._leaves >= run[0]:
                self._trees[run].add(leaf)
            self._leaves += 1
            if self._leaves >= run[1]:
                self._order.pop()

    def hashes(self) -> list[bytes]:
        """Return the hash of every run, in the order in which they were asked for."""
        return [tree.root() for tree in self._trees.values()]


def hash_runs(leaves: Iterable[bytes], runs: Iterable[Run]) -> list[bytes]:
    """Return the hash of every run of these leaves."""
    found = Runs(runs)
    for leaf in leaves:
        found.add(leaf)
    return found.hashes()


def _middle(first: int, last: int) -> int:
    """Return where a tree of these leaves divides: its left part is the largest power of two that is smaller."""
    return first + (1 << (last - first - 1).bit_length() - 1)


def inclusion_runs(leaf: int, size: int) -> list[Run]:
    """Return the runs whose hashes lead from a leaf to the root, the nearest first.

    >>> inclusion_runs(4, 7)
    [(5, 6), (6, 7), (0, 4)]
    """
    first, last, runs = 0, size, []
    while last - first > 1:
        middle = _middle(first, last)
        if leaf < middle:
            runs.append((middle, last))
            last = middle
        else:
            runs.append((first, middle))
            first = middle
    return runs[::-1]


def consistency_runs(old: int, size: int) -> list[Run]:
    """Return the runs whose hashes prove that a tree begins with the `old` leaves of a smaller one.

    >>> consistency_runs(3, 7)
    [(2, 3), (3, 4), (0, 2), (4, 7)]
    """
    first, last, runs = 0, size, []
    while last > old:
        middle = _middle(first, last)
        if old <= middle:
            runs.append((middle, last))
            last = middle
        else:
            runs.append((first, middle))
            first = middle
    if first:  # otherwise this run is the smaller tree itself, whose root is known
        runs.append((first, last))
    return runs[::-1]


def root_from_path(leaf: bytes, index: int, size: int, path: Sequence[bytes]) -> bytes | None:
    """Return the root to which a leaf's path leads, or None if the path isn't one of such a tree (RFC 9162, 2.1.3.2)."""
    if not 0 <= index < size:
        return None
    last, found = size - 1, leaf
    for part in path:
        if not last:
            return None
        if index & 1 or index == last:
            found = node_hash(part, found)
            while not index & 1 and index:
                index >>= 1
                last >>= 1
        else:
            found = node_hash(found, part)
        index >>= 1
        last >>= 1
    return None if last else found


def is_consistent(old: int, size: int, old_root: bytes, root: bytes, path: Sequence[bytes]) -> bool:
    """Return whether a path proves that a tree begins with the leaves of a smaller one (RFC 9162, 2.1.4.2)."""
    if not 0 < old <= size:
        return False
    if old == size:
        return not path and old_root == root
    parts = list(path) if old & (old - 1) else [old_root, *path]
    if not parts:
        return False
    at, last = old - 1, size - 1
    while at & 1:
        at >>= 1
        last >>= 1
    before = after = parts[0]
    for part in parts[1:]:
        if not last:
            return False
        if at & 1 or at == last:
            before, after = node_hash(part, before), node_hash(part, after)
            while not at & 1 and at:
                at >>= 1
                last >>= 1
        else:
            after = node_hash(after, part)
        at >>= 1
        last >>= 1
    return not last and (before, after) == (old_root, root)
