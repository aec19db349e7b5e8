"""A time-stamping authority on a local socket: real tokens, by OpenSSL, with certificates made on the spot."""

from __future__ import annotations

import contextlib
import datetime as dt
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from helpers.servers import Asked, Reply, Scripted

OPENSSL = shutil.which("openssl")

_SETTINGS = """
[tsa]
default_tsa = here
[here]
serial = serial
default_policy = 1.2.3.4.1
digests = sha256
accuracy = secs:1
ess_cert_id_alg = sha256
signer_digest = sha256
"""


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _certificate(name: str, key: ec.EllipticCurvePrivateKey, issuer: str, signer: ec.EllipticCurvePrivateKey) -> bytes:
    now = dt.datetime.now(dt.UTC)
    root = name == issuer
    usage = x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.TIME_STAMPING])
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=root, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    builder = builder if root else builder.add_extension(usage, critical=True)
    return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


class Authority:
    """An authority, its root certificate in `roots`, and the answers it gives to requests."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder, self.roots = folder, folder / "roots.pem"
        ca, tsa = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
        self.roots.write_bytes(_certificate("root", ca, "root", ca))
        (folder / "tsa.pem").write_bytes(_certificate("tsa", tsa, "root", ca))
        kind = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        (folder / "tsa.key").write_bytes(tsa.private_bytes(*kind))
        (folder / "serial").write_text("01\n")
        (folder / "tsa.cnf").write_text(_SETTINGS)

    def answer(self, request: bytes) -> bytes:
        """Return the response to a request."""
        (self.folder / "query").write_bytes(request)
        line = "ts -reply -config tsa.cnf -queryfile query -signer tsa.pem -inkey tsa.key -out reply"
        subprocess.run([str(OPENSSL), *line.split()], cwd=self.folder, capture_output=True, check=True)
        return (self.folder / "reply").read_bytes()


@contextlib.contextmanager
def authority(folder: Path) -> Iterator[tuple[Authority, Scripted]]:
    """Serve an authority."""
    made = Authority(folder)

    def reply(asked: Asked) -> Reply:
        return Reply(200, made.answer(asked.body), {"Content-Type": "application/timestamp-reply"})

    with Scripted(reply) as server:
        yield made, server
