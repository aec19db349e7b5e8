"""The bookkeeping of queries in flight: reserved, claimed, finished, failed or given up.

Every function works inside the caller's transaction and writes three things together: the list of
queries in flight, the counters that the budget is checked against, and the events of the record.

For each (scope, example, prompt) the counters keep how many sends are `held` (reserved), how many were
`sent`, and how many of those `failed` (certainly did not run). A pass is spent, or held, as long as
`held + sent - failed` is above 0. That is why a send moves one from `held` to `sent` and changes no
total, an unknown outcome changes nothing at all, and a failure gives the pass back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pbsdk.backend import MaskDistribution, MaskedQuery, digest
from pbsdk.errors import LedgerError
from pbsdk.ledger.budget import Need, QueryBudget, Totals, scope_of
from pbsdk.ledger.chain import Event, append
from pbsdk.ledger.codec import WHOLE, answer_digest, join_parts, noted_words, storable
from pbsdk.ledger.store import Connection

__all__ = [
    "Ask",
    "Claim",
    "Failed",
    "Owner",
    "Result",
    "afford",
    "answered",
    "charge",
    "claim",
    "fail",
    "finish",
    "missing",
    "owners",
    "reserve",
    "settle",
    "totals",
    "unanswered",
]


_MANY = 500
"""How many keys are looked up in one statement."""


class Owner(NamedTuple):
    """Who has a query in flight: a stream of a session."""

    session: str
    stream: int


@dataclass(frozen=True, slots=True)
class Ask:
    """A query, the key of its answer, what it is asked for, and the most tokens that it can cost."""

    key: str
    query: MaskedQuery
    example: str
    prompt: str
    tokens: int = 0
    token_set: str = WHOLE
    """The name of the token set asked for."""

    @classmethod
    def of(cls, key: str, query: MaskedQuery, tokens: int = 0, token_set: str = WHOLE) -> Ask:
        """Name the query's example and prompt by digests; a text given as `example` is never kept."""
        example = query.example
        if len(example) != 32 or not set(example) <= set("0123456789abcdef"):
            example = digest(example)
        return cls(key, query, example, digest(query.prompt), tokens, token_set)

    @property
    def scope(self) -> str:
        """Which scope is charged."""
        return scope_of(self.query.phase)

    @property
    def key_parts(self) -> str:
        """What the key consists of, apart from the model."""
        return join_parts(self.query.content, self.token_set)

    def event(self, session: str, state: str, **more: Any) -> Event:
        """Return an event of this query."""
        return Event(session, state, self.key, str(self.query.phase), self.example, self.prompt, **more)


class Claim(NamedTuple):
    """What became of the queries that a stream wanted to send."""

    mine: list[Ask]
    """Marked as sent by this stream, which must now send them."""
    theirs: list[Ask]
    """Sent by another, who is still alive."""
    known: list[Ask]
    """Answered in the meantime."""


@dataclass(frozen=True, slots=True)
class Result:
    """An answer's bytes, as they will be stored, and what the record says of it."""

    ask: Ask
    data: bytes
    answer: MaskDistribution
    latency: int
    mass: int


class Failed(NamedTuple):
    """A send that brought no answer, and whether it may have run all the same."""

    ask: Ask
    ran: bool
    note: str
    """The kind of error, for the record."""


def missing(con: Connection, asks: Sequence[Ask]) -> list[Ask]:
    """Return those that nobody has answered, reserved or sent."""
    left = unanswered(con, asks)
    flying = _found(con, "SELECT query FROM inflight WHERE query IN", [ask.key for ask in left])
    return [ask for ask in left if ask.key not in flying]


def unanswered(con: Connection, asks: Sequence[Ask]) -> list[Ask]:
    """Return those that nobody has answered."""
    known = answered(con, [ask.key for ask in asks])
    return [ask for ask in asks if ask.key not in known]


def answered(con: Connection, keys: Iterable[str]) -> set[str]:
    """Return which keys have an answer."""
    return _found(con, "SELECT query FROM answers WHERE query IN", list(keys))


