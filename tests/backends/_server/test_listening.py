"""The server from its first address to its last reply."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading

import pytest
import requests

from pbsdk.errors import InputError, SetupError
from pbsdk.testing import FakeBackend
from pbsdk_backends.serve import serve


def test_a_public_address_needs_a_token():
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        with pytest.raises(SetupError, match="give a token"):
            serve(FakeBackend(), host=host, port=0)


def test_a_port_that_is_taken_is_a_clear_error():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SetupError, match="choose another port"):
        serve(FakeBackend(), port=taken.getsockname()[1])


SERVER = """
import sys, time
from pbsdk.testing import FakeBackend
from pbsdk_backends.serve import serve

class Slow(FakeBackend):
    def fill(self, queries, tokens=None):
        print("begun", flush=True)
        time.sleep(1)
        return super().fill(queries, tokens)

with Slow() as backend:
    serve(backend, port=0, ready=lambda url: print(url, flush=True))
print("closed", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_what_is_under_way_finish(number):
    process = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    try:
        address = process.stdout.readline().strip()
        replies = []
        thread = threading.Thread(
            target=lambda: replies.append(requests.post(address, json={"inputs": "a <mask>"}, timeout=60))
        )
        thread.start()
        assert process.stdout.readline().strip() == "begun"
        os.kill(process.pid, number)
        thread.join(30)
        assert [reply.status_code for reply in replies] == [200]
        assert len(replies[0].json()) == 5
        assert process.wait(30) == 0
        assert process.stdout.read().strip() == "closed"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_model_that_hangs_holds_the_end_no_longer_than_the_grace():
    hanging = SERVER.replace("time.sleep(1)", "time.sleep(3600)").replace("port=0,", "port=0, grace=1,")
    process = subprocess.Popen([sys.executable, "-c", hanging], stdout=subprocess.PIPE, text=True)
    try:
        address = process.stdout.readline().strip()
        replies = []
        thread = threading.Thread(
            target=lambda: replies.append(requests.post(address, json={"inputs": "a <mask>"}, timeout=600))
        )
        thread.start()
        assert process.stdout.readline().strip() == "begun"
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
        thread.join(30)
        assert [reply.status_code for reply in replies] == [504]
        assert "may have run" in replies[0].json()["error"]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("options", [{"grace": -1}, {"grace": float("nan")}, {"max_connections": 0}])
def test_settings_that_make_no_sense_are_refused(options):
    with pytest.raises(InputError):
        serve(FakeBackend(), port=0, **options)
