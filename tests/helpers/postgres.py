"""A real PostgreSQL for the tests: a cluster in a temporary folder, on a free port of this machine alone."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import subprocess
import tempfile
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

PASSWORD = "s3cret/of:tests"
USER = "tester"
_SCHEMAS = itertools.count(1)


def programs():
    """Return the folder of the server's programs, or None; Debian keeps them off the path."""
    versions = sorted(
        (float(path.parts[-3]), path.parent) for path in Path("/usr/lib/postgresql").glob("[0-9]*/bin/initdb")
    )
    if versions:
        return versions[-1][1]
    found = shutil.which("initdb")
    return Path(found).resolve().parent if found else None


MISSING = (
    ""
    if programs()
    else "there is no PostgreSQL server here to keep a ledger in; Debian's package is called postgresql"
)


class Cluster:
    """A server that can be stopped and started again."""

    def __init__(self, folder, bin_folder):
        self.folder, self._bin = folder, bin_folder
        # PostgreSQL refuses to run as root.
        self._as = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}
        if self._as:
            shutil.chown(folder, "nobody", "nogroup")
        secret = folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        self._call("initdb", "-D", folder / "data", "-U", USER, "--auth-local=trust", "--auth-host=scram-sha-256", "--pwfile", secret,
                   "-E", "UTF8", "--locale=C", "--no-sync")  # fmt: skip
        for name, content in zip(("cert.pem", "key.pem"), _certificate(), strict=True):
            (folder / name).write_bytes(content)
            (folder / name).chmod(0o600)
            if self._as:
                shutil.chown(folder / name, "nobody", "nogroup")
        self.start()

    def _call(self, program, *arguments):
        done = subprocess.run(
            [self._bin / program, *arguments], cwd="/", env={**os.environ, "LC_ALL": "C"}, capture_output=True, text=True, check=False, **self._as,
        )  # fmt: skip
        if done.returncode:
            log = self.folder / "log"
            raise RuntimeError(f"{program}: {done.stdout}{done.stderr}{log.read_text() if log.exists() else ''}")

    def start(self):
        """Start the server, on the port that it had, or a free one."""
        if not hasattr(self, "port"):
            with socket.create_server(("127.0.0.1", 0)) as free:
                self.port = free.getsockname()[1]
        settings = {"listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": self.folder, "fsync": "off",
                    "full_page_writes": "off", "shared_buffers": "16MB", "max_connections": 60, "ssl": "on",
                    "ssl_cert_file": self.folder / "cert.pem", "ssl_key_file": self.folder / "key.pem"}  # fmt: skip
        said = " ".join(f"-c {name}={value}" for name, value in settings.items())
        self._call(
            "pg_ctl", "-D", self.folder / "data", "-o", said, "-l", self.folder / "log", "-w", "-t", "120", "start"
        )

    def stop(self, *, wait=True):
        """Stop the server without a word to its clients, as a crash does."""
        self._call("pg_ctl", "-D", self.folder / "data", "-m", "immediate", "-w" if wait else "-W", "-t", "120", "stop")

    def nearby(self, **options):
        """Return such an address that leads through the server's own socket, without password and encryption: the fastest."""
        from urllib.parse import urlencode

        schema = f"s{next(_SCHEMAS)}"
        return (
            f"postgresql://{USER}@:{self.port}/postgres?{urlencode({'host': self.folder, 'schema': schema, **options})}"
        )

    def address(self, *, password=PASSWORD, port=None, database="postgres", **options):
        """Return the address of a schema that nobody has used yet, unless one is named."""
        from urllib.parse import quote, urlencode

        options.setdefault("schema", f"s{next(_SCHEMAS)}")
        secret = f":{quote(password, safe='')}" if password else ""
        return f"postgresql://{USER}{secret}@127.0.0.1:{port or self.port}/{database}?{urlencode(options)}"


def _certificate():
    """Return a certificate of 127.0.0.1 that signs itself, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    address = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))])
    made = x509.CertificateBuilder(
        name, name, key.public_key(), x509.random_serial_number(), now - timedelta(1), now + timedelta(1)
    )
    signed = made.add_extension(address, critical=False).sign(key, hashes.SHA256())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return signed.public_bytes(serialization.Encoding.PEM), private


@contextmanager
def cluster():
    """Start a cluster, and remove it in the end, or when this process is killed."""
    folder = Path(tempfile.mkdtemp(prefix="pbsdk-pg-", dir="/tmp"))
    # When nobody holds the other end of its input any more, the server is stopped at once.
    work = 'cat; kill -QUIT "$(head -n 1 "$0/data/postmaster.pid")"; while kill -0 "$(head -n 1 "$0/data/postmaster.pid")"; do sleep 0.05; done; rm -rf "$0"'
    with subprocess.Popen(
        ["sh", "-c", work, folder], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/", start_new_session=True
    ):
        yield Cluster(folder, programs())


def execute(address, *statements):
    """Execute statements as whoever can write the database; return the last one's rows."""
    from pbsdk.ledger.address import Address
    from pbsdk.ledger.postgres_connection import PostgresConnection

    con = PostgresConnection(Address.parse(str(address)))
    try:
        return [con.run(statement).fetchall() for statement in statements][-1]
    finally:
        con.close()
