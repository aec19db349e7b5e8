"""Proofs: one query shown and no other, and a record that only grew, each without the ledger."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers.meter import grid, metered

from pbsdk.audit.certificate import Certificate, Growth
from pbsdk.audit.inclusion import InclusionProof
from pbsdk.audit.signing import PrivateKey
from pbsdk.errors import InputError, LedgerCorrupted
from pbsdk.ledger.chain import FIELDS, canonical, link
from pbsdk.ledger.merkle import hash_runs, leaf_hash
from pbsdk.ledger.reader import LedgerReader


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run, and certificates of its beginning, of some more, and of the whole."""
    folder, certificates = tmp_path_factory.mktemp("proof") / "run", []
    with metered(folder) as lm:
        for examples in (3, 5, 8):
            lm.fill(grid(examples, 2))
            certificates.append(Certificate.of(folder, since=certificates[-1] if certificates else None))
    return folder, *certificates


@pytest.fixture(scope="module")
def records(made):
    with LedgerReader(made[0]) as reader:
        return list(reader.select("SELECT * FROM records ORDER BY seq"))


def test_the_root_is_that_of_the_records_as_they_are_hashed(made, records):
    leaves = [leaf_hash(canonical(row[:-1]).encode()) for row in records]
    for certificate in made[1:]:
        told = certificate.read_checkpoint()
        assert told.root == hash_runs(leaves, [(0, told.size)])[0]
        assert told.origin == f"pbsdk/run/{records[0][-1][:32]}"


