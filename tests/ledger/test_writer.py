"""The ledger: what is on disk, what is refused, and what `verify` finds."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import signal
import sqlite3
import stat
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import diskcache
import numpy as np
import pytest
from helpers.meter import as_nobody, grid, metered, query, rows, same, start, states
from helpers.tampering import edit

from pbsdk.backend import MaskDistribution, MaskedQuery, ModelIdentity, Part, Phase
from pbsdk.errors import BackendTimeout, LedgerCorrupted, LedgerError, LedgerMismatch
from pbsdk.ledger.chain import FIELDS
from pbsdk.ledger.codec import decode, encode, query_key, set_digest
from pbsdk.ledger.folder import _BytesOnly
from pbsdk.ledger.liveness import Session
from pbsdk.ledger.reader import LedgerReader
from pbsdk.ledger.writer import QueryLedger, verify_run
from pbsdk.metering.meter import MeteredBackend
from pbsdk.testing import FakeBackend

MODEL = ModelIdentity("m", {"dtype": "float32"})


# Answers as bytes


def _whole(size):
    logits = np.random.default_rng(0).standard_normal(size)
    return MaskDistribution.from_logprobs(logits - np.log(np.exp(logits).sum()), read_tokens=12, cut_tokens=3)


def test_answers_are_as_small_as_promised():
    assert len(encode(_whole(50265), None)) <= 101_000
    tokens = np.arange(800) * 60
    assert len(encode(_whole(50265).narrowed(tokens), tokens)) <= 2_000


def _top(size, k):
    best = np.argsort(_whole(size).codes, kind="stable")[:k]
    return MaskDistribution.from_logprobs(_whole(size).logprobs[best], best, top=True, read_tokens=5)


@pytest.mark.parametrize("answer", [_whole(50), _top(50, 7)])
@pytest.mark.parametrize("tokens", [None, np.array([0, 3, 9, 17, 20, 31, 44, 48, 49]), np.array([5])])
def test_every_kind_of_answer_survives_its_bytes(answer, tokens):
    kept = answer if tokens is None else answer.narrowed(tokens)
    data = encode(kept, tokens)
    assert same(decode(data, lambda name: tokens if name == set_digest(tokens) else None), kept)


def test_damaged_bytes_are_corrupt_never_a_crash():
    tokens = np.array([1, 2, 3])
    for answer, asked in ((_whole(50), None), (_top(50, 7), None), (_top(50, 7).narrowed(tokens), tokens)):
        data = encode(answer, asked)
        for damaged in (b"", data[:20], data[:-1], data + b"x", b"xx" + data[2:], data[:2] + b"\x09" + data[3:]):
            with pytest.raises(LedgerCorrupted):
                decode(damaged, lambda _: tokens)
    with pytest.raises(LedgerCorrupted, match="token set"):
        decode(encode(_whole(50).narrowed(tokens), tokens), lambda _: None)


def test_the_key_holds_what_changes_an_answer_and_nothing_else(tmp_path):
    lm = metered(tmp_path)
    one = query(1)
    other_reason = MaskedQuery(one.parts, "another example", "another prompt", Phase.PREDICT)
    lm.fill([one, other_reason])
    assert len(lm.backend.asked) == 1
    other_kind = MaskedQuery((Part("prompt", one.parts[0].text), *one.parts[1:]), one.example, one.prompt)
    lm.fill([other_kind])
    assert len(lm.backend.asked) == 2
    keys = {query_key("m", "c", "whole"), query_key("n", "c", "whole"), query_key("m", "d", "whole")}
    assert len({*keys, query_key("m", "c", set_digest(np.array([1])))}) == 4
    # A key of another shape would lose every recorded answer: then raise KEY_VERSION, and this with it.
    assert query_key("m", "c", "whole") == "e1d54dffbf0b867d1e3207fa7cc8b76c588498aba10e5543ea609ad9ed079ec3"


# The folder


def test_the_folder_is_private_and_holds_no_text(tmp_path):
    run = tmp_path / "runs" / "a"
    lm = metered(run)
    lm.fill(grid(3, 2))
    assert stat.S_IMODE(run.stat().st_mode) == 0o700
    for path in run.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    lm.fill([MaskedQuery(query(1, 77).parts, "a secret text given as a name", "<input> <mask>")])
    lm.close()
    for path in run.rglob("*"):
        if path.is_file():
            assert b"secret text" not in path.read_bytes(), path


def test_an_empty_folder_is_made_private_and_one_in_use_keeps_its_mode(tmp_path):
    empty, used = tmp_path / "empty", tmp_path / "used"
    for folder in (empty, used):
        folder.mkdir(mode=0o755)
    (used / "notes.txt").write_text("mine")
    for folder in (empty, used):
        metered(folder).close()
    assert stat.S_IMODE(empty.stat().st_mode) == 0o700
    assert stat.S_IMODE(used.stat().st_mode) == 0o755
    assert stat.S_IMODE((used / "cache.db").stat().st_mode) == 0o600


def test_nothing_is_evicted_and_nothing_lies_outside_the_database(tmp_path):
    lm = metered(tmp_path, vocabulary_size=60_000)
    lm.fill(grid(3, 2))
    settings = dict(rows(lm, "SELECT key, value FROM Settings"))
    assert settings["eviction_policy"] == "none"
    assert settings["cull_limit"] == 0
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} <= {
        "cache.db", "cache.db-wal", "cache.db-shm", "lock", "mark", f"{lm.ledger.session}.lock",
    }  # fmt: skip
    lm.close()
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"cache.db", "lock", "mark"}


def test_another_models_folder_is_refused_with_what_differs_and_left_as_it_was(tmp_path):
    QueryLedger(tmp_path, MODEL).close()
    before = (tmp_path / "cache.db").read_bytes()
    with pytest.raises(LedgerMismatch, match=r"dtype: float16 here, float32 there.*folder of its own"):
        QueryLedger(tmp_path, ModelIdentity("m", {"dtype": "float16"}))
    assert (tmp_path / "cache.db").read_bytes() == before


def test_a_newer_format_is_refused(tmp_path):
    QueryLedger(tmp_path, MODEL).close()
    edit(tmp_path, ("UPDATE meta SET value = '2' WHERE name = 'format'",))
    with pytest.raises(LedgerMismatch, match="newer pbsdk"):
        QueryLedger(tmp_path, MODEL)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM meta",
        "UPDATE meta SET value = '[1]' WHERE name = 'model'",
        "UPDATE meta SET value = 'x' WHERE name = 'format'",
        "INSERT INTO Settings VALUES ('disk_nonsense', 1)",
    ],
)
def test_a_folder_that_makes_no_sense_is_refused(tmp_path, statement):
    QueryLedger(tmp_path, MODEL).close()
    edit(tmp_path, (statement,))
    with pytest.raises(LedgerCorrupted, match="another run folder"):
        QueryLedger(tmp_path, MODEL)


def test_what_is_not_a_ledger_is_refused_and_left_as_it_was(tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(LedgerError, match="not a folder"):
        QueryLedger(file, MODEL)
    with pytest.raises(LedgerError, match="not a folder"):
        QueryLedger(file / "below", MODEL)
    assert file.read_text() == "mine"
    garbage = tmp_path / "garbage"
    garbage.mkdir()
    (garbage / "cache.db").write_bytes(b"not a database at all" * 500)
    with pytest.raises(LedgerError, match="not a readable ledger"):
        QueryLedger(garbage, MODEL)
    assert (garbage / "cache.db").read_bytes() == b"not a database at all" * 500
    foreign = tmp_path / "foreign"
    with diskcache.Cache(foreign) as cache:
        cache["theirs"] = 1
    with pytest.raises(LedgerError, match="not a pbsdk ledger"):
        QueryLedger(foreign, MODEL)
    with diskcache.Cache(foreign) as cache:
        assert cache["theirs"] == 1


def test_a_ledger_whose_maker_died_early_is_made_anew(tmp_path):
    (tmp_path / "cache.db").touch()
    QueryLedger(tmp_path, MODEL).close()
    assert verify_run(tmp_path).records == 1


def test_a_variable_in_the_folders_name_is_refused(tmp_path):
    with pytest.raises(LedgerError, match="variable"):
        QueryLedger(tmp_path / "$HOME", MODEL)


def test_a_folder_that_cannot_be_written_is_one_clear_error_and_can_still_be_read():
    home = Path(tempfile.mkdtemp())  # not under tmp_path, whose parents are closed to others
    home.chmod(0o755)
    run = home / "run"
    try:
        with metered(run) as lm:
            lm.fill(grid(2, 2))
        for path in run.rglob("*"):
            path.chmod(0o555 if path.is_dir() else 0o444)
        run.chmod(0o555)
        home.chmod(0o555)
        before = (run / "cache.db").read_bytes()

        def write():
            QueryLedger(run, FakeBackend(vocabulary_size=50).identity)
            return "opened"

        said = as_nobody(write)
        assert said.startswith("LedgerError: ")
        assert "can't be written" in said
        said = as_nobody(lambda: str(QueryLedger(home / "new", MODEL)))
        assert said.startswith("LedgerError: ")
        assert "can't be written" in said
        assert "all 13 records and 4 answers match" in as_nobody(lambda: str(verify_run(run)))
        assert (run / "cache.db").read_bytes() == before
        assert not (home / "new").exists()
    finally:
        for folder in (home, run, run / "sessions"):
            folder.chmod(0o755)
        shutil.rmtree(home)


def test_a_disk_that_turns_read_only_under_way_does_not_hang(tmp_path):
    lm = metered(tmp_path)
    lm.fill([query(1)])
    rows(lm, "PRAGMA query_only = ON")
    with pytest.raises(LedgerError, match="can't be written"):
        lm.fill([query(2)])
    assert len(lm.backend.asked) == 1
    rows(lm, "PRAGMA query_only = OFF")
    lm.fill([query(2)])
    lm.ledger.verify()


def test_a_full_disk_is_one_clear_error_and_what_was_stored_stays(tmp_path):
    job = start("outgrow", tmp_path, 2_000_000)
    said = job.communicate(timeout=120)[0]
    assert said.startswith("LedgerError the disk can't take more"), said
    verify_run(tmp_path)
    lm = MeteredBackend(FakeBackend(vocabulary_size=50_000, batch_size=2), tmp_path)
    kept = len(rows(lm, "SELECT * FROM answers"))
    assert 2 <= kept < 60
    assert states(lm)["unknown"] == 2
    assert len(lm.fill(grid(30, 2))) == 60
    assert len(lm.backend.asked) == 60 - kept
    lm.ledger.verify()


def test_a_disk_that_fills_up_inside_one_process_lets_it_go_on_later(tmp_path):
    lm = metered(tmp_path, vocabulary_size=50_000, batch_size=2)
    lm.fill([query(1)])
    ((pages,),) = rows(lm, "PRAGMA page_count")
    rows(lm, f"PRAGMA max_page_count = {pages + 30}")
    with pytest.raises(LedgerError, match="free some space"):
        lm.fill(grid(30, 2))
    rows(lm, "PRAGMA max_page_count = 1000000")
    assert len(lm.fill(grid(30, 2))) == 60
    lm.ledger.verify()


def test_a_disk_too_full_to_begin_leaves_nothing_half_made(tmp_path):
    said = start("create_full", tmp_path / "run").communicate(timeout=120)[0]
    assert said.startswith("LedgerError the disk can't take more"), said
    assert list(tmp_path.iterdir()) == []
    metered(tmp_path / "run").fill([query(1)])


# Hostile content


class Bomb:
    """Unpickling it writes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


