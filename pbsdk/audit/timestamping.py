"""Time stamps (RFC 3161): an authority's word for since when a checkpoint exists.

The authority is sent a hash, and answers with a signed token that holds the hash and the time. Checking it needs no network, but
the certificate of an authority that one trusts. Both need the package `rfc3161-client` (`pip install "pbsdk[timestamp]"`).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from pbsdk.errors import InputError, LedgerCorrupted, LedgerError, MissingExtra

__all__ = ["ask", "check"]

_SECONDS = 30
_MOST_BYTES = 1 << 20
_GRANTED = {0, 1}


def _client() -> Any:
    try:
        import rfc3161_client  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtra(f'time stamps need rfc3161-client ({error}); pip install "pbsdk[timestamp]"') from error
    return rfc3161_client


def ask(url: str, note: str) -> str:
    """Return an authority's response about a note, in base64."""
    client = _client()
    if not url.startswith(("http://", "https://")):
        raise InputError(f"the address of a time-stamping authority begins with http:// or https://, unlike {url!r}")
    request = client.TimestampRequestBuilder(data=note.encode(), hash_algorithm=client.HashAlgorithm.SHA256).build()
    sent = urllib.request.Request(  # noqa: S310 - checked above
        url, data=request.as_bytes(), headers={"Content-Type": "application/timestamp-query"}
    )
    try:
        with urllib.request.urlopen(sent, timeout=_SECONDS) as answer:  # noqa: S310 - likewise
            data = answer.read(_MOST_BYTES)
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise LedgerError(
            f"no time stamp from {url} ({error}); try again later, or certify without --timestamp"
        ) from error
    response = _decoded(data)
    if response is None or response.status not in _GRANTED or not _imprinted(response, note):
        raise LedgerError(f"{url} gave no time stamp of this checkpoint; is it a time-stamping authority (RFC 3161)?")
    if response.tst_info.nonce != request.nonce:
        raise LedgerError(f"{url} repeated an older answer; try another time-stamping authority")
    return base64.b64encode(data).decode()


def check(stamp: str, note: str, roots: Path | None) -> str:
    """Say when a note was time-stamped; with the authorities' certificates that are trusted (PEM), check it.

    Raises:
        LedgerCorrupted: it is not a time stamp of this note, or of no such authority.
    """
    if not stamp:
        if roots is not None:
            raise LedgerCorrupted("the checkpoint has no time stamp")
        return ""
    client = _client()
    try:
        response = _decoded(base64.b64decode(stamp, validate=True))
    except binascii.Error:
        response = None
    if response is None or response.status not in _GRANTED or not _imprinted(response, note):
        raise LedgerCorrupted("the time stamp is not one of this checkpoint")
    when = f"time-stamped at {response.tst_info.gen_time:%Y-%m-%dT%H:%M:%SZ}"
    if roots is None:
        return f"{when}, not checked: that needs the authority's certificate"
    builder = client.VerifierBuilder()
    for certificate in _certificates(roots):
        builder = builder.add_root_certificate(certificate)
    try:
        builder.build().verify_message(response, note.encode())
    except (client.VerificationError, ValueError) as error:
        raise LedgerCorrupted(f"the time stamp is not by an authority in {roots} ({error})") from error
    return when


def _decoded(data: bytes) -> Any:
    try:
        return _client().decode_timestamp_response(data)
    except ValueError:
        return None


def _imprinted(response: Any, note: str) -> bool:
    return bool(response.tst_info.message_imprint.message == hashlib.sha256(note.encode()).digest())


def _certificates(path: Path) -> list[Any]:
    from cryptography import x509  # noqa: PLC0415 - comes with rfc3161-client

    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it holds no certificates in PEM form"
        raise InputError(f"the authorities' certificates {path} can't be read: {reason}") from error
