"""Forking beside an open ledger.

A forked child gets a copy of its parent's memory and only one of its threads. A lock that another thread held
stays locked in the child for ever; so does one inside SQLite. An SQLite connection that is carried over believes that it
holds file locks which the operating system never gave the child, and what is written through it can be lost.

So a fork waits until no other thread is using a ledger, and closes all connections first; parent and child open new
ones when they need them. Whatever uses a ledger's files does so between `enter` and `leave`. What has
to be done before a fork, or afterwards in the child, is a method of something `watched`.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Forkable", "enter", "in_use", "leave", "watch"]

_PATIENCE = 120.0
"""Seconds that a fork waits at most: twice as long as a transaction waits for another process's."""


class Forkable:
    """Something that a fork must not copy as it is."""

    def before_fork(self) -> None:
        """Make ready to be copied; no other thread is using a ledger."""

    def after_fork(self) -> None:
        """Begin anew, in the child; there is only one thread."""


_turn = threading.Condition(threading.RLock())  # an RLock: a finalizer may call `leave` inside `enter`
_inside: Counter[int] = Counter()
_forking: set[int] = set()
"""Threads that wait to fork: until they have, nobody else enters."""
_watched: weakref.WeakSet[Forkable] = weakref.WeakSet()


def watch(thing: Forkable) -> None:
    """Have a thing's methods called at every fork for as long as it exists."""
    with _turn:
        _watched.add(thing)


def enter() -> int:
    """Keep other threads from forking; return what `leave` needs."""
    thread = threading.get_ident()
    with _turn:
        while _forking - {thread} and thread not in _inside:
            _turn.wait()
        _inside[thread] += 1
    return thread


def leave(thread: int) -> None:
    """Allow forks again."""
    with _turn:
        _inside[thread] -= 1
        if _inside[thread] <= 0:
            del _inside[thread]
            _turn.notify_all()


@contextmanager
def in_use() -> Iterator[None]:
    """Keep other threads from forking meanwhile."""
    thread = enter()
    try:
        yield
    finally:
        leave(thread)


def _before() -> None:
    _turn.acquire()  # held until the fork is over, so that nobody enters meanwhile
    limit, me = time.monotonic() + _PATIENCE, threading.get_ident()
    _forking.add(me)
    while _inside.keys() - {me} and (left := limit - time.monotonic()) > 0:
        _turn.wait(left)
    if not _inside.keys() - {me}:
        for thing in list(_watched):
            thing.before_fork()


def _in_parent() -> None:
    _forking.discard(threading.get_ident())
    _turn.notify_all()
    _turn.release()


def _in_child() -> None:
    _forking.clear()
    for thread in _inside.keys() - {threading.get_ident()}:
        del _inside[thread]
    for thing in list(_watched):
        thing.after_fork()
    _turn.release()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
