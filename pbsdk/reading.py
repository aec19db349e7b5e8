"""Reading a run folder without touching it: what was asked, and whether the record holds.

A `LedgerReader` opens the SQLite file read-only, so it works beside a run that is still going on,
and needs no model. Everything it returns is counted from the records, except what the budget
counts by, which `verify` compares with them.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from pbsdk.answers import set_digest, unpack_tokens
from pbsdk.backend import ModelIdentity
from pbsdk.budget import QueryBudget, Totals
from pbsdk.errors import LedgerCorrupted, LedgerError, LedgerMismatch
from pbsdk.records import FIELDS, FORMAT, GENESIS, link

__all__ = ["DATABASE", "LedgerReader", "Verification", "check_format", "ledger_error", "verify_run"]

DATABASE = "cache.db"
"""diskcache's name for its SQLite file."""

Counts = dict[str, int]


@dataclass(frozen=True)
class Verification:
    """A ledger whose every record fits: how many there are, and the hash that stands for them."""

    run: str
    records: int
    answers: int
    head: str

    def __str__(self) -> str:
        return f"{self.run}: all {self.records:,} records and {self.answers:,} answers fit; head {self.head}"

    def to_dict(self) -> dict[str, object]:
        """Return the findings as plain values."""
        return asdict(self)


def verify_run(run: str | os.PathLike[str]) -> Verification:
    """Derive everything in a run folder again from its records.

    Raises:
        LedgerCorrupted: naming the first record that doesn't fit.
    """
    with LedgerReader(run) as reader:
        return reader.verify()


def ledger_error(error: Exception, folder: Path) -> LedgerError:
    """Say in one message what is wrong with a folder, and the cure."""
    text = str(error).lower()
    if "not a database" in text or "malformed" in text:
        return LedgerCorrupted(f"{folder / DATABASE} is not a readable ledger ({error}); use another run folder")
    if "full" in text or "no space" in text or "too large" in text or "disk i/o" in text:
        return LedgerError(
            f"the disk can't take more for the run folder {folder} ({error}); free some space and run again: "
            "what was stored is kept"
        )
    if isinstance(error, NotADirectoryError | FileExistsError):
        return LedgerError(f"{folder} is not a folder; give a run folder that is one, or doesn't exist yet")
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