ROW = "INSERT INTO Cache (key, raw, store_time, mode, filename, value) VALUES (?, ?, 0, ?, ?, ?)"


@pytest.mark.parametrize("plant", ["value", "key", "file", "text file", "binary file", "no bytes"])
def test_a_planted_pickle_is_never_read(tmp_path, plant):
    run, proof = tmp_path / "run", tmp_path / "exploded"
    bomb = pickle.dumps(Bomb(proof))
    lm = metered(run)
    lm.fill([query(1)])
    ((key,),) = rows(lm, "SELECT query FROM answers")
    lm.close()
    (run / "bomb.val").write_bytes(bomb)
    row = {
        "value": (key, 1, 4, None, bomb),
        "key": (bomb, 0, 1, None, b"x"),
        "file": (key, 1, 4, "bomb.val", None),
        "text file": (key, 1, 3, "bomb.val", None),
        "binary file": (key, 1, 2, "bomb.val", None),
        "no bytes": (key, 1, 1, None, 5),
    }[plant]
    edit(run, ("DELETE FROM Cache",), (ROW, *row))
    lm = metered(run)
    cache = lm.ledger._run._cache
    attempts = [
        lambda: lm.fill([query(1)]),
        lambda: verify_run(run),
        cache.peekitem,
        lambda: cache.peekitem(last=False),
    ]
    if plant == "key":
        attempts += [lambda: list(cache), lambda: list(reversed(cache)), lambda: list(cache.iterkeys())]
    else:
        attempts += [
            lambda: cache[key],
            lambda: cache.get(key, read=True),
            lambda: cache.read(key),
            lambda: cache.pop(key),
        ]
    for attempt in attempts:
        with pytest.raises(LedgerCorrupted):
            attempt()
    assert not proof.exists()
    assert (run / "bomb.val").exists()


