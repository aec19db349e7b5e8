"""The adapter `huggingface`, against `pbsdk serve` and against a server with the real one's habits."""

from __future__ import annotations

import socket

import numpy as np
import pytest
from helpers.servers import Reply, json_reply, query, scripted

from pbsdk import PromptBoostingClassifier
from pbsdk.backend import MaskedQuery, OpenVocabulary, Part
from pbsdk.data.tickets import load_tickets
from pbsdk.errors import BackendUnavailable, BadAnswer, InputError, ModelUnusable, QueryRefused, SetupError
from pbsdk.metering.meter import MeteredBackend
from pbsdk.testing import BackendContract, FakeBackend
from pbsdk_backends.huggingface import SERVERLESS, HuggingFaceBackend
from pbsdk_backends.serve import serving


@pytest.fixture(scope="module")
def fake():
    return FakeBackend()


@pytest.fixture(scope="module")
def backend(fake):
    with serving(fake) as url, HuggingFaceBackend("fake", url=url, top_k=30) as backend:
        yield backend


class TestContract(BackendContract):
    tolerance = 0


def test_it_shows_the_models_own_numbers(fake, backend):
    (seen,) = backend.fill([MaskedQuery((Part("input", "a b "), Part("mask"), Part("input", "")), "e", "p")])
    (whole,) = fake.fill([MaskedQuery((Part("input", "a b "), Part("mask"), Part("input", "")), "e", "p")])
    assert len(seen.tokens) == 30
    assert np.array_equal(seen.codes, whole.codes[seen.tokens])
    assert seen.rest == np.sort(whole.codes)[29]
    assert isinstance(backend.vocabulary, OpenVocabulary)
    assert all(backend.vocabulary[int(token)] == fake.vocabulary[int(token)] for token in seen.tokens)


@pytest.mark.parametrize("head", ["auto", "boosting"])
def test_a_classifier_that_learned_from_the_top_k_predicts(tmp_path, backend, head):
    """Words that vote are asked for as targets; a regression reads where an answer ends, which targets don't say."""
    tickets = load_tickets()
    lm = MeteredBackend(backend, tmp_path)
    prompts = ["<input> It is about <mask>.", "<input> My <mask> problem."]
    clf = PromptBoostingClassifier(lm, prompts, head=head, rounds=20, random_state=1, progress=False)
    clf.fit(tickets.train.texts, tickets.train.labels)
    assert clf.fitted_.censored == (head == "auto")
    right = clf.predict(tickets.test.texts[:40]) == tickets.test.labels[:40]
    assert right.mean() > 0.25


def test_the_identity_names_the_model_and_no_address(backend):
    text = backend.identity.to_json()
    assert backend.identity.name == "fake"
    assert "127.0.0.1" not in text
    assert '"adapter": "huggingface/1"' in text


class Real:
    """A server with the habits of the real one: RoBERTa's spellings, and targets replaced by first pieces."""

    def __init__(self):
        self.words = [" good", " bad", "good", " nice", " awful", " goo", "n"]
        self.scores = [0.4, 0.2, 0.1, 0.05, 0.03, 0.02, 0.01]

    def piece(self, target):
        file = [word.replace(" ", "\u0120") for word in self.words]
        if target in file:
            return file.index(target)
        return next((at for at, word in enumerate(self.words) if target.startswith(word)), 6)

    def __call__(self, asked):
        wanted = asked.json.get("parameters", {})
        ids = range(len(self.words))
        if "targets" in wanted:
            ids = {self.piece(target) for target in wanted["targets"]}
        best = sorted(ids, key=lambda at: -self.scores[at])[: wanted.get("top_k", 5)]
        items = [{"score": self.scores[at], "token": at, "token_str": self.words[at], "sequence": "..."} for at in best]
        return json_reply([items] if "nested" in asked.json["inputs"] else items)


def test_targets_are_matched_by_number_whatever_their_order():
    with scripted(Real()) as server, HuggingFaceBackend("m", url=server.url, top_k=7) as backend:
        (chosen,) = backend.fill([query("x")], np.array([1, 2, 4]))
        assert chosen.tokens.tolist() == [1, 2, 4]
        assert chosen.rest is None
        assert np.allclose(np.exp(chosen.logprobs), [0.2, 0.1, 0.03], rtol=0.001)
        assert server.asked[-1].json["inputs"] == "x It was <mask>"
        assert "\u0120bad" in server.asked[-1].json["parameters"]["targets"]


