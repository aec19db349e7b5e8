"""The adapter `openai`, against a server in the manner of OpenAI's, vLLM's and llama.cpp's."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import replace

import numpy as np
import pytest
from helpers.servers import OpenAIScript, Reply, json_reply, query, scripted, shown

from pbsdk.backend import MaskedQuery, Part
from pbsdk.errors import BackendUnavailable, BadAnswer, InputError, ModelUnusable
from pbsdk.ledger.budget import QueryBudget
from pbsdk.metering.meter import MeteredBackend
from pbsdk.queries.examples import Example
from pbsdk.queries.templates import Demonstration, Template
from pbsdk.testing import BackendContract, FakeBackend
from pbsdk_backends.openai import OpenAIBackend


@pytest.fixture(params=[{"completions": 50}, {"chat": 20}], ids=["completions", "chat"], scope="module")
def backend(request):
    with scripted(OpenAIScript(**request.param)) as server, OpenAIBackend("tiny", url=f"{server.url}/v1") as backend:
        yield backend


class TestContract(BackendContract):
    tolerance = 0


@pytest.mark.parametrize(
    ("script", "api", "top", "requests"),
    [
        ({"completions": 5}, "completions", 5, 2 + 1),
        ({"completions": 7, "chat": 5}, "completions", 7, 2 + 2),
        ({"completions": 20}, "completions", 20, 2),
        ({"completions": 20, "refusal": "no"}, "completions", 20, 8),
        ({"completions": 60, "refusal": "no"}, "completions", 50, 7),
        ({"completions": 1000}, "completions", 1000, 2),
        ({"completions": 1000, "chat": 20}, "completions", 1000, 2),
        ({"completions": 9999}, "completions", 1000, 1),  # all that the model has
        ({"chat": 20}, "chat", 20, 1 + 2 + 2),
        ({"chat": 5, "refusal": "no"}, "chat", 5, 1 + 11 + 2),
    ],
)
def test_what_the_server_allows_is_found_out_once(script, api, top, requests):
    with scripted(OpenAIScript(**script)) as server, OpenAIBackend("tiny", url=f"{server.url}/v1") as backend:
        assert backend.identity.details["api"] == api
        assert backend.abilities.top == top
        assert len(server.asked) == requests
        backend.fill([query("x")])
        assert len(server.asked) == requests + 1


VLLM = "Requested sample logprobs of {count}, which is greater than max allowed: {limit}"


def test_a_number_of_tokens_above_the_limit_is_said_with_the_limit():
    with scripted(OpenAIScript(completions=20, refusal=VLLM)) as server, pytest.raises(ModelUnusable) as caught:
        OpenAIBackend("tiny", url=f"{server.url}/v1", top=100)
    assert "top=100 is more than 'tiny' shows here: at most 20 tokens by completions" in str(caught.value)
    assert "max allowed: 20" in str(caught.value)
    assert "connect with top=20" in str(caught.value)
    assert "no log-probabilities" not in str(caught.value)


def test_a_server_that_breaks_over_many_tokens_is_asked_for_fewer():
    script = OpenAIScript(completions=1000)

    def answer(asked):
        return json_reply({}, 500) if asked.method == "POST" and asked.json["logprobs"] > 200 else script(asked)

    with scripted(answer) as server, OpenAIBackend("tiny", url=f"{server.url}/v1") as backend:
        assert backend.abilities.top == 200


@pytest.mark.parametrize("api", ["auto", "completions", "chat"])
def test_a_model_that_the_server_lacks_is_said_once_and_by_its_setting(api):
    with scripted(OpenAIScript(completions=5, chat=5, strict=True)) as server:
        with pytest.raises(ModelUnusable, match="no model='tinny'; it has 'tiny'"):
            OpenAIBackend("tinny", url=f"{server.url}/v1", api=api)
        assert len(server.asked) <= 3


@pytest.mark.parametrize("path", ["", "/v2", "/v1/completions"])
def test_an_address_where_nothing_is_is_said_once_and_by_its_setting(path):
    with scripted(OpenAIScript(completions=5, chat=5)) as server:
        with pytest.raises(ModelUnusable, match=f"url='{server.url}{path}' is not the address"):
            OpenAIBackend("tiny", url=server.url + path)
        assert len(server.asked) == 3


def test_a_page_at_the_address_is_no_server():
    with scripted(lambda _: Reply(200, b"<html>")) as server:
        with pytest.raises(ModelUnusable, match=r"not JSON.*url='http"):
            OpenAIBackend("tiny", url=server.url)
        assert len(server.asked) == 2


def test_a_probability_of_zero_is_a_number_like_any_other():
    """As llama.cpp writes it: the smallest float."""
    reply = listed((10, "A", b"A", -0.5), (11, "B", b"B", -3.4028234663852886e38))
    with scripted(lambda _: json_reply(reply)) as server, OpenAIBackend("tiny", url=server.url, top=2) as backend:
        (answer,) = backend.fill([query("x")])
        assert answer.logprobs.min() < -60


def test_a_route_that_refuses_everything_is_not_asked_for_every_number():
    refusal = json_reply({"error": {"message": "unknown field logprobs"}}, 400)
    with scripted(lambda _: refusal) as server:
        with pytest.raises(ModelUnusable, match="unknown field logprobs"):
            OpenAIBackend("tiny", url=f"{server.url}/v1")
        assert len(server.asked) == 2 * 2 + 1


@pytest.mark.parametrize(
    ("top", "message"),
    [
        ({" a": -0.5, " b": -9999.0}, "-9999 for a token"),
        ({" a": 0.0}, "are 0, which says nothing"),
        ({" a": 0.0, " b": 0.0}, "are 0, which says nothing"),
        ({" a": -9999.0, " b": -9999.0}, "-9999 for a token"),
    ],
)
@pytest.mark.parametrize("form", ["completions", "chat"])
def test_numbers_that_stand_for_none_are_refused(top, message, form):
    bad = completion(top)
    if form == "chat":
        places = [{"token": word, "logprob": value} for word, value in top.items()]
        bad = {"model": "tiny", "choices": [{"logprobs": {"content": [{"top_logprobs": places}]}}]}
    replies = iter([json_reply(completion({" a": -0.5, " b": -2.0})), json_reply(bad)])
    with scripted(lambda _: next(replies)) as server:
        backend = OpenAIBackend("tiny", url=server.url, api="completions", top=2)
        with backend, pytest.raises(BadAnswer, match=message) as caught:
            backend.fill([query("x")])
        assert caught.value.answered == {}
    with scripted(lambda _: json_reply(bad)) as server, pytest.raises(ModelUnusable, match=message):
        OpenAIBackend("tiny", url=server.url)


@pytest.mark.parametrize(("words", "top"), [(97, 100), (20, 20)])
def test_a_few_words_fewer_than_asked_are_no_limit_of_the_server(words, top):
    reply = json_reply(completion({f" w{n}": -5.0 - n / 10 for n in range(words)}))
    with scripted(lambda _: reply) as server, OpenAIBackend("tiny", url=server.url, top=100) as backend:
        assert backend.abilities.top == top
        assert len(backend.fill([query("x")])[0].tokens) == words


def test_naming_both_asks_once():
    script = OpenAIScript(completions=20, chat=20)
    with (
        scripted(script) as server,
        OpenAIBackend("tiny", url=f"{server.url}/v1", api="chat", top=7, prefill=False) as backend,
    ):
        assert (backend.identity.details["api"], backend.abilities.top, len(server.asked)) == ("chat", 7, 1)


def test_the_numbers_are_the_models_and_the_words_are_the_tokens():
    script = OpenAIScript(completions=10)
    with scripted(script) as server, OpenAIBackend("tiny", url=f"{server.url}/v1", top=10) as backend:
        (answer,) = backend.fill([query("fine weather")])
        sent = server.asked[-1].json
        assert sent == {
            "model": "tiny", "prompt": "fine weather It was", "max_tokens": 1,
            "temperature": 1, "top_p": 1, "n": 1, "logprobs": 10,
        }  # fmt: skip
        fresh = FakeBackend(mask="last")
        (whole,) = fresh.fill([MaskedQuery((Part("input", "fine weather It was"), Part("mask")), "e", "p")])
        expected = dict(shown(whole, fresh, 10))
        found = {backend.vocabulary[int(t)]: value for t, value in zip(answer.tokens, answer.logprobs, strict=True)}
        assert found == pytest.approx(expected, abs=0.0005)
        assert answer.read_tokens == 4
        assert answer.rest == answer.codes.max()


def test_a_word_has_the_same_number_in_every_backend():
    tokens = []
    for _ in range(2):
        with scripted(OpenAIScript(completions=10)) as server, OpenAIBackend("tiny", url=f"{server.url}/v1") as backend:
            tokens.append(backend.fill([query("x")])[0].tokens.tolist())
    assert tokens[0] == tokens[1]


FILLED = [
    {"role": "user", "content": "The sun was shining all day. The weather was ___"},
    {"role": "assistant", "content": "fine"},
    {"role": "user", "content": "She plays the piano every evening. Her hobby is ___"},
    {"role": "assistant", "content": "music"},
]


def test_a_chat_server_that_begins_a_new_turn_is_shown_a_blank():
    with scripted(OpenAIScript(chat=5)) as server, OpenAIBackend("tiny", url=f"{server.url}/v1", api="chat") as backend:
        assert backend.identity.details["opening"] == "blank"
        backend.fill([query("x")])
        assert server.asked[-1].json["messages"] == [
            {"role": "system", "content": "Fill in the blank with one word."},
            *FILLED,
            {"role": "user", "content": "x It was ___"},
        ]
        other = OpenAIBackend("tiny", url=f"{server.url}/v1", api="chat", instruction="Guess.")
        assert other.identity != backend.identity
        other.fill([query("x")])
        assert server.asked[-1].json["messages"][0] == {"role": "system", "content": "Guess."}


@pytest.mark.parametrize("opening", ["told", ""])
def test_prompts_that_show_demonstrations_are_conversations(opening):
    names, shown = ["shipping", "billing"], [Demonstration.of(Example("Ten euros!"), 1)]
    with scripted(OpenAIScript(chat=20, opening=opening)) as server:
        for options in ({}, {"instruction": "Think."}):
            with OpenAIBackend("tiny", url=f"{server.url}/v1", api="chat", **options) as backend:
                assert backend.abilities.turns
                source = "One of: <labels>.\n\n<examples>Text: <input>\nKind: <mask>"
                template = Template(source).put_to(backend.abilities).filled(names, shown)
                asked = template.query(Example("Where is it?"))
                (answer,) = backend.fill([asked])
                assert 0 < answer.read_tokens <= backend.most_tokens(asked)
                told = "Think.\n\n" if options else ""
                assert server.asked[-1].json["messages"] == [
                    {"role": "system", "content": f"{told}One of: billing, shipping."},
                    {"role": "user", "content": "Text: Ten euros!\nKind:"},
                    {"role": "assistant", "content": "billing"},
                    {"role": "user", "content": "Text: Where is it?\nKind:"},
                ]
                assert "continue_final_message" not in server.asked[-1].json


def test_completions_are_asked_in_one_text():
    with scripted(OpenAIScript(completions=20)) as server, OpenAIBackend("tiny", url=f"{server.url}/v1") as backend:
        assert not backend.abilities.turns


@pytest.mark.parametrize("opening", ["told", "last"])
def test_a_chat_server_that_goes_on_with_a_turn_is_given_its_beginning(opening):
    """vLLM has to be told; llama.cpp, which takes either, and others go on by themselves."""
    script = OpenAIScript(chat=20, opening=opening)
    with scripted(script) as server, OpenAIBackend("tiny", url=f"{server.url}/v1", api="chat") as backend:
        assert backend.identity.details["opening"] == opening
        backend.fill([query("fine weather")])
        sent = server.asked[-1].json
        assert sent["messages"] == [
            {"role": "user", "content": "fine weather"},
            {"role": "assistant", "content": "It was"},
        ]
        assert (sent.get("continue_final_message"), sent.get("add_generation_prompt")) == (
            (True, False) if opening == "told" else (None, None)
        )
        backend.fill([MaskedQuery((Part("input", "fine weather"), Part("prompt", " "), Part("mask")), "e", "p")])
        assert server.asked[-1].json["messages"] == [{"role": "user", "content": "fine weather"}]
        assert "continue_final_message" not in server.asked[-1].json


def test_a_beginning_that_is_asked_for_and_refused_is_said_at_once():
    def refuses(asked):
        if asked.json["messages"][-1]["role"] == "assistant":
            return json_reply({"error": {"message": "the last message must be the user's"}}, 400)
        return OpenAIScript(chat=20)(asked)

    with scripted(refuses) as server:
        with pytest.raises(ModelUnusable, match="leave prefill out"):
            OpenAIBackend("tiny", url=f"{server.url}/v1", api="chat", prefill=True)
        with OpenAIBackend("tiny", url=f"{server.url}/v1", api="chat") as backend:
            assert backend.identity.details["opening"] == "blank"


def listed(*entries, model="tiny"):
    """An answer of llama.cpp's to completions: in the form of chat, with numbers and bytes."""
    places = [
        {"id": number, "token": text, "bytes": list(data), "logprob": value} for number, text, data, value in entries
    ]
    choice = {"text": "", "index": 0, "logprobs": {"content": [{**places[0], "top_logprobs": places}]}}
    return {"model": model, "choices": [choice], "usage": {"prompt_tokens": 5}}


