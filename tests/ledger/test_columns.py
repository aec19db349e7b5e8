"""Every column of every table of a run folder: changed in any row, it is found, unless nothing that pbsdk says comes from it."""

import shutil
import sqlite3
from contextlib import closing

import numpy as np
import pytest
from helpers.meter import grid, query
from helpers.tampering import edit

from pbsdk.errors import BackendTimeout, BackendUnavailable, LedgerError
from pbsdk.ledger.budget import QueryBudget
from pbsdk.ledger.shares import Member
from pbsdk.ledger.verifier import verify_run
from pbsdk.metering.meter import MeteredBackend
from pbsdk.testing import FakeBackend

UNREAD = {
    "Cache": {"rowid", "store_time", "access_time", "access_count", "size"},
    "Settings": {"sqlite_cache_size", "disk_pickle_protocol", "hits", "misses"},
}
"""What diskcache keeps and pbsdk never reads."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A folder with something in every table: words, token sets, a member, and queries in flight."""
    made, kept = (tmp_path_factory.mktemp("columns") / name for name in ("made", "kept"))
    member = Member("ana", QueryBudget(passes=None, predict=None, total=40))
    failures = [None, BackendTimeout("lost"), None, BackendUnavailable("busy"), *[None] * 50]
    backend = FakeBackend(vocabulary_size=50, chosen=True, batch_size=2, failures=failures)
    with MeteredBackend(backend, made, 10, member=member, sleep=lambda _: None) as lm:
        lm.fill(grid(2, 3))
        lm.fill(grid(2, 3))
        lm.fill([query(5, 0, "predict")], np.array([1, 3, 5]))
        lm.ledger.note_remaining({"passes": 5.0})
        stream = lm.ledger.open_stream()
        asks, _ = lm.resolve([query(8), query(9)])
        lm.ledger.reserve(stream, asks)
        lm.ledger.claim(stream, asks[:1])
        shutil.copytree(made, kept)
    verify_run(kept)
    return kept


def changed(value):
    """Return values of the same kind that are others, and such as would be left out of a sum or a comparison."""
    if isinstance(value, bytes):
        return [value + b"\0", None]
    if isinstance(value, str):
        return [value + "0", value[1:] if value else " ", None]
    return [1, "x"] if value is None else [value + 1, -value - 1, None]


def changes(run):
    """Yield a statement for each column of the first and the last row of every table, and for each of these rows missing."""
    with closing(sqlite3.connect(run / "cache.db")) as con:
        tables = [name for (name,) in con.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            columns = [row[1] for row in con.execute(f"PRAGMA table_info({table})")]
            rows = [row for row in con.execute(f"SELECT * FROM {table}") if row[0] not in UNREAD.get(table, ())]
            if not rows:  # words, without an open vocabulary
                yield table, f"INSERT INTO {table} VALUES (7, 'good')", ()
                continue
            here = " AND ".join(f"{column} IS ?" for column in columns)
            for row, others in ((rows[0], slice(1)), (rows[-1], slice(1, None))):
                yield table, f"DELETE FROM {table} WHERE {here}", row
                for column, value in zip(columns, row, strict=True):
                    if column not in UNREAD.get(table, ()):
                        for other in changed(value)[others]:
                            yield table, f"UPDATE {table} SET {column} = ? WHERE {here}", (other, *row)


def test_whatever_is_changed_in_any_table_is_found(run, tmp_path):
    tried = set()
    for number, (table, statement, values) in enumerate(changes(run)):
        copy = shutil.copytree(run, tmp_path / str(number))
        try:
            edit(copy, (statement, *values))
        except sqlite3.IntegrityError:  # SQLite itself would not have it
            continue
        with pytest.raises(LedgerError):
            pytest.fail(f"passed over: {statement} {values} of {verify_run(copy)}")
        tried.add(table)
        shutil.rmtree(copy)
    assert tried == {
        *("meta", "records", "names", "sets", "words", "answers", "inflight", "streams", "passes", "totals"),
        *("Cache", "Settings"),
    }
