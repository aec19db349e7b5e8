"""What is missing is noticed: a log that was deleted or can't be read, and a folder that is gone."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from helpers.meter import as_nobody, grid, metered, query, start, states

from pbsdk.audit.certificate import Certificate
from pbsdk.audit.report import AuditReport
from pbsdk.errors import LedgerCorrupted, LedgerError
from pbsdk.ledger.mark import read_mark
from pbsdk.ledger.verifier import verify_run

LOST = "has lost the end of its record"


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A run that was killed while its fourth batch was at the model."""
    run = tmp_path_factory.mktemp("killed") / "run"
    start("die", run, 10, 3, 4, 4).communicate(timeout=60)
    assert (run / "cache.db-wal").stat().st_size
    return run


@pytest.fixture
def run(killed, tmp_path):
    return Path(shutil.copytree(killed, tmp_path / "run"))


def _resumed(run):
    return metered(run, vocabulary_size=20, batch_size=4)


def _checkpoint(run):
    with closing(sqlite3.connect(run / "cache.db")) as con:
        con.execute("PRAGMA wal_checkpoint(TRUNCATE)")


# The mark


def test_the_mark_names_the_last_record(tmp_path):
    lm = metered(tmp_path, batch_size=1)
    for _ in lm.stream(grid(3, 1)):
        with lm.ledger.reader() as reader:
            assert read_mark(tmp_path) == reader.head()
    lm.close()
    with metered(tmp_path) as lm:
        assert read_mark(tmp_path).head == verify_run(tmp_path).head


def test_a_kill_alone_raises_no_alarm(run):
    before = verify_run(run)
    assert before.answers == 12
    assert read_mark(run) == (before.records, before.head)
    lm = _resumed(run)
    assert len(lm.fill(grid(10, 3))) == 30
    lm.ledger.verify()


def test_a_mark_that_is_behind_raises_no_alarm(run):
    old = (run / "mark").read_bytes()
    with _resumed(run) as lm:
        lm.fill(grid(10, 3))
    (run / "mark").write_bytes(old)
    assert verify_run(run).answers == 30
    _resumed(run).close()


def test_a_deleted_log_is_noticed_by_everything_that_opens_the_folder(run):
    certificate, written = Certificate.of(run), verify_run(run).records
    for name in ("cache.db-wal", "cache.db-shm"):
        (run / name).unlink()
    for opens in (_resumed, verify_run, Certificate.of, AuditReport.read, certificate.check):
        with pytest.raises(LedgerCorrupted, match=LOST) as caught:
            opens(run)
        assert f"{written:,} records were written" in str(caught.value)


def test_a_database_that_was_deleted_or_emptied_is_not_begun_anew(run):
    for name in ("cache.db-wal", "cache.db-shm"):
        (run / name).unlink()
    (run / "cache.db").write_bytes(b"")
    with pytest.raises(LedgerCorrupted, match=LOST):
        _resumed(run)
    (run / "cache.db").unlink()
    with pytest.raises(LedgerCorrupted, match=f"{LOST}.* and 0 are here"):
        _resumed(run)


def test_a_folder_that_lost_records_goes_on_when_its_mark_is_removed_and_a_certificate_still_shows_it(run):
    certificate = Certificate.of(run)
    (run / "cache.db-wal").unlink()
    with pytest.raises(LedgerCorrupted, match=r"remove .*mark: what was lost then counts as never asked"):
        _resumed(run)
    (run / "mark").unlink()
    with _resumed(run) as lm:
        lm.fill(grid(10, 3))
        lm.ledger.verify()
    with pytest.raises(LedgerCorrupted):
        certificate.check(run)


