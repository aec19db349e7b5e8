"""Reading a run folder's SQLite file without touching it.

The file is opened read-only, in one transaction, so it can be read beside a run that is still going on. A folder on a disk
that can't be written is read too, if its last records are not in SQLite's log.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pbsdk.errors import LedgerCorrupted, LedgerError
from pbsdk.ledger.mark import Place, check_mark, read_mark
from pbsdk.ledger.schema import DISKCACHE_NAMES, SETTINGS, Row, check_schema

__all__ = ["DATABASE", "FolderView", "ledger_error"]

DATABASE = "cache.db"
"""diskcache's name for its SQLite file."""

_OURS = "raw = 1 AND mode = 1 AND filename IS NULL AND typeof(key) = 'text' AND typeof(value) = 'blob'"
"""Which rows of diskcache's table are such as pbsdk writes: bytes, inside the database, not pickled."""


def ledger_error(error: Exception, folder: Path) -> LedgerError:  # noqa: PLR0911 - one line per kind of trouble
    """Return an error that says what is wrong with a folder, and the cure."""
    text = str(error).lower()
    if "not a database" in text or "malformed" in text or isinstance(error, UnicodeDecodeError):
        return LedgerCorrupted(f"{folder / DATABASE} is not a readable ledger ({error}); use another run folder")
    if "full" in text or "no space" in text or "too large" in text or "disk i/o" in text:
        return LedgerError(
            f"the disk can't take more for the run folder {folder} ({error}); free some space and run again: "
            "what was stored is kept"
        )
    if isinstance(error, NotADirectoryError | FileExistsError):
        return LedgerError(f"{folder} is not a folder; give a folder, or a path that doesn't exist yet")
    if "readonly" in text or "read-only" in text or isinstance(error, PermissionError) or "unable to open" in text:
        return LedgerError(f"the run folder {folder} can't be written ({error}); choose one that can")
    if "locked" in text:
        return LedgerError(f"another process has been writing to the run folder {folder} for too long; try again later")
    if "no such table" in text or "no such column" in text:
        return LedgerError(f"{folder} holds a {DATABASE} that is not a pbsdk ledger ({error}); use another run folder")
    return LedgerError(f"the run folder {folder} can't be used: {error}")


class FolderView:
    """A run folder as it was when the view was opened; one whose schema is not a ledger's, or that lost records, is refused unless `unfinished`."""

    def __init__(self, folder: Path, *, unfinished: bool = False) -> None:
        self.folder = folder
        path = folder / DATABASE
        if not path.is_file():
            raise LedgerError(f"{folder} is not a run folder: it holds no {DATABASE}")
        mark = read_mark(folder)
        try:
            self._con = self._open(f"file:{quote(os.path.abspath(path))}?mode=ro")  # noqa: PTH100 - resolve() would follow links
        except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite may quote a damaged name that is no text
            raise ledger_error(error, folder) from error
        if not unfinished:
            try:
                check_schema(self.schema(), folder)
                self._check_mark(mark)
                # What a database calls `stored` is diskcache's table here, without what pbsdk would refuse to read.
                self._con.execute(f"CREATE TEMP VIEW stored AS SELECT key, value FROM main.Cache WHERE {_OURS}")  # noqa: S608 - a constant
            except BaseException:
                self.close()
                raise

    def _open(self, address: str) -> sqlite3.Connection:
        try:
            return _connect(address)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
                raise
        # A folder that can't hold SQLite's side files: nobody writes it, and it is read without them.
        log = self.folder / f"{DATABASE}-wal"
        if log.exists() and log.stat().st_size:
            raise LedgerError(
                f"{self.folder} can't be read where it is: its last records are in {log.name}, which SQLite reads only in a folder that "
                "can be written. Copy the whole folder to such a place, and read the copy"
            )
        return _connect(f"{address}&immutable=1")

    def _check_mark(self, mark: Place | None) -> None:
        if mark is not None:
            ((records,),) = self._all("SELECT records FROM totals")
            if type(records) is not int:
                raise LedgerCorrupted(
                    f"{self.folder} counts {records!r} records, which no ledger has; use another run folder"
                )
            rows = self._all(f"SELECT chain FROM records WHERE seq = {mark.records}")  # noqa: S608 - a number
            check_mark(self.folder, mark, records, str(rows[0][0]) if rows else None)

    def close(self) -> None:
        """Close the file."""
        self._con.close()

    def select(self, statement: str, *values: int | str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a statement; SQLite's errors become ledger errors."""
        try:
            for row in self._con.execute(statement, values):  # noqa: UP028 - `yield from` would close the cursor, perhaps too late
                yield row
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise ledger_error(error, self.folder) from error

    def _all(self, statement: str) -> list[tuple[Any, ...]]:
        return list(self.select(statement))

    def derive(self, name: str, query: str) -> None:
        """Keep a query's rows in a temporary table."""
        self._all(f"CREATE TEMP TABLE IF NOT EXISTS {name} AS {query}")

    def schema(self) -> list[Row]:
        """Return type, name, table and statement of everything in the database."""
        return [
            (kind, name, table, sql)
            for kind, name, table, sql in self._all("SELECT type, name, tbl_name, sql FROM main.sqlite_master")
        ]

    def is_empty(self) -> bool:
        """Return whether diskcache's table, if there is one, holds nothing."""
        there = any(name == "Cache" for _, name, _, _ in self.schema())
        return not there or not self._all("SELECT count(*) FROM Cache")[0][0]

    def size(self) -> int:
        """Return how many bytes the SQLite file has."""
        ((pages,),), ((page,),) = self._all("PRAGMA page_count"), self._all("PRAGMA page_size")
        return int(pages) * int(page)

    def damage(self) -> str:
        """Let SQLite check its own file: a damaged index may not show until somebody writes."""
        said = [str(line) for (line,) in self._all("PRAGMA integrity_check(1)") if line != "ok"]
        return f"SQLite finds its file damaged ({said[0]})" if said else ""

    def oddity(self) -> str:
        """Return which rows, columns or settings of diskcache's are not as pbsdk leaves them."""
        if self._all(f"SELECT 1 FROM Cache WHERE NOT coalesce({_OURS}, 0) LIMIT 1"):  # noqa: S608 - a constant
            return "it holds an answer that no record mentions"
        if self._all("SELECT 1 FROM Cache WHERE expire_time IS NOT NULL OR tag IS NOT NULL LIMIT 1"):
            return "an answer was marked to expire, or with a tag, which pbsdk never does"
        settings = dict(self._all("SELECT key, value FROM Settings"))
        ((count,),) = self._all("SELECT count(*) FROM Cache")
        expected = SETTINGS | {"count": count, "size": 0}
        odd = sorted(
            {name for name in expected if settings.get(name) != expected[name]} | settings.keys() - DISKCACHE_NAMES
        )
        return f"diskcache's settings were changed: {', '.join(odd)}" if odd else ""


def _connect(address: str) -> sqlite3.Connection:
    con = sqlite3.connect(address, uri=True, timeout=60, isolation_level=None)
    try:
        con.execute("BEGIN")
        con.execute("SELECT count(*) FROM sqlite_master").fetchone()  # takes the snapshot
    except BaseException:
        con.close()
        raise
    return con