def test_a_planted_queue_item_is_never_read(tmp_path):
    run, proof = tmp_path / "run", tmp_path / "exploded"
    lm = metered(run)
    row = (500_000_000_000_000, 1, 4, None, pickle.dumps(Bomb(proof)))
    for attempt in (lm.ledger._run._cache.pull, lm.ledger._run._cache.peek):
        edit(run, ("DELETE FROM Cache",), (ROW, *row))
        with pytest.raises(LedgerCorrupted):
            attempt()
    assert not proof.exists()
    with pytest.raises(LedgerCorrupted):
        verify_run(run)


def test_the_disk_writes_and_reads_strings_and_bytes_only(tmp_path):
    disk = _BytesOnly(str(tmp_path))
    for key in (1, 1.0, b"x", ("a",), None):
        with pytest.raises(LedgerError):
            disk.put(key)
    for value in (1, "x", None, ["x"], bytearray(b"x")):
        with pytest.raises(LedgerError):
            disk.store(value, False)
    with pytest.raises(LedgerError):
        disk.store(b"x", True)
    with pytest.raises(LedgerCorrupted):
        disk.remove("../somewhere")


def test_a_session_name_in_the_database_is_never_a_path(tmp_path):
    run = tmp_path / "run"
    metered(run).close()
    victim = tmp_path / "victim.lock"
    victim.touch()
    edit(run, ("INSERT INTO streams VALUES ('../../victim', 1)",))
    metered(run).fill([query(1)])
    assert victim.exists()


