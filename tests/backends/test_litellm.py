"""The adapter `litellm`, through the library itself where it is installed, and through a small stand-in for it everywhere."""

from __future__ import annotations

import importlib.util
import os
import pickle
import re
import sys

import numpy as np
import pytest
from helpers.litellm import stand_in
from helpers.servers import OpenAIScript, Reply, json_reply, query, scripted

from pbsdk.errors import BackendTimeout, BackendUnavailable, InputError, ModelUnusable, QueryRefused
from pbsdk.testing import BackendContract
from pbsdk_backends.openai import OpenAIBackend

INSTALLED = importlib.util.find_spec("litellm") is not None


@pytest.fixture(params=["stand-in", "library"])
def library(request, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")
    if request.param == "library":
        if not INSTALLED:
            pytest.skip('LiteLLM is not installed: pip install "pbsdk[litellm]"')
    else:
        monkeypatch.setitem(sys.modules, "litellm", stand_in())
    from pbsdk_backends import litellm

    litellm._library.cache_clear()
    yield litellm
    litellm._library.cache_clear()


@pytest.fixture
def connected(library):
    def connect(server, **options):
        return library.LiteLLMBackend("tiny", provider="openai", url=f"{server.url}/v1", **options)

    return connect


class TestContract(BackendContract):
    @pytest.fixture
    def backend(self, connected):
        with scripted(OpenAIScript(chat=20)) as server, connected(server) as backend:
            yield backend


def test_it_gives_what_the_adapter_openai_gives(connected):
    with (
        scripted(OpenAIScript(chat=20)) as server,
        connected(server) as backend,
        OpenAIBackend("tiny", url=f"{server.url}/v1", api="chat", prefill=False) as plain,
    ):
        (one,), (other,) = backend.fill([query("fine")]), plain.fill([query("fine")])
        assert backend.abilities.top == 20
        assert backend.identity.details["provider"] == "openai"
        assert np.array_equal(one.codes, other.codes)
        words = [[lm.vocabulary[token] for token in answer.tokens] for lm, answer in ((backend, one), (plain, other))]
        assert words[0] == words[1]
        again = pickle.loads(pickle.dumps(backend))
        assert np.array_equal(again.fill([query("fine")])[0].codes, one.codes)


def test_the_most_that_is_shown_is_found(connected):
    with scripted(OpenAIScript(chat=8)) as server, connected(server) as backend:
        assert backend.abilities.top == 8


def test_a_model_without_log_probabilities_is_refused(connected):
    with (
        scripted(OpenAIScript(chat=20, silent=True)) as server,
        pytest.raises(ModelUnusable, match="no log-probabilities"),
    ):
        connected(server)


@pytest.mark.parametrize(
    ("status", "headers", "kind", "expected"),
    [
        (429, {"Retry-After": "7"}, BackendUnavailable, (True, False, 7)),
        (503, {"Retry-After": "3"}, BackendUnavailable, (True, False, 3)),
        (500, {}, BackendUnavailable, (True, True, None)),
        (400, {}, QueryRefused, (False, False, None)),
        (401, {}, QueryRefused, (False, False, None)),
    ],
)
def test_an_error_says_what_the_meter_must_know(connected, status, headers, kind, expected):
    script = OpenAIScript(chat=20)
    told = {"error": {"message": f"no, {os.environ['OPENAI_API_KEY']}"}}
    with scripted(script) as server, connected(server, top=20) as backend:
        server.answer = lambda _: json_reply(told, status, **headers)
        asked = len(server.asked)
        with pytest.raises(kind) as caught:
            backend.fill([query("x")])
        assert len(server.asked) == asked + 1  # nothing is asked again behind the meter's back
    (error,) = caught.value.failures.values() or [caught.value]
    assert (error.retryable, error.may_have_run, error.retry_after) == expected
    assert "sk-of-the-environment" not in str(caught.value)
    assert "***" in str(caught.value)


def test_silence_may_have_run(connected):
    with scripted(OpenAIScript(chat=20)) as server, connected(server, top=20, deadline=2) as backend:
        server.answer = lambda _: Reply(fault="stall")
        with pytest.raises(BackendTimeout) as caught:
            backend.fill([query("x")])
        assert caught.value.may_have_run


def test_fields_are_never_left_out_without_a_word(library, connected, monkeypatch):
    monkeypatch.setattr(library._library(), "drop_params", True, raising=False)
    with scripted(OpenAIScript(chat=20)) as server, pytest.raises(ModelUnusable, match="drop_params is on"):
        connected(server)
    assert not server.asked


def test_importing_it_leaves_the_environment_alone(library):
    library._library()
    assert not {"LITELLM_MODE", "LITELLM_LOCAL_MODEL_COST_MAP"} & set(os.environ)


def test_limits_that_it_cannot_keep_are_refused(library):
    with pytest.raises(InputError, match=re.escape("max_bytes can't be enforced")):
        library.LiteLLMBackend("tiny", provider="openai", max_bytes=5)
