"""A deadline, against servers that never stop sending."""

from __future__ import annotations

import gc
import socket
import ssl
import threading
import time

import pytest
from helpers.servers import Reply, dripping, scripted

from pbsdk.errors import BackendTimeout, BackendUnavailable, PbsdkError
from pbsdk_backends._remote.parallel import Job
from pbsdk_backends._remote.transport import Network, Transport
from pbsdk_backends.http import HttpBackend
from pbsdk_backends.huggingface import HuggingFaceBackend
from pbsdk_backends.kserve import KServeBackend
from pbsdk_backends.openai import OpenAIBackend

OK = b"HTTP/1.1 200 OK\r\n"
ENDLESS = {
    "a status line": (b"", b"H"),
    "headers": (OK + b"X-A: ", b"b"),
    "many headers": (OK, b"X-A: b\r\n"),
    "100 Continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "headers after 100 Continue": (b"HTTP/1.1 100 Continue\r\n", b"X"),
    "a body": (OK + b"Content-Length: 1000000\r\n\r\n", b"x"),
    "a body without a length": (OK + b"\r\n", b"x"),
    "the size of a chunk": (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"0"),
    "chunks": (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    "trailers": (OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", b"X-A: b\r\n"),
    "one trailer": (OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", b"X"),
}


def requesters():
    return [thread for thread in threading.enumerate() if thread.name == "pbsdk-request"]


@pytest.mark.parametrize("endless", ENDLESS)
def test_a_server_that_never_stops_holds_a_call_no_longer_than_its_deadline(endless):
    before = len(requesters())
    with dripping(*ENDLESS[endless]) as url:
        pool = Transport(url, Network.of({"read_timeout": 30, "deadline": 0.2}))
        with pytest.raises(PbsdkError) as caught:  # too many headers are refused even sooner
            pool.get("/")
        assert caught.value.may_have_run
        with pytest.raises(BackendTimeout):
            pool.fill([Job([at], lambda: [pool.get("/")]) for at in range(3)])
        # Nobody is left behind: their connections were cut.
        end = time.monotonic() + 20
        while len(requesters()) > before:
            assert time.monotonic() < end
            time.sleep(0.01)


@pytest.mark.parametrize(
    "connect",
    [
        lambda url: HttpBackend(url, deadline=0.2),
        lambda url: HuggingFaceBackend("m", url=url, deadline=0.2),
        lambda url: KServeBackend("m", url=url, deadline=0.2),
        lambda url: OpenAIBackend("m", url=url, deadline=0.2),
    ],
    ids=["http", "huggingface", "kserve", "openai"],
)
def test_connecting_has_a_deadline_too(connect):
    """Else the time-out for silence would hold: a minute, and it would begin anew with every byte."""
    with dripping(*ENDLESS["headers"]) as url, pytest.raises(BackendTimeout, match=r"did not end within 0\.2 s"):
        connect(url)


def test_a_connection_that_was_used_before_is_cut_as_well():
    slow = Reply(200, b"x" * 1000, fault="trickle")
    replies = iter([Reply(200, b"{}"), slow, Reply(200, b"{}")])
    with scripted(lambda _: next(replies)) as server:
        pool = Transport(server.url, Network.of({"read_timeout": 30, "deadline": 0.3}))
        pool.get("/")
        with pytest.raises(BackendTimeout, match=r"did not end within 0\.3 s"):
            pool.get("/")
        assert pool.get("/").body == b"{}"


def test_encrypted_answers_meet_the_deadline_too(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    over = threading.Event()

    def trickle(listener):
        raw, _ = listener.accept()
        with context.wrap_socket(raw, server_side=True) as connection:
            connection.recv(1000)
            try:
                while not over.wait(0.02):
                    connection.sendall(b"H")
            except OSError:
                return

    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.MonkeyPatch.context() as patch:
        patch.setenv("REQUESTS_CA_BUNDLE", str(certificate[0]))
        thread = threading.Thread(target=trickle, args=(listener,), daemon=True)
        thread.start()
        url = f"https://localhost:{listener.getsockname()[1]}"
        with pytest.raises(BackendTimeout, match="did not end"):
            Transport(url, Network.of({"read_timeout": 30, "deadline": 0.4})).get("/")
        over.set()
        thread.join(20)
        assert not thread.is_alive()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_handshake_that_never_ends_did_not_run():
    """It sends the beginning of a TLS record and never the rest; a socket cut before the first byte is Python's to collect."""
    with dripping(b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc", b"\x00") as url:
        pool = Transport(url.replace("http:", "https:"), Network.of({"deadline": 0.2}))
        with pytest.raises(BackendUnavailable, match="can't be reached") as caught:
            pool.get("/")
        assert not caught.value.may_have_run
    gc.collect()