LLAMA = listed(
    (7042, " Paris", b" Paris", -0.25),
    (216, " ", b" ", -4.75),
    (5549, " ", b" \xc3", -7.5),
    (2, "", b"", -8.0),
    (321, "", b"\xe2\x80", -11.0),
    (142, "", b"\xc3", -13.0),
)


def test_completions_in_the_form_of_chat_are_read():
    with scripted(lambda _: json_reply(LLAMA)) as server, OpenAIBackend("tiny", url=server.url, top=6) as backend:
        assert backend.identity.details["api"] == "completions"
        (answer,) = backend.fill([query("x")])
        found = {backend.vocabulary[int(t)]: value for t, value in zip(answer.tokens, answer.logprobs, strict=True)}
        assert found == {" Paris": -0.25, " ": -4.75}


def test_two_tokens_with_the_same_word_are_that_word_together():
    reply = listed((10, "A", b"A", np.log(0.25)), (11, "A", b"A", np.log(0.5)), (12, "B", b"B", np.log(0.125)))
    with scripted(lambda _: json_reply(reply)) as server, OpenAIBackend("tiny", url=server.url, top=3) as backend:
        (answer,) = backend.fill([query("x")])
        found = {backend.vocabulary[int(t)]: value for t, value in zip(answer.tokens, answer.logprobs, strict=True)}
        assert found == pytest.approx({"A": np.log(0.75), "B": np.log(0.125)}, abs=0.0005)


