"""Our own protocol: what was written is read, and nothing else is."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers.servers import query
from hypothesis import given
from hypothesis import strategies as st

from pbsdk.backend import MaskDistribution, Vocabulary
from pbsdk.errors import BackendTimeout, BackendUnavailable, BadAnswer, InputError
from pbsdk_backends._protocol import wire as _wire

WHOLE = MaskDistribution.from_logprobs(np.log([0.5, 0.3, 0.2]), read_tokens=7, cut_tokens=2)
TOP = MaskDistribution.from_logprobs(np.log([0.5, 0.3]), [9, 2**47], top=True)
CHOSEN = MaskDistribution.from_logprobs(np.log([0.2, 0.1]), [3, 8])
QUERIES = [query("one"), query("two"), query("three")]
ASKED = np.array([3, 8])


def body(**more) -> bytes:
    return _wire.encode_answers("m", QUERIES, {0: WHOLE, 1: TOP, 2: CHOSEN}, asked=ASKED, **more)


def same(one: MaskDistribution, other: MaskDistribution) -> bool:
    tokens = one.tokens is other.tokens or np.array_equal(one.tokens, other.tokens)
    about = [(a.rest, a.read_tokens, a.cut_tokens) for a in (one, other)]
    return bool(tokens and np.array_equal(one.codes, other.codes) and about[0] == about[1])


def test_all_forms_of_an_answer_survive():
    outcome = _wire.decode_answers(body(), "m", QUERIES, asked=ASKED)
    assert all(same(outcome.answered[at], given) for at, given in enumerate((WHOLE, TOP, CHOSEN)))
    assert outcome.failure is None


def test_a_whole_answer_takes_two_bytes_a_token_and_a_chosen_one_too():
    size = 50_265
    wide = MaskDistribution.from_logprobs(np.full(size, -np.log(size)))
    whole = _wire.encode_answers("m", QUERIES[:1], {0: wide}, asked=None)
    assert len(whole) < 2 * size + 400
    tokens = np.arange(1200)
    chosen = _wire.encode_answers("m", QUERIES[:1], {0: wide.narrowed(tokens)}, asked=tokens)
    assert len(chosen) < 2 * 1200 + 400


def test_half_an_answer_says_what_became_of_the_rest():
    error = BackendTimeout("lost", retry_after=1.5)
    data = _wire.encode_answers("m", QUERIES, {1: WHOLE}, asked=None, failure=_wire.Failure.of(error))
    outcome = _wire.decode_answers(data, "m", QUERIES, asked=None)
    again = outcome.failure.error(outcome.answered)
    assert (type(again), str(again), again.retry_after) == (BackendTimeout, "lost", 1.5)
    assert list(again.answered) == [1]


def test_each_query_s_own_failure_crosses_the_wire():
    error = BackendTimeout("lost", failures={0: BackendUnavailable("later", retry_after=2.0)})
    data = _wire.encode_answers("m", QUERIES, {1: WHOLE}, asked=None, failure=_wire.Failure.of(error))
    outcome = _wire.decode_answers(data, "m", QUERIES, asked=None)
    (own,) = outcome.failure.error(outcome.answered).failures.values()
    assert (type(own), str(own), own.retry_after, own.may_have_run) == (BackendUnavailable, "later", 2.0, False)


def test_without_an_error_all_must_be_there():
    with pytest.raises(BadAnswer, match="3 queries were asked and 2 answered"):
        _wire.decode_answers(
            _wire.encode_answers("m", QUERIES, {0: WHOLE, 1: TOP}, asked=None), "m", QUERIES, asked=None
        )


def test_another_models_answer_is_refused():
    with pytest.raises(BadAnswer, match="a different model"):
        _wire.decode_answers(body(), "other", QUERIES, asked=ASKED)


def test_rows_of_another_order_of_questions_are_refused():
    with pytest.raises(BadAnswer, match="belong"):
        _wire.decode_answers(body(), "m", [QUERIES[1], QUERIES[0], QUERIES[2]], asked=ASKED)


def test_swapped_numbers_are_found_out():
    rows = _wire.encode_answers("m", QUERIES[:2], {0: WHOLE, 1: WHOLE}, asked=None)
    other = MaskDistribution.from_logprobs(np.log([0.2, 0.3, 0.5]), read_tokens=7, cut_tokens=2)
    mixed = _wire.encode_answers("m", QUERIES[:2], {0: WHOLE, 1: other}, asked=None)
    assert len(rows) == len(mixed)
    swapped = mixed[:-12] + mixed[-6:] + mixed[-12:-6]
    with pytest.raises(BadAnswer, match="damaged"):
        _wire.decode_answers(swapped, "m", QUERIES[:2], asked=None)


@given(st.data())
def test_no_changed_byte_goes_unnoticed_in_the_numbers(data):
    good = body()
    header = 8 + int.from_bytes(good[4:8], "little")
    at = data.draw(st.integers(header, len(good) - 1))
    change = data.draw(st.integers(1, 255))
    bad = bytearray(good)
    bad[at] ^= change
    with pytest.raises(BadAnswer):
        _wire.decode_answers(bytes(bad), "m", QUERIES, asked=ASKED)


@given(st.integers(0, 2000))
def test_no_cut_goes_unnoticed(length):
    good = body()
    with pytest.raises(BadAnswer):
        _wire.decode_answers(good[: length % len(good)], "m", QUERIES, asked=ASKED)
    with pytest.raises(BadAnswer):
        _wire.decode_answers(good + b"\0" * (1 + length), "m", QUERIES, asked=ASKED)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (MaskDistribution(np.array([0, 0, 0], dtype=np.uint16)), "sum to 3"),
        (MaskDistribution(np.array([9000, 9000], dtype=np.uint16)), "sum to 0.0"),
        (MaskDistribution(np.array([900, 900], dtype=np.uint16), np.array([5, 5]), 900), "ascend"),
        (MaskDistribution(np.array([900, 900], dtype=np.uint16), np.array([6, 5]), 900), "ascend"),
    ],
)
def test_numbers_that_are_no_distribution_are_refused(answer, message):
    data = _wire.encode_answers("m", QUERIES[:1], {0: answer}, asked=None)
    with pytest.raises(BadAnswer, match=message):
        _wire.decode_answers(data, "m", QUERIES[:1], asked=None)


def test_a_request_survives_with_odd_texts():
    odd = query("lone \ud800, zero \0, 日本 \U0001f642")
    sent = json.loads(json.dumps(_wire.encode_request("m", [odd], ASKED, {3: " a"})))
    request = _wire.FillRequest.model_validate(sent)
    assert request.unpacked() == [odd]
    assert request.unpacked()[0].content == odd.content
    assert request.asked().tolist() == [3, 8]
    assert request.words == {3: " a"}


@pytest.mark.parametrize("tokens", [[], [2, 1], [1, 1]])
def test_tokens_that_do_not_ascend_are_refused(tokens):
    with pytest.raises(InputError):
        _wire.FillRequest(model="m", queries=[], tokens=tokens).asked()


def test_a_vocabulary_has_a_name_of_its_own():
    assert _wire.vocabulary_digest(Vocabulary(["ab", "c"])) != _wire.vocabulary_digest(Vocabulary(["a", "bc"]))