def test_files_of_different_times_are_refused(tmp_path, run):
    with _resumed(run) as lm:
        lm.fill(grid(10, 3))
    with _resumed(tmp_path / "other") as lm:
        lm.fill(grid(10, 5))
    shutil.copy(tmp_path / "other" / "cache.db", run / "cache.db")
    with pytest.raises(LedgerCorrupted, match="another record than the one that was written"):
        verify_run(run)


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 95, b"12 ab\n", b"x" * 95, b"\xff" * 95, b"1" * 20 + b" ab 00000000\n"]
)
def test_a_mark_that_makes_no_sense_says_nothing(run, content):
    (run / "mark").write_bytes(content)
    assert read_mark(run) is None
    assert verify_run(run).answers == 12
    with _resumed(run) as lm:
        assert read_mark(run).head == lm.ledger.verify().head


def test_a_mark_that_cannot_be_written_stops_nothing(tmp_path):
    lm = metered(tmp_path)
    os.close(lm.ledger._run._mark._file)
    lm.fill([query(1)])
    lm.ledger._run._mark._file = None
    lm.fill([query(2)])
    assert lm.ledger.verify().answers == 2


def test_a_session_whose_file_cannot_be_removed_is_closed_all_the_same(tmp_path):
    lm = metered(tmp_path)
    lm.fill([query(1)])
    path = lm.ledger._session.path
    path.unlink()
    path.mkdir()
    lm.close()
    assert verify_run(tmp_path).answers == 1


# A copy that can't be written


@pytest.mark.parametrize("log", [True, False])
def test_a_log_that_cannot_be_read_is_refused_with_the_cure(killed, log):
    home = Path(tempfile.mkdtemp())  # not under tmp_path, whose parents are closed to others
    home.chmod(0o755)
    copy = Path(shutil.copytree(killed, home / "run", ignore=shutil.ignore_patterns("*-shm", "sessions")))
    try:
        whole = verify_run(killed)
        if not log:
            _checkpoint(copy)
            for name in ("cache.db-wal", "cache.db-shm"):
                (copy / name).unlink(missing_ok=True)
        for path in copy.rglob("*"):
            path.chmod(0o444)
        copy.chmod(0o555)
        said = as_nobody(lambda: str(verify_run(copy)))
        if log:
            assert said.startswith("LedgerError: ")
            assert "its last records are in cache.db-wal" in said
            assert "Copy the whole folder" in said
            copy.chmod(0o755)
            assert verify_run(copy).head == whole.head
        else:
            assert f"all {whole.records} records and 12 answers match" in said
    finally:
        copy.chmod(0o755)
        shutil.rmtree(home)


# A folder that is gone


def _delete(run):
    shutil.rmtree(run)


def _move(run):
    run.rename(run.with_name("moved"))


def _replace(run):
    _delete(run)
    metered(run, seed=1).close()


@pytest.mark.parametrize("spoil", [_delete, _move, _replace])
def test_a_folder_that_disappears_under_way_is_an_error_before_the_next_batch_is_sent(tmp_path, spoil):
    run = tmp_path / "run"
    lm = metered(run, batch_size=2)
    stream = lm.stream(grid(4, 1))
    next(stream), next(stream)
    spoil(run)
    with pytest.raises(LedgerError, match="was deleted, moved or replaced"):
        next(stream)
    assert len(lm.backend.asked) == 2
    with pytest.raises(LedgerError, match="was deleted, moved or replaced"):
        lm.fill([query(9)])
    assert len(lm.backend.asked) == 2
    lm.close()
    if spoil is _replace:
        assert verify_run(run).records == 1
    else:
        assert not run.exists()


def test_a_folder_deleted_while_a_batch_is_at_the_model_is_an_error(tmp_path):
    run = tmp_path / "run"
    lm = metered(run, batch_size=4, latency=0.1)
    lm.backend._sleep = lambda _: shutil.rmtree(run)
    with pytest.raises(LedgerError, match="was deleted, moved or replaced"):
        lm.fill(grid(4, 1))


def test_another_working_directory_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with metered("run", batch_size=1) as one, metered("run", batch_size=1) as two:
        stream = one.stream(grid(3, 1))
        next(stream)
        monkeypatch.chdir("/")
        two.fill([query(9)])
        assert len(list(stream)) == 2
        assert states(one) == {"reserved": 4, "sent": 4, "done": 4}