def test_one_token_twice_is_a_bad_answer():
    good, bad = listed((10, "A", b"A", -1.0)), listed((10, "A", b"A", -1.0), (10, "A", b"A", -2.0))
    replies = iter([json_reply(good), json_reply(bad)])
    with scripted(lambda _: next(replies)) as server:
        backend = OpenAIBackend("tiny", url=server.url, api="completions", top=1)
        with backend, pytest.raises(BadAnswer, match="twice"):
            backend.fill([query("x")])


def wants(reply, *, error):
    """A refusal in OpenAI's form, unless all is well."""
    return reply if not error else json_reply({"error": {"message": error, "type": "invalid_request_error"}}, 400)


def gpt5(asked):
    """GPT-5's manner: another name for the field, and log-probabilities only without reasoning."""
    if asked.path == "/v1/completions":
        return json_reply({"error": {"message": "This is a chat model"}}, 404)
    said = asked.json
    error = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead." if "max_tokens" in said else ""
    if said.get("reasoning_effort") != "none":
        error = error or "logprobs are not supported with reasoning models."
    return wants(OpenAIScript(model="gpt-5.2", chat=20)(asked), error=error)


def together(asked):
    """Together's manner: the number itself, and an answer in the form of completions."""
    said = asked.json
    if type(said["logprobs"]) is not int or "top_logprobs" in said:
        return wants(None, error="logprobs must be an integer between 0 and 20")
    answer = OpenAIScript(completions=20)(
        replace(
            asked,
            path="/v1/completions",
            body=json.dumps({"model": "tiny", "logprobs": said["logprobs"], "prompt": "x"}).encode(),
        )
    )
    return json_reply({}, 404) if asked.path == "/v1/completions" else answer


