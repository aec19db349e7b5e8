"""The members of a team that shares a run folder: what was asked on behalf of each, against their allowances."""

from __future__ import annotations

import json
from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict

from pbsdk.audit.limits import iso, widest
from pbsdk.formatting import number
from pbsdk.ledger.budget import QueryBudget
from pbsdk.ledger.reader import LedgerReader
from pbsdk.ledger.shares import Share, Shares

__all__ = ["MemberReport", "Remaining", "exceeded", "remaining", "team"]

_LIMITS = {"passes": "total", "tokens": "tokens", "money": "money"}
"""What a member's limits are called, and the fields of the budget that holds them."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class MemberReport(_Part):
    """What was asked on behalf of one member."""

    name: str
    passes: int
    """Sends that ran or may have run, and what is reserved: what the team pays for on their behalf."""
    attempts: int
    failed: int
    unknown: int
    hits: int
    """Answers recalled, whoever had paid for them."""
    tokens: int
    money: float | None
    limits: dict[str, float]
    """The allowance that was given last."""
    left: dict[str, float]
    """What is left of it."""
    within: bool
    """Whether the widest allowance that the member had was kept to."""


class Remaining(_Part):
    """What a server in front of the model last said is left of an allowance there."""

    time: str
    left: dict[str, float]


def team(reader: LedgerReader) -> list[MemberReport]:
    """Return a report on each member, by name; none where nobody has a name."""
    opened = reader.select("SELECT note FROM records WHERE state = 'opened' ORDER BY seq")
    if not any("member" in json.loads(note) for (note,) in opened):
        return []
    shares = Shares()
    shares.catch_up(reader.select)
    return [_report(name, share) for name, share in sorted(shares.named().items())]


def _report(name: str, share: Share) -> MemberReport:
    now, spent = share.allowances[-1], share.totals()
    used = _used(now, share)
    limits = {limit: float(value) for limit, field in _LIMITS.items() if (value := getattr(now, field)) is not None}
    most = {limit: widest(getattr(each, field) for each in share.allowances) for limit, field in _LIMITS.items()}
    return MemberReport(
        name=name,
        passes=spent.passes,
        attempts=share.sent,
        failed=share.failed,
        unknown=share.unknown,
        hits=share.hits,
        tokens=spent.tokens,
        money=used["money"] if now.priced else None,
        limits=limits,
        left={limit: max(0.0, value - used[limit]) for limit, value in limits.items()},
        # As in the budget's own check: a sum of prices may end slightly above the limit that allowed it.
        within=all(value is None or used[limit] <= value * (1 + 1e-9) for limit, value in most.items()),
    )


def _used(allowance: QueryBudget, share: Share) -> dict[str, float]:
    spent = share.totals()
    return {"passes": spent.passes, "tokens": spent.tokens, "money": allowance.cost(spent)}


def exceeded(members: Iterable[MemberReport]) -> list[str]:
    """Return a line for each member who exceeded the allowance."""
    return [
        f"{member.name} has used {number(member.passes)} passes and {number(member.tokens)} tokens, more than the allowance"
        for member in members
        if not member.within
    ]


def remaining(reader: LedgerReader) -> Remaining | None:
    """Return what a server in front of the model said last, if any ever did."""
    told = reader.remaining()
    return None if told is None else Remaining(time=iso(told[0]), left=told[1])