def _found(con: Connection, statement: str, keys: Sequence[str]) -> set[str]:
    """Look up many keys at once: each statement may be a journey."""
    return {
        key
        for at in range(0, len(keys), _MANY)
        for (key,) in con.execute(
            f"{statement} ({', '.join('?' * len(keys[at : at + _MANY]))})", keys[at : at + _MANY]
        ).fetchall()
    }


class _Flight(NamedTuple):
    """A query in flight: reserved or sent, what it is charged to, the tokens held for it, and how often it was sent."""

    state: str
    phase: str
    example: str
    prompt: str
    tokens: int
    attempt: int

    def pays_for(self, ask: Ask) -> bool:
        """Return whether what is reserved is what `ask` is to be charged."""
        charged = (str(ask.query.phase), ask.example, ask.prompt)
        return (self.phase, self.example, self.prompt) == charged and self.tokens >= ask.tokens


_FLIGHT = ", ".join(_Flight._fields)


def _in_flight(con: Connection, key: str) -> _Flight | None:
    row = con.execute(f"SELECT {_FLIGHT} FROM inflight WHERE query = ?", (key,)).fetchone()  # noqa: S608 - our own names
    return None if row is None else _Flight(*row)


def totals(con: Connection) -> Totals:
    """Return what is spent or reserved over everything."""
    return Totals(*con.execute("SELECT passes, held + sent, failed, tokens FROM totals").fetchone())


def reserve(
    con: Connection,
    owner: Owner,
    asks: Sequence[Ask],
    budget: QueryBudget,
    attempts: Mapping[str, int] | None = None,
) -> None:
    """Check the budget, then reserve; if the budget refuses, nothing is written.

    `attempts` says how often each was sent before, if it was.
    """
    if not asks:
        return
    charge(con, asks, budget)
    con.executemany(
        "INSERT INTO passes VALUES (?, ?, ?, ?, 0, 0)"
        " ON CONFLICT (scope, example, prompt) DO UPDATE SET held = passes.held + excluded.held",
        [(*what, n) for what, n in Counter((ask.scope, ask.example, ask.prompt) for ask in asks).items()],
    )
    tries = attempts or {}
    con.execute("INSERT INTO streams VALUES (?, ?) ON CONFLICT DO NOTHING", owner)
    con.executemany(
        "INSERT INTO inflight VALUES (?, ?, ?, 'reserved', ?, ?, ?, ?, ?)",
        [(a.key, *owner, a.query.phase, a.example, a.prompt, a.tokens, tries.get(a.key, 0)) for a in asks],
    )
    con.executemany(
        "INSERT INTO names VALUES (?, ?) ON CONFLICT DO NOTHING",
        {ask.prompt: storable(ask.query.prompt) for ask in asks}.items(),
    )
    append(
        con,
        [
            ask.event(owner.session, "reserved", attempt=tries.get(ask.key, 0), read=ask.tokens, note=ask.key_parts)
            for ask in asks
        ],
    )


def charge(con: Connection, asks: Sequence[Ask], budget: QueryBudget) -> None:
    """Check the budget for queries that nobody has reserved, and add them to what is held in all."""
    groups: dict[tuple[str, str], list[str]] = {}
    for ask in asks:
        groups.setdefault((ask.scope, ask.example), []).append(ask.prompt)
    needs, fresh = [], 0
    for (scope, example), prompts in groups.items():
        rows = con.execute(
            "SELECT prompt, held + sent, held + sent - failed FROM passes WHERE scope = ? AND example = ?",
            (scope, example),
        ).fetchall()
        paid = {prompt for prompt, _, ran in rows if ran > 0}
        new = len(set(prompts) - paid)
        fresh += new
        if budget.strict:
            needs.append(Need(scope, example, sum(tries for _, tries, _ in rows), len(prompts)))
        else:
            needs.append(Need(scope, example, len(paid), new))
    afford(con, needs, budget, fresh=fresh, sends=len(asks), tokens=sum(ask.tokens for ask in asks))