def xai(asked):
    if asked.path != "/v1/chat/completions" or asked.json["top_logprobs"] > 8:
        return wants(None, error="no")
    return OpenAIScript(model="grok-4", chat=8)(asked)


def openrouter(asked):
    """A router that takes any backend, unless told that it must take all fields."""
    strict = asked.json.get("provider", {}).get("require_parameters", False)
    return OpenAIScript(model="some/model", chat=20, silent=not strict)(asked)


@pytest.mark.parametrize(
    ("provider", "model", "answer", "top", "most"),
    [
        ("openai", "gpt-5.2", gpt5, 20, 6),
        ("together", "tiny", together, 20, 5),
        ("xai", "grok-4", xai, 8, 3),
        ("openrouter", "some/model", openrouter, 20, 3),
    ],
)
def test_a_preset_speaks_the_providers_dialect(provider, model, answer, top, most):
    with (
        scripted(answer) as server,
        OpenAIBackend(model, url=f"{server.url}/v1", provider=provider) as backend,
    ):
        assert (backend.identity.details["api"], backend.abilities.top) == ("chat", top)
        assert len(server.asked) <= most
        assert len(backend.fill([query("x")])[0].codes) == top


@pytest.mark.parametrize(("model", "answer"), [("gpt-5.2", gpt5), ("tiny", together), ("some/model", openrouter)])
def test_without_its_preset_the_same_server_shows_nothing(model, answer):
    with scripted(answer) as server, pytest.raises(ModelUnusable):
        OpenAIBackend(model, url=f"{server.url}/v1")


