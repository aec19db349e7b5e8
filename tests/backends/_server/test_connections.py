"""Connections that are held open for nothing are left."""

from __future__ import annotations

import json
import time
from http.client import HTTPResponse

import pytest
import requests
from helpers.servers import dialled, everything, query

from pbsdk.errors import BackendUnavailable
from pbsdk.testing import FakeBackend
from pbsdk_backends._server import connections as _connections
from pbsdk_backends._server import guard as _guard
from pbsdk_backends.http import HttpBackend
from pbsdk_backends.serve import serving


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(_connections, "HEADER_SECONDS", 0.3)
    monkeypatch.setattr(_connections, "BODY_SECONDS", 0.6)
    with serving(FakeBackend()) as url:
        yield url


@pytest.mark.parametrize("sent", [b"", b"P", b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: b"])
def test_headers_that_never_end_are_given_up(hasty, sent):
    with dialled(hasty, sent) as connection:
        assert b" 408 " in everything(connection)


def test_headers_that_drip_are_given_up_all_the_same(hasty):
    with dialled(hasty, b"POST / HTTP/1.1\r\n") as connection:
        start = time.monotonic()
        with pytest.raises(OSError):  # noqa: PT012 - whichever byte is the first that nobody takes
            while time.monotonic() < start + 30:
                connection.sendall(b"X")
                time.sleep(0.02)


def test_a_body_that_drips_after_a_refusal_is_given_up(hasty):
    head = b"POST / HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 100000\r\n\r\n"
    with dialled(hasty, head) as connection, pytest.raises(OSError):  # noqa: PT012 - likewise
        start = time.monotonic()
        while time.monotonic() < start + 30:
            connection.sendall(b"x")
            time.sleep(0.02)


def test_a_connection_that_is_used_again_is_not_given_up(hasty):
    body = b'{"inputs": "a <mask>"}'
    request = (
        b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
        % (
            len(body),
            body,
        )
    )
    with dialled(hasty, request) as connection:
        for _ in range(3):
            reply = HTTPResponse(connection)
            reply.begin()
            assert (reply.status, len(json.loads(reply.read()))) == (200, 5)
            time.sleep(0.2)  # all of it together is longer than the headers of one may take
            connection.sendall(request)


def test_one_address_has_only_so_many_connections_and_is_told_so():
    with serving(FakeBackend(), max_connections=3) as url:
        with HttpBackend(url) as backend:  # it holds one
            others = [dialled(url) for _ in range(2)]
            with dialled(url, b"GET /v1/model HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") as more:
                said = everything(more)
            assert said.startswith(b"HTTP/1.1 503")
            assert b"Retry-After: 1" in said
            assert "too many connections" in json.loads(said.partition(b"\r\n\r\n")[2])["error"]
            with pytest.raises(BackendUnavailable, match="too many connections") as caught:
                HttpBackend(url)
            assert not caught.value.may_have_run
            assert len(backend.fill([query("x")])) == 1
            for other in others:
                other.close()
        deadline = time.monotonic() + 30
        while requests.get(f"{url}/v2/health/live", timeout=30).status_code != 200:
            assert time.monotonic() < deadline


def test_an_answer_that_nobody_reads_is_given_up(monkeypatch):
    monkeypatch.setattr(_connections, "STALL_SECONDS", 0.2)
    texts = {"name": "text", "shape": [200], "datatype": "BYTES", "data": ["a <mask>"] * 200}
    body = json.dumps({"inputs": [texts]}).encode()
    head = b"POST /v2/models/fake/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % len(body)
    with serving(FakeBackend(), max_connections=1) as url, dialled(url, head + body) as silent:
        deadline = time.monotonic() + 60
        while requests.get(f"{url}/v2/health/live", timeout=30).status_code != 200:  # the silent one has the only place
            assert time.monotonic() < deadline
            time.sleep(0.05)
        silent.close()


def test_an_upload_that_never_ends_is_given_up(monkeypatch):
    monkeypatch.setattr(_guard, "UPLOAD_SECONDS", 0.2)
    begun = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10\r\n\r\nab"
    with serving(FakeBackend()) as url, dialled(url, begun) as connection:
        assert b" 408 " in everything(connection)
