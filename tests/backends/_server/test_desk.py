"""Clients that hang up, and clients that the end of the server cuts off."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest
import requests
from helpers.servers import Gate, dialled, everything, query

from pbsdk.connecting import connect
from pbsdk.errors import BackendError, BackendTimeout, BackendUnavailable
from pbsdk.testing import FakeBackend
from pbsdk_backends.http import HttpBackend
from pbsdk_backends.serve import create_app, serving


def posted(body):
    head = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


def asking(text):
    return posted(b'{"inputs": "%b <mask>"}' % text)


def wait_for(url, waiting):
    deadline = time.monotonic() + 60
    while f"pbsdk_waiting {waiting}.0" not in requests.get(f"{url}/metrics", timeout=30).text:
        assert time.monotonic() < deadline


@pytest.fixture
def gate():
    gate = Gate(batch_size=1)
    yield gate
    gate.open.set()


def test_a_client_that_hangs_up_frees_its_place_and_is_never_asked_for(gate):
    with serving(gate, queue=2) as url, dialled(url, asking(b"first")) as first:
        assert gate.entered.acquire(timeout=30)
        with dialled(url, asking(b"gone")):
            wait_for(url, 2)
        wait_for(url, 1)
        with dialled(url, asking(b"third")) as third:
            wait_for(url, 2)
            gate.open.set()
            assert b" 200 " in first.recv(1 << 16)
            assert b" 200 " in third.recv(1 << 16)
    assert [asked.text("").strip() for asked in gate.asked] == ["first", "third"]


def test_a_client_that_hangs_up_leaves_the_rest_of_its_request(gate):
    several = posted(b'{"inputs": ["one <mask>", "two <mask>", "three <mask>"]}')
    with serving(gate) as url:
        with dialled(url, several):
            assert gate.entered.acquire(timeout=30)
        wait_for(url, 0)
        gate.open.set()
        assert requests.post(url, json={"inputs": "next <mask>"}, timeout=30).status_code == 200
    assert [asked.text("").strip() for asked in gate.asked] == ["one", "next"]


def ask_in_thread(ask):
    """Start asking, and return where the outcome will be."""
    outcome = []

    def run():
        try:
            outcome.append(ask())
        except BackendError as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def test_clients_that_are_cut_off_are_told_whether_they_ran(gate):
    with contextlib.ExitStack() as stack:
        with serving(gate, grace=0.6) as url:
            ours = [stack.enter_context(HttpBackend(url)) for _ in range(2)]
            begun = ask_in_thread(lambda: ours[0].fill([query("begun")]))
            assert gate.entered.acquire(timeout=30)
            waiting = ask_in_thread(lambda: ours[1].fill([query("waiting")]))
            wait_for(url, 2)
            plain = stack.enter_context(dialled(url, asking(b"plain")))
            wait_for(url, 3)
            half = stack.enter_context(dialled(url, asking(b"half")[:-1]))
            # The server ends here, though the model never answers.
        for thread, _ in (begun, waiting):
            thread.join(30)
        (ran,), (did_not,) = begun[1], waiting[1]
        assert (type(ran), ran.may_have_run) == (BackendTimeout, True)
        assert "may have run" in str(ran)
        assert (type(did_not), did_not.may_have_run, did_not.retryable) == (BackendUnavailable, False, True)
        assert "did not run" in str(did_not)
        for connection in (plain, half):
            said = everything(connection)
            assert said.startswith(b"HTTP/1.1 503")
            assert b"retry-after: 1" in said.lower()
            assert b"did not run" in said


def test_the_ledger_books_those_that_may_have_run_and_no_others(gate, tmp_path):
    with serving(gate, grace=0.6) as url:
        remote = [connect("http", url=url, run=tmp_path / name) for name in ("begun", "waiting")]
        for lm in remote:
            lm._sender.retries = 0
        begun = ask_in_thread(lambda: list(remote[0].fill([query("begun")])))
        assert gate.entered.acquire(timeout=30)
        waiting = ask_in_thread(lambda: list(remote[1].fill([query("waiting")])))
        wait_for(url, 2)
    for thread, _ in (begun, waiting):
        thread.join(60)
    booked = [[(phase.passes, phase.unknown) for phase in lm.audit().phases if phase.attempts] for lm in remote]
    assert booked == [[(1, 1)], [(0, 0)]]
    for lm in remote:
        lm.close()


def test_half_of_a_request_that_is_cut_off_is_kept():
    class Halfway(Gate):
        def fill(self, queries, tokens=None):
            if self.asked:
                return super().fill(queries, tokens)
            return FakeBackend.fill(self, queries, tokens)

    gate = Halfway(batch_size=2)
    queries = [query(f"{n}") for n in range(3)]
    with serving(gate, grace=0.6) as url, HttpBackend(url) as backend:
        backend._card = backend._card.model_copy(update={"max_batch": 3})
        thread, outcome = ask_in_thread(lambda: backend.fill(queries))
        assert gate.entered.acquire(timeout=30)
    thread.join(30)
    gate.open.set()
    assert (type(outcome[0]), sorted(outcome[0].answered)) == (BackendTimeout, [0, 1])


@pytest.mark.parametrize(
    ("failure", "status", "told"),
    [
        (BackendUnavailable("busy"), 503, "1"),
        (BackendUnavailable("busy", retry_after=7), 503, "7"),
        (BackendUnavailable("lost", may_have_run=True, retry_after=7), 504, "7"),
        (BackendTimeout("lost"), 504, None),
    ],
)
def test_a_503_that_says_how_long_to_wait_did_not_run(failure, status, told):
    with serving(FakeBackend(failures=[failure])) as url:
        reply = requests.post(url, json={"inputs": "a <mask>"}, timeout=30)
    assert (reply.status_code, reply.headers.get("Retry-After")) == (status, told)


def test_an_app_of_ones_own_server_closes_when_the_model_is_done():
    import uvicorn

    app = create_app(FakeBackend())
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    server.should_exit = True
    server.run()
    assert server.started
    assert not server.lifespan.shutdown_failed