def test_a_long_text_is_charged_at_the_length_that_is_sent():
    with scripted(Real()) as server, HuggingFaceBackend("m", url=server.url, top_k=2, max_characters=40) as backend:
        assert backend.count_tokens(query("word " * 20_000)) < backend.most_tokens(query("word " * 20_000)) < 100
        assert backend.most_tokens(query("\ufdfa")) > len(
            "\ufdfa It was <mask>".encode()
        )  # it may be written as 18 characters


def test_a_target_that_the_server_replaces_is_refused():
    with scripted(Real()) as server, HuggingFaceBackend("m", url=server.url, top_k=7) as backend:
        backend.vocabulary.learn(77, " goodness")
        with pytest.raises(QueryRefused, match=r"' goodness'.*targets=False") as caught:
            backend.fill([query("x")], np.array([1, 77]))
        assert caught.value.may_have_run
        assert not caught.value.answered


def test_a_token_without_a_known_word_is_not_asked_for():
    with scripted(Real()) as server, HuggingFaceBackend("m", url=server.url, top_k=7) as backend:
        with pytest.raises(InputError, match="token 99"):
            backend.fill([query("x")], np.array([99]))
        assert len(server.asked) == 1


def test_without_targets_prediction_uses_the_top_k():
    with scripted(Real()) as server, HuggingFaceBackend("m", url=server.url, top_k=3, targets=False) as backend:
        assert not backend.abilities.chosen
        (answer,) = backend.fill([query("x")], np.array([4]))
        assert answer.at(np.array([4])).tolist() == [answer.rest]


def test_a_list_in_a_list_is_unwrapped():
    with scripted(Real()) as server, HuggingFaceBackend("m", url=server.url, top_k=3) as backend:
        nested, flat = backend.fill([query("nested"), query("flat")])
        assert np.array_equal(nested.codes, flat.codes)


def test_a_server_that_shows_fewer_than_asked_is_taken_as_it_is():
    with scripted(Real()) as server, HuggingFaceBackend("m", url=server.url, top_k=50) as backend:
        (answer,) = backend.fill([query("x")])
        assert len(answer.tokens) == 7


def items(*scores, tokens=None, words=None):
    count = len(scores)
    return [
        {"score": score, "token": token, "token_str": word, "sequence": ""}
        for score, token, word in zip(
            scores, tokens or range(count), words or [f"w{n}" for n in range(count)], strict=True
        )
    ]


@pytest.mark.parametrize(
    "bad",
    [
        json_reply(items(0.9, 0.9)),
        json_reply(items(0.5, -0.1)),
        json_reply(items(1.5, 0.1)),
        json_reply(items(0.5, 0.1, tokens=[3, 3])),
        json_reply(items(0.5, 0.1, words=["w0", "other"])),
        json_reply(items(0.5, 0.1, words=["w0", "\ud800"])),
        json_reply(items(0.5, 0.1, tokens=[3, 2**70])),
        json_reply(items(0.5)),
        json_reply(items(0.5, 0.1, 0.1)),
        json_reply([]),
        json_reply({"error": "odd"}),
        json_reply([{"score": 0.1}]),
        Reply(200, b'[{"score": NaN, "token": 0, "token_str": "w0"}, {"score": 0.1, "token": 1, "token_str": "w1"}]'),
        Reply(200, b"<html>busy</html>"),
    ],
)  # fmt: skip
def test_an_answer_that_cannot_be_right_is_never_used(bad):
    replies = iter([json_reply(items(0.5, 0.1)), bad, json_reply(items(0.5, 0.1))])
    with scripted(lambda _: next(replies)) as server, HuggingFaceBackend("m", url=server.url, top_k=2) as backend:
        with pytest.raises(BadAnswer) as caught:
            backend.fill([query("x")])
        assert caught.value.answered == {}
        assert (caught.value.retryable, caught.value.may_have_run) == (True, True)
        assert len(backend.fill([query("x")])) == 1


