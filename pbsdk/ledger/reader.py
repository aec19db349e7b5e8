"""Reading a run folder without touching it.

A `LedgerReader` opens the SQLite file read-only, so it works beside a run that is still going on,
and needs no model. Everything it shows is as of the moment it was opened. `sums.py` adds
up what it reads, and `verifier.py` checks whether the record is intact.
"""

from __future__ import annotations

import base64
import json
import os
import sqlite3
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from pbsdk.backend import ModelIdentity
from pbsdk.errors import LedgerCorrupted, LedgerError, LedgerMismatch, PbsdkError
from pbsdk.ledger import forking
from pbsdk.ledger.budget import QueryBudget, Totals
from pbsdk.ledger.chain import FIELDS, FORMAT, GENESIS
from pbsdk.ledger.mark import Place, check_mark, read_mark
from pbsdk.ledger.schema import check_schema

__all__ = ["DATABASE", "LedgerReader", "check_format", "ledger_error"]

DATABASE = "cache.db"
"""diskcache's name for its SQLite file."""
_ODD = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What reading values raises that are of another kind, or in another form, than pbsdk writes."""


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


def check_format(meta: Mapping[str, str], identity: ModelIdentity, folder: Path) -> None:
    """Raise `LedgerMismatch` if the folder was written by another model or a newer pbsdk."""
    written = meta.get("format", "")
    if not written.isdecimal() or "model" not in meta:
        raise LedgerCorrupted(f"{folder} doesn't say its format or its model; use another run folder")
    if int(written) > FORMAT:
        raise LedgerMismatch(
            f"{folder} was written by a newer pbsdk (format {written}; this one knows {FORMAT}); upgrade pbsdk, "
            "or use another run folder"
        )
    try:
        there = ModelIdentity.from_json(meta["model"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LedgerCorrupted(f"{folder} doesn't say which model it belongs to; use another run folder") from error
    if there.digest != identity.digest:
        raise LedgerMismatch(
            f"{folder} holds the answers of another model ({identity.differences(there)}); give this model a run "
            "folder of its own"
        )


_AT_ONCE = 500
"""How many values one statement takes."""


class LedgerReader:
    """A view of a run folder that can't write. The numbers are those of the moment it was opened.

    A folder whose schema is not exactly a ledger's, or that has lost records, is refused, unless it may be `unfinished`; so are, on leaving the
    `with` block, values that could not be read.
    """

    def __init__(self, run: str | os.PathLike[str], *, unfinished: bool = False) -> None:
        self.folder = Path(run).expanduser()
        path = self.folder / DATABASE
        if not path.is_file():
            raise LedgerError(f"{self.folder} is not a run folder: it holds no {DATABASE}")
        address = f"file:{quote(os.path.abspath(path))}?mode=ro"  # noqa: PTH100 - resolve() would follow links
        mark = read_mark(self.folder)
        self._leave = weakref.finalize(self, forking.leave, forking.enter())
        try:
            self._con = self._open(address)
        except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite may quote a damaged name that is no text
            self._leave()
            raise ledger_error(error, self.folder) from error
        except BaseException:
            self._leave()
            raise
        if not unfinished:
            try:
                check_schema(self.schema(), self.folder)
                self._check_mark(mark)
            except BaseException as error:
                self.__exit__(type(error), error, None)
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
            rows = self._all(f"SELECT chain FROM records WHERE seq = {mark.records}")  # noqa: S608 - a number
            check_mark(self.folder, mark, self.head()[0], str(rows[0][0]) if rows else None)

    def close(self) -> None:
        """Close the view."""
        self._con.close()
        self._leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if isinstance(error, _ODD) and not isinstance(error, PbsdkError):
            raise LedgerCorrupted(
                f"{self.folder} holds what pbsdk never writes ({type(error).__name__}: {error}); use another run folder"
            ) from error

    def select(self, statement: str, *values: int | str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a statement; SQLite's errors become ledger errors."""
        try:
            for row in self._con.execute(statement, values):  # noqa: UP028 - `yield from` would close the cursor, perhaps too late
                yield row
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise ledger_error(error, self.folder) from error

    def _all(self, statement: str) -> list[tuple[Any, ...]]:
        return list(self.select(statement))

    def schema(self) -> list[tuple[str, str, str, str | None]]:
        """Return type, name, table and statement of everything in the database."""
        return [tuple(row) for row in self._all("SELECT type, name, tbl_name, sql FROM sqlite_master")]

    def rows(self, table: str) -> int:
        """Return how many rows a table has."""
        return int(self._all(f"SELECT count(*) FROM {table}")[0][0])  # noqa: S608 - our own names

    def among(self, table: str, keys: Sequence[str]) -> set[str]:
        """Return which queries' keys a table has, such as `answers` or `inflight`."""
        found: set[str] = set()
        for at in range(0, len(keys), _AT_ONCE):
            part = keys[at : at + _AT_ONCE]
            marks = ",".join("?" * len(part))
            statement = f"SELECT query FROM {table} WHERE query IN ({marks})"  # noqa: S608 - our own names
            found.update(str(key) for (key,) in self.select(statement, *part))
        return found

    def meta(self) -> dict[str, str]:
        """Return what the folder says about itself: its format and its model."""
        return {str(name): str(value) for name, value in self._all("SELECT name, value FROM meta")}

    def model(self) -> ModelIdentity:
        """Return the model whose answers the folder holds."""
        return ModelIdentity.from_json(self.meta()["model"])

    def size(self) -> int:
        """Return how many bytes the SQLite file has."""
        ((pages,),), ((page,),) = self._all("PRAGMA page_count"), self._all("PRAGMA page_size")
        return int(pages) * int(page)

    def head(self) -> tuple[int, str]:
        """Return the last record's number and hash."""
        ((seq, chain),) = self._all("SELECT records, head FROM totals")
        if type(seq) is not int:
            raise LedgerCorrupted(f"{self.folder} counts {seq!r} records, which no ledger has; use another run folder")
        return seq, str(chain)

    def budgets(self) -> dict[str, QueryBudget]:
        """Return the budget of every session, in the order in which they opened the folder."""
        rows = self.select("SELECT session, note FROM records WHERE state = 'opened' ORDER BY seq")
        return {str(session): QueryBudget.from_dict(json.loads(str(note))["budget"]) for session, note in rows}

    def remaining(self) -> tuple[int, dict[str, float]] | None:
        """Return what a server in front of the model last said is left there, and when; None if none ever did."""
        rows = self._all("SELECT time, note FROM records WHERE state = 'allowed' ORDER BY seq DESC LIMIT 1")
        return (int(rows[0][0]), {str(name): float(n) for name, n in json.loads(rows[0][1]).items()}) if rows else None

    def totals(self) -> Totals:
        """Return what is spent or reserved in all."""
        (row,) = self._all("SELECT passes, held + sent, failed, tokens FROM totals")
        return Totals(*map(int, row))

    def names(self) -> dict[str, str]:
        """Return the prompts' texts by their digests."""
        return {str(name): str(text) for name, text in self._all("SELECT digest, text FROM names")}

    def words(self) -> dict[int, str]:
        """Return what the tokens of an open vocabulary say, as far as answers showed them."""
        return {int(token): str(word) for token, word in self._all("SELECT token, word FROM words")}

    def export(self, path: str | os.PathLike[str], *, answers: bool = False) -> None:
        """Write JSON lines: one about the ledger, then one per record, each answer's followed by its bytes if `answers`."""
        seq, chain = self.head()
        fields = [*FIELDS, "chain"]
        (totals,) = self._all("SELECT passes, held, sent, failed, tokens FROM totals")
        top = {
            "format": FORMAT,
            "records": seq,
            "head": chain,
            "genesis": GENESIS,
            "fields": fields,
            "model": self.meta()["model"],
            "prompts": self.names(),
            "totals": dict(zip(("passes", "held", "sent", "failed", "tokens"), totals, strict=True)),
            "answers": answers,
        }
        with Path(path).open("w", encoding="utf-8") as file:
            file.write(json.dumps(top) + "\n")
            for row in self.select("SELECT * FROM records ORDER BY seq"):
                record = dict(zip(fields, row, strict=True))
                file.write(json.dumps(record) + "\n")
                if answers and record["state"] == "done":
                    file.writelines(
                        json.dumps({"bytes": base64.b64encode(data).decode()}) + "\n"
                        for (data,) in self.select("SELECT value FROM Cache WHERE key = ? AND raw = 1", record["query"])
                    )


def _connect(address: str) -> sqlite3.Connection:
    con = sqlite3.connect(address, uri=True, timeout=60, isolation_level=None)
    try:
        con.execute("BEGIN")
        con.execute("SELECT count(*) FROM sqlite_master").fetchone()  # takes the snapshot
    except BaseException:
        con.close()
        raise
    return con
