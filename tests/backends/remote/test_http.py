"""The adapter `http` and `pbsdk serve`, over real sockets."""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import requests
from helpers.servers import Reply, json_reply, query, scripted
from huggingface_hub import InferenceClient

from pbsdk.backend import OpenVocabulary
from pbsdk.errors import (
    BackendTimeout,
    BackendUnavailable,
    InputError,
    ModelUnusable,
    QueryRefused,
    SetupError,
)
from pbsdk.testing import BackendContract, FakeBackend
from pbsdk_backends import serve as serve_module
from pbsdk_backends.http import HttpBackend
from pbsdk_backends.serve import create_app, serve, serving

TOKEN = "open-sesame-8675309"


@pytest.fixture(params=["whole", "top", "last"], scope="module")
def backend(request):
    options = {"whole": {}, "top": {"top": 20}, "last": {"mask": "last", "chosen": True}}[request.param]
    with serving(FakeBackend(**options)) as url, HttpBackend(url) as backend:
        yield backend


class TestContract(BackendContract):
    tolerance = 0


@pytest.fixture(scope="module")
def fake():
    return FakeBackend(batch_size=8)


@pytest.fixture(scope="module")
def url(fake):
    with serving(fake, token=TOKEN) as address:
        yield address


@pytest.fixture
def remote(url):
    with HttpBackend(url, api_key=TOKEN) as backend:
        yield backend


def test_the_served_model_is_the_model(fake, remote):
    assert remote.identity == fake.identity
    assert remote.mask_token == fake.mask_token
    assert [remote.vocabulary[t] for t in range(1000)] == [fake.vocabulary[t] for t in range(1000)]
    queries = [query(f"text {n}") for n in range(100)]
    ours, theirs = remote.fill(queries), FakeBackend().fill(queries)
    assert all(np.array_equal(a.codes, b.codes) for a, b in zip(ours, theirs, strict=True))


def test_batches_are_cut_as_they_would_be_locally(fake, remote):
    before = len(fake.calls)
    remote.fill([query(f"batch {n}") for n in range(20)])
    assert sorted(fake.calls[before:]) == [4, 8, 8]
    assert remote.abilities.batch_size == 8 * 2


def test_the_query_arrives_with_all_it_carries(fake, remote):
    sent = query("who am I")
    remote.fill([sent])
    assert fake.asked[-1] == sent


def test_chosen_tokens_travel_alone(remote):
    answers = remote.fill([query("a"), query("b")], np.array([5, 900]))
    whole = remote.fill([query("a"), query("b")])
    for part, full in zip(answers, whole, strict=True):
        assert part.tokens.tolist() == [5, 900]
        assert np.array_equal(part.codes, full.codes[[5, 900]])


def test_a_backend_survives_pickling_without_its_key(url, monkeypatch):
    with HttpBackend(url, api_key=TOKEN) as backend:
        data = pickle.dumps(backend)
    assert TOKEN.encode() not in data
    with pickle.loads(data) as without, pytest.raises(QueryRefused, match="401"):
        without.fill([query("x")])
    monkeypatch.setenv("PBSDK_API_KEY", TOKEN)
    with pickle.loads(data) as again:
        assert len(again.fill([query("x")])) == 1


def test_errors_of_the_model_arrive_as_they_were():
    failures = [BackendTimeout("slow", retry_after=2.5), QueryRefused("never"), BackendUnavailable("soon"), None]
    with serving(FakeBackend(failures=failures)) as url, HttpBackend(url) as backend:
        for wanted in failures[:-1]:
            with pytest.raises(type(wanted)) as caught:
                backend.fill([query("x")])
            error = caught.value
            assert (str(error), error.retry_after) == (str(wanted), wanted.retry_after)
            assert (error.retryable, error.may_have_run) == (wanted.retryable, wanted.may_have_run)
        assert len(backend.fill([query("x")])) == 1


def test_half_a_batch_is_kept_across_the_wire():
    """The second of three requests fails; the answers of the others are there."""
    fake = FakeBackend(batch_size=2, failures=[None, BackendTimeout("lost"), None])
    queries = [query(f"{n}") for n in range(6)]
    with serving(fake) as url, HttpBackend(url, workers=1) as backend, pytest.raises(BackendTimeout) as caught:
        backend.fill(queries)
    assert sorted(caught.value.answered) == [0, 1, 4, 5]
    expected = FakeBackend().fill(queries)
    assert all(np.array_equal(a.codes, expected[at].codes) for at, a in caught.value.answered.items())


def test_an_adapter_that_breaks_is_a_500_that_may_have_run():
    fake = FakeBackend(failures=[RuntimeError("secret detail")])
    with serving(fake) as url, HttpBackend(url) as backend, pytest.raises(BackendUnavailable) as caught:
        backend.fill([query("x")])
    assert caught.value.may_have_run
    assert "secret detail" not in str(caught.value)


