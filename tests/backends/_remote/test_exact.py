"""What vLLM shows beyond OpenAI's API, against a stand-in for it; `make test-servers` asks vLLM itself."""

import json
import pickle

import numpy as np
import pytest
from helpers.servers import OpenAIScript, VLLMScript, json_reply, query, scripted

from pbsdk import PromptBoostingClassifier
from pbsdk.data.tickets import load_tickets
from pbsdk.errors import BadAnswer, ModelUnusable, QueryRefused
from pbsdk.metering.meter import MeteredBackend
from pbsdk.testing import BackendContract, FakeBackend
from pbsdk_backends._remote.exact import MOST_CHOSEN, Numbers
from pbsdk_backends.openai import OpenAIBackend

MANY = FakeBackend(mask="last", vocabulary_size=6000)
PROMPTS = ["<input> It is about <mask>", "<input> The problem: <mask>"]


def script(route="completions", limit=-1, **more):
    return VLLMScript(backend=MANY, **{route: limit}, **more)


@pytest.fixture(params=["completions", "chat"])
def server(request):
    with scripted(script(request.param)) as server:
        yield server


@pytest.fixture
def backend(server):
    api = "chat" if server.answer.chat else "completions"
    with OpenAIBackend("tiny", url=f"{server.url}/v1", api=api) as backend:
        yield backend


class TestContract(BackendContract):
    tolerance = 0


def test_a_server_without_a_limit_shows_everything(server, backend):
    assert backend.abilities.whole
    assert backend.abilities.chosen
    assert backend.identity.details["top"] == "all"
    assert backend.chosen.endswith("(all tokens)")
    (answer,) = backend.fill([query("fine weather")])
    assert answer.tokens is None
    assert answer.mass == pytest.approx(1, abs=0.01)
    assert [backend.vocabulary[token] for token in range(3)] == sorted(MANY.vocabulary)[:3]


def test_chosen_tokens_are_asked_for_by_number_and_are_what_the_whole_answer_says(server, backend):
    tokens = np.array([5, 700, 4000])
    (whole,) = backend.fill([query("fine weather")])
    asked = len(server.asked)
    (answer,) = pickle.loads(pickle.dumps(backend)).fill([query("fine weather")], tokens)
    words = [backend.vocabulary[int(token)] for token in tokens]
    assert server.asked[-1].json["logprob_token_ids"] == [MANY.vocabulary.get(word) for word in words]
    assert len(server.asked) == asked + 2 * 3 + 1  # each word's number is looked up, and looked at
    assert answer.codes.tolist() == whole.codes[tokens].tolist()
    assert answer.rest is None
    backend.fill([query("rain")], tokens)
    before = len(server.asked)
    backend.fill([query("snow")], tokens)
    assert len(server.asked) == before + 1


def test_more_chosen_tokens_than_the_server_takes_come_with_the_whole_answer(server, backend):
    (answer,) = backend.fill([query("fine weather")], np.arange(MOST_CHOSEN + 1))
    assert answer.tokens is None
    assert "logprob_token_ids" not in server.asked[-1].json


def test_a_number_of_ones_own_is_held_to():
    with scripted(script()) as server, OpenAIBackend("tiny", url=f"{server.url}/v1", top=30) as backend:
        assert (backend.abilities.whole, backend.abilities.top, backend.abilities.chosen) == (False, 30, True)
        assert all(asked.json.get("logprobs", 0) >= 0 for asked in server.asked)


@pytest.mark.parametrize("head", ["auto", "boosting"])
def test_with_the_usual_limit_training_sees_the_top_and_prediction_is_exact_where_that_helps(tmp_path, head):
    """A regression reads where an answer ends; words that vote are asked for by number."""
    tickets = load_tickets()
    with scripted(script(limit=20)) as server:
        backend = OpenAIBackend("tiny", url=f"{server.url}/v1")
        with MeteredBackend(backend, tmp_path) as lm:
            assert (lm.abilities.top, lm.abilities.chosen) == (20, True)
            clf = PromptBoostingClassifier(lm, PROMPTS, head=head, rounds=20, random_state=1, progress=False)
            clf.fit(tickets.train.texts, tickets.train.labels)
            clf.predict(tickets.test.texts[:10])
            sent = [asked.json for asked in server.asked if asked.path == "/v1/completions"]
            assert ("logprob_token_ids" in sent[-1]) == (head == "boosting")


@pytest.mark.parametrize("answer", [{}, {"tokens": []}, {"tokens": [1, 2]}, {"tokens": ["x"]}])
def test_a_server_that_says_no_number_is_asked_for_the_top(answer):
    plain = script(limit=20)
    other = lambda asked: json_reply(answer) if asked.path == "/tokenize" else plain(asked)  # noqa: E731
    with scripted(other) as server, OpenAIBackend("tiny", url=f"{server.url}/v1", top=20) as backend:
        assert not backend.abilities.chosen


def test_only_vllm_is_asked_for_what_only_vllm_has():
    with scripted(OpenAIScript(completions=6000, backend=MANY)) as server:
        with OpenAIBackend("tiny", url=f"{server.url}/v1") as backend:
            assert (backend.abilities.chosen, backend.abilities.top) == (False, 5000)
        assert {asked.path for asked in server.asked} == {"/v1/completions"}
    with scripted(script()) as server:
        off = {"url": f"{server.url}/v1", "chosen": False}
        with OpenAIBackend("tiny", provider=off) as backend:
            assert (backend.abilities.chosen, backend.abilities.top) == (False, 5000)


def test_a_word_whose_number_says_another_word_has_none():
    said = {"/tokenize": {"tokens": [7]}, "/detokenize": {"prompt": "other"}}
    assert Numbers("tiny", lambda path, _: said[path]).of([" word"]) is None


def test_a_chosen_token_that_is_left_out_is_said_with_the_cure(backend, server):
    tokens = np.array([5, 700])
    backend.fill([query("x")], tokens)
    plain = server.answer

    def forgetful(asked):
        reply = plain(asked)
        said = json.loads(reply.body)
        places = said["choices"][0]["logprobs"]
        if "content" in places:
            del places["content"][0]["top_logprobs"][1:]
        else:
            places["top_logprobs"] = [dict(list(places["top_logprobs"][0].items())[:1])]
        return json_reply(said)

    server.answer = forgetful
    with pytest.raises(QueryRefused, match='"chosen": false') as caught:
        backend.fill([query("x")], tokens)
    assert caught.value.may_have_run


def test_a_whole_answer_with_other_words_is_never_used(backend, server):
    server.answer = VLLMScript(backend=FakeBackend(mask="last", vocabulary_size=5500), completions=-1, chat=-1)
    with pytest.raises(BadAnswer, match=r"shows 5,\d+ words; the vocabulary has 6,000"):
        backend.fill([query("x")])


def test_a_server_that_is_vllm_and_shows_nothing_is_refused_as_any_other():
    with scripted(script(silent=True)) as server, pytest.raises(ModelUnusable, match="no log-probabilities"):
        OpenAIBackend("tiny", url=f"{server.url}/v1", api="completions")
