"""Time stamps: an authority's word is kept with the certificate and checked, and nothing else is taken for it."""

from __future__ import annotations

import sys

import pytest
from helpers.meter import grid, metered
from helpers.servers import Reply, Scripted
from helpers.tsa import OPENSSL, Authority, authority

from pbsdk.audit.certificate import Certificate
from pbsdk.audit.inclusion import InclusionProof
from pbsdk.audit.signing import PrivateKey
from pbsdk.errors import InputError, LedgerCorrupted, LedgerError, MissingExtra

pytestmark = pytest.mark.skipif(OPENSSL is None, reason="the stand-in for an authority needs the command openssl")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stamped") / "run"
    with metered(folder) as lm:
        lm.fill(grid(3, 2))
    return folder


@pytest.fixture(scope="module")
def made(run, tmp_path_factory):
    """An authority, and a signed certificate that it stamped."""
    with authority(tmp_path_factory.mktemp("tsa") / "tsa") as (tsa, server):
        stamped = Certificate.of(run).signed(PrivateKey.new("alice")).stamped(server.url)
        (asked,) = server.asked
    assert (asked.method, asked.headers["Content-Type"]) == ("POST", "application/timestamp-query")
    return tsa, stamped


def test_a_time_stamp_is_kept_with_the_certificate_and_its_proofs(made, run, tmp_path):
    tsa, stamped = made
    stamped.save(tmp_path / "c.json")
    kept = Certificate.load(tmp_path / "c.json")
    assert kept == stamped
    day = stamped.read_checkpoint().time[:10]
    assert kept.check_timestamp(tsa.roots).startswith(f"time-stamped at {day}")
    assert "not checked" in kept.check_timestamp(None)
    proof = InclusionProof.of(run, 3, kept)
    assert proof.check_timestamp(tsa.roots) == kept.check_timestamp(tsa.roots)


def test_a_time_stamp_holds_for_its_checkpoint_and_its_signatures_alone(made, run):
    tsa, stamped = made
    for other in (Certificate.of(run), Certificate.of(run, 3)):
        moved = other.model_copy(update={"timestamp": stamped.timestamp})
        for roots in (tsa.roots, None):
            with pytest.raises(LedgerCorrupted, match="not one of this checkpoint"):
                moved.check_timestamp(roots)
    with pytest.raises(InputError, match="before it is time-stamped"):
        stamped.signed(PrivateKey.new("bob"))


def test_a_time_stamp_by_another_authority_or_a_broken_one_is_refused(made, tmp_path):
    tsa, stamped = made
    other = Authority(tmp_path / "other")
    with pytest.raises(LedgerCorrupted, match="not by an authority in"):
        stamped.check_timestamp(other.roots)
    for broken in ("AAAA", "no base64", stamped.timestamp[:-8]):
        with pytest.raises(LedgerCorrupted, match="not one of this checkpoint"):
            stamped.model_copy(update={"timestamp": broken}).check_timestamp(tsa.roots)
    with pytest.raises(LedgerCorrupted, match="has no time stamp"):
        stamped.model_copy(update={"timestamp": ""}).check_timestamp(tsa.roots)
    (tmp_path / "roots.pem").write_text("none")
    for path in (tmp_path / "roots.pem", tmp_path / "nowhere.pem"):
        with pytest.raises(InputError, match="can't be read"):
            stamped.check_timestamp(path)


def test_what_gives_no_time_stamp_is_said_not_to(run, made, tmp_path):
    tsa, _ = made
    certificate = Certificate.of(run)
    older = []

    def repeating(asked):
        older.append(tsa.answer(asked.body))
        return Reply(200, older[0])

    for answer in (lambda _: Reply(200, b"hello"), lambda _: Reply(500), lambda _: Reply(fault="reset")):
        with Scripted(answer) as server, pytest.raises(LedgerError, match=server.url):
            certificate.stamped(server.url)
    with Scripted(repeating) as server:
        certificate.stamped(server.url)
        with pytest.raises(LedgerError, match="repeated an older answer"):
            certificate.stamped(server.url)
    with pytest.raises(InputError, match="begins with http"):
        certificate.stamped("file:///etc/hosts")


def test_without_the_package_the_cure_is_named(monkeypatch, run):
    monkeypatch.setitem(sys.modules, "rfc3161_client", None)
    with pytest.raises(MissingExtra, match=r'pip install "pbsdk\[timestamp\]"'):
        Certificate.of(run).stamped("http://127.0.0.1:1")
