"""The adapter `gemini`, against a server in the manner of Google's."""

from __future__ import annotations

import json
import pickle

import pytest
from helpers.servers import GeminiScript, json_reply, query, scripted, shown

from pbsdk.backend import MaskedQuery, Part
from pbsdk.errors import BadAnswer, InputError, ModelUnusable
from pbsdk.testing import BackendContract, FakeBackend
from pbsdk_backends.gemini import GeminiBackend

MODEL = "gemini-2.5-flash"


def opened(server, **options):
    return GeminiBackend(options.pop("model", MODEL), url=f"{server.url}/v1beta", **options)


@pytest.fixture(scope="module")
def backend():
    with scripted(GeminiScript()) as server, opened(server) as backend:
        yield backend


class TestContract(BackendContract):
    tolerance = 0


def test_a_conversation_is_put_in_googles_form():
    turns = [
        Part("prompt", "Sort."),
        Part("turn"),
        Part("prompt", "Ten euros!"),
        Part("turn"),
        Part("prompt", "billing"),
    ]
    parts = (*turns, Part("turn"), Part("input", "Where is it?"), Part("prompt", " "), Part("mask"))
    with scripted(GeminiScript()) as server, opened(server, api_key="google-key", top=7) as backend:
        assert backend.abilities.turns
        (answer,) = pickle.loads(pickle.dumps(backend)).fill([MaskedQuery(parts, "e", "p")])
        assert len(answer.codes) == 7
        sent = server.asked[-1]
        assert server.asked[0].headers["x-goog-api-key"] == "google-key"
        assert sent.json["systemInstruction"] == {"parts": [{"text": "Sort."}]}
        assert sent.json["contents"] == [
            {"role": "user", "parts": [{"text": "Ten euros!"}]},
            {"role": "model", "parts": [{"text": "billing"}]},
            {"role": "user", "parts": [{"text": "Where is it?"}]},
        ]
        assert sent.json["generationConfig"] == {
            "maxOutputTokens": 1, "temperature": 1, "topP": 1, "candidateCount": 1,
            "thinkingConfig": {"thinkingBudget": 0}, "responseLogprobs": True, "logprobs": 7,
        }  # fmt: skip


def test_the_numbers_are_the_models_and_the_words_are_the_tokens():
    with scripted(GeminiScript()) as server, opened(server, top=10) as backend:
        (answer,) = backend.fill([query("fine weather")])
        fresh = FakeBackend(mask="last")
        text = server.asked[-1].json["contents"][-1]["parts"][0]["text"]
        (whole,) = fresh.fill([MaskedQuery((Part("input", text), Part("mask")), "e", "p")])
        found = {backend.vocabulary[int(t)]: value for t, value in zip(answer.tokens, answer.logprobs, strict=True)}
        assert found == pytest.approx(dict(shown(whole, fresh, 10)), abs=0.0005)
        assert 0 < answer.read_tokens <= backend.most_tokens(query("fine weather"))


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ({"silent": True}, "no log-probabilities; not every model shows"),
        ({"thinks": True}, "only works in thinking mode"),
        ({"model": "other"}, "check the URL and the model's name"),
    ],
)
def test_a_model_that_shows_nothing_is_refused_when_connecting(script, message):
    with scripted(GeminiScript(**script)) as server:
        with pytest.raises(ModelUnusable, match=message):
            opened(server)
        assert len(server.asked) == 1


def test_thinking_can_be_left_unsaid():
    with scripted(GeminiScript(thinks=True)) as server, opened(server, thinking_budget=None) as backend:
        assert "thinkingConfig" not in server.asked[-1].json["generationConfig"]
        assert backend.identity.details["thinking_budget"] == "None"


def said(*candidates, version=MODEL):
    result = {"topCandidates": [{"candidates": list(candidates)}]}
    return json_reply({"candidates": [{"logprobsResult": result}], "modelVersion": version})


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (said({"token": "a", "logProbability": -9999.0}), "stands for no log-probability"),
        (said({"token": "a"}, {"token": "b"}), "are 0"),
        (said(), "no log-probabilities"),
        (json_reply({"promptFeedback": {"blockReason": "OTHER"}, "modelVersion": MODEL}), "no log-probabilities"),
        (said({"token": "a", "logProbability": -1.0}, version="another"), "changed its model"),
        (json_reply({"candidates": [{"logprobsResult": 7}]}), "expected form"),
    ],
)
def test_an_answer_that_says_nothing_is_refused(bad, message):
    replies = iter([said({"token": "a", "logProbability": -1.0}), bad])
    with (
        scripted(lambda _: next(replies)) as server,
        opened(server) as backend,
        pytest.raises(BadAnswer, match=message),
    ):
        backend.fill([query("x")])


def test_settings_that_cannot_work_are_refused_before_anything_is_sent():
    for options in ({"top": 21}, {"top": 0}, {"max_characters": 0}):
        with pytest.raises(InputError):
            GeminiBackend(MODEL, **options)
    with pytest.raises(InputError, match="not a model's name"):
        GeminiBackend("models/../x")


def test_keys_stay_at_home(monkeypatch):
    monkeypatch.setenv("GEMINI_API_KEY", "google-key")
    with scripted(GeminiScript()) as server:
        opened(server).close()
        assert "x-goog-api-key" not in {name.lower() for name in server.asked[-1].headers}
        assert "google-key" not in json.dumps(dict(server.asked[-1].headers))
    assert "GEMINI_API_KEY is set" in GeminiBackend.checkup().facts["key"]
