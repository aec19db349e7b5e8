"""The adapter `http`, over real sockets."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import requests
from helpers.servers import TOKEN, Reply, headers, json_reply, query, scripted

from pbsdk.backend import ModelIdentity, OpenVocabulary
from pbsdk.errors import BackendTimeout, BackendUnavailable, ModelUnusable, QueryRefused
from pbsdk.testing import BackendContract, FakeBackend
from pbsdk_backends.http import HttpBackend
from pbsdk_backends.serve import serving


@pytest.fixture(params=["whole", "top", "last"], scope="module")
def backend(request):
    options = {"whole": {}, "top": {"top": 20}, "last": {"mask": "last", "chosen": True}}[request.param]
    with serving(FakeBackend(**options)) as url, HttpBackend(url) as backend:
        yield backend


class TestContract(BackendContract):
    tolerance = 0


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


def test_a_text_costs_no_more_than_the_served_model_has_places_for():
    fake = FakeBackend()
    with serving(fake) as url, HttpBackend(url) as backend:
        assert backend.most_tokens(query("word " * 1000)) > 5000
    fake.identity = ModelIdentity("fake", {**fake.identity.details, "max_length": "64"})
    with serving(fake) as url, HttpBackend(url) as backend:
        assert backend.count_tokens(query("word " * 1000)) == backend.most_tokens(query("word " * 1000)) == 64
        assert backend.count_tokens(query("x")) < backend.most_tokens(query("x")) < 64
    fake.identity = ModelIdentity("fake", {**fake.identity.details, "max_length": "9" * 5000})
    with serving(fake) as url, HttpBackend(url) as backend:
        assert backend.most_tokens(query("word " * 1000)) > 5000


def test_each_query_s_own_failure_arrives_at_its_place():
    fake = FakeBackend(batch_size=2, failures=[None, BackendTimeout("lost", failures={1: BackendUnavailable("later")})])
    with serving(fake) as url, HttpBackend(url, workers=1) as backend, pytest.raises(BackendTimeout) as caught:
        backend.fill([query(f"{n}") for n in range(4)])
    assert {at: (type(why), str(why)) for at, why in caught.value.failures.items()} == {
        2: (BackendTimeout, "lost"), 3: (BackendUnavailable, "later"),
    }  # fmt: skip


def test_an_adapter_that_breaks_is_a_500_that_may_have_run():
    fake = FakeBackend(failures=[RuntimeError("secret detail")])
    with serving(fake) as url, HttpBackend(url) as backend, pytest.raises(BackendUnavailable) as caught:
        backend.fill([query("x")])
    assert caught.value.may_have_run
    assert "secret detail" not in str(caught.value)


class Open(FakeBackend):
    """A model that shows what its tokens say only as they appear."""

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


def test_an_open_vocabulary_is_learned_on_the_way():
    served = Open()
    with serving(served) as url, HttpBackend(url) as backend:
        (answer,) = backend.fill([query("x")])
        assert isinstance(backend.vocabulary, OpenVocabulary)
        assert len(backend.vocabulary) == 10
        assert all(backend.vocabulary[int(token)] == served.closed[int(token)] for token in answer.tokens)


def test_a_client_cannot_teach_the_others_words():
    served = Open()
    with serving(served) as url, HttpBackend(url) as honest, HttpBackend(url) as liar:
        (answer,) = honest.fill([query("x")])
        first, second = answer.tokens[:2].tolist()
        for token, word in ((first, " false"), (second, served.closed[first]), (998, " false"), (999, " more")):
            liar.vocabulary.learn(token, word)
        liar.fill([query("y")], np.array(sorted((first, second, 998, 999))))
        assert served.vocabulary[first] == served.closed[first]
        assert served.vocabulary[second] == served.closed[second]
        assert {998, 999}.isdisjoint(served.vocabulary.known)
        assert served.vocabulary.find("false") is None


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
    with scripted(lambda _: reply) as server:
        with pytest.raises(error, match=message) as caught:
            HttpBackend(server.url)
        assert len(server.asked) == 1
        assert error is BackendUnavailable or f"url='{server.url}'" in str(caught.value)


def test_another_protocol_is_found_out_when_connecting(url):
    card = requests.get(f"{url}/v1/model", headers=headers(), timeout=30).json()
    with (
        scripted(lambda _: json_reply({**card, "protocol": 2})) as server,
        pytest.raises(ModelUnusable, match="version"),
    ):
        HttpBackend(server.url)


@pytest.mark.parametrize(
    "change",
    [
        {"identity": "[" * 10_000},
        {"identity": "{}"},
        {"identity": '{"name": 1}'},
        {"vocabulary_size": -1},
        {"max_batch": 2**40},
        {"top": 0},
    ],
    ids=str,
)
def test_a_card_that_makes_no_sense_is_refused_when_connecting(url, change):
    card = requests.get(f"{url}/v1/model", headers=headers(), timeout=30).json()
    with (
        scripted(lambda _: json_reply({**card, **change})) as server,
        pytest.raises(ModelUnusable, match="pbsdk serve"),
    ):
        HttpBackend(server.url)


def test_a_vocabulary_that_was_damaged_is_refused(url):
    def answer(asked):
        reply = requests.get(url + asked.path, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30)
        body = reply.content.replace(b'" ', b'"x', 1) if asked.path == "/v1/vocabulary" else reply.content
        return Reply(200, body)

    with scripted(answer) as server, pytest.raises(ModelUnusable, match="vocabulary doesn't match its digest"):
        HttpBackend(server.url)
