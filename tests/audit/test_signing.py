"""Keys and signatures: what is signed can't be changed, and a private key stays with its owner."""

from __future__ import annotations

import base64
import sys

import pytest
from helpers.meter import metered

from pbsdk.audit.checkpoint import Checkpoint
from pbsdk.audit.signing import PrivateKey, PublicKey, Signature
from pbsdk.errors import InputError, LedgerCorrupted, MissingExtra

CHECKPOINT = Checkpoint("pbsdk/run/00ff", 7, bytes(range(32)), "2026-11-18T20:00:00Z", "c0ffee")


@pytest.fixture
def key():
    return PrivateKey.new("example.com/alice")


def test_a_key_s_id_and_line_are_those_of_signed_notes():
    # The example of Go's package golang.org/x/mod/sumdb/note.
    key = PublicKey.read("PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW")
    text = (
        "If you think cryptography is the answer to your problem,\n"
        "then you don't know what your problem is.\n"
    )  # fmt: skip
    line = "— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM="
    signature = Signature.read(line)
    assert (key.id, signature.id, str(signature)) == ("c74f20a3", "c74f20a3", line)
    assert key.accepts(text, signature)
    assert not key.accepts(text.replace("you", "we"), signature)


def test_a_note_is_read_as_it_was_written(key):
    for checkpoint in (CHECKPOINT, CHECKPOINT.signed(key), CHECKPOINT.signed(key).signed(PrivateKey.new("bob"))):
        assert Checkpoint.read(checkpoint.note()) == checkpoint
    for at in range(len(CHECKPOINT.note())):
        broken = CHECKPOINT.note()[:at] + "\n" + CHECKPOINT.note()[at:]
        with pytest.raises(ValueError, match="no checkpoint"):
            Checkpoint.read(broken)


def test_a_signature_holds_for_its_text_and_its_key_alone(key):
    signed = CHECKPOINT.signed(key)
    assert signed.check_signature(key.public) == f"signed by example.com/alice ({key.public.id})"
    assert "not checked" in signed.check_signature(None)
    assert CHECKPOINT.check_signature(None) == "unsigned"
    for field, value in (
        ("size", 8),
        ("root", bytes(32)),
        ("time", "2027"),
        ("counts", "00"),
        ("origin", "pbsdk/run/01"),
    ):
        changed = Checkpoint(**{**vars(signed), field: value})
        with pytest.raises(LedgerCorrupted, match=r"is not signed by example\.com/alice"):
            changed.check_signature(key.public)
    for other in (PrivateKey.new("example.com/alice"), PrivateKey.new("bob")):
        with pytest.raises(LedgerCorrupted, match="is not signed by"):
            signed.check_signature(other.public)
    with pytest.raises(LedgerCorrupted, match="is not signed by"):
        CHECKPOINT.check_signature(key.public)


def test_the_private_key_is_its_owner_s_alone_and_never_overwritten(key, tmp_path):
    beside = key.save(tmp_path / "alice.key")
    assert beside == tmp_path / "alice.key.pub"
    assert (tmp_path / "alice.key").stat().st_mode & 0o777 == 0o600
    assert PublicKey.read(str(beside)) == key.public == PublicKey.read(str(key.public))
    assert PrivateKey.load(tmp_path / "alice.key").public == key.public
    assert base64.b64encode(key._seed).decode() not in repr(key)
    with pytest.raises(InputError, match="never overwritten"):
        PrivateKey.new("bob").save(tmp_path / "alice.key")
    (tmp_path / "alice.key").chmod(0o640)
    with pytest.raises(InputError, match="chmod 600"):
        PrivateKey.load(tmp_path / "alice.key")


def test_a_private_key_is_refused_in_a_run_folder(key, tmp_path):
    metered(tmp_path / "run").close()
    (tmp_path / "link").symlink_to(tmp_path / "run")
    key.save(tmp_path / "alice.key")
    (tmp_path / "run" / "alice.key").write_bytes((tmp_path / "alice.key").read_bytes())
    for place in ("run/bob.key", "link/bob.key", "run/sessions/bob.key"):
        with pytest.raises(InputError, match="must not lie in the run folder"):
            key.save(tmp_path / place)
    with pytest.raises(InputError, match="must not lie in the run folder"):
        PrivateKey.load(tmp_path / "run" / "alice.key")


def test_what_is_no_key_is_said_to_be_none(key, tmp_path):
    key.save(tmp_path / "alice.key")
    with pytest.raises(InputError, match="is a private key; give the public one"):
        PublicKey.read(str(tmp_path / "alice.key"))
    line = str(key.public)
    for wrong in ("no key", line[:-4], line.replace("alice", "bob"), ""):
        (tmp_path / "wrong").write_text(wrong)
        with pytest.raises(InputError, match="is not a public key"):
            PublicKey.read(str(tmp_path / "wrong"))
        with pytest.raises(InputError, match="is not a private key"):
            PrivateKey.load(tmp_path / "wrong")
    with pytest.raises(InputError, match="can't be read"):
        PublicKey.read(str(tmp_path / "nowhere"))
    for name in ("", "two words", "a+b"):
        with pytest.raises(InputError, match="a key's name"):
            PrivateKey.new(name)


def test_without_the_package_the_cure_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    with pytest.raises(MissingExtra, match=r'pip install "pbsdk\[sign\]"'):
        PrivateKey.new("alice")
    assert CHECKPOINT.check_signature(None) == "unsigned"
