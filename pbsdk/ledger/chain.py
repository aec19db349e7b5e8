"""The record: an append-only chain of events, and the counters it adds up to.

Everything that happens to a query is one event, one row: `reserved`, then `sent`, then `done`,
`failed` (it certainly did not run) or `unknown` (it may have run; it counts as spent). A query that was
reserved and never sent is `released`; one that was recalled is a `hit`. A session that opens the
folder is an event too, `opened`, which records its budget; so is `allowed`, what a server in front of the model said is left there, and
`ran`, passes inside a model, many to a record (`lots.py`).

Each row carries a hash of itself and of the row before it, so that nobody can change, drop, insert
or reorder a row without breaking every hash after it. A row holds only integers and strings, and its
canonical form is a JSON list, so that a few lines of plain Python can check an exported ledger.

The counters (`passes`, `totals`, `inflight`, `streams`, `answers`) repeat what the events say, so that
a reservation doesn't have to count all events. They are written in the same transaction, and `verify`
derives them again from the events.

>>> Event("ab12", "opened").canonical(1, 1700000000000000)
'[1,1700000000000000,"ab12","","opened","","","",0,0,0,0,0,"",""]'
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable
from typing import NamedTuple

from pbsdk.ledger.store import Connection

__all__ = ["FIELDS", "FORMAT", "GENESIS", "SCHEMA", "Event", "Record", "append", "canonical", "follow", "link"]

FORMAT = 1
"""The version of the run folder's format."""

GENESIS = "0" * 64
"""The hash that stands before the first record."""


class Record(NamedTuple):
    """One row of the table."""

    seq: int
    time: int
    session: str
    query: str
    state: str
    phase: str
    example: str
    prompt: str
    attempt: int
    latency: int
    read: int
    cut: int
    mass: int
    answer: str
    note: str
    chain: str


FIELDS = Record._fields[:-1]
"""The fields of a row that are hashed, in order: all but the hash."""

SCHEMA = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    """CREATE TABLE records (
        seq INTEGER PRIMARY KEY, time INTEGER NOT NULL, session TEXT NOT NULL, query TEXT NOT NULL,
        state TEXT NOT NULL, phase TEXT NOT NULL, example TEXT NOT NULL, prompt TEXT NOT NULL,
        attempt INTEGER NOT NULL, latency INTEGER NOT NULL, read INTEGER NOT NULL, cut INTEGER NOT NULL,
        mass INTEGER NOT NULL, answer TEXT NOT NULL, note TEXT NOT NULL, chain TEXT NOT NULL)""",
    "CREATE TRIGGER records_stay BEFORE DELETE ON records BEGIN SELECT RAISE(ABORT, 'records are append-only'); END",
    "CREATE TRIGGER records_hold BEFORE UPDATE ON records BEGIN SELECT RAISE(ABORT, 'records are append-only'); END",
    "CREATE TABLE names (digest TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE sets (digest TEXT PRIMARY KEY) WITHOUT ROWID",
    "CREATE TABLE words (token INTEGER PRIMARY KEY, word TEXT NOT NULL)",
    "CREATE TABLE answers (query TEXT PRIMARY KEY, digest TEXT NOT NULL, seq INTEGER NOT NULL) WITHOUT ROWID",
    """CREATE TABLE inflight (
        query TEXT PRIMARY KEY, session TEXT NOT NULL, stream INTEGER NOT NULL, state TEXT NOT NULL,
        phase TEXT NOT NULL, example TEXT NOT NULL, prompt TEXT NOT NULL,
        tokens INTEGER NOT NULL, attempt INTEGER NOT NULL) WITHOUT ROWID""",
    "CREATE TABLE streams (session TEXT NOT NULL, stream INTEGER NOT NULL, PRIMARY KEY (session, stream)) WITHOUT ROWID",
    """CREATE TABLE passes (
        scope TEXT NOT NULL, example TEXT NOT NULL, prompt TEXT NOT NULL,
        held INTEGER NOT NULL, sent INTEGER NOT NULL, failed INTEGER NOT NULL,
        PRIMARY KEY (scope, example, prompt)) WITHOUT ROWID""",
    """CREATE TABLE totals (
        passes INTEGER NOT NULL, held INTEGER NOT NULL, sent INTEGER NOT NULL,
        failed INTEGER NOT NULL, tokens INTEGER NOT NULL, records INTEGER NOT NULL, head TEXT NOT NULL)""",
    f"INSERT INTO totals VALUES (0, 0, 0, 0, 0, 0, '{GENESIS}')",  # noqa: S608 - a constant
)


class Event(NamedTuple):
    """A row to be written, without its number, time and hash."""

    session: str
    state: str
    query: str = ""
    phase: str = ""
    example: str = ""
    prompt: str = ""
    attempt: int = 0
    latency: int = 0
    """Microseconds from sending its batch to the answer."""
    read: int = 0
    """Tokens read (`done`), or the most that it can cost (`reserved`, `unknown`)."""
    cut: int = 0
    mass: int = 0
    """Probability mass that the answer showed, in millionths; 0 if only chosen tokens were asked for."""
    answer: str = ""
    """SHA-256 of the answer's bytes."""
    note: str = ""

    def row(self, seq: int, moment: int) -> tuple[int | str, ...]:
        """Return the fields in the order of `FIELDS`."""
        return (seq, moment, self.session, self.query, self.state, *self[3:])  # after these three the order is the same

    def canonical(self, seq: int, moment: int) -> str:
        """Return the row as it is hashed."""
        return _CANON(self.row(seq, moment))


_CANON = json.JSONEncoder(separators=(",", ":")).encode


def link(before: str, row: Iterable[int | str]) -> str:
    """Return the chain hash of a row (without its own hash) after the hash `before`.

    >>> link(GENESIS, (1, 0, "ab12"))[:16]
    'd190fa5c5e4be073'
    """
    return follow(before, canonical(row))


def canonical(row: Iterable[int | str]) -> str:
    """Return a row (without its own hash) as it is hashed.

    >>> canonical((1, 0, "ab12"))
    '[1,0,"ab12"]'
    """
    return _CANON(list(row))


def follow(before: str, text: str) -> str:
    """Return the chain hash of a row in canonical form after the hash `before`."""
    return hashlib.sha256((before + text).encode()).hexdigest()


_INSERT = f"INSERT INTO records VALUES ({', '.join('?' * (len(FIELDS) + 1))})"  # noqa: S608 - question marks only


def append(con: Connection, events: Iterable[Event]) -> int:
    """Append events to the chain, inside the caller's transaction; return the number of the last one."""
    # Not from the last row: if somebody cut off the tail, the next record must not match.
    seq, chain = con.execute("SELECT records, head FROM totals").fetchone()
    moment = time.time_ns() // 1000
    rows = []
    for event in events:
        seq += 1
        row = event.row(seq, moment)
        chain = link(chain, row)
        rows.append((*row, chain))
    con.executemany(_INSERT, rows)
    con.execute("UPDATE totals SET records = ?, head = ?", (seq, chain))
    return int(seq)