def afford(  # noqa: PLR0913 - what is asked for, by its kinds
    con: Connection, needs: Sequence[Need], budget: QueryBudget, *, fresh: int, sends: int, tokens: int
) -> None:
    """Check the budget, then add to what is held in all: `fresh` passes, sends, and the most tokens that they can cost."""
    now = totals(con)
    budget.check(needs, now, Totals(now.passes + fresh, now.sends + sends, now.failed, now.tokens + tokens))
    con.execute("UPDATE totals SET passes = passes + ?, held = held + ?, tokens = tokens + ?", (fresh, sends, tokens))


def claim(con: Connection, owner: Owner, asks: Sequence[Ask], budget: QueryBudget) -> Claim:
    """Mark as sent what is only reserved, by anyone; first reserve what nobody holds, or somebody on another account.

    If answers cost more than was reserved for them, a batch that what is left doesn't cover is refused.
    """
    result, lost, tries = Claim([], [], []), [], []
    for ask in asks:
        flight = _in_flight(con, ask.key)
        if flight is None and answered(con, [ask.key]):
            result.known.append(ask)
        elif flight is not None and flight.state == "sent":
            result.theirs.append(ask)
        else:
            result.mine.append(ask)
            if flight is None or not flight.pays_for(ask):
                lost.append(ask)
            tries.append(1 if flight is None else 1 + flight.attempt)
    _give_up(con, owner.session, "query = ?", [(ask.key,) for ask in lost])
    reserve(con, owner, lost, budget)
    if result.mine:
        _check_next(con, result.mine, budget)
        pairs = list(zip(result.mine, tries, strict=True))
        con.execute("INSERT INTO streams VALUES (?, ?) ON CONFLICT DO NOTHING", owner)
        con.executemany(
            "UPDATE inflight SET state = 'sent', session = ?, stream = ?, attempt = ? WHERE query = ?",
            [(*owner, attempt, ask.key) for ask, attempt in pairs],
        )
        con.executemany(
            "UPDATE passes SET held = held - 1, sent = sent + 1 WHERE scope = ? AND example = ? AND prompt = ?",
            [(ask.scope, ask.example, ask.prompt) for ask in result.mine],
        )
        con.execute("UPDATE totals SET held = held - ?, sent = sent + ?", (len(pairs), len(pairs)))
        append(con, [ask.event(owner.session, "sent", attempt=attempt) for ask, attempt in pairs])
    return result


def _check_next(con: Connection, batch: Sequence[Ask], budget: QueryBudget) -> None:
    """Raise `BudgetExceeded` if a limit on tokens or money is used up, apart from what was only reserved."""
    everything = totals(con)
    if budget.covers(everything):
        return
    waiting, most = con.execute(
        "SELECT count(*), coalesce(sum(tokens), 0) FROM inflight WHERE state = 'reserved'"
    ).fetchone()
    spent = replace(everything, sends=everything.sends - waiting, tokens=everything.tokens - most)
    mine = sum(
        int(con.execute("SELECT tokens FROM inflight WHERE query = ?", (ask.key,)).fetchone()[0]) for ask in batch
    )
    budget.check_next(spent, replace(spent, sends=spent.sends + len(batch), tokens=spent.tokens + mine), everything)


def finish(con: Connection, owner: Owner, results: Sequence[Result], words: Mapping[int, str]) -> None:
    """Record the answers that came, list their digests, and keep the words that they are the first to show."""
    events, settled = [], 0
    note = noted_words(words) if words else ""
    con.executemany(
        "INSERT INTO words VALUES (?, ?) ON CONFLICT (token) DO UPDATE SET word = excluded.word", words.items()
    )
    for result in results:
        tries, most = _take(con, owner, result.ask.key)
        read = result.answer.read_tokens or most
        settled += read - most
        events.append(
            result.ask.event(
                owner.session,
                "done",
                attempt=tries,
                latency=result.latency,
                read=read,
                cut=result.answer.cut_tokens,
                mass=result.mass,
                answer=answer_digest(result.data),
                note=note,
            )
        )
        note = ""  # the first of them has it
    con.execute("UPDATE totals SET tokens = tokens + ?", (settled,))
    first = append(con, events) - len(events) + 1
    con.executemany(
        "INSERT INTO answers VALUES (?, ?, ?)",
        [(event.query, event.answer, seq) for seq, event in enumerate(events, first)],
    )


