"""Proof: whatever is changed is found, with and without pbsdk, and the first record that doesn't fit is named."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.meter import grid, metered, query
from helpers.tampering import edit

from pbsdk.audit.certificate import Certificate
from pbsdk.errors import BackendTimeout, BackendUnavailable, InputError, LedgerCorrupted
from pbsdk.ledger.chain import FIELDS, link
from pbsdk.ledger.reader import LedgerReader
from pbsdk.ledger.verifier import verify_run

SCRIPT = Path(__file__).parents[2] / "docs" / "verify_ledger.py"
TRIALS = 200


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A ledger with every state in it but `opened` alone: hits, failures, unknowns, releases, chosen tokens."""
    folder = tmp_path_factory.mktemp("proof") / "run"
    failures = [None, BackendTimeout("late"), BackendUnavailable("busy")]
    with metered(folder, batch_size=3, failures=failures) as lm:
        lm.fill(grid(4, 2))
        lm.fill(grid(2, 2))
        lm.fill([query(i, 0, "predict") for i in (0, 20, 21)], np.array([1, 2, 5]))
        stream = lm.stream(grid(7, 2, "validate"))
        next(stream)
        stream.close()
    return folder


@pytest.fixture(scope="module")
def records(run):
    with LedgerReader(run) as reader:
        return list(reader.select("SELECT * FROM records ORDER BY seq"))


@pytest.fixture
def tamper(run, tmp_path):
    """Return a function that changes a fresh copy of the ledger and returns its folder."""
    copy = tmp_path / "copy"

    def change(*statements):
        shutil.rmtree(copy, ignore_errors=True)  # SQLite's side files of the last time, too
        copy.mkdir()
        shutil.copy(run / "cache.db", copy / "cache.db")
        edit(copy, *statements)
        return copy

    return change


def named(folder):
    """Return which record a verification that must fail names."""
    with pytest.raises(LedgerCorrupted) as caught:
        verify_run(folder)
    return int(re.search(r"record (\d+)", str(caught.value)).group(1))


def other_value(random, value):
    return (
        value + int(random.integers(1, 9))
        if isinstance(value, int)
        else value[:-1] + ("x" if value[-1:] != "x" else "y")
    )


def put(row):
    return (f"INSERT INTO records VALUES ({', '.join('?' * len(row))})", *row)


def test_any_changed_field_of_any_record_is_found_and_named(records, tamper):
    random = np.random.default_rng(1)
    for _ in range(TRIALS):
        row = records[random.integers(len(records))]
        field = int(random.integers(1, len(row)))
        name = [*FIELDS, "chain"][field]
        folder = tamper((f"UPDATE records SET {name} = ? WHERE seq = ?", other_value(random, row[field]), row[0]))
        assert named(folder) == row[0]