def test_a_field_that_is_called_otherwise_is_found_out():
    def answer(asked):
        old = "max_tokens" in asked.json and asked.path.endswith("chat/completions")
        error = "Unsupported parameter: use 'max_completion_tokens' instead." if old else ""
        return wants(OpenAIScript(chat=20)(asked), error=error)

    with scripted(answer) as server, OpenAIBackend("tiny", url=f"{server.url}/v1", api="chat") as backend:
        backend.fill([query("x")])
        assert server.asked[-1].json["max_completion_tokens"] == 1


def test_a_preset_of_ones_own_is_a_dictionary_or_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("MINE_KEY", "my-key")
    monkeypatch.setenv("OPENAI_API_KEY", "not for them")
    own = {
        "keys": ["OPENAI_API_KEY", "MINE_KEY"],
        "hosts": ["127.0.0.1"],
        "header": "x-key",
        "api": "chat",
        "top": 7,
        "body": {"routing": {"strict": True}},
        "headers": {"X-Team": "search"},
    }
    with scripted(OpenAIScript(chat=20)) as server:
        own["url"] = f"{server.url}/v1"
        (tmp_path / "mine.json").write_text(json.dumps(own))
        for provider in (own, tmp_path / "mine.json", str(tmp_path / "mine.json")):
            with OpenAIBackend("tiny", provider=provider, prefill=False, body={"seed": 1}) as backend:
                backend.fill([query("x")])
                assert backend.abilities.top == 7
                assert json.loads(backend.identity.details["body"]) == {"routing": {"strict": True}, "seed": 1}
            sent = server.asked[-1]
            assert (sent.headers["x-key"], sent.headers["X-Team"]) == ("my-key", "search")
            assert (sent.json["routing"], sent.json["seed"]) == ({"strict": True}, 1)
            again = pickle.loads(pickle.dumps(backend))
            again.fill([query("x")])
            assert server.asked[-1].headers["X-Team"] == "search"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"provider": "nobody"}, "neither a preset nor a JSON file; the presets are openai, azure"),
        ({"provider": "azure"}, "give url="),
        ({"provider": {"limit": 3}}, "limit: Extra inputs are not permitted; a preset may have about, url"),
        (
            {"provider": {"url": "http://127.0.0.1:9", "body": {"temperature": 0}}},
            "'temperature' is set by the adapter",
        ),
        ({"provider": {"models": [{"pattern": "("}]}}, "no regular expression"),
        ({"body": {"n": 2}}, "'n' is set by the adapter"),
    ],
)
def test_a_preset_that_cannot_work_is_refused(options, message):
    with pytest.raises(InputError, match=re.escape(message)):
        OpenAIBackend("tiny", **options)


