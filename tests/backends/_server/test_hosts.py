"""Whose browser may ask: names that are the server's own, and pages of its own."""

from __future__ import annotations

import pytest
import requests

from pbsdk.testing import FakeBackend
from pbsdk_backends.http import HttpBackend
from pbsdk_backends.serve import serving


@pytest.fixture(scope="module")
def url():
    with serving(FakeBackend(), allow_hosts=["models.example"]) as address:
        yield address


def ask(url, **headers):
    return requests.post(url, json={"inputs": "a <mask>"}, headers=headers, timeout=30)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost:8000", "LOCALHOST.", "[::1]:8000", "192.0.2.7", "models.example"]
)
def test_its_own_names_and_addresses_in_digits_are_answered(url, host):
    assert ask(url, Host=host).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "localhost.evil.example", "", "[", "a:b:c", "127.0.0.1.evil.example"]
)
def test_another_name_is_refused_everywhere(url, host):
    reply = ask(url, Host=host)
    assert (reply.status_code, "--allow-host" in reply.json()["error"]) == (403, True)
    for path in ("/v1/model", "/metrics", "/docs", "/v2/health/live", "/openapi.json"):
        assert requests.get(url + path, headers={"Host": host}, timeout=30).status_code == 403


@pytest.mark.parametrize(
    ("origin", "host", "allowed"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1:8000", True),
        ("https://models.example", "models.example", True),
        ("https://models.example", "127.0.0.1:8000", True),
        ("http://127.0.0.1:3000", "127.0.0.1:8000", False),
        ("http://localhost:8000", "127.0.0.1:8000", False),
        ("https://evil.example", "127.0.0.1:8000", False),
        ("null", "127.0.0.1:8000", False),
        ("", "127.0.0.1:8000", False),
    ],
)
def test_pages_of_other_origins_are_refused_unless_their_host_is_allowed(url, origin, host, allowed):
    assert ask(url, Origin=origin, Host=host).status_code == (200 if allowed else 403)


def test_any_name_can_be_allowed():
    with serving(FakeBackend(), allow_hosts=["*"]) as url:
        assert ask(url, Host="any.example", Origin="https://other.example").status_code == 200


def test_our_own_client_says_nothing_that_is_refused(url):
    with HttpBackend(url.replace("127.0.0.1", "localhost")) as backend:
        assert backend.identity.name == "fake"
