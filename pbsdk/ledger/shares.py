"""What each member of a team has taken from a run folder that they share.

A member is a name with an allowance. Each of their sessions says so in its `opened` record, and whatever a session
reserves, sends and recalls is theirs. A member's share follows from the records alone: it is
counted once when it is first needed, and from then on each transaction reads the records that were added since, whoever
added them. So nothing has to be stored that could differ from the record, and two processes that serve
the same member can't both hand out the last pass.

A share counts what the team pays for on a member's behalf: every send that ran, may have run, or is reserved. What
one of them paid for, the others recall for nothing.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pbsdk.errors import BudgetExceeded
from pbsdk.ledger.budget import QueryBudget, Totals
from pbsdk.ledger.inflight import Ask

__all__ = ["Member", "Share", "Shares"]

Rows = Callable[..., Iterable[tuple[Any, ...]]]
"""Executes a statement with values."""


@dataclass(frozen=True)
class Member:
    """A name, and what may be spent on its behalf: limits on passes in all (`total`), tokens and money."""

    name: str
    allowance: QueryBudget

    def to_dict(self) -> dict[str, Any]:
        """Return what the record says of a member."""
        return {"name": self.name, "allowance": self.allowance.to_dict()}


@dataclass
class Share:
    """What was done on behalf of one member."""

    held: int = 0
    """Queries that are reserved and not sent yet."""
    held_tokens: int = 0
    """The most that those can cost."""
    sent: int = 0
    failed: int = 0
    """Sends that certainly did not run."""
    unknown: int = 0
    answers: int = 0
    hits: int = 0
    tokens: int = 0
    """Tokens read, plus the most that what is reserved or unknown can cost."""
    allowances: list[QueryBudget] = field(default_factory=list)
    """All that the member had, one after the other."""
    since: int = 0
    until: int = 0
    """When the first session was opened, and when something was last done, in microseconds."""

    def totals(self) -> Totals:
        """Return what is charged to the member; each send that may have run is a pass."""
        return Totals(self.held + self.sent - self.failed, self.held + self.sent, self.failed, self.tokens)


class _Seen(NamedTuple):
    """What is read of a record."""

    seq: int
    time: int
    session: str
    query: str
    state: str
    read: int
    note: str


@dataclass
class Shares:
    """Every member's share, as far as the records were read."""

    _seq: int = 0
    _members: dict[str, str] = field(default_factory=dict)
    """The member of each session."""
    _flying: dict[str, tuple[str, int, bool]] = field(default_factory=dict)
    """Of each query in flight, the member, the most it can cost, and whether it was sent."""
    _shares: dict[str, Share] = field(default_factory=dict)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def catch_up(self, rows: Rows) -> None:
        """Count the records that were added since the last time; call it before a transaction writes, so that all of them stay."""
        with self._turn:
            for record in rows(
                "SELECT seq, time, session, query, state, read, note FROM records WHERE seq > ? ORDER BY seq", self._seq
            ):
                self._count(_Seen._make(record))

    def _count(self, seen: _Seen) -> None:
        self._seq, query, state = seen.seq, seen.query, seen.state
        if state == "opened":
            self._open(seen.session, seen.time, json.loads(seen.note).get("member"))
            return
        mine = self._members.get(seen.session, "")
        self._of(mine).until = seen.time
        if state == "hit":
            self._of(mine).hits += 1
            return
        before, most, _ = self._flying.pop(query, ("", 0, False))
        if state == "reserved":
            self._hold(mine, 1, seen.read)
            self._flying[query] = mine, seen.read, False
        elif state == "sent":  # perhaps what another had reserved
            self._hold(before, -1, -most)
            self._of(mine).sent += 1
            self._of(mine).tokens += most
            self._flying[query] = mine, most, True
        elif state == "released":
            self._hold(before, -1, -most)
        elif state in {"done", "unknown", "failed"}:
            self._settle(self._of(before), state, seen.read - most)

    def _open(self, session: str, time: int, member: Any) -> None:
        if member is not None:
            self._members[session] = str(member["name"])
            share = self._of(self._members[session])
            share.allowances.append(QueryBudget.from_dict(member["allowance"]))
            share.since, share.until = share.since or time, time

    def _hold(self, member: str, queries: int, tokens: int) -> None:
        share = self._of(member)
        share.held += queries
        share.held_tokens += tokens
        share.tokens += tokens

    @staticmethod
    def _settle(share: Share, state: str, tokens: int) -> None:
        share.tokens += tokens
        share.answers += state == "done"
        share.unknown += state == "unknown"
        share.failed += state == "failed"

    def _of(self, member: str) -> Share:
        return self._shares.setdefault(member, Share())

    def of(self, member: str) -> Share:
        """Return a member's share."""
        with self._turn:
            return copy(self._of(member))

    def named(self) -> dict[str, Share]:
        """Return the shares of all members by name, in the order in which they first came."""
        with self._turn:
            return {name: share for name, share in self._shares.items() if name}

    def check(self, member: Member, asks: Sequence[Ask]) -> None:
        """Raise `BudgetExceeded` if asking these, so far as they are not charged to the member yet, exceeds the allowance.

        A batch that was reserved is checked again: answers may have cost more than was reserved for them.
        """
        new: list[int] = []
        reserved: list[int] = []
        for ask in asks:
            owner, most, sent = self._flying.get(ask.key, ("", ask.tokens, False))
            if not sent:
                (reserved if owner == member.name else new).append(most)
        self.check_more(member, new, reserved)

    def check_more(self, member: Member, new: Sequence[int], reserved: Sequence[int] = ()) -> None:
        """Raise `BudgetExceeded` if the allowance doesn't cover more sends, given by the most tokens that each can cost."""
        with self._turn:
            share = self._of(member.name)
            now = share.totals()
            then = Totals(now.passes + len(new), now.sends + len(new), now.failed, now.tokens + sum(new))
            spent = Totals(sends=now.sends - share.held, failed=now.failed, tokens=now.tokens - share.held_tokens)
            batch = Totals(sends=spent.sends + len(reserved), failed=now.failed, tokens=spent.tokens + sum(reserved))
        try:
            member.allowance.check([], now, then)
            if not member.allowance.covers(now):
                member.allowance.check_next(spent, batch, now)
        except BudgetExceeded as refusal:
            raise refusal.during(f"the allowance of {member.name}") from None