@pytest.mark.parametrize(
    ("script", "chosen"),
    [
        ({"completions": 30, "chat": 60}, "completions (top 30)"),
        ({"completions": 20, "chat": 20}, "completions (top 20)"),
        ({"completions": 7, "chat": 5}, "completions (top 7), since chat shows only 5"),
        ({"completions": 5}, "completions (top 5), since chat can't be used (127.0.0.1"),
    ],
)
def test_completions_are_preferred_unless_chat_shows_more(script, chosen):
    with scripted(OpenAIScript(**script)) as server, OpenAIBackend("tiny", url=f"{server.url}/v1") as backend:
        assert backend.chosen.startswith(chosen)


def test_chat_is_taken_where_it_shows_more_and_that_is_said():
    with (
        scripted(OpenAIScript(completions=5, chat=20)) as server,
        pytest.warns(UserWarning, match=r"asked by chat \(top 20\), since completions show only 5; say api=\"chat\""),
        OpenAIBackend("tiny", url=f"{server.url}/v1") as backend,
    ):
        assert backend.identity.details["api"] == "chat"


def test_the_address_of_the_environment_is_used_and_named(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "gateway-key")
    with scripted(OpenAIScript(completions=5)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        with pytest.warns(UserWarning, match=server.url.removeprefix("http://")):
            OpenAIBackend("tiny", top=5).close()
        OpenAIBackend("tiny", url=f"{server.url}/v1", top=5).close()  # no warning, the same key
        assert [asked.headers["Authorization"] for asked in server.asked] == ["Bearer gateway-key"] * 2
    assert OpenAIBackend.checkup().facts["host"] == "127.0.0.1"


def test_azure_gets_its_version_and_its_header():
    with scripted(lambda _: json_reply(completion({" a": -0.5}, model="gpt-4o-mini-2024-07-18"))) as server:
        url = f"{server.url}/openai/deployments/mine?api-version=2024-10-21"
        with OpenAIBackend("mine", url=url, api="completions", top=1, api_key="azure-key") as backend:
            pickle.loads(pickle.dumps(backend)).fill([query("x")])
            assert backend.identity.details["served"] == "gpt-4o-mini-2024-07-18"
        first, second = server.asked
        assert first.path == second.path == "/openai/deployments/mine/completions?api-version=2024-10-21"
        assert first.headers["api-key"] == "azure-key"
        assert "Authorization" not in first.headers


def test_a_header_may_have_any_name():
    named = {"path": "1", "body": "2", "self": "3"}
    with (
        scripted(OpenAIScript(completions=5)) as server,
        OpenAIBackend("tiny", url=f"{server.url}/v1", top=5, headers=named) as backend,
    ):
        backend.fill([query("x")])
        assert named.items() <= server.asked[-1].headers.items()


def test_other_queries_in_the_address_are_refused():
    with pytest.raises(InputError, match="api-version"):
        OpenAIBackend("tiny", url="http://127.0.0.1:9/v1?key=secret")


def test_the_token_drawn_is_left_out_where_it_comes_as_one_more():
    """Its probability says nothing about tokens between it and the k-th."""
    with (
        scripted(OpenAIScript(completions=10)) as plain,
        scripted(OpenAIScript(completions=10, extra=True)) as more,
        OpenAIBackend("tiny", url=f"{plain.url}/v1", top=5) as one,
        OpenAIBackend("tiny", url=f"{more.url}/v1", top=5) as other,
    ):
        (a,), (b,) = one.fill([query("x")]), other.fill([query("x")])
        assert np.array_equal(a.tokens, b.tokens)
        assert a.rest == b.rest


def completion(top, model="tiny"):
    return {"model": model, "choices": [{"logprobs": {"top_logprobs": [top]}}]}


def test_pieces_of_a_character_have_no_word_and_are_left_out():
    reply = json_reply(completion({" a": -0.5, "\ufffd": -1.5, " b": -3.0}))
    with (
        scripted(lambda _: reply) as server,
        OpenAIBackend("tiny", url=server.url, api="completions", top=3) as backend,
    ):
        (answer,) = backend.fill([query("x")])
        assert sorted(backend.vocabulary[int(token)] for token in answer.tokens) == [" a", " b"]


def test_nothing_before_the_mask_is_sent_as_a_line_end():
    with (
        scripted(OpenAIScript(completions=5)) as server,
        OpenAIBackend("tiny", url=f"{server.url}/v1", top=5) as backend,
    ):
        backend.fill([MaskedQuery((Part("input", ""), Part("prompt", " "), Part("mask")), "e", "p")])
        assert server.asked[-1].json["prompt"] == "\n"


def test_long_inputs_are_cut_and_the_prompt_is_not():
    script = OpenAIScript(completions=5)
    with (
        scripted(script) as server,
        OpenAIBackend("tiny", url=f"{server.url}/v1", top=5, max_characters=20) as backend,
    ):
        (answer,) = backend.fill([query("long words " * 100)])
        assert server.asked[-1].json["prompt"] == "long words long It was"
        assert answer.cut_tokens == 197


@pytest.mark.parametrize(
    "bad",
    [
        json_reply(completion({" a": -0.1, " b": -0.1})),
        json_reply(completion({" a": 0.5})),
        json_reply(completion({" a": -0.5}, model="another")),
        json_reply({"model": "tiny", "choices": []}),
        json_reply({"model": "tiny", "choices": [{"logprobs": None}]}),
        Reply(200, b'{"model": "tiny", "choices": [{"logprobs": {"top_logprobs": [{" a": NaN}]}}]}'),
        Reply(200, b'{"model": "tiny", "choices": [{"logprobs": {"top_logprobs": [{" a": -1, " a": -2}]}}]}'),
        Reply(200, b"{"),
        Reply(200, b"[" * 100_000),
        json_reply({**completion({" a": -0.5}), "usage": {"prompt_tokens": 2**32}}),
        json_reply({**completion({" a": -0.5}), "usage": {"prompt_tokens": -1}}),
        json_reply(completion({"\ud800": -0.5})),
    ],
)
def test_an_answer_that_cannot_be_right_is_never_used(bad):
    replies = iter([json_reply(completion({" a": -0.5, " b": -2.0})), bad])
    with scripted(lambda _: next(replies)) as server:
        backend = OpenAIBackend("tiny", url=server.url, api="completions", top=2)
        with backend, pytest.raises(BadAnswer) as caught:
            backend.fill([query("x")])
        assert caught.value.answered == {}


@pytest.mark.parametrize("way", [{"completions": 5}, {"chat": 5}, {"chat": 5, "opening": "told"}], ids=str)
def test_a_long_text_is_charged_at_the_length_that_is_sent(tmp_path, way):
    limits = QueryBudget(tokens=7_000)
    with scripted(OpenAIScript(**way)) as server:
        backend = OpenAIBackend("tiny", url=f"{server.url}/v1", top=5)
        with MeteredBackend(backend, tmp_path, limits) as lm:
            long = query("word " * 20_000)
            assert 6_000 < lm.most_tokens(long) < 6_500
            assert lm.count_tokens(long) < lm.most_tokens(long)
            (answer,) = lm.fill([long])
            assert 0 < answer.read_tokens <= lm.most_tokens(long)
            assert lm.most_tokens(query("word")) < 200


def test_what_is_put_around_a_text_is_learned_from_the_probe():
    def wrapped(tokens):
        script = OpenAIScript(completions=5)

        def answer(asked):
            said = json.loads(script(asked).body)
            return json_reply({**said, "usage": tokens and {"prompt_tokens": tokens}})

        return answer

    bounds = []
    for tokens in (5, 3_000, None):
        with scripted(wrapped(tokens)) as server:
            backend = OpenAIBackend("tiny", url=f"{server.url}/v1", api="completions", top=5)
            bounds.append(backend.most_tokens(query("fine")))
            backend.close()
    text = len("fine It was ")
    assert bounds[:2] == [text + 5, text + 3_000]
    assert 100 < bounds[2] < 400  # all of the request, where the server doesn't say


def test_a_chat_token_that_stands_twice_is_a_bad_answer():
    entry = {"token": " a", "logprob": -1.0}
    choice = {"logprobs": {"content": [{**entry, "top_logprobs": [entry, entry]}]}}
    with scripted(OpenAIScript(chat=5)) as server:
        backend = OpenAIBackend("tiny", url=f"{server.url}/v1", api="chat", top=5)
        server.answer = lambda _: json_reply({"model": "tiny", "choices": [choice]})
        with backend, pytest.raises(BadAnswer, match="twice"):
            backend.fill([query("x")])


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (OpenAIScript(), "Anthropic"),
        (OpenAIScript(completions=5, silent=True), "no log-probabilities"),
        (OpenAIScript(chat=20, silent=True), "reasoning models"),
        (lambda _: json_reply({"error": {"message": "logprobs are not supported with this model"}}, 400), "not supported"),
    ],
)  # fmt: skip
def test_a_server_without_probabilities_says_what_would_work(script, message):
    with scripted(script) as server, pytest.raises(ModelUnusable, match="what works") as caught:
        OpenAIBackend("tiny", url=f"{server.url}/v1")
    assert message in str(caught.value)


