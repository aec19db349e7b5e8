"""A run folder on disk: how it is created, opened and refused, and the one SQLite file in it.

The file holds two things: diskcache's table with the answers, and ours with the records and the
counters. `RunFolder.transaction` writes to both at once, so that a crash can't separate them.

diskcache evicts and pickles by default. Here it does neither: keys are strings, values are bytes,
all of them are inside the SQLite file, and a row of any other kind is refused unread.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import diskcache

from pbsdk.backend import ModelIdentity
from pbsdk.errors import LedgerCorrupted, LedgerError
from pbsdk.ledger import forking
from pbsdk.ledger.chain import FORMAT, SCHEMA
from pbsdk.ledger.folder_view import DATABASE, FolderView, ledger_error
from pbsdk.ledger.liveness import Session, folder_lock
from pbsdk.ledger.mark import Mark, Place, check_mark, read_mark
from pbsdk.ledger.schema import SETTINGS, check_format, is_unfinished

__all__ = ["RunFolder"]

Result = TypeVar("Result")

_PRAGMAS = tuple(
    f"PRAGMA {name.removeprefix('sqlite_')} = {value}" for name, value in SETTINGS.items() if name.startswith("sqlite_")
)
"""Of the settings, what each connection must be told."""
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


class _Connection(sqlite3.Connection):
    """A connection that can be listed without being kept alive."""


class _Cache(diskcache.Cache, forking.Forkable):  # type: ignore[misc]  # diskcache has no types
    """diskcache, with one connection per thread that no fork carries over."""

    def __init__(self, folder: Path) -> None:
        self._connections: weakref.WeakSet[_Connection] = weakref.WeakSet()
        self._forks = 0
        forking.watch(self)
        super().__init__(os.path.abspath(folder), timeout=_PATIENCE, disk=_BytesOnly, **SETTINGS)  # noqa: PTH100 - resolve() would follow links

    @property
    def _con(self) -> sqlite3.Connection:
        local = self._local
        con: _Connection | None = getattr(local, "con", None)
        if con is None or local.forks != self._forks:
            con = sqlite3.connect(
                os.path.join(self._directory, DATABASE),  # noqa: PTH118 - diskcache's
                timeout=_PATIENCE,
                isolation_level=None,
                check_same_thread=False,  # a fork closes the connections of all threads
                factory=_Connection,
            )
            local.con, local.forks = con, self._forks
            self._connections.add(con)
            for pragma in _PRAGMAS:
                con.execute(pragma)
        return con

    def before_fork(self) -> None:
        """Close all connections, unless this thread is in the midst of a transaction of its own."""
        if self._txn_id is None:
            for con in list(self._connections):
                con.close()
            self._forks += 1


class RunFolder(forking.Forkable):
    """An open run folder: bytes under keys, and tables beside them, in one file."""

    def __init__(self, path: Path, identity: ModelIdentity) -> None:
        self.path = path
        self._cache = _open(path, identity)
        self.place = Path(self._cache.directory)
        """The path that stays the same when the process changes its working directory."""
        self._file = _file_of(self.place / DATABASE)
        self._mark = Mark(self.place)
        self._turn = threading.RLock()
        forking.watch(self)

    def after_fork(self) -> None:
        """Leave the turn to the parent's threads."""
        self._turn = threading.RLock()

    @property
    def con(self) -> sqlite3.Connection:
        """The thread's own connection."""
        con: sqlite3.Connection = self._cache._con  # noqa: SLF001 - diskcache has no other way to it
        return con

    def get(self, key: str) -> bytes | None:
        """Return the bytes under a key."""
        data: bytes | None = self._cache.get(key)
        return data

    def set(self, key: str, data: bytes) -> None:
        """Store bytes under a key, as part of the open transaction."""
        self._cache.set(key, data)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all or nothing, exclusive among all threads and processes."""
        thread = forking.enter()
        try:
            with self._queued(), self._begun() as con:
                yield con
        except (OSError, sqlite3.Error) as error:
            raise ledger_error(error, self.path) from error
        finally:
            forking.leave(thread)

    @contextmanager
    def _queued(self) -> Iterator[None]:
        """Let threads wait in a queue. SQLite's waiters look again now and then, and one of many may never be lucky."""
        if not self._turn.acquire(timeout=_PATIENCE):
            raise sqlite3.OperationalError("database is locked")
        try:
            yield
        finally:
            self._turn.release()

    @contextmanager
    def _begun(self) -> Iterator[sqlite3.Connection]:
        self._check_there()
        con = self.con
        if con.in_transaction and self._cache._txn_id != threading.get_ident():  # noqa: SLF001
            con.execute("ROLLBACK")  # an interrupt fell between BEGIN and its guard
        try:
            # Never retry=True: diskcache would then retry for ever on a read-only disk.
            with self._cache.transact():
                self._mark.open()
                yield con
                place = Place(*con.execute("SELECT records, head FROM totals").fetchone())
            self._mark.write(place)
            self._check_there()
        except diskcache.Timeout:
            con.execute("BEGIN IMMEDIATE")  # raises the reason that diskcache hides
            con.execute("ROLLBACK")
            raise sqlite3.OperationalError("database is locked") from None
        except sqlite3.Error as error:
            if con.in_transaction:
                con.execute("ROLLBACK")
            first = error.__context__  # where SQLite rolled back by itself, diskcache's rollback fails too
            raise (first if isinstance(first, sqlite3.Error) else error) from None

    def _check_there(self) -> None:
        """Raise an error if the folder is no longer the one that was opened: what is written to it would be nowhere."""
        if _file_of(self.place / DATABASE) != self._file:
            raise LedgerError(
                f"the run folder {self.path} was deleted, moved or replaced while it was in use, and its record with it; nothing more was "
                "sent. Put it back and run again, or begin anew in another folder"
            )

    def sync(self) -> None:
        """Have the disk keep what was written so far, and the mark that says so."""
        try:
            with forking.in_use():
                self.con.execute("PRAGMA wal_checkpoint(PASSIVE)")
                self._mark.sync()
        except (OSError, sqlite3.Error) as error:
            raise ledger_error(error, self.path) from error

    def write(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        """Do work in a transaction, once: a disk that refuses it would refuse it again."""
        with self.transaction() as con:
            return work(con)

    def read(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        """Reads need no transaction; their errors are the ledger's too."""
        try:
            with forking.in_use():
                return work(self.con)
        except sqlite3.Error as error:
            raise ledger_error(error, self.path) from error

    def enter(self) -> Session:
        """Begin a session, which this process's lock shows to be alive."""
        try:
            with folder_lock(self.place):
                return Session(self.place)
        except OSError as error:
            raise ledger_error(error, self.path) from error

    def alive(self, sessions: AbstractSet[str]) -> AbstractSet[str]:
        """Return which of these sessions have a process that still holds its lock."""
        return {name for name in sessions if Session.alive(self.place, name)}

    def close(self) -> None:
        """Close the file."""
        with forking.in_use():
            self._mark.close()
            self._cache.close()


def _file_of(path: Path) -> tuple[int, int] | None:
    """Return what tells a file from any other that takes its name, or None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _open(folder: Path, identity: ModelIdentity) -> _Cache:
    """Open or create the ledger in a folder; a folder that is refused is left unchanged."""
    if os.path.expandvars(folder) != str(folder):
        raise LedgerError(
            f"a run folder's name can't contain a variable, but {folder} does"
        )  # diskcache would fill it in
    made = not folder.exists()
    try:
        if made:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        elif folder.is_dir() and not any(folder.iterdir()):
            folder.chmod(0o700)
        with folder_lock(folder):
            mark = read_mark(folder)
            fresh = _is_fresh(folder)
            if fresh:
                check_mark(folder, mark, 0, None)
            else:
                _check(folder, identity)
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
    """Return whether there is no ledger yet, or one whose creator died before the first record."""
    database = folder / DATABASE
    if not database.exists() or database.stat().st_size == 0:
        return True
    with closing(FolderView(folder, unfinished=True)) as view:
        return is_unfinished(view.schema()) and view.is_empty()


def _check(folder: Path, identity: ModelIdentity) -> None:
    """Raise an error if a folder holds another ledger than this model's, or none at all."""
    with closing(FolderView(folder)) as view:
        check_format(
            {str(name): str(value) for name, value in view.select("SELECT name, value FROM meta")}, identity, folder
        )


def _make(folder: Path, identity: ModelIdentity, *, fresh: bool) -> _Cache:
    if fresh:
        os.close(os.open(folder / DATABASE, os.O_CREAT | os.O_RDWR, 0o600))
        with closing(sqlite3.connect(folder / DATABASE)) as first:
            first.execute("PRAGMA page_size = 16384")  # an answer of 100 KB is written a quarter faster than in 4096
            first.execute("PRAGMA journal_mode = wal")
    try:
        cache = _Cache(folder)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise LedgerCorrupted(
            f"{folder} holds settings that pbsdk never wrote ({error}); use another run folder"
        ) from error
    if fresh:
        con = cache._con  # noqa: SLF001 - the thread's own connection
        con.execute("BEGIN IMMEDIATE")
        for statement in SCHEMA:
            con.execute(statement)
        con.executemany("INSERT INTO meta VALUES (?, ?)", [("format", str(FORMAT)), ("model", identity.to_json())])
        con.execute("COMMIT")
    return cache
