"""Who may ask the server, and how much."""

from __future__ import annotations

import json
import re

import pytest
import requests
from helpers.servers import TOKEN, headers, query

from pbsdk.backend import ModelIdentity
from pbsdk.errors import InputError
from pbsdk.testing import FakeBackend
from pbsdk_backends._protocol.wire import encode_request
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


def test_a_token_that_does_not_exist_is_a_refusal(url):
    card = requests.get(f"{url}/v1/model", headers=headers(), timeout=30).json()
    model = ModelIdentity.from_json(card["identity"]).digest
    for token, status in ((999, 200), (1000, 400), ((1 << 63) - 1, 400), (1 << 63, 422), (-1, 422)):
        request = encode_request(model, [query("x")], None) | {"tokens": [token]}
        reply = requests.post(f"{url}/v1/fill", json=request, headers=headers(), timeout=30)
        assert reply.status_code == status, reply.text
    assert (
        "doesn't exist; the vocabulary has 1,000"
        in requests.post(f"{url}/v1/fill", json=request | {"tokens": [1000]}, headers=headers(), timeout=30).json()[
            "error"
        ]
    )


HALF = "\ud800"


@pytest.mark.parametrize(
    ("path", "request_"),
    [
        ("/", {"inputs": f"a <mask>{HALF}"}),
        ("/", {"inputs": "a <mask>", "parameters": {"targets": [HALF]}}),
        ("/models/any", {"inputs": [HALF]}),
        ("/v2/models/fake/infer", {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [f"<mask>{HALF}"]}]}),
        ("/v2/models/fake/infer", {"id": HALF, "inputs": []}),
        ("/v1/fill", {"model": HALF, "queries": []}),
        ("/v1/fill", {"model": "m", "queries": [], "words": {HALF: HALF}}),
        ("/v1/fill", {"model": "m", "queries": [], HALF: 1}),
        ("/v1/fill", {"model": "m", "queries": [{"parts": [["input", HALF]], "example": "", "prompt": "", "phase": "train"}]}),
    ],
)  # fmt: skip
def test_half_a_surrogate_pair_is_the_clients_mistake(url, path, request_):
    kind = {"Content-Type": "application/json"}
    reply = requests.post(url + path, data=json.dumps(request_).encode(), headers=headers() | kind, timeout=30)
    assert 400 <= reply.status_code < 500, reply.text
    assert "valid dictionary" not in reply.json()["error"]  # it was read as what it is
    with HttpBackend(url, api_key=TOKEN) as backend:
        assert len(backend.fill([query("x")])) == 1


@pytest.mark.parametrize("shape", [[2**62] * 100_000, [1] * 9, [10**30], [-1]])
def test_a_tensor_has_few_dimensions_of_a_sane_size(url, shape):
    request = {"inputs": [{"name": "text", "shape": shape, "datatype": "BYTES", "data": ["a <mask>"]}]}
    reply = requests.post(f"{url}/v2/models/fake/infer", json=request, headers=headers(), timeout=10)
    assert reply.status_code == 400
    assert "shape" in reply.json()["error"]
    assert len(reply.text) < 500


@pytest.mark.parametrize("length", ["9" * 6000, "-1", "x", "3"])
def test_a_length_that_is_none_is_the_clients_mistake(url, length):
    more = {"Inference-Header-Content-Length": length}
    reply = requests.post(f"{url}/v2/models/fake/infer", data=b"{}", headers=headers() | more, timeout=10)
    assert reply.status_code == 400
    assert "Length" in reply.json()["error"]


def test_the_page_loads_nothing_and_describes_every_route(url):
    page = requests.get(f"{url}/docs", timeout=30)
    assert page.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert "<script" not in page.text
    assert not re.findall(r"(?:src|href|url|@import)\W{1,3}(?:https?:)?//", page.text)
    for path in requests.get(f"{url}/openapi.json", timeout=30).json()["paths"]:
        assert path in page.text
