"""The moment at which a server stops waiting: whoever waits is told, so that every client can still be answered."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

__all__ = ["Stop"]


class Stop:
    """Called once, when the time to finish is over.

    >>> stop = Stop()
    >>> with stop.telling(lambda: print("over")):
    ...     stop()
    over
    """

    def __init__(self) -> None:
        self.come = False
        self._calls: list[Callable[[], None]] = []

    def __call__(self) -> None:
        """Tell everyone."""
        self.come = True
        for call in tuple(self._calls):
            call()

    @contextlib.contextmanager
    def telling(self, call: Callable[[], None]) -> Iterator[None]:
        """Call `call` if the moment comes, or has come, meanwhile."""
        self._calls.append(call)
        try:
            if self.come:
                call()
            yield
        finally:
            self._calls.remove(call)