def fail(con: Connection, owner: Owner, failed: Sequence[Failed], *, latency: int) -> dict[str, int]:
    """Record sends that brought no answer, and whether each may have run; return how often each was sent."""
    events, attempts = [], {}
    for ask, ran, note in failed:
        tries, most = _take(con, owner, ask.key)
        attempts[ask.key] = tries
        more = {"attempt": tries, "latency": latency, "note": note}
        if ran:
            events.append(ask.event(owner.session, "unknown", read=most, **more))
        else:
            events.append(ask.event(owner.session, "failed", **more))
            _give_back(con, (ask.scope, ask.example, ask.prompt), most, "failed = failed + 1")
    append(con, events)
    return attempts


def owners(con: Connection) -> list[Owner]:
    """Return everyone who has, or had, a query in flight and has not been settled."""
    return [Owner(*row) for row in con.execute("SELECT session, stream FROM streams").fetchall()]


def settle(con: Connection, session: str, dead: Owner) -> None:
    """Release what a stream that has ended reserved, and count as spent what it sent."""
    con.execute("DELETE FROM streams WHERE session = ? AND stream = ?", dead)
    _give_up(con, session, "session = ? AND stream = ?", [dead])


def _give_up(con: Connection, session: str, which: str, values: Iterable[tuple[str | int, ...]]) -> None:
    """Take queries off the list of those in flight: what was only reserved is released, what was sent is unknown."""
    taken = f"DELETE FROM inflight WHERE {which} RETURNING query, {_FLIGHT}"  # noqa: S608 - our own conditions
    events = []
    for key, *row in (row for given in values for row in con.execute(taken, given).fetchall()):
        flight = _Flight(*row)
        common = (key, flight.phase, flight.example, flight.prompt, flight.attempt)
        if flight.state == "sent":
            note = "sent, and never answered: it counts as spent"
            events.append(Event(session, "unknown", *common, read=flight.tokens, note=note))
        else:
            events.append(Event(session, "released", *common))
            _give_back(con, (scope_of(flight.phase), flight.example, flight.prompt), flight.tokens, "held = held - 1")
    append(con, events)


def _take(con: Connection, owner: Owner, key: str) -> tuple[int, int]:
    """Take a sent query off the list of those in flight; return its attempts and the most it can cost."""
    row = con.execute(
        "DELETE FROM inflight WHERE query = ? AND session = ? AND stream = ? AND state = 'sent'"
        " RETURNING attempt, tokens",
        (key, *owner),
    ).fetchone()
    if row is None:
        raise LedgerError(
            "another process assumed that this one had died and its queries were lost. A run folder on a network file system? Locks "
            "don't work there; use a local folder. A database? This process was stopped, or out of its reach, for longer than the "
            "lease; run again: what it had sent counts as spent, and the rest is kept"
        )
    return int(row[0]), int(row[1])


def _give_back(con: Connection, what: tuple[str, str, str], tokens: int, change: str) -> None:
    """Undo one reservation (`held = held - 1`) or one send (`failed = failed + 1`) in the counters."""
    (left,) = con.execute(
        f"UPDATE passes SET {change} WHERE scope = ? AND example = ? AND prompt = ? RETURNING held + sent - failed",  # noqa: S608 - two constants
        what,
    ).fetchone()
    con.execute(
        f"UPDATE totals SET passes = passes - ?, tokens = tokens - ?, {change}",  # noqa: S608 - two constants
        (int(left == 0), tokens),
    )
