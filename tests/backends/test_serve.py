"""The server by itself: its routes, its metrics and its queue."""

from __future__ import annotations

import threading
import time

import pytest
import requests
from helpers.servers import Gate, query

from pbsdk.errors import BackendUnavailable, InputError, QueryRefused
from pbsdk.testing import FakeBackend
from pbsdk_backends import serve as serve_module
from pbsdk_backends.http import HttpBackend
from pbsdk_backends.serve import create_app, serving


def test_the_openapi_page_lists_every_route(url):
    paths = requests.get(f"{url}/openapi.json", timeout=30).json()["paths"]
    assert {"/", "/v1/fill", "/v1/model", "/v2/models/{model}/infer", "/metrics"} <= set(paths)


def test_metrics_count_what_happened():
    with serving(FakeBackend(failures=[None, QueryRefused("no")])) as url, HttpBackend(url) as backend:
        backend.fill([query("x"), query("y")])
        with pytest.raises(QueryRefused):
            backend.fill([query("z")])
        requests.get(f"{url}/made/up/path", timeout=30)
        text = requests.get(f"{url}/metrics", timeout=30).text
    assert "pbsdk_queries_total 2.0" in text
    assert 'pbsdk_failures_total{kind="QueryRefused"} 1.0' in text
    assert 'pbsdk_requests_total{path="/v1/fill",status="200"} 2.0' in text
    assert "/made/up" not in text


def test_a_full_queue_turns_away_with_a_time_to_come_again():
    gate = Gate()
    with serving(gate, queue=2) as url:
        waiting = [threading.Thread(target=requests.post, args=(url,), kwargs={"json": {"inputs": "a <mask>"}, "timeout": 60}) for _ in range(2)]  # fmt: skip
        for thread in waiting:
            thread.start()
        assert gate.entered.acquire(timeout=30)
        deadline = time.monotonic() + 30
        while "pbsdk_waiting 2.0" not in requests.get(f"{url}/metrics", timeout=30).text:
            assert time.monotonic() < deadline
        with HttpBackend(url) as backend, pytest.raises(BackendUnavailable, match="queue is full") as caught:
            backend.fill([query("x")])
        assert (caught.value.retry_after, caught.value.may_have_run) == (1.0, False)
        assert requests.get(f"{url}/v2/health/live", timeout=30).status_code == 200
        gate.open.set()
        for thread in waiting:
            thread.join(30)
        assert gate.most == 1
        with HttpBackend(url) as backend:
            assert len(backend.fill([query("x")])) == 1


def test_limits_below_one_are_refused():
    with pytest.raises(InputError):
        create_app(FakeBackend(), queue=0)


def test_the_entry_point_is_the_function():
    from importlib.metadata import entry_points

    (entry,) = entry_points(group="pbsdk.servers")
    assert entry.load() is serve_module.serve
