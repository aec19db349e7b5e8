"""A run folder that is killed while it is made opens again; one whose schema was changed is refused by all who read it."""

from __future__ import annotations

import os
import signal
import sqlite3

import pytest
from helpers.meter import grid, metered

from pbsdk.audit.certificate import Certificate
from pbsdk.audit.report import AuditReport
from pbsdk.errors import LedgerCorrupted, LedgerError
from pbsdk.ledger.verifier import verify_run


def _killed_at(run, statement):
    """Make a ledger in a child that dies before its n-th statement; return whether it died."""
    child = os.fork()
    if child == 0:
        seen, connect = [], sqlite3.connect

        def count(_):
            seen.append(1)
            if len(seen) == statement:
                os.kill(os.getpid(), signal.SIGKILL)

        def traced(*arguments, **more):
            con = connect(*arguments, **more)
            con.set_trace_callback(count)
            return con

        sqlite3.connect = traced
        metered(run)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def test_a_folder_killed_at_any_statement_of_its_making_opens_again(tmp_path):
    statement = 1
    while _killed_at(tmp_path / str(statement), statement):
        run = tmp_path / str(statement)
        with metered(run) as lm:
            lm.fill(grid(1, 1))
        assert verify_run(run).answers == 1, statement
        statement += 1
    assert statement > 50


VIEWS = {
    name: [f"ALTER TABLE {name} RENAME TO kept", f"CREATE VIEW {name} AS SELECT * FROM kept"]
    for name in ("records", "passes", "totals", "names", "words")
}


@pytest.mark.parametrize(
    "statements",
    [
        *VIEWS.values(),
        ["CREATE TRIGGER t AFTER INSERT ON records BEGIN UPDATE totals SET passes = 0; END"],
        ["CREATE TABLE mine (x)"],
        ["CREATE VIRTUAL TABLE mine USING fts5(x)"],
        ["CREATE INDEX mine ON records (state)"],
        ["DROP TRIGGER records_hold"],
        ["DROP TABLE words"],
        ["ALTER TABLE words ADD COLUMN more"],
    ],
    ids=lambda statements: statements[-1][:40],
)
def test_a_changed_schema_is_refused_by_everyone(tmp_path, statements):
    with metered(tmp_path) as lm:
        lm.fill(grid(2, 2))
    certificate = Certificate.of(tmp_path)
    con = sqlite3.connect(tmp_path / "cache.db")
    for statement in statements:
        con.execute(statement)
    con.commit()
    con.close()
    for read in (verify_run, AuditReport.read, Certificate.of, certificate.check, metered):
        with pytest.raises(LedgerCorrupted, match="schema"):
            read(tmp_path)


@pytest.mark.parametrize("name", [b"records_stay", b"CREATE TABLE passes", b"Settings_count_insert"])
def test_a_schema_with_a_byte_that_is_no_text_is_refused(tmp_path, name):
    with metered(tmp_path / "run") as lm:
        lm.fill(grid(1, 1))
    file = tmp_path / "run" / "cache.db"
    data = file.read_bytes()
    assert name in data
    for at in range(len(name)):
        place = data.index(name) + at
        file.write_bytes(data[:place] + bytes([data[place] ^ 0x80]) + data[place + 1 :])
        for read in (AuditReport.read, verify_run, lambda run: metered(run).close()):
            with pytest.raises(LedgerError):
                read(tmp_path / "run")
