"""Who may ask the server, and how much."""

from __future__ import annotations

import json
import socket

import pytest
import requests
from helpers.servers import TOKEN, query

from pbsdk.errors import (
    InputError,
)
from pbsdk.testing import FakeBackend
from pbsdk_backends.http import HttpBackend
from pbsdk_backends.serve import create_app, serving


@pytest.mark.parametrize("given", [None, "Bearer wrong", "Bearer ", TOKEN, "Basic x", f"Bearer {TOKEN}x"])
def test_the_token_is_wanted_everywhere_but_for_health_and_documentation(url, given):
    head = {} if given is None else {"Authorization": given}
    for path in ("/v1/model", "/v1/vocabulary", "/v2", "/v2/models/fake", "/metrics"):
        reply = requests.get(url + path, headers=head, timeout=30)
        assert (reply.status_code, reply.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert requests.post(url, json={"inputs": "a <mask>"}, headers=head, timeout=30).status_code == 401
    for path in ("/v2/health/live", "/v2/health/ready", "/docs", "/openapi.json"):
        assert requests.get(url + path, headers=head, timeout=30).status_code == 200


def test_what_is_too_large_or_too_many_is_refused():
    with serving(FakeBackend(), max_bytes=2000, max_batch=3) as url:
        small = {"inputs": ["a <mask>"] * 3}
        assert requests.post(url, json=small, timeout=30).status_code == 200
        reply = requests.post(url, json={"inputs": ["a <mask>"] * 4}, timeout=30)
        assert (reply.status_code, "at most 3" in reply.json()["error"]) == (413, True)
        large = json.dumps({"inputs": "x" * 3000 + "<mask>"}).encode()
        assert requests.post(url, data=large, timeout=30).status_code == 413
        # Without a length, the server counts while it reads.
        assert requests.post(url, data=iter([large[:1500], large[1500:]]), timeout=30).status_code == 413
        with HttpBackend(url) as backend:
            assert backend.abilities.batch_size == 3 * 2
            assert len(backend.fill([query(f"{n}") for n in range(10)])) == 10


@pytest.mark.parametrize("token", ["", " x", "two\nlines", "k\u00e9y"])
def test_a_token_that_no_client_could_send_is_refused(token):
    with pytest.raises(InputError, match="plain ASCII"):
        create_app(FakeBackend(), token=token)


def test_the_token_shows_in_no_repr(url):
    app = create_app(FakeBackend(), token=TOKEN)
    assert TOKEN not in repr(app.user_middleware) + repr(vars(app))


def test_an_upload_that_never_ends_is_given_up(monkeypatch):
    from pbsdk_backends._server import guard as _guard

    monkeypatch.setattr(_guard, "UPLOAD_SECONDS", 0.2)
    with serving(FakeBackend()) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nab")
            assert b" 408 " in connection.recv(1000)
