"""Which limits held when, and whether what was asked kept to them.

Each session of a run folder has limits of its own, and its first record holds them. A query is charged under the limits
of the session that reserved it, so a session that asked nothing, such as a plan's, has nothing to be judged by, and
one that asks under other limits later changes nothing about what was asked before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

from pydantic import BaseModel, ConfigDict

from pbsdk.formatting import moment, number
from pbsdk.ledger.budget import SCOPES, QueryBudget, Totals
from pbsdk.ledger.reader import LedgerReader
from pbsdk.ledger.sums import Counter

__all__ = ["LimitsHeld", "Period", "Use", "iso", "judged", "periods", "verdict", "widest"]

Limit = TypeVar("Limit", int, float)
Use = tuple[str, float, float | None]
"""The name of a limit, how much of it is used, and the limit; None if there is none."""


class LimitsHeld(BaseModel):
    """Limits under which something was asked, and whether it kept to them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    budget: str
    """The limits, their unit and their scope in one sentence."""
    since: str
    until: str
    """When the first and the last query was charged or sent under them."""
    sessions: int
    queries: int
    """How many queries were sent under them, retries included."""
    within: bool
    verdict: str


@dataclass
class Period:
    """The sessions that asked under the same limits."""

    budget: QueryBudget
    since: int
    until: int
    last: int = 0
    """The number of the last record that reserved something."""
    queries: int = 0
    scopes: set[str] = field(default_factory=set)
    sessions: set[str] = field(default_factory=set)


def periods(reader: LedgerReader, counter: Counter) -> list[Period]:
    """Return the sessions that asked something, those with the same limits together, in the order of time."""
    budgets = reader.budgets()
    found: dict[QueryBudget, Period] = {}
    for session, scope, first, last, queries, reserved in counter.askers():
        budget = budgets.get(session, QueryBudget())
        period = found.setdefault(budget, Period(budget, first, last))
        period.since, period.until = min(period.since, first), max(period.until, last)
        period.last = max(period.last, reserved)
        period.queries += queries
        period.scopes.add(scope)
        period.sessions.add(session)
    return sorted(found.values(), key=lambda period: period.since)


def judged(period: Period, reader: LedgerReader, counter: Counter, *, alone: bool) -> LimitsHeld:
    """Judge what was asked under a period's limits; if it is `alone`, that is all there is."""
    budget = period.budget
    if alone:
        spreads = counter.scopes(strict=budget.strict)
        most, spent = {scope: max(spread, default=0) for scope, spread in spreads.items()}, reader.totals()
    else:
        most = counter.most(period.sessions, strict=budget.strict)
        spent = counter.spent(period.last)
    within, said = verdict(_uses(budget, most, spent))
    return LimitsHeld(
        budget=budget.describe(),
        since=iso(period.since),
        until=iso(period.until),
        sessions=len(period.sessions),
        queries=period.queries,
        within=within,
        verdict=said,
    )


def _uses(budget: QueryBudget, most: dict[str, int], spent: Totals) -> list[Use]:
    return [
        *((f"passes per example ({scope})", most.get(scope, 0), budget.limit(scope)) for scope in SCOPES),
        ("passes in all", budget.counted(spent), budget.total),
        ("attempts in all", spent.sends, budget.attempts),
        ("tokens in all", spent.tokens, budget.tokens),
        ("money in all", budget.cost(spent), budget.money),
    ]


def verdict(uses: Sequence[Use], held: Sequence[LimitsHeld] = (), exceeded: Sequence[str] = ()) -> tuple[bool, str]:
    """Return whether all is within its limit, and by how much; limits that `held` and were exceeded are named too.

    `exceeded` are limits of another kind that were.
    """
    limited = [(name, used, limit) for name, used, limit in uses if limit is not None]
    over = [part for limits in held if not limits.within for part in [_exceeded(limits, several=len(held) > 1)]]
    if not held:
        # As in the budget's own check: a sum of prices may end slightly above the limit that allowed it.
        over = [
            f"{number(used)} of {number(limit)} {name}, {number(used - limit)} over"
            for name, used, limit in limited
            if used > limit * (1 + 1e-9)
        ]
    over += exceeded
    if over:
        return False, f"{_OVER}{'; '.join(over)}"
    parts = [
        f"{number(used)} of {number(limit)} {name}, {number(max(0.0, limit - used))} left"
        for name, used, limit in limited
    ]
    return True, f"within budget: at most {'; '.join(parts)}" if parts else "within budget: no limit is set"


_OVER = "OVER BUDGET: "


def _exceeded(limits: LimitsHeld, *, several: bool) -> str:
    when = f" (limits from {moment(limits.since)} to {moment(limits.until)})" if several else ""
    return limits.verdict.removeprefix(_OVER) + when


def widest(limits: Iterable[Limit | None]) -> Limit | None:
    """Return the largest limit; None, which is no limit, is larger than any.

    >>> widest([2, 10]), widest([2, None])
    (10, None)
    """
    found = list(limits)
    return None if None in found else max(limit for limit in found if limit is not None)


def iso(time: int) -> str:
    """Return a record's time as ISO 8601 has it.

    >>> iso(1_700_000_000_000_000)
    '2023-11-14T22:13:20.000Z'
    """
    return datetime.fromtimestamp(time / 1e6, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