def test_a_record_changed_together_with_its_hash_is_found_at_the_next(records, tamper):
    random = np.random.default_rng(2)
    for _ in range(TRIALS // 2):
        seq = int(random.integers(1, len(records)))  # not the last: that is the certificate's business
        row = list(records[seq - 1][:-1])
        field = int(random.integers(8, 13))
        row[field] += 1
        before = records[seq - 2][-1] if seq > 1 else "0" * 64
        folder = tamper(("DELETE FROM records WHERE seq = ?", seq), put([*row, link(before, row)]))
        assert named(folder) == seq + 1


def test_any_deleted_record_is_found_and_named(records, tamper):
    for row in records:
        assert named(tamper(("DELETE FROM records WHERE seq = ?", row[0]))) == row[0]


def test_a_deleted_record_is_found_though_the_others_move_up(records, tamper):
    random = np.random.default_rng(3)
    for seq in random.integers(1, len(records), TRIALS // 2).tolist():
        folder = tamper(
            ("DELETE FROM records WHERE seq = ?", seq),
            ("UPDATE records SET seq = -seq WHERE seq > ?", seq),
            ("UPDATE records SET seq = -seq - 1 WHERE seq < 0",),
        )
        assert named(folder) == seq


def test_any_inserted_record_is_found(records, tamper):
    random = np.random.default_rng(4)
    for _ in range(TRIALS):
        seq = int(random.integers(1, len(records) + 1))
        row = [seq, *records[random.integers(len(records))][1:-1]]
        before = records[seq - 2][-1] if seq > 1 else "0" * 64
        forged = bool(random.integers(2))
        folder = tamper(
            ("UPDATE records SET seq = -seq WHERE seq >= ?", seq),
            ("UPDATE records SET seq = 1 - seq WHERE seq < 0",),
            put([*row, link(before, row) if forged else records[seq - 1][-1]]),
        )
        assert named(folder) in {seq, seq + 1}


def test_any_two_records_swapped_are_found_and_the_first_named(records, tamper):
    random = np.random.default_rng(5)
    for _ in range(TRIALS):
        one, two = sorted(int(seq) for seq in random.choice(len(records), 2, replace=False) + 1)
        folder = tamper(
            ("UPDATE records SET seq = -1 WHERE seq = ?", one),
            ("UPDATE records SET seq = ? WHERE seq = ?", one, two),
            ("UPDATE records SET seq = ? WHERE seq = -1", two),
        )
        assert named(folder) == one


def test_any_changed_added_or_cut_byte_of_an_answer_is_found_and_named(run, tamper):
    random = np.random.default_rng(6)
    with LedgerReader(run) as reader:
        answers = list(reader.select("SELECT a.seq, c.rowid, c.value FROM answers a JOIN Cache c ON c.key = a.query"))
    for _ in range(TRIALS):
        seq, rowid, value = answers[random.integers(len(answers))]
        data, at = bytearray(value), int(random.integers(len(value)))
        kind = random.integers(3)
        if kind == 0:
            data[at] ^= 1 << int(random.integers(8))
        elif kind == 1:
            del data[at]
        else:
            data.insert(at, int(random.integers(256)))
        if bytes(data) != value:
            assert named(tamper(("UPDATE Cache SET value = ? WHERE rowid = ?", bytes(data), rowid))) == seq


@pytest.mark.parametrize(
    ("what", "statement"),
    [
        ("the token set", "DELETE FROM Cache WHERE key LIKE 'tokens:%'"),
        ("text of prompt", "UPDATE names SET text = text || '!'"),
        ("text of its prompt", "DELETE FROM names"),
        ("a different model", """UPDATE meta SET value = '{"name": "other"}' WHERE name = 'model'"""),
    ],
)
def test_what_the_records_refer_to_is_checked_too(tamper, what, statement):
    with pytest.raises(LedgerCorrupted, match=what):
        verify_run(tamper((statement,)))


def test_a_chain_forged_from_the_start_is_found_by_its_states_or_counts(records, tamper):
    random = np.random.default_rng(7)
    for _ in range(TRIALS // 4):
        drop = int(random.integers(1, len(records)))
        if records[drop][4] == "hit":  # a hit weighs nothing: only a certificate finds that
            continue
        rows, chain = [], "0" * 64
        for seq, row in enumerate(records[:drop] + records[drop + 1 :], 1):
            chain = link(chain, (seq, *row[1:-1]))
            rows.append(put([seq, *row[1:-1], chain]))
        folder = tamper(("DELETE FROM records",), *rows, ("UPDATE totals SET records = ?, head = ?", len(rows), chain))
        with pytest.raises(LedgerCorrupted):
            verify_run(folder)


# The certificate


def test_a_certificate_holds_while_the_run_goes_on(tmp_path):
    lm = metered(tmp_path / "run")
    lm.fill(grid(3, 2))
    certificate = Certificate.of(tmp_path / "run")
    assert (certificate.answers, certificate.passes, certificate.most) == (6, {"fit": 6}, {"fit": 2})
    lm.fill(grid(5, 3))
    assert certificate.check(tmp_path / "run").answers == 15
    again = Certificate.of(tmp_path / "run", certificate.records)
    assert again.counts() == certificate.counts()
    told, retold = certificate.read_checkpoint(), again.read_checkpoint()
    assert (told.origin, told.size, told.root, told.counts) == (retold.origin, retold.size, retold.root, retold.counts)
    certificate.save(tmp_path / "c.json")
    assert Certificate.load(tmp_path / "c.json") == certificate


def test_the_counts_are_those_of_the_report(run):
    from pbsdk.audit.report import AuditReport

    certificate, report = Certificate.of(run), AuditReport.read(run)
    for name in ("hits", "attempts", "failed", "unknown", "tokens_read"):
        assert getattr(certificate, name) == sum(getattr(phase, name) for phase in report.phases)
    assert certificate.passes == {scope.scope: scope.passes for scope in report.scopes}
    assert certificate.most == {scope.scope: scope.most for scope in report.scopes}
    assert (certificate.records, certificate.head) == (report.records, report.head)


def test_a_folder_rewritten_as_a_whole_is_found_by_a_certificate_kept_elsewhere(run, tmp_path):
    certificate = Certificate.of(run)
    with metered(tmp_path / "longer", batch_size=3) as lm:
        lm.fill(grid(20, 2))
    verify_run(tmp_path / "longer")
    with pytest.raises(LedgerCorrupted, match=f"record {certificate.records} has a different hash"):
        certificate.check(tmp_path / "longer")
    with metered(tmp_path / "shorter") as lm:
        lm.fill(grid(1, 1))
    with pytest.raises(LedgerCorrupted, match="record 5 is missing"):
        certificate.check(tmp_path / "shorter")


@pytest.mark.parametrize("name", ["attempts", "hits", "answers", "tokens_read"])
def test_a_certificate_that_says_another_count_is_found(run, name):
    certificate = Certificate.of(run)
    wrong = certificate.model_copy(update={name: getattr(certificate, name) + 1})
    with pytest.raises(LedgerCorrupted, match=f"{name} up to record {certificate.records}"):
        wrong.check(run)


@pytest.mark.parametrize("content", ["{}", "not JSON", b"\xff"])
def test_what_is_no_certificate_is_said_to_be_none(tmp_path, content):
    (tmp_path / "c.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match="can't be read"):
        Certificate.load(tmp_path / "c.json")
    with pytest.raises(InputError, match="can't be read"):
        Certificate.load(tmp_path / "nowhere.json")


# The script that needs no pbsdk


@pytest.fixture(scope="module")
def standalone():
    spec = importlib.util.spec_from_file_location("verify_ledger", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    with LedgerReader(run) as reader:
        reader.export(folder / "ledger.jsonl")
        reader.export(folder / "whole.jsonl", answers=True)
    Certificate.of(run).save(folder / "certificate.json")
    return folder


def test_the_script_is_short_and_needs_the_standard_library_alone():
    lines = SCRIPT.read_text("utf-8").splitlines()
    assert len(lines) <= 160
    imported = {line.split()[1] for line in lines if line.startswith(("import ", "from "))}
    assert imported <= sys.stdlib_module_names
    assert not any("pbsdk" in line for line in lines if "import" in line)


def test_the_script_counts_what_the_certificate_says(exported):
    command = [sys.executable, "-I", SCRIPT, exported / "ledger.jsonl", exported / "certificate.json"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    certificate = json.loads((exported / "certificate.json").read_text())
    counted = json.loads(shown.stdout)
    assert counted == {name: certificate[name] for name in counted}
    assert {"records", "head", "passes", "most", "attempts"} <= set(counted)


def test_the_script_finds_whatever_is_done_to_an_export(exported, standalone, tmp_path, capsys):
    top, *lines = (exported / "ledger.jsonl").read_text().splitlines()
    random = np.random.default_rng(8)
    file = tmp_path / "ledger.jsonl"
    for trial in range(2 * TRIALS):
        changed, at = list(lines), int(random.integers(len(lines)))
        if trial % 4 == 0:
            record = json.loads(changed[at])
            name = list(record)[random.integers(1, len(record))]
            changed[at] = json.dumps({**record, name: other_value(random, record[name])})
        elif trial % 4 == 1:
            del changed[at]
        elif trial % 4 == 2:
            changed.insert(at, lines[random.integers(len(lines))])
        else:
            other = (at + int(random.integers(1, len(lines)))) % len(lines)
            at, other = min(at, other), max(at, other)
            changed[at], changed[other] = changed[other], changed[at]
        file.write_text("\n".join([top, *changed]) + "\n")
        with pytest.raises(SystemExit, match=rf"record ({at + 1}|{at + 2}) "):
            standalone.main(str(file))
    file.write_text("\n".join([top, *lines]) + "\n")
    standalone.main(str(file), str(exported / "certificate.json"))
    assert '"attempts"' in capsys.readouterr().out


def test_the_script_finds_a_certificate_that_does_not_fit(exported, standalone, tmp_path):
    certificate = json.loads((exported / "certificate.json").read_text())
    for change in ({"attempts": 1}, {"head": "0" * 64}, {"records": 10_000}, {"passes": {"fit": 1}}):
        (tmp_path / "c.json").write_text(json.dumps({**certificate, **change}))
        with pytest.raises(SystemExit, match="certificate"):
            standalone.main(str(exported / "ledger.jsonl"), str(tmp_path / "c.json"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[" * 100_000, "nests more than 100 deep"),
        (b'{"records": ' + b"9" * 5000 + b"}", "whole number of 5,000 digits"),
        (b'{"model": "' + b"x" * (1 << 20) + b'"}', "more than 1,048,576 bytes"),
        (b"\xff", "audit certify"),
        (b"{}", "audit certify"),
    ],
    ids=["nested", "number", "size", "encoding", "empty"],
)
def test_a_certificate_made_to_harm_is_one_clear_error(tmp_path, content, said):
    (tmp_path / "c.json").write_bytes(content)
    with pytest.raises(InputError, match=said) as caught:
        Certificate.load(tmp_path / "c.json")
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("records", [-1, 10**19])
def test_a_certificate_of_a_number_of_records_that_cannot_be_is_refused(run, tmp_path, records):
    made = json.loads(Certificate.of(run).to_json())
    (tmp_path / "c.json").write_text(json.dumps({**made, "records": records}))
    with pytest.raises(InputError):
        Certificate.load(tmp_path / "c.json").check(run)


def test_the_script_finds_a_changed_root_count_digest_or_origin(exported, standalone, tmp_path):
    certificate = json.loads((exported / "certificate.json").read_text())
    lines = certificate["checkpoint"].split("\n")
    for at, changed in ((0, "pbsdk/run/00"), (2, "A" * 43 + "="), (4, "counts 00"), (4, f"{lines[4]}\nmore")):
        note = "\n".join([*lines[:at], changed, *lines[at + 1 :]])
        (tmp_path / "c.json").write_text(json.dumps({**certificate, "checkpoint": note}))
        with pytest.raises(SystemExit, match="checkpoint"):
            standalone.main(str(exported / "ledger.jsonl"), str(tmp_path / "c.json"))


def test_the_script_checks_the_answers_themselves_if_they_are_exported(exported, standalone, tmp_path, capsys):
    lines = (exported / "whole.jsonl").read_text().splitlines()
    held = [at for at, line in enumerate(lines) if line.startswith('{"bytes"')]
    assert len(held) == json.loads((exported / "certificate.json").read_text())["answers"]
    standalone.main(str(exported / "whole.jsonl"))
    assert "the answers themselves" not in capsys.readouterr().err
    other = json.dumps({"bytes": "AAAA"})
    for changed, said in (
        ([*lines[: held[0]], other, *lines[held[0] + 1 :]], "its answer was changed"),
        ([*lines[: held[0]], *lines[held[0] + 1 :]], "answers are missing"),
        ([*lines[: held[0]], lines[held[0]], *lines[held[0] :]], "its answer was changed"),
    ):
        (tmp_path / "ledger.jsonl").write_text("\n".join(changed) + "\n")
        with pytest.raises(SystemExit, match=said):
            standalone.main(str(tmp_path / "ledger.jsonl"))


def relinked(top, records):
    """Return an export's lines with all hashes made again, as somebody would who rewrites the whole ledger."""
    chain, lines = "0" * 64, []
    for record in records:
        chain = link(chain, list(record.values())[:-1])
        lines.append(json.dumps({**record, "chain": chain}))
    return "\n".join([json.dumps({**top, "head": chain, "records": len(lines)}), *lines]) + "\n"


def test_the_script_finds_what_does_not_follow_from_its_parts_though_all_hashes_fit(exported, standalone, tmp_path):
    top, *records = map(json.loads, (exported / "ledger.jsonl").read_text().splitlines())
    names = list(top["prompts"])

    def first(state):
        return next(at for at, record in enumerate(records) if record["state"] == state)

    def changed(at, **fields):
        return relinked(top, [*records[:at], {**records[at], **fields}, *records[at + 1 :]])

    renamed = {"latency": "read", "read": "latency"}
    swapped = [{renamed.get(name, name): value for name, value in record.items()} for record in records]
    for text, said in (
        (changed(first("reserved"), note=f"{'0' * 32} whole"), "the key is not that of its parts"),
        (changed(first("reserved"), prompt="0" * 32), "the text of its prompt is missing"),
        (changed(first("hit"), answer="0" * 64), "a hit on no such answer"),
        (changed(first("opened"), note='{"model": "another"}'), "another model was asked"),
        (changed(first("unknown"), read=records[first("unknown")]["read"] + 1), "the folder's totals are not"),
        (relinked({**top, "prompts": {**top["prompts"], names[0]: "other"}}, records), "the text of prompt"),
        (relinked({**top, "totals": {**top["totals"], "sent": 1}}, records), "the folder's totals are not"),
        (relinked(top, swapped), "record 1 is missing or was changed"),  # names that lie about their places
    ):
        (tmp_path / "ledger.jsonl").write_text(text)
        with pytest.raises(SystemExit, match=said):
            standalone.main(str(tmp_path / "ledger.jsonl"))


def test_the_script_says_what_it_does_not_check(run, exported, standalone, tmp_path, capsys):
    pytest.importorskip("cryptography")
    from pbsdk.audit.signing import PrivateKey

    Certificate.of(run).signed(PrivateKey.new("alice")).save(tmp_path / "signed.json")
    plain = {"words, token sets and settings", "the answers themselves"}
    for certificate, also in (
        ([], {"whether the whole ledger was rewritten"}),
        ([str(exported / "certificate.json")], set()),
        ([str(tmp_path / "signed.json")], {"the signature: Python's standard library has no Ed25519"}),
    ):
        standalone.main(str(exported / "ledger.jsonl"), *certificate)
        said = capsys.readouterr().err.splitlines()
        assert len(said) == len(plain | also)
        assert all(any(line.startswith(f"not checked: {what}") for line in said) for what in plain | also)
