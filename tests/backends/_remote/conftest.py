"""What tests of connections start from."""

import subprocess

import pytest


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """A certificate for localhost that nobody signed, and its key."""
    folder = tmp_path_factory.mktemp("certificate")
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
        capture_output=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("openssl can't make a certificate here")
    return folder / "cert.pem", folder / "key.pem"
