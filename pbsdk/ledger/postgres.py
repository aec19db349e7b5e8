"""A ledger in a PostgreSQL database, which several machines write.

A transaction begins by locking the table of totals, so there is one at a time, whoever asks: a budget is checked against
everything that was spent before, and no two can both take the last pass. What a transaction finds is what the one before left.

A connection that is lost is made again, and the work that was in an unfinished transaction is done again. If the very end of a transaction was
cut off, nobody has told whether it counted, but the chain knows: either the record has the hash that would be its last, or it doesn't.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from typing import TypeVar

from pbsdk.backend import ModelIdentity
from pbsdk.errors import LedgerError
from pbsdk.ledger import forking
from pbsdk.ledger.address import Address
from pbsdk.ledger.chain import FORMAT
from pbsdk.ledger.lease import Lease, survivors
from pbsdk.ledger.postgres_connection import ConnectionLost, PostgresConnection
from pbsdk.ledger.postgres_schema import STATEMENTS, check_schema, is_there
from pbsdk.ledger.schema import check_format

__all__ = ["Database"]

Result = TypeVar("Result")

_PATIENCE = 60.0
"""Seconds to try for a new connection, and for threads to wait for each other."""
_PAUSE = 0.1, 3.0
"""Seconds between tries, at first and at most."""
_BEGIN = "BEGIN; LOCK TABLE totals IN EXCLUSIVE MODE"


class Database(forking.Forkable):
    """An open ledger in a database. Its threads share one connection, one after the other."""

    def __init__(self, address: Address, identity: ModelIdentity) -> None:
        self.address = address
        self._turn = threading.RLock()
        self._inside: int | None = None
        """The thread that is within a transaction."""
        self._lease: Lease | None = None
        self._con = PostgresConnection(address)
        try:
            _enter(self._con, address, identity)
        except BaseException:
            self._con.close()
            raise
        forking.watch(self)

    def after_fork(self) -> None:
        """Leave connection, session and turn to the parent."""
        self._con.forget()
        self._turn, self._inside, self._lease = threading.RLock(), None, None

    @property
    def con(self) -> PostgresConnection:
        """The connection; a lost one is made again, but not within a transaction, which was lost with it."""
        if self._con.lost and self._inside is None:
            self._con = self._con.again()
        return self._con

    def get(self, key: str) -> bytes | None:
        """Return the bytes under a key."""
        row = self.con.execute("SELECT value FROM stored WHERE key = ?", (key,)).fetchone()
        return None if row is None else bytes(row[0])

    def set(self, key: str, data: bytes) -> None:
        """Store bytes under a key, as part of the open transaction."""
        self.con.execute(
            "INSERT INTO stored VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", (key, data)
        )

    @contextmanager
    def transaction(self) -> Iterator[PostgresConnection]:
        """A transaction: all or nothing, exclusive among all threads, processes and machines."""
        with forking.in_use(), self._queued():
            con = self.con
            try:
                con.run("; ".join([_BEGIN, *([self._lease.statement] if self._lease is not None else [])]))
                self._inside = threading.get_ident()
                yield con
                records, head = con.execute("SELECT records, head FROM totals").fetchone()
            except BaseException:
                con.rollback()
                raise
            finally:
                self._inside = None
            try:
                con.run("COMMIT")
            except ConnectionLost:
                if not self._patiently(lambda: self._holds(records, head)):
                    raise

    def _holds(self, records: int, head: str) -> bool:
        """Return whether the record has this hash at this place, once the server is done with the lost connection."""
        con = self.con
        try:
            con.run(_BEGIN)
            row = con.execute("SELECT chain FROM records WHERE seq = ?", (records,)).fetchone()
        finally:
            con.rollback()
        return row is not None and row[0] == head

    @contextmanager
    def _queued(self) -> Iterator[None]:
        if not self._turn.acquire(timeout=_PATIENCE):
            raise LedgerError(f"another thread has been writing to {self.address} for too long; try again later")
        try:
            yield
        finally:
            self._turn.release()

    def write(self, work: Callable[[PostgresConnection], Result]) -> Result:
        """Do work in a transaction, and again in another if the connection was lost before it counted."""

        def attempt() -> Result:
            with self.transaction() as con:
                return work(con)

        return self._patiently(attempt)

    def read(self, work: Callable[[PostgresConnection], Result]) -> Result:
        """Do work that only reads, and again if the connection was lost."""

        def attempt() -> Result:
            with forking.in_use(), self._queued():
                return work(self.con)

        return self._patiently(attempt)

    def _patiently(self, attempt: Callable[[], Result]) -> Result:
        """Try again while the connection can't be had, for a while."""
        until, (pause, longest) = time.monotonic() + _PATIENCE, _PAUSE
        while True:
            try:
                return attempt()
            except ConnectionLost:
                if self._inside == threading.get_ident() or time.monotonic() > until:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, longest)

    def enter(self) -> Lease:
        """Begin a session, which its lease shows to be alive from the next transaction on."""
        self._lease = Lease(self.address)
        return self._lease

    def alive(self, sessions: AbstractSet[str]) -> AbstractSet[str]:
        """Return which of these sessions have a lease that hasn't run out."""
        return survivors(self.con, sessions)

    def sync(self) -> None:
        """Nothing: the server confirms a transaction when its disk has it."""

    def close(self) -> None:
        """End the lease and the connection."""
        with forking.in_use(), self._queued():
            if self._lease is not None and not self._con.lost:
                with suppress(LedgerError):  # it runs out
                    self._con.run(self._lease.ending)
            self._con.close()


def _enter(con: PostgresConnection, address: Address, identity: ModelIdentity) -> None:
    """Check that the schema holds a ledger of this model, or make one where there is nothing."""
    con.run(f"BEGIN; SELECT pg_advisory_xact_lock(hashtext('pbsdk {address.schema}'))")
    try:
        if is_there(con, address):
            check_schema(con, address)
            meta = con.run("SELECT name, value FROM meta")
            check_format({str(name): str(value) for name, value in meta}, identity, address)
        else:
            _make(con, address, identity)
        con.run("COMMIT")
    except BaseException:
        con.rollback()
        raise


def _make(con: PostgresConnection, address: Address, identity: ModelIdentity) -> None:
    ((encoding,),) = con.run("SHOW server_encoding")
    if encoding != "UTF8":
        raise LedgerError(
            f"{address}: the database keeps text as {encoding}, and a ledger needs UTF8: createdb -E UTF8 -T template0"
        )
    if not con.run(f"SELECT 1 FROM pg_namespace WHERE nspname = '{address.schema}'").fetchall():  # noqa: S608 - letters, digits and _
        con.run(f"CREATE SCHEMA {address.schema}")
    con.run("; ".join(STATEMENTS))
    con.executemany("INSERT INTO meta VALUES (?, ?)", [("format", str(FORMAT)), ("model", identity.to_json())])