def test_an_open_vocabulary_is_learned_on_the_way():
    class Open(FakeBackend):
        def __init__(self):
            super().__init__(top=10)
            self.closed, self.vocabulary = self.vocabulary, OpenVocabulary()

        def fill(self, queries, tokens=None):
            self.vocabulary, opened = self.closed, self.vocabulary
            try:
                answers = super().fill(queries, tokens)
            finally:
                self.vocabulary = opened
            for answer in answers:
                for token in answer.tokens:
                    opened.learn(int(token), self.closed[int(token)])
            return answers

    served = Open()
    with serving(served) as url, HttpBackend(url) as backend:
        (answer,) = backend.fill([query("x")])
        assert isinstance(backend.vocabulary, OpenVocabulary)
        assert len(backend.vocabulary) == 10
        assert all(backend.vocabulary[int(token)] == served.closed[int(token)] for token in answer.tokens)


def test_a_wrong_token_is_refused_at_once_and_not_shown(url):
    for key in ("wrong", None):
        with pytest.raises(ModelUnusable, match="401") as caught:
            HttpBackend(url, api_key=key)
        assert TOKEN not in str(caught.value)


@pytest.mark.parametrize(
    ("reply", "error", "message"),
    [
        (json_reply({}, 404), ModelUnusable, "pbsdk serve"),
        (Reply(200, b"<html>"), ModelUnusable, "not JSON"),
        (json_reply({"protocol": 1}), ModelUnusable, "identity"),
        (json_reply({}, 503), BackendUnavailable, "503"),
    ],
)
def test_another_server_is_found_out_when_connecting(reply, error, message):
    with scripted(lambda _: reply) as server, pytest.raises(error, match=message):
        HttpBackend(server.url)


def test_another_protocol_is_found_out_when_connecting(url):
    card = requests.get(f"{url}/v1/model", headers=headers(), timeout=30).json()
    with (
        scripted(lambda _: json_reply({**card, "protocol": 2})) as server,
        pytest.raises(ModelUnusable, match="version"),
    ):
        HttpBackend(server.url)


def test_a_vocabulary_that_was_damaged_is_refused(url):
    def answer(asked):
        reply = requests.get(url + asked.path, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30)
        body = reply.content.replace(b'" ', b'"x', 1) if asked.path == "/v1/vocabulary" else reply.content
        return Reply(200, body)

    with scripted(answer) as server, pytest.raises(ModelUnusable, match="vocabulary doesn't match its digest"):
        HttpBackend(server.url)


# The server by itself.


def headers(token=TOKEN):
    return {"Authorization": f"Bearer {token}"}


def test_the_real_hugging_face_client_works_unchanged(url, fake):
    client = InferenceClient(url, token=TOKEN)
    best = client.fill_mask("The weather is <mask> today.", top_k=3)
    assert len(best) == 3
    assert [item.score for item in best] == sorted((item.score for item in best), reverse=True)
    assert all(fake.vocabulary[item.token] == item.token_str for item in best)
    assert best[0].sequence == f"The weather is{best[0].token_str} today."
    assert len(client.fill_mask("A [MASK].")) == 5
    words = [fake.vocabulary[t] for t in (7, 3)]
    chosen = client.fill_mask("The weather is <mask> today.", targets=[*words, "no-such-token"])
    assert sorted(item.token for item in chosen) == [3, 7]


def test_several_texts_give_several_lists_and_one_is_unwrapped(url):
    ask = {"headers": headers(), "timeout": 30}
    two = requests.post(url, json={"inputs": ["a <mask>", "b <mask>"], "parameters": {"top_k": 2}}, **ask).json()
    assert [len(found) for found in two] == [2, 2]
    one = requests.post(url, json={"inputs": ["a <mask>"], "parameters": {"top_k": 2}}, **ask).json()
    assert one == two[0]
    assert requests.post(f"{url}/models/any/name", json={"inputs": "a <mask>"}, **ask).json()[:2] == two[0]


@pytest.mark.parametrize("text", ["no mask", "two <mask> <mask>", "two <mask> [MASK]"])
def test_a_text_needs_one_mask(url, text):
    reply = requests.post(url, json={"inputs": text}, headers=headers(), timeout=30)
    assert reply.status_code == 400
    assert "mask_token" in reply.json()["error"]


def test_targets_that_are_no_tokens_are_refused(url):
    request = {"inputs": "a <mask>", "parameters": {"targets": ["zzz-none"]}}
    assert requests.post(url, json=request, headers=headers(), timeout=30).status_code == 400


