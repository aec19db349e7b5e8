"""The ledger: a run folder that holds every answer and the record of how it was got.

One SQLite file holds both: diskcache's table with the answers, and ours with the records and the
counters. What belongs together is written in one transaction, so a crash can't separate a
record from its answer, and a budget is checked in the transaction that spends it.

diskcache evicts and pickles by default. Here it does neither: keys are strings, values are bytes,
all of them lie inside the SQLite file, and a row of any other kind is refused unread.

A *stream* is one call that wants many queries answered. It reserves them all, then claims, asks and
finishes a batch at a time. A claim takes over what another stream has only reserved, and leaves
alone what another has sent; so two callers with the same question never both pay, and never
wait for one that isn't at work. A stream that ends, however it ends, leaves nothing reserved.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import diskcache
import numpy as np

from pbsdk.backend import MaskDistribution, ModelIdentity, Tokens
from pbsdk.errors import BudgetExceeded, LedgerCorrupted, LedgerError
from pbsdk.ledger import inflight as accounts
from pbsdk.ledger.budget import QueryBudget
from pbsdk.ledger.chain import FORMAT, SCHEMA, Event, append
from pbsdk.ledger.codec import decode, pack_tokens, set_digest, unpack_tokens
from pbsdk.ledger.inflight import Ask, Claim, Owner, Result
from pbsdk.ledger.liveness import Session, folder_lock
from pbsdk.ledger.reader import DATABASE, LedgerReader, check_format, ledger_error
from pbsdk.ledger.verifier import Verification, verify_run
from pbsdk.version import __version__

__all__ = ["QueryLedger", "verify_run"]

_SETTINGS = {
    "eviction_policy": "none",
    "cull_limit": 0,
    "size_limit": 2**62,
    "statistics": 0,
    "tag_index": 0,
    "disk_min_file_size": 2**62,
    "sqlite_auto_vacuum": 0,
    "sqlite_journal_mode": "wal",
    "sqlite_mmap_size": 0,
    "sqlite_synchronous": 1,
    "sqlite_wal_autocheckpoint": 4096,
}
_PATIENCE = 60
"""Seconds to wait for another process's transaction."""


class _BytesOnly(diskcache.Disk):  # type: ignore[misc]  # diskcache has no types
    """String keys and bytes values, inside the database; nothing else is written or read."""

    def put(self, key: object) -> tuple[str, bool]:
        if type(key) is not str:
            raise LedgerError(f"a ledger's keys are strings, not {type(key).__name__}")
        return key, True

    def get(self, key: object, raw: object) -> str:
        if raw != 1 or type(key) is not str:
            raise LedgerCorrupted("the run folder holds a key that pbsdk never wrote; it was not read")
        return key

    def store(self, value: object, read: bool, key: object = None) -> tuple[int, int, None, memoryview]:  # noqa: ARG002 - diskcache's
        if type(value) is not bytes or read:
            raise LedgerError(f"a ledger's values are bytes, not {type(value).__name__}")
        return 0, diskcache.core.MODE_RAW, None, memoryview(value)

    def fetch(self, mode: object, filename: object, value: object, read: object) -> bytes:
        if mode != diskcache.core.MODE_RAW or filename is not None or type(value) is not bytes or read:
            raise LedgerCorrupted("the run folder holds a value that pbsdk never wrote; it was not read")
        return value

    def remove(self, file_path: object) -> None:
        raise LedgerCorrupted(f"the run folder names a file that pbsdk never wrote: {file_path!r}")


class _RehearsalOver(Exception):
    """Undoes a rehearsal."""