@pytest.mark.parametrize("at", [1, 2, 3])
def test_every_record_that_a_certificate_covers_can_be_proved(made, records, at):
    run, certificate = made[0], made[at]
    for seq in (1, 2, certificate.records // 2, certificate.records):
        proof = InclusionProof.of(run, seq, certificate)
        assert proof.check(certificate) == "unsigned"
        assert list(proof.record.values()) == list(records[seq - 1][:-1])
    if at < 3:
        with pytest.raises(InputError, match=f"no record {certificate.records + 1} among the {certificate.records}"):
            InclusionProof.of(run, certificate.records + 1, certificate)


def test_a_proof_shows_its_own_query_and_nothing_of_the_others(made, records, tmp_path):
    run, _, _, certificate = made
    done = next(row for row in records if row[4] == "done")
    proof = InclusionProof.of(run, done[3], certificate)  # by the query's key
    text = proof.to_json()
    assert proof.record["seq"] == done[0]
    own = set(map(str, done[:-1]))
    others = {value for row in records for value in (row[3], row[6], row[13], row[15]) if value and value not in own}
    assert not [value for value in others if value in text]
    assert all(word not in text for word in ("attempts", "tokens_read", "passes", done[-1], certificate.head))
    (tmp_path / "proof.json").write_text(text)
    assert InclusionProof.load(tmp_path / "proof.json") == proof


def test_a_proof_changed_in_any_field_hash_or_place_is_found(made):
    run, _, older, certificate = made
    proof = InclusionProof.of(run, 7, certificate)
    random = np.random.default_rng(0)
    for name in FIELDS:
        value = proof.record[name]
        other = value + int(random.integers(1, 5)) if isinstance(value, int) else f"{value}x"
        with pytest.raises(LedgerCorrupted, match="it, or its path, was changed"):
            proof.model_copy(update={"record": {**proof.record, name: other}}).check()
    for path in (
        [*proof.path[1:]],
        [*proof.path, "00" * 32],
        ["00" * 32, *proof.path[1:]],
        ["no hash", *proof.path[1:]],
    ):
        with pytest.raises(LedgerCorrupted, match="it, or its path, was changed"):
            proof.model_copy(update={"path": path}).check()
    with pytest.raises(LedgerCorrupted, match="it, or its path, was changed"):
        proof.model_copy(update={"checkpoint": older.checkpoint}).check()
    with pytest.raises(LedgerCorrupted, match="their checkpoints differ"):
        proof.check(older)


def test_a_proof_is_signed_by_whoever_signed_its_certificate(made):
    run, _, _, certificate = made
    key = PrivateKey.new("alice")
    proof = InclusionProof.of(run, 7, certificate.signed(key))
    assert proof.check(key=key.public) == f"signed by alice ({key.public.id})"
    with pytest.raises(LedgerCorrupted, match="not signed by bob"):
        proof.check(key=PrivateKey.new("bob").public)


def test_what_is_no_proof_or_no_query_is_said_to_be_none(made, tmp_path):
    run, _, _, certificate = made
    with pytest.raises(InputError, match="holds no answer to"):
        InclusionProof.of(run, "beef", certificate)
    with pytest.raises(InputError, match="no record 0 among"):
        InclusionProof.of(run, 0, certificate)
    whole = json.loads(InclusionProof.of(run, 7, certificate).to_json())
    for change in (
        {"checkpoint": "none"},
        {"record": {"seq": 7}},
        {"record": {**whole["record"], "seq": "7"}},
        {"more": 1},
    ):
        (tmp_path / "p.json").write_text(json.dumps({**whole, **change}))
        with pytest.raises(InputError, match="is not what `pbsdk audit prove` writes"):
            InclusionProof.load(tmp_path / "p.json")


# A record that only grew


def test_two_certificates_and_a_proof_show_without_the_ledger_that_it_only_grew(made):
    _, first, second, third = made
    assert second.check_growth(first) == second.records - first.records
    assert third.check_growth(second) == third.records - second.records
    assert third.check_growth(third) == 0
    with pytest.raises(InputError, match=f"no proof since the one of {first.records} records"):
        third.check_growth(first)
    with pytest.raises(InputError, match="covers more records"):
        first.check_growth(second)


def test_a_proof_of_growth_that_was_changed_or_is_another_run_s_is_found(made, tmp_path):
    _, first, second, third = made
    path = second.since.path
    for wrong in (path[1:], (*path, "00" * 32), ("00" * 32, *path[1:]), ("no hash",)):
        with pytest.raises(LedgerCorrupted, match="didn't only grow"):
            second.model_copy(update={"since": Growth(size=first.records, path=wrong)}).check_growth(first)
    with pytest.raises(LedgerCorrupted, match="are not those it was made with"):
        second.model_copy(update={"attempts": 1}).check_growth(first)
    with metered(tmp_path / "other") as lm:
        lm.fill(grid(3, 2))
    with pytest.raises(LedgerCorrupted, match="two different runs"):
        third.check_growth(Certificate.of(tmp_path / "other"))


def rewritten(folder, before, records, at):
    """Write a run's records into another folder, one of them changed and all hashes made again."""
    from helpers.tampering import edit

    chain, rows = "0" * 64, []
    for row in records:
        fields = [*row[:9], row[9] + (row[0] == at), *row[10:-1]]
        chain = link(chain, fields)
        rows.append(("INSERT INTO records VALUES (" + ", ".join("?" * 16) + ")", *fields, chain))
    folder.mkdir()
    (folder / "cache.db").write_bytes((before / "cache.db").read_bytes())
    edit(folder, ("DELETE FROM records",), *rows, ("UPDATE totals SET head = ?", chain))
    return folder


def test_a_ledger_rewritten_since_a_certificate_is_not_certified_as_its_growth(made, records, tmp_path):
    run, first, _, third = made
    done = next(row[0] for row in records if row[4] == "done")
    forged = rewritten(tmp_path / "forged", run, records, done)
    fresh = Certificate.of(forged)  # it verifies, and has a certificate of its own
    assert fresh.records == third.records
    with pytest.raises(LedgerCorrupted, match=f"a record up to {first.records} was rewritten since"):
        Certificate.of(forged, since=first)
    with pytest.raises(LedgerCorrupted, match="was rewritten"):
        first.check(forged)
    with pytest.raises(LedgerCorrupted, match="is not that of its first"):
        InclusionProof.of(forged, done, third)
    pasted = fresh.model_copy(update={"since": third.since})
    with pytest.raises(LedgerCorrupted, match="didn't only grow"):
        pasted.check_growth(made[2])


def test_a_certificate_made_since_one_that_covers_more_is_refused(made, tmp_path):
    _, first, second, _ = made
    with metered(tmp_path / "run") as lm:
        lm.fill(grid(1, 1))
    with pytest.raises(LedgerCorrupted, match=f"covers {first.records} records"):
        Certificate.of(tmp_path / "run", since=first)
    with pytest.raises(LedgerCorrupted, match=f"covers {second.records} records"):
        Certificate.of(made[0], first.records, since=second)