def test_oip_tells_health_and_metadata(url, fake):
    assert requests.get(f"{url}/v2/health/live", timeout=30).json()["live"] is True
    assert requests.get(f"{url}/v2/health/ready", timeout=30).json()["ready"] is True
    ask = {"headers": headers(), "timeout": 30}
    assert requests.get(f"{url}/v2", **ask).json()["name"] == "pbsdk"
    assert requests.get(f"{url}/v2/models/fake/ready", **ask).json() == {"name": "fake", "ready": True}
    metadata = requests.get(f"{url}/v2/models/fake", **ask).json()
    assert metadata["versions"] == [fake.identity.digest]
    assert metadata["outputs"][0]["shape"] == [-1, 1000]
    assert requests.get(f"{url}/v2/models/other", **ask).status_code == 404


def test_oip_infers_in_json_and_in_bytes(url):
    texts = {"name": "text", "shape": [2], "datatype": "BYTES", "data": ["a <mask>", "b <mask>"]}
    ask = {"headers": headers(), "timeout": 30}
    plain = requests.post(f"{url}/v2/models/fake/infer", json={"id": "7", "inputs": [texts]}, **ask).json()
    assert plain["id"] == "7"
    (tensor,) = plain["outputs"]
    assert (tensor["shape"], tensor["datatype"]) == ([2, 1000], "FP32")
    request = {"inputs": [texts], "parameters": {"binary_data_output": True}}
    reply = requests.post(f"{url}/v2/models/fake/infer", json=request, **ask)
    length = int(reply.headers["Inference-Header-Content-Length"])
    (output,) = json.loads(reply.content[:length])["outputs"]
    values = np.frombuffer(reply.content[length:], "<f4")
    assert output["parameters"]["binary_data_size"] == values.nbytes
    assert values.tolist() == tensor["data"]
    wrong = [{**texts, "datatype": "INT64"}, {**texts, "shape": [3]}, {**texts, "name": "ids"}]
    for tensor in wrong:
        reply = requests.post(f"{url}/v2/models/fake/infer", json={"inputs": [tensor]}, **ask)
        assert reply.status_code == 400


@pytest.mark.parametrize("given", [None, "Bearer wrong", "Bearer ", TOKEN, "Basic x", f"Bearer {TOKEN}x"])
def test_the_token_is_wanted_everywhere_but_for_health_and_documentation(url, given):
    head = {} if given is None else {"Authorization": given}
    for path in ("/v1/model", "/v1/vocabulary", "/v2", "/v2/models/fake", "/metrics"):
        reply = requests.get(url + path, headers=head, timeout=30)
        assert (reply.status_code, reply.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert requests.post(url, json={"inputs": "a <mask>"}, headers=head, timeout=30).status_code == 401
    for path in ("/v2/health/live", "/v2/health/ready", "/docs", "/openapi.json"):
        assert requests.get(url + path, headers=head, timeout=30).status_code == 200


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


class Gate(FakeBackend):
    """A model that answers only when it is let."""

    def __init__(self):
        super().__init__()
        self.entered, self.open = threading.Semaphore(0), threading.Event()
        self.inside, self.most = 0, 0

    def fill(self, queries, tokens=None):
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.entered.release()
        assert self.open.wait(60)
        self.inside -= 1
        return super().fill(queries, tokens)


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


def test_a_public_address_needs_a_token():
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        with pytest.raises(SetupError, match="give a token"):
            serve(FakeBackend(), host=host, port=0)


def test_a_port_that_is_taken_is_a_clear_error():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SetupError, match="choose another port"):
        serve(FakeBackend(), port=taken.getsockname()[1])


@pytest.mark.parametrize("token", ["", " x", "two\nlines", "k\u00e9y"])
def test_a_token_that_no_client_could_send_is_refused(token):
    with pytest.raises(InputError, match="plain ASCII"):
        create_app(FakeBackend(), token=token)


def test_limits_below_one_are_refused():
    with pytest.raises(InputError):
        create_app(FakeBackend(), queue=0)


def test_the_token_shows_in_no_repr(url):
    app = create_app(FakeBackend(), token=TOKEN)
    assert TOKEN not in repr(app.user_middleware) + repr(vars(app))


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


def test_an_upload_that_never_ends_is_given_up(monkeypatch):
    from pbsdk_backends._server import guard as _guard

    monkeypatch.setattr(_guard, "UPLOAD_SECONDS", 0.2)
    with serving(FakeBackend()) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nab")
            assert b" 408 " in connection.recv(1000)


def test_the_entry_point_is_the_function():
    from importlib.metadata import entry_points

    (entry,) = entry_points(group="pbsdk.servers")
    assert entry.load() is serve_module.serve
