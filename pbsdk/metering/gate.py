"""The gate: one model and one run folder for a team, each member within an allowance of their own.

A `Gate` stands behind `pbsdk serve`. Whoever shows a token becomes a `Guest`, who asks through a meter of their own over
the run folder that all share: what one paid for, the others recall; what a guest's allowance doesn't cover is refused
before it is sent; and every query is in one record, under the member's name. The server
knows neither ledger nor budget: it asks a gate whose token it holds, and a guest whether to wait, what is left, and for
answers.

Retrying is the client's business, whose own meter counts what it asked, so a gate asks once.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from pbsdk.backend import MaskDistribution, MaskedLMBackend, MaskedQuery, Tokens
from pbsdk.errors import BackendError
from pbsdk.ledger.budget import QueryBudget
from pbsdk.ledger.shares import Member
from pbsdk.metering.members import MemberEntry, MembersFile
from pbsdk.metering.meter import MeteredBackend

__all__ = ["Gate", "Guest"]

_MINUTE = 60.0


class Guest:
    """A member at the gate, from their first request on."""

    def __init__(
        self,
        entry: MemberEntry,
        backend: MaskedLMBackend,
        run: str | os.PathLike[str],
        budget: QueryBudget,
        clock: Callable[[], float],
    ) -> None:
        self.entry = entry
        self.name = entry.name
        self.allowance = _allowance(entry, budget)
        self._meter = MeteredBackend(backend, run, budget, retries=0, member=Member(entry.name, self.allowance))
        self._clock = clock
        self._asked: deque[float] = deque()

    def stream(self, queries: Sequence[MaskedQuery], tokens: Tokens | None = None) -> Iterator[MaskDistribution]:
        """Answer queries in order: all of them are reserved within the allowance, or none is sent."""
        try:
            yield from self._meter.stream(queries, tokens)
        except BackendError as error:
            error.answered, error.failures = (
                {},
                {},
            )  # by places of the meter's own batch; what came is kept, and recalled next time
            raise

    def wait(self) -> float:
        """Count a request, or return how many seconds to wait before there may be another."""
        most, now = self.entry.per_minute, self._clock()
        while self._asked and self._asked[0] <= now - _MINUTE:
            self._asked.popleft()
        if most is not None and len(self._asked) >= most:
            return self._asked[0] + _MINUTE - now
        self._asked.append(now)
        return 0.0

    def remaining(self) -> Mapping[str, float]:
        """Return what is left of each limit that the member has."""
        spent, may = self._meter.ledger.share().totals(), self.allowance
        left: dict[str, float] = {}
        if may.total is not None:
            left["passes"] = max(0, may.total - spent.passes)
        if may.tokens is not None:
            left["tokens"] = max(0, may.tokens - spent.tokens)
        if may.money is not None:
            left["money"] = round(max(0.0, may.money - may.cost(spent)), 6)
        if self.entry.per_minute is not None:
            since = self._clock() - _MINUTE
            left["requests"] = max(0, self.entry.per_minute - sum(moment > since for moment in list(self._asked)))
        return left

    def close(self) -> None:
        """Leave the run folder; the model stays open."""
        self._meter.ledger.close()


class Gate:
    """Lets members ask one model, and keeps one record of it.

    Args:
        backend: the model; closing it is left to the caller.
        run: the run folder that all share.
        members: the file of members and their tokens' hashes.
        budget: limits on all of them together, and the prices by which money is counted.
        clock: seconds that only go forward, for requests a minute.
    """

    def __init__(
        self,
        backend: MaskedLMBackend,
        run: str | os.PathLike[str],
        members: str | os.PathLike[str],
        budget: QueryBudget | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend = backend
        self._run = run
        self._budget = budget or QueryBudget(passes=None, predict=None)
        self._clock = clock
        self._members = MembersFile.of(members)
        self._guests: dict[str, Guest] = {}
        self._former: list[Guest] = []
        self._turn = threading.Lock()
        for entry in self._members.entries().values():
            _allowance(entry, self._budget)  # refuses money without a price before anybody asks
        MeteredBackend(backend, run, self._budget).ledger.close()  # refuses another model's folder likewise

    def admit(self, token: str) -> Guest | None:
        """Return whoever a token belongs to, or None if it is nobody's or was revoked."""
        entry = self._members.find(token)
        if entry is None:
            return None
        with self._turn:
            guest = self._guests.get(entry.name)
            if guest is None or guest.entry != entry:
                # A guest whose limits changed begins a new session; a request under way ends in the old one.
                self._former += [guest] if guest is not None else []
                guest = self._guests[entry.name] = Guest(entry, self._backend, self._run, self._budget, self._clock)
            return guest

    def close(self) -> None:
        """Settle everything; the record stays."""
        for guest in [*self._former, *self._guests.values()]:
            guest.close()


def _allowance(entry: MemberEntry, budget: QueryBudget) -> QueryBudget:
    """Return a member's limits as a budget, at the prices of the whole."""
    return replace(
        budget,
        passes=None,
        predict=None,
        total=entry.passes,
        attempts=None,
        tokens=entry.tokens,
        money=entry.money,
        strict=False,
    )