def test_a_model_that_still_loads_is_left_to_the_meter():
    loading = json_reply({"error": "Model m is currently loading", "estimated_time": 20.0}, 503)
    replies = iter([loading, loading, json_reply(items(0.5, 0.1))])
    with scripted(lambda _: next(replies)) as server, HuggingFaceBackend("m", url=server.url, top_k=2) as backend:
        with pytest.raises(BackendUnavailable) as caught:
            backend.fill([query("x")])
        assert (caught.value.retry_after, caught.value.may_have_run) == (20.0, False)
        assert len(backend.fill([query("x")])) == 1


def test_an_address_where_nobody_is_is_found_out_when_connecting():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(BackendUnavailable, match="can't be reached"):
            HuggingFaceBackend("m", url=f"http://127.0.0.1:{free.getsockname()[1]}")


def test_a_server_that_breaks_while_connecting_is_no_server_to_wait_for():
    with scripted(lambda _: json_reply({"error": "broken"}, 500)) as server:
        with pytest.raises(BackendUnavailable, match="500: broken"):
            HuggingFaceBackend("m", url=server.url)
        assert len(server.asked) == 1


def test_a_wrong_mask_is_found_out_when_connecting_and_named(fake):
    with serving(fake) as url, pytest.raises(ModelUnusable, match=r"mask_token='\[BLANK\]'"):
        HuggingFaceBackend("fake", url=url, mask_token="[BLANK]")


def test_scores_that_are_all_zero_are_never_used():
    replies = iter([json_reply(items(0.5, 0.1)), json_reply(items(0, 0))])
    with scripted(lambda _: next(replies)) as server:
        backend = HuggingFaceBackend("m", url=server.url, top_k=2)
        with backend, pytest.raises(BadAnswer, match="are 0, which says nothing"):
            backend.fill([query("x")])


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (json_reply({"error": "Model nope does not exist"}, 404), "does not exist"),
        (json_reply({"error": "Authorization header is invalid"}, 401), "check the key"),
        (json_reply({"error": ["No mask_token ([MASK]) found on the input"]}, 400), "mask_token='<mask>'"),
        (json_reply([[0.1, 0.2], [0.3, 0.4]]), "fill-mask"),
        (json_reply([{"generated_text": "Paris"}]), "fill-mask"),
    ],
)
def test_a_model_that_cannot_be_used_is_found_out_when_connecting(reply, message):
    with scripted(lambda _: reply) as server, pytest.raises(ModelUnusable, match="fill-mask") as caught:
        HuggingFaceBackend("nope", url=server.url)
    assert message in str(caught.value)


def test_long_inputs_are_cut_and_the_prompt_is_not():
    with scripted(Real()) as server, HuggingFaceBackend("m", url=server.url, top_k=2, max_characters=40) as backend:
        parts = (Part("input", "first " * 50), Part("prompt", " Answer: "), Part("mask"), Part("input", "short"))
        (answer,) = backend.fill([MaskedQuery(parts, "e", "p")])
        sent = server.asked[-1].json["inputs"]
        assert sent.endswith(" Answer: <mask>short")
        assert sent.startswith("first first first")
        assert len(sent) <= 40 + len(" Answer: <mask>")
        assert answer.cut_tokens == 44


def test_a_text_with_the_models_mask_in_it_is_refused_before_it_is_sent():
    with scripted(Real()) as server, HuggingFaceBackend("m", url=server.url, top_k=2) as backend:
        with pytest.raises(QueryRefused, match="own mask"):
            backend.fill([query("a <mask> b")])
        assert len(server.asked) == 1


def test_half_of_a_batch_is_kept():
    def answer(asked):
        return json_reply({}, 500) if "bad" in asked.json["inputs"] else json_reply(items(0.5, 0.1))

    with scripted(answer) as server, HuggingFaceBackend("m", url=server.url, top_k=2) as backend:
        with pytest.raises(BackendUnavailable) as caught:
            backend.fill([query("good"), query("bad"), query("fine")])
        assert sorted(caught.value.answered) == [0, 2]


def test_the_serverless_address_is_the_routers():
    assert SERVERLESS == "https://router.huggingface.co/hf-inference/models"
    with pytest.raises(SetupError, match="allow_plain_http"):
        HuggingFaceBackend("m", url="http://example.org")


@pytest.mark.parametrize("options", [{"top_k": 0}, {"max_characters": 0}, {"mask_token": ""}, {"wrokers": 2}])
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(InputError):
        HuggingFaceBackend("m", url="http://127.0.0.1:9", **options)
