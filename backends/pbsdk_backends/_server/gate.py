"""What the server knows of a gate: whose token a request shows, whether it must wait, and what is left.

`pbsdk.metering.gate` is the gate that ships; anything of this shape will do. A gate may read from a disk or a
database, so it is asked from one thread of its own, never from the loop that serves all connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Protocol, TypeVar

from pbsdk.backend import MaskDistribution, MaskedQuery, Tokens

__all__ = ["GUEST", "Doorkeeper", "Gate", "Guest"]

Result = TypeVar("Result")


class Guest(Protocol):
    """Somebody who may ask, within limits."""

    name: str

    def stream(self, queries: Sequence[MaskedQuery], tokens: Tokens | None = None) -> Iterator[MaskDistribution]:
        """Answer queries in order; `BudgetExceeded` if they don't fit what is left."""
        ...

    def wait(self) -> float:
        """Count a request, or return how many seconds to wait before there may be another."""
        ...

    def remaining(self) -> Mapping[str, float]:
        """Return what is left, by the name of each limit."""
        ...


class Gate(Protocol):
    """Who may ask."""

    def admit(self, token: str) -> Guest | None:
        """Return whose token it is, or None if it is nobody's."""
        ...


GUEST: ContextVar[Guest | None] = ContextVar("guest", default=None)
"""Who sent the request that is being answered; None where there is no gate."""


class Doorkeeper:
    """Asks a gate from one thread, so that nothing else waits for it."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pbsdk-gate")

    async def admit(self, authorization: bytes) -> Guest | None:
        """Return who shows this header."""
        scheme, _, token = authorization.decode("latin-1").partition(" ")
        if scheme.lower() != "bearer":
            return None
        return await self._ask(lambda: self._gate.admit(token.strip()))

    async def remaining(self, guest: Guest) -> Mapping[str, float]:
        """Return what a guest has left."""
        return await self._ask(guest.remaining)

    def close(self) -> None:
        """Let the thread end."""
        self._thread.shutdown(wait=False)

    async def _ask(self, question: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, question)