@pytest.mark.parametrize("status", [401, 403])
def test_a_wrong_key_is_said_at_once(status):
    with scripted(lambda _: json_reply({"error": {"message": "bad key sk-leak"}}, status)) as server:
        with pytest.raises(ModelUnusable, match="key") as caught:
            OpenAIBackend("tiny", url=f"{server.url}/v1", api_key="sk-leak")
        assert len(server.asked) == 1
    assert "sk-leak" not in str(caught.value)


def test_a_server_that_is_busy_is_not_taken_for_one_that_cannot():
    with scripted(lambda _: json_reply({}, 429, **{"Retry-After": "3"})) as server:
        with pytest.raises(BackendUnavailable) as caught:
            OpenAIBackend("tiny", url=server.url)
        assert caught.value.retry_after == 3


@pytest.mark.parametrize(
    ("served", "fits"),
    [
        ("tiny", True),
        ("tiny-2024-07-18", True),
        ("tiny:latest", True),
        ("tiny-mini", False),
        ("tiny-mini-2024-07-18", False),
        ("other", False),
    ],
)
def test_the_model_that_answers_is_the_model_that_was_asked(served, fits):
    with scripted(OpenAIScript(completions=5, model=served)) as server:
        if fits:
            with OpenAIBackend("tiny", url=f"{server.url}/v1") as backend:
                assert json.loads(backend.identity.to_json())["served"] == served
        else:
            with pytest.raises(ModelUnusable, match=f"model='{served}'"):
                OpenAIBackend("tiny", url=f"{server.url}/v1")


@pytest.mark.parametrize("options", [{"api": "embeddings"}, {"top": 0}, {"max_characters": 0}])
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(InputError):
        OpenAIBackend("tiny", url="http://127.0.0.1:9", **options)