class LedgerReader:
    """A view of a run folder that can't write. The numbers are those of the moment it was opened."""

    def __init__(self, run: str | os.PathLike[str]) -> None:
        self.folder = Path(run).expanduser()
        path = self.folder / DATABASE
        if not path.is_file():
            raise LedgerError(f"{self.folder} is not a run folder: it holds no {DATABASE}")
        address = f"file:{quote(os.path.abspath(path))}?mode=ro"  # noqa: PTH100 - resolve() would follow links
        try:
            try:
                self._con = _connect(address)
            except sqlite3.OperationalError:  # a folder that can't hold SQLite's side files: nobody writes it either
                self._con = _connect(f"{address}&immutable=1")
        except sqlite3.Error as error:
            raise ledger_error(error, self.folder) from error

    def close(self) -> None:
        """Close the view."""
        self._con.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _all(self, statement: str) -> list[tuple[int | str, ...]]:
        try:
            return self._con.execute(statement).fetchall()
        except sqlite3.Error as error:
            raise ledger_error(error, self.folder) from error

    def tables(self) -> set[str]:
        """Return the names of the tables."""
        return {str(name) for (name,) in self._all("SELECT name FROM sqlite_master WHERE type = 'table'")}

    def rows(self, table: str) -> int:
        """Return how many rows a table has."""
        return int(self._all(f"SELECT count(*) FROM {table}")[0][0])  # noqa: S608 - our own names

    def meta(self) -> dict[str, str]:
        """Return what the folder says of itself: its format and its model."""
        return {str(name): str(value) for name, value in self._all("SELECT name, value FROM meta")}

    def head(self) -> tuple[int, str]:
        """Return the last record's number and hash."""
        ((seq, chain),) = self._all("SELECT records, head FROM totals")
        return int(seq), str(chain)

    def budget(self) -> QueryBudget:
        """Return the budget of the session that opened the folder last."""
        rows = self._all("SELECT note FROM records WHERE state = 'opened' ORDER BY seq DESC LIMIT 1")
        return QueryBudget.from_dict(json.loads(str(rows[0][0]))["budget"]) if rows else QueryBudget()

    def totals(self) -> Totals:
        """Return what is spent or reserved over everything."""
        (row,) = self._all("SELECT passes, held + sent, failed, tokens FROM totals")
        return Totals(*map(int, row))

    def scopes(self, *, strict: bool) -> dict[str, Counts]:
        """Return for each purse its examples and passes, and the most that one example has used."""
        unit = "held + sent" if strict else "(held + sent - failed > 0)"
        rows = self._all(
            "SELECT scope, count(*), sum(n), max(n) FROM"  # noqa: S608 - two constants
            f" (SELECT scope, sum({unit}) n FROM passes GROUP BY scope, example) WHERE n > 0 GROUP BY scope"
        )
        return {
            str(scope): {"examples": int(examples), "passes": int(passes), "most": int(most)}
            for scope, examples, passes, most in rows
        }

    def phases(self) -> dict[str, Counts]:
        """Return for each phase what its records add up to."""
        counts: dict[str, Counts] = {}
        for phase, *numbers in self._all(
            "SELECT phase, sum(state = 'sent'), sum(state = 'hit'), sum(state = 'failed'), sum(state = 'unknown'),"
            " sum(state = 'done'), sum(read * (state = 'done')), sum(cut > 0), sum(mass * (state = 'done')), sum(mass > 0),"
            " count(DISTINCT example), count(DISTINCT prompt)"
            " FROM records WHERE phase <> '' GROUP BY phase"
        ):
            names = (
                "attempts",
                "hits",
                "failed",
                "unknown",
                "done",
                "read",
                "cut",
                "mass",
                "showing",
                "examples",
                "prompts",
            )
            counts[str(phase)] = {"passes": 0, "most": 0, **dict(zip(names, map(int, numbers), strict=True))}
        for phase, passes, most in self._all(
            "SELECT phase, sum(n), max(n) FROM (SELECT phase, count(*) n FROM"
            " (SELECT phase, example FROM records WHERE state IN ('sent', 'failed')"
            "  GROUP BY phase, example, prompt HAVING sum(state = 'sent') > sum(state = 'failed'))"
            " GROUP BY phase, example) GROUP BY phase"
        ):
            counts[str(phase)].update(passes=int(passes), most=int(most))
        return counts

    def names(self) -> dict[str, str]:
        """Return the prompts' texts by their digests."""
        return {str(name): str(text) for name, text in self._all("SELECT digest, text FROM names")}

    def words(self) -> dict[int, str]:
        """Return what the tokens of an open vocabulary say, as far as answers showed them."""
        return {int(token): str(word) for token, word in self._all("SELECT token, word FROM words")}

    def verify(self) -> Verification:
        """Derive everything again from the records; raise `LedgerCorrupted` at the first that doesn't fit."""
        try:
            self._verify_records()
            self._verify_answers()
            self._verify_counters()
            return Verification(str(self.folder), self.head()[0], self.rows("answers"), self.head()[1])
        except sqlite3.Error as error:
            raise ledger_error(error, self.folder) from error

    def _broken(self, what: str) -> LedgerCorrupted:
        return LedgerCorrupted(f"{self.folder}: {what}")

    def _verify_records(self) -> None:
        """Check numbers, hashes, and the order of states; each answer where its record stands."""
        chain, last = GENESIS, 0
        rows = self._con.execute(
            "SELECT r.*, c.raw, c.mode, c.filename, c.value FROM records r"
            " LEFT JOIN Cache c ON r.state = 'done' AND c.key = r.query ORDER BY r.seq"
        )
        size = len(FIELDS)
        for row in rows:
            seq = row[0]
            if seq != last + 1:
                raise self._broken(f"record {last + 1} is missing: record {seq} follows {last}")
            chain = link(chain, row[:size])
            if chain != row[size]:
                raise self._broken(f"record {seq} was changed, or one before it: it doesn't fit its hash")
            if row[4] == "done":
                raw, mode, filename, value = row[size + 1 :]
                if (raw, mode, filename) != (1, 1, None) or type(value) is not bytes:
                    raise self._broken(f"record {seq}: its answer is missing or was not written by pbsdk")
                if hashlib.sha256(value).hexdigest() != row[13]:
                    raise self._broken(f"record {seq}: its answer was changed: it doesn't fit its digest")
            last = seq
        if (last, chain) != self.head():
            raise self._broken(f"record {last + 1} is missing: the record was cut off after {last}")

    def _verify_answers(self) -> None:
        """Check that answers, their index and the records name each other, and hits what was stored."""
        done = "SELECT query, answer, seq FROM records WHERE state = 'done'"
        listed = "SELECT query, digest, seq FROM answers"
        for one, two in ((done, listed), (listed, done)):
            row = self._con.execute(f"{one} EXCEPT {two} ORDER BY 3 LIMIT 1").fetchone()
            if row is not None:
                raise self._broken(f"record {row[2]}: the list of answers doesn't fit it")
        row = self._con.execute(
            "SELECT r.seq FROM records r LEFT JOIN answers a ON a.query = r.query"
            " WHERE r.state = 'hit' AND (a.digest IS NULL OR a.digest <> r.answer OR a.seq > r.seq) ORDER BY r.seq LIMIT 1"
        ).fetchone()
        if row is not None:
            raise self._broken(f"record {row[0]}: a hit on an answer that isn't there")
        for key, raw, value in self._con.execute(
            "SELECT c.key, c.raw, c.value FROM Cache c LEFT JOIN answers a ON a.query = c.key WHERE a.query IS NULL"
        ):
            name = key.removeprefix("tokens:") if type(key) is str else ""
            if raw != 1 or type(value) is not bytes or not len(value) or len(value) % 8:
                raise self._broken("it holds an answer that no record knows")
            if set_digest(unpack_tokens(value)) != name:
                raise self._broken(f"the token set {name} was changed, or no record knows it")

    def _verify_counters(self) -> None:
        """Count by the records what the budget counts by its counters."""
        scope = "CASE WHEN phase IN ('train', 'validate', 'refine') THEN 'fit' ELSE phase END"
        counted = (
            f"SELECT {scope} scope, example, prompt,"  # noqa: S608 - constants only
            " sum(state = 'reserved') - sum(state IN ('sent', 'released')) held, sum(state = 'sent') sent,"
            " sum(state = 'failed') failed FROM records WHERE state IN ('reserved', 'sent', 'released', 'failed')"
            " GROUP BY 1, 2, 3"
        )
        kept = "SELECT scope, example, prompt, held, sent, failed FROM passes"
        for one, two in ((counted, kept), (kept, counted)):
            row = self._con.execute(f"SELECT * FROM ({one}) EXCEPT SELECT * FROM ({two}) LIMIT 1").fetchone()  # noqa: S608 - constants only
            if row is not None:
                raise self._broken(f"the counters of example {row[1]} under prompt {row[2]} don't fit the records")
        here = self._con.execute(
            "SELECT coalesce(sum(held + sent - failed > 0), 0), coalesce(sum(held), 0), coalesce(sum(sent), 0),"
            " coalesce(sum(failed), 0) FROM passes"
        ).fetchone()
        (tokens,) = self._con.execute(
            "SELECT (SELECT coalesce(sum(read), 0) FROM records WHERE state IN ('done', 'unknown'))"
            " + (SELECT coalesce(sum(tokens), 0) FROM inflight)"
        ).fetchone()
        if self._con.execute("SELECT passes, held, sent, failed, tokens FROM totals").fetchall() != [(*here, tokens)]:
            raise self._broken("the totals don't fit the records")
        row = self._con.execute(
            "SELECT seq, query, state FROM records WHERE seq IN (SELECT max(seq) FROM records"
            "  WHERE query <> '' AND state <> 'hit' GROUP BY query)"
            " AND (state IN ('reserved', 'sent')) <> (query IN (SELECT query FROM inflight)) ORDER BY seq LIMIT 1"
        ).fetchone()
        if row is not None:
            raise self._broken(
                f"record {row[0]}: the query is {row[2]}, and the list of those in flight says otherwise"
            )

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write a line about the ledger, then each record, as JSON lines."""
        seq, chain = self.head()
        fields = [*FIELDS, "chain"]
        top = {
            "format": FORMAT,
            "records": seq,
            "head": chain,
            "genesis": GENESIS,
            "fields": fields,
            "model": self.meta()["model"],
            "prompts": self.names(),
        }
        with Path(path).open("w", encoding="utf-8") as file:
            file.write(json.dumps(top) + "\n")
            file.writelines(
                json.dumps(dict(zip(fields, row, strict=True))) + "\n"
                for row in self._con.execute("SELECT * FROM records ORDER BY seq")
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