class QueryLedger:
    """The append-only record of every query, and the answers, in a run folder.

    Safe to share between threads, and a folder between processes on one machine (not over NFS).
    """

    def __init__(self, run: str | os.PathLike[str], identity: ModelIdentity, budget: QueryBudget | None = None) -> None:
        self.folder = Path(run).expanduser()
        self.identity = identity
        self.budget = budget or QueryBudget()
        self._cache = _open(self.folder, identity)
        self._sets: dict[str, Tokens] = {}
        self._streams: set[int] = set()
        self._numbers = itertools.count(1)
        self._enter = threading.Lock()
        self._session: Session | None = None
        self._closed = False
        self.session  # noqa: B018 - enters, and settles what the dead left

    def __repr__(self) -> str:
        return f"QueryLedger({str(self.folder)!r}, {self.identity.name!r})"

    @property
    def session(self) -> str:
        """The name of this opening; a forked child opens its own."""
        if self._closed:
            raise LedgerError(f"the ledger in {self.folder} is closed; connect again")
        session = self._session
        if session is None or session.process != os.getpid():
            if session is not None:  # a fork: locks and streams are the parent's
                self._enter, self._streams = threading.Lock(), set()
            with self._enter:
                if self._session is None or self._session is session:
                    self._session = self._new_session()
                session = self._session
        return session.name

    @property
    def _entered(self) -> bool:
        """Whether this process has a session here."""
        return not self._closed and self._session is not None and self._session.process == os.getpid()

    def _new_session(self) -> Session:
        note = {"pbsdk": __version__, "model": self.identity.to_json(), "budget": self.budget.to_dict()}
        try:
            with folder_lock(self.folder):
                session = Session(self.folder)
        except OSError as error:
            raise ledger_error(error, self.folder) from error
        try:
            with self._transaction() as con:
                append(con, [Event(session.name, "opened", note=json.dumps(note, ensure_ascii=False))])
                self._settle_dead(con, session.name)
        except BaseException:
            session.close()
            raise
        return session

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, alone among all threads and processes."""
        try:
            con = self._con
            if con.in_transaction and self._cache._txn_id != threading.get_ident():  # noqa: SLF001
                con.execute("ROLLBACK")  # an interrupt fell between BEGIN and its guard
            try:
                # Never retry=True: diskcache then tries for ever where the disk is read-only.
                with self._cache.transact():
                    yield con
            except diskcache.Timeout:
                con.execute("BEGIN IMMEDIATE")  # raises the reason that diskcache hides
                con.execute("ROLLBACK")
                raise sqlite3.OperationalError("database is locked") from None
            except sqlite3.Error as error:
                if con.in_transaction:
                    con.execute("ROLLBACK")
                first = error.__context__  # where SQLite rolled back by itself, diskcache's rollback fails too
                raise (first if isinstance(first, sqlite3.Error) else error) from None
        except sqlite3.Error as error:
            raise ledger_error(error, self.folder) from error

    @property
    def _con(self) -> sqlite3.Connection:
        con: sqlite3.Connection = self._cache._con  # noqa: SLF001 - the thread's own connection
        return con

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """Reads need no transaction; their errors are the ledger's too."""
        try:
            yield self._con
        except sqlite3.Error as error:
            raise ledger_error(error, self.folder) from error

    # Recalling

    def known(self, keys: Iterable[str]) -> set[str]:
        """Return which keys have an answer."""
        with self._reading() as con:
            return {key for key in keys if accounts.answered(con, key)}

    def supersets(self, tokens: Tokens) -> list[str]:
        """Return the names of the stored token sets that hold all of `tokens`."""
        with self._reading() as con:
            names = [name for (name,) in con.execute("SELECT digest FROM sets ORDER BY digest")]
            return [name for name in names if np.isin(tokens, self._token_set(name), assume_unique=True).all()]

    def recall(self, asks: Sequence[Ask]) -> list[MaskDistribution]:
        """Read answers, check them against their records, and record the hits."""
        session, hits, answers = self.session, [], []
        for ask in asks:
            answer, name = self._read(ask.key)
            answers.append(answer)
            hits.append(ask.event(session, "hit", answer=name))
        with self._transaction() as con:
            append(con, hits)
        return answers

    def _read(self, key: str) -> tuple[MaskDistribution, str]:
        with self._reading() as con:
            row = con.execute("SELECT digest, seq FROM answers WHERE query = ?", (key,)).fetchone()
            data = self._cache.get(key)
        if row is None or data is None:
            raise LedgerCorrupted(f"{self.folder}: the answer to {key} is missing")
        name, seq = row
        if hashlib.sha256(data).hexdigest() != name:
            raise LedgerCorrupted(f"{self.folder}: the answer of record {seq} was changed: it doesn't fit its digest")
        try:
            return decode(data, self._token_set), name
        except LedgerCorrupted as error:
            raise LedgerCorrupted(f"{self.folder}: record {seq}: {error}") from error

    def _token_set(self, name: str) -> Tokens:
        if name not in self._sets:
            data = self._cache.get(f"tokens:{name}")
            if data is None or len(data) % 8 or set_digest(unpack_tokens(data)) != name:
                raise LedgerCorrupted(f"{self.folder}: the token set {name} is missing or was changed")
            self._sets[name] = unpack_tokens(data)
        return self._sets[name]

    def words(self) -> dict[int, str]:
        """Return what the tokens of an open vocabulary say, as far as answers showed them."""
        with self.reader() as reader:
            return reader.words()

    # Asking

    def open_stream(self) -> int:
        """Begin a stream; give it back to `close_stream`, whatever happens."""
        number = next(self._numbers)
        self.session  # noqa: B018 - a forked child enters first
        self._streams.add(number)
        return number

    def close_stream(self, stream: int) -> None:
        """End a stream: what it reserved is released, what it sent and never finished is unknown."""
        self._streams.discard(stream)
        if self._entered:
            with self._transaction() as con:
                self._settle_dead(con, self.session)

    def reserve(self, stream: int, asks: Sequence[Ask]) -> None:
        """Reserve all of the queries that nobody has answered or reserved, or raise `BudgetExceeded`."""
        owner = Owner(self.session, stream)
        with self._transaction() as con:
            self._settle_dead(con, owner.session)
            accounts.reserve(con, owner, accounts.missing(con, asks), self.budget)

    def claim(self, stream: int, asks: Sequence[Ask]) -> Claim:
        """Mark as sent what this stream may send now; reserve again what was given up meanwhile."""
        owner = Owner(self.session, stream)
        with self._transaction() as con:
            self._settle_dead(con, owner.session)
            return accounts.claim(con, owner, asks, self.budget)

    def finish(
        self, stream: int, results: Sequence[Result], tokens: Tokens | None, words: Mapping[int, str] | None = None
    ) -> list[MaskDistribution]:
        """Store answers, their records, and `words` of an open vocabulary in one step; return them as stored."""
        owner, name = Owner(self.session, stream), set_digest(tokens)
        with self._transaction() as con:
            if tokens is not None and name not in self._sets:
                self._cache.set(f"tokens:{name}", pack_tokens(tokens))
                con.execute("INSERT OR IGNORE INTO sets VALUES (?)", (name,))
            for result in results:
                self._cache.set(result.ask.key, result.data)
            con.executemany("INSERT OR REPLACE INTO words VALUES (?, ?)", (words or {}).items())
            accounts.finish(con, owner, results)
        if tokens is not None:
            self._sets[name] = tokens.copy()
        return [decode(result.data, self._token_set) for result in results]

    def fail(self, stream: int, failed: Sequence[tuple[Ask, bool]], *, note: str, latency: int, again: bool) -> None:
        """Record sends that brought no answer and whether each may have run; reserve them `again` for another attempt.

        What surely did not run gives its pass back. If the budget refuses another attempt, the
        failures are recorded and `BudgetExceeded` raised.
        """
        owner, refusal = Owner(self.session, stream), None
        with self._transaction() as con:
            attempts = accounts.fail(con, owner, failed, note=note, latency=latency)
            if again:
                try:
                    accounts.reserve(con, owner, [ask for ask, _ in failed], self.budget, attempts)
                except BudgetExceeded as error:
                    refusal = error
        if refusal is not None:
            raise refusal

    def _settle_dead(self, con: sqlite3.Connection, session: str) -> None:
        """Release what the dead reserved, and count as spent what they sent."""
        for owner in accounts.owners(con):
            mine = owner.session == session
            if not (owner.stream in self._streams if mine else Session.alive(self.folder, owner.session)):
                accounts.settle(con, session, owner)

    # Looking

    @contextmanager
    def rehearsal(self) -> Iterator[sqlite3.Connection]:
        """A transaction in which anything may be tried, and of which nothing is kept."""
        with suppress(_RehearsalOver), self._transaction() as con:
            yield con
            raise _RehearsalOver

    def reader(self) -> LedgerReader:
        """Return a view of the folder that can't write; close it after use."""
        return LedgerReader(self.folder)

    def verify(self) -> Verification:
        """Derive chain, digests and counters again; raise `LedgerCorrupted` at the first that doesn't fit."""
        return verify_run(self.folder)

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write the records as JSON lines that anyone can check."""
        with self.reader() as reader:
            reader.export(path)

    def close(self) -> None:
        """Settle what is open and leave the folder; what was stored stays."""
        if self._entered:
            self._streams.clear()
            with suppress(LedgerError), self._transaction() as con:  # the next one to enter settles it otherwise
                self._settle_dead(con, self.session)
        self._closed = True
        if self._session is not None:
            self._session.close()
        self._cache.close()


def _open(folder: Path, identity: ModelIdentity) -> diskcache.Cache:
    """Open or make the ledger in a folder; one that is refused is left as it was."""
    if os.path.expandvars(folder) != str(folder):
        raise LedgerError(f"a run folder's name can't hold a variable, and {folder} does")  # diskcache would fill it in
    made = not folder.exists()
    try:
        if made:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        elif folder.is_dir() and not any(folder.iterdir()):
            folder.chmod(0o700)
        with folder_lock(folder):
            fresh = _is_fresh(folder)
            if not fresh:
                with LedgerReader(folder) as reader:
                    check_format(reader.meta(), identity, folder)
            try:
                return _make(folder, identity, fresh=fresh)
            except BaseException:
                if fresh:
                    for path in folder.glob(f"{DATABASE}*"):
                        path.unlink()
                raise
    except (OSError, sqlite3.Error) as error:
        if made:
            with suppress(OSError):
                (folder / "lock").unlink(missing_ok=True)
                folder.rmdir()
        raise ledger_error(error, folder) from error


def _is_fresh(folder: Path) -> bool:
    """Say whether there is no ledger yet, or one whose maker died before the first record."""
    database = folder / DATABASE
    if not database.exists() or database.stat().st_size == 0:
        return True
    with LedgerReader(folder) as reader:
        tables = reader.tables()
        return "meta" not in tables and tables <= {"Settings", "Cache"} and not reader.rows("Cache")


def _make(folder: Path, identity: ModelIdentity, *, fresh: bool) -> diskcache.Cache:
    if fresh:
        os.close(os.open(folder / DATABASE, os.O_CREAT | os.O_RDWR, 0o600))
        with closing(sqlite3.connect(folder / DATABASE)) as first:
            first.execute("PRAGMA page_size = 16384")  # an answer of 100 KB is written a quarter faster than in 4096
            first.execute("PRAGMA journal_mode = wal")
    try:
        cache = diskcache.Cache(os.path.abspath(folder), timeout=_PATIENCE, disk=_BytesOnly, **_SETTINGS)  # noqa: PTH100 - resolve() would follow links
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise LedgerCorrupted(
            f"{folder} holds settings that pbsdk never wrote ({error}); use another run folder"
        ) from error
    if fresh:
        con: sqlite3.Connection = cache._con  # noqa: SLF001 - the thread's own connection
        con.execute("BEGIN IMMEDIATE")
        for statement in SCHEMA:
            con.execute(statement)
        con.executemany("INSERT INTO meta VALUES (?, ?)", [("format", str(FORMAT)), ("model", identity.to_json())])
        con.execute("COMMIT")
    return cache