# Checks


def test_a_changed_answer_is_found_at_recall_and_names_its_record(tmp_path):
    lm = metered(tmp_path)
    lm.fill([query(1)])
    ((key, seq),) = rows(lm, "SELECT query, seq FROM answers")
    data = bytearray(lm.ledger._run._cache[key])
    data[-1] ^= 1
    lm.ledger._run._cache.set(key, bytes(data))
    with pytest.raises(LedgerCorrupted, match=f"record {seq} "):
        lm.fill([query(1)])
    lm.ledger._run._cache.delete(key)
    with pytest.raises(LedgerCorrupted, match="missing"):
        lm.fill([query(1)])


def test_records_are_append_only(tmp_path):
    lm = metered(tmp_path)
    lm.fill([query(1)])
    for statement in ("DELETE FROM records", "UPDATE records SET note = 'x'", "UPDATE records SET seq = seq + 1"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            rows(lm, statement)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    run = tmp_path_factory.mktemp("ledger") / "run"
    with metered(run, batch_size=3, failures=[None, BackendTimeout("late")]) as lm:
        lm.fill(grid(4, 2))
        lm.fill(grid(2, 2))
        lm.fill([query(i, 0, "predict") for i in (0, 20, 21)], np.array([1, 2, 5]))
        stream = lm.stream(grid(9, 2))
        next(stream)
        stream.close()
    return run


TAMPERING = {
    "a record changed": ["UPDATE records SET phase = 'predict' WHERE seq = 5"],
    "a time changed": ["UPDATE records SET time = time + 1 WHERE seq = 9"],
    "a hash changed": ["UPDATE records SET chain = chain || '0' WHERE seq = 7"],
    "a record deleted": ["DELETE FROM records WHERE seq = 10"],
    "the first record deleted": ["DELETE FROM records WHERE seq = 1"],
    "the last record deleted": ["DELETE FROM records WHERE seq = (SELECT max(seq) FROM records)"],
    "the tail cut off": [
        "DELETE FROM records WHERE seq > 12",
    ],
    "a record inserted": [
        "UPDATE records SET seq = -seq WHERE seq > 8",
        "UPDATE records SET seq = 1 - seq WHERE seq < 0",
        f"INSERT INTO records SELECT 9, {', '.join(FIELDS[1:])}, chain FROM records WHERE seq = 8",
    ],
    "two records swapped": [
        "UPDATE records SET seq = -5 WHERE seq = 5",
        "UPDATE records SET seq = 5 WHERE seq = 6",
        "UPDATE records SET seq = 6 WHERE seq = -5",
    ],
    "an answer deleted": ["DELETE FROM Cache WHERE rowid = (SELECT min(rowid) FROM Cache)"],
    "an answer planted": ["INSERT INTO Cache (key, raw, mode, value) VALUES ('x', 1, 1, x'00000000')"],
    "an answer unlisted": ["DELETE FROM answers WHERE seq = (SELECT min(seq) FROM answers)"],
    "an answer listed": ["INSERT INTO answers VALUES ('x', 'y', 3)"],
    "a token set changed": ["UPDATE Cache SET value = x'01000000' WHERE key LIKE 'tokens:%'"],
    "a token set said to be pickled": ["UPDATE Cache SET mode = 4 WHERE key LIKE 'tokens:%'"],
    "a token set said to be in a file": ["UPDATE Cache SET filename = 'x' WHERE key LIKE 'tokens:%'"],
    "a counter lowered": ["UPDATE passes SET sent = sent - 1 WHERE example = (SELECT min(example) FROM passes)"],
    "a pass forgotten": ["DELETE FROM passes WHERE scope = 'predict'"],
    "half a record counted": ["UPDATE totals SET records = records + 0.5"],
    "a number that is bytes": ["UPDATE totals SET records = x'00'"],
    "the totals deleted": ["DELETE FROM totals"],
    "a total lowered": ["UPDATE totals SET passes = passes - 1"],
    "tokens lowered": ["UPDATE totals SET tokens = tokens - 1"],
    "a token set listed": ["INSERT INTO sets VALUES ('x')"],
    "a token set unlisted": ["DELETE FROM sets"],
    "a word planted": ["INSERT INTO words VALUES (5, ' great')"],
    "a stream planted": ["INSERT INTO streams VALUES ('nobody', 1)"],
    "a prompt's text changed": ["UPDATE names SET text = text || ' \\ud800'"],
    "a format changed": ["UPDATE meta SET value = '0' WHERE name = 'format'"],
    "a description planted": ["INSERT INTO meta VALUES ('more', 'x')"],
    "an answer made to expire": ["UPDATE Cache SET expire_time = 1 WHERE rowid = (SELECT min(rowid) FROM Cache)"],
    "an answer tagged": ["UPDATE Cache SET tag = 'x' WHERE rowid = (SELECT min(rowid) FROM Cache)"],
    "a setting changed": ["UPDATE Settings SET value = 10 WHERE key = 'cull_limit'"],
    "a setting planted": ["INSERT INTO Settings VALUES ('disk_nonsense', 1)"],
    "a setting's count changed": ["UPDATE Settings SET value = value + 1 WHERE key = 'count'"],
    "a query put in flight": [
        "INSERT INTO inflight SELECT query, 'x', 1, 'sent', phase, example, prompt, 0, 1 FROM records WHERE seq = 6",
    ],
}


@pytest.mark.parametrize("what", TAMPERING)
def test_verify_finds(ledger, tmp_path, what):
    run = tmp_path / "run"
    shutil.copytree(ledger, run)
    assert verify_run(run).records == verify_run(ledger).records
    edit(run, *((s,) for s in TAMPERING[what]))
    with pytest.raises(LedgerCorrupted):
        verify_run(run)


IN_FLIGHT = {
    "its session": "UPDATE inflight SET session = (SELECT session || '0' FROM inflight LIMIT 1)",
    "its stream": "UPDATE inflight SET stream = stream + 1",
    "that stream unlisted": "DELETE FROM streams",
    "its state": "UPDATE inflight SET state = 'reserved' WHERE state = 'sent'",
    "its phase": "UPDATE inflight SET phase = 'predict'",
    "its example": "UPDATE inflight SET example = (SELECT max(example) FROM inflight)",
    "its prompt": "UPDATE inflight SET prompt = (SELECT max(prompt) FROM inflight)",
    "its attempts": "UPDATE inflight SET attempt = attempt + 1",
    "two costs": "UPDATE inflight SET tokens = CASE query WHEN (SELECT min(query) FROM inflight) THEN tokens + 1 "
    "WHEN (SELECT max(query) FROM inflight) THEN tokens - 1 ELSE tokens END",
}


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    run = tmp_path_factory.mktemp("killed") / "run"
    job = start("die", run, 3, 2, 2, 1)
    job.communicate()
    assert job.returncode == -signal.SIGKILL
    return run


@pytest.mark.parametrize("what", IN_FLIGHT)
def test_verify_finds_what_was_changed_of_a_query_in_flight(killed, tmp_path, what):
    run = tmp_path / "run"
    shutil.copytree(killed, run)
    verify_run(run)
    edit(run, (IN_FLIGHT[what],))
    with pytest.raises(LedgerCorrupted, match="in flight"):
        verify_run(run)


def test_verify_finds_any_changed_byte_of_an_answer(ledger, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(ledger, run)
    con = sqlite3.connect(run / "cache.db")
    stored = con.execute("SELECT rowid, value FROM Cache").fetchall()
    con.close()
    random = np.random.default_rng(0)
    for _ in range(50):
        rowid, value = stored[random.integers(len(stored))]
        changed = bytearray(value)
        changed[random.integers(len(value))] ^= 1 << int(random.integers(8))
        edit(run, ("UPDATE Cache SET value = ? WHERE rowid = ?", bytes(changed), rowid))
        with pytest.raises(LedgerCorrupted):
            verify_run(run)
        edit(run, ("UPDATE Cache SET value = ? WHERE rowid = ?", value, rowid))
    verify_run(run)


@pytest.mark.parametrize(("seq", "named"), [(5, "record 5 "), (12, "record 12 ")])
def test_verify_names_the_first_record_that_does_not_fit(ledger, tmp_path, seq, named):
    run = tmp_path / "run"
    shutil.copytree(ledger, run)
    edit(run, ("UPDATE records SET example = 'x' WHERE seq >= ?", seq))
    with pytest.raises(LedgerCorrupted, match=named):
        verify_run(run)


def test_a_cut_off_tail_is_not_healed_by_going_on(ledger, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(ledger, run)
    edit(run, ("DELETE FROM records WHERE seq = (SELECT max(seq) FROM records)",))
    with metered(run) as lm:
        lm.fill([query(50)])
    with pytest.raises(LedgerCorrupted, match="missing"):
        verify_run(run)


def test_an_exported_ledger_is_checked_by_plain_python(ledger, tmp_path):
    with LedgerReader(ledger) as reader:
        reader.export(tmp_path / "ledger.jsonl")
    top, *lines = map(json.loads, (tmp_path / "ledger.jsonl").read_text().splitlines())
    chain = top["genesis"]
    for line in lines:
        *row, claimed = line.values()
        chain = hashlib.sha256((chain + json.dumps(row, separators=(",", ":"))).encode()).hexdigest()
        assert chain == claimed
        assert list(line) == [*FIELDS, "chain"]
    assert (top["head"], top["records"]) == (chain, len(lines))
    assert str(verify_run(ledger)).endswith(chain)
    assert sum(line["state"] == "done" for line in lines) == verify_run(ledger).to_dict()["answers"]
    assert {line["prompt"] for line in lines} - {""} == set(top["prompts"])
    assert set(top["prompts"].values()) == {query(0, 0).prompt, query(0, 1).prompt}


def test_every_query_is_a_record_with_all_that_is_known_of_it(tmp_path):
    lm = metered(tmp_path, latency=0.01, sleep=[])
    (answer,) = lm.fill([query(1)])
    fields = "state, session, phase, example, attempt, latency > 0, read, cut, mass, length(answer)"
    got = rows(lm, f"SELECT {fields} FROM records WHERE query <> ''")
    session, example = lm.ledger.session, query(1).example
    assert got == [
        ("reserved", session, "train", example, 0, 0, 0, 0, 0, 0),
        ("sent", session, "train", example, 1, 0, 0, 0, 0, 0),
        ("done", session, "train", example, 1, 1, answer.read_tokens, 0, 1_000_000, 64),
    ]
    ((note,),) = rows(lm, "SELECT note FROM records WHERE state = 'opened'")
    assert json.loads(json.loads(note)["model"])["name"] == "fake"
    assert json.loads(note)["budget"]["passes"] == 10


def test_a_prompt_with_odd_characters_can_be_recorded(tmp_path):
    lm = metered(tmp_path)
    lm.fill([MaskedQuery((Part("prompt", "x\ud800"), Part("mask")), "e", "x\ud800 \x00 é <mask>")])
    lm.ledger.verify()
    with lm.ledger.reader() as reader:
        assert [json.loads(text) for text in reader.names().values()] == ["x\ud800 \x00 é <mask>"]
    edit(tmp_path, ("UPDATE names SET text = replace(text, 'mask', 'task')",))
    with pytest.raises(LedgerCorrupted, match="was changed"):
        lm.ledger.verify()


def test_reading_what_is_no_run_folder_says_so(tmp_path):
    with pytest.raises(LedgerError, match="not a run folder"):
        verify_run(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_a_ledger_can_be_read_while_it_is_written(tmp_path):
    lm = metered(tmp_path, batch_size=1)
    assert [verify_run(tmp_path).answers for _ in lm.stream(grid(4, 1))] == [1, 2, 3, 4]


def test_a_forked_child_has_a_session_of_its_own_and_the_parents_goes_on(tmp_path):
    lm = metered(tmp_path, batch_size=1)
    stream = lm.stream(grid(3, 1))
    next(stream)
    child = os.fork()
    if child == 0:
        try:
            lm.fill([query(7), query(0)])
            os._exit(0 if lm.ledger._session.process == os.getpid() else 2)
        except BaseException:  # noqa: BLE001 - the parent judges
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(list(stream)) == 2
    assert len(rows(lm, "SELECT DISTINCT session FROM records")) == 2
    assert states(lm) == {"reserved": 4, "sent": 4, "done": 4, "hit": 1}
    lm.ledger.verify()


def test_a_transaction_that_an_interrupt_left_open_is_rolled_back(tmp_path):
    lm = metered(tmp_path)
    rows(lm, "BEGIN IMMEDIATE")
    rows(lm, "UPDATE totals SET passes = 99")
    lm.fill([query(1)])
    assert rows(lm, "SELECT passes FROM totals") == [(1,)]
    lm.ledger.verify()


def test_a_folder_that_stays_locked_is_one_clear_error(tmp_path, monkeypatch):
    monkeypatch.setattr("pbsdk.ledger.folder._PATIENCE", 0.05)
    lm = metered(tmp_path)
    other = sqlite3.connect(tmp_path / "cache.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerError, match="another process has been writing"):
        lm.fill([query(1)])
    other.execute("ROLLBACK")
    other.close()
    assert lm.backend.asked == []
    lm.fill([query(1)])


def test_a_session_is_looked_at_once_in_a_transaction_however_many_streams_it_has(tmp_path, monkeypatch):
    one, two = metered(tmp_path), metered(tmp_path, batch_size=1)
    streams = [two.stream([query(i), query(100 + i)]) for i in range(5)]
    for stream in streams:
        next(stream)
    looks, alive = [], Session.alive
    monkeypatch.setattr(Session, "alive", staticmethod(lambda place, name: looks.append(name) or alive(place, name)))
    one.fill([query(50)])
    assert looks == [two.ledger.session] * 3  # reserving, claiming, closing the stream


def test_threads_take_turns(tmp_path):
    ledger, over = QueryLedger(tmp_path, MODEL), threading.Event()
    counts = [0] * 32
    ready = threading.Barrier(len(counts))

    def write(number):
        ready.wait()
        while not over.is_set():
            with ledger.rehearsal():
                counts[number] += 1
            if min(counts) >= 3 or max(counts) >= 2000:
                over.set()

    with ThreadPoolExecutor(len(counts)) as pool:
        list(pool.map(write, range(len(counts))))
    assert min(counts) >= 3  # a few hundred turns of the luckiest; without a queue, thousands


def test_a_damaged_database_is_corrupt_whatever_is_read(tmp_path):
    with metered(tmp_path, vocabulary_size=5000) as lm:
        lm.fill(grid(10, 2))
    path = tmp_path / "cache.db"
    data = bytearray(path.read_bytes())
    data[16384:] = bytes(len(data) - 16384)
    path.write_bytes(data)
    with pytest.raises(LedgerError):
        metered(tmp_path)
    with pytest.raises(LedgerError):
        verify_run(tmp_path)


def test_a_missing_token_set_is_corrupt(tmp_path):
    tokens = np.array([1, 2])
    with metered(tmp_path) as lm:
        lm.fill([query(1)], tokens)
    edit(tmp_path, ("DELETE FROM Cache WHERE key LIKE 'tokens:%'",))
    with metered(tmp_path) as lm, pytest.raises(LedgerCorrupted, match="token set"):
        lm.fill([query(1)], tokens)


def test_a_query_taken_from_a_live_stream_is_one_clear_error(tmp_path):
    lm = metered(tmp_path)

    def steal(answers):
        edit(tmp_path, ("DELETE FROM inflight",))
        return answers

    fill = lm.backend.fill
    lm.backend.fill = lambda queries, tokens=None: steal(fill(queries, tokens))
    with pytest.raises(LedgerError, match="network file system"):
        lm.fill([query(1)])


def test_a_ledgers_repr_is_short(tmp_path):
    assert repr(QueryLedger(tmp_path, MODEL)) == f"QueryLedger({str(tmp_path)!r}, 'm')"


@pytest.mark.parametrize("top", [None, 20])
def test_chosen_answers_are_replayed_by_another_session(tmp_path, top):
    tokens = np.array([1, 2, 30])
    with metered(tmp_path, top=top) as lm:
        first = lm.fill(grid(3, 2), tokens)
    with metered(tmp_path, top=top) as lm:
        assert all(map(same, lm.fill(grid(3, 2), tokens), first))
        assert all(map(same, lm.fill(grid(3, 2), tokens[1:]), [answer.narrowed(tokens[1:]) for answer in first]))
        assert lm.backend.asked == []


def test_a_folder_for_sessions_that_cannot_be_made_is_one_clear_error(tmp_path):
    metered(tmp_path).close()
    (tmp_path / "sessions").rmdir()
    (tmp_path / "sessions").write_text("in the way")
    with pytest.raises(LedgerError, match=r"can't be used|not a folder"):
        metered(tmp_path)
