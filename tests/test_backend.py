"""The interface: the grid, partial answers, queries, identities, vocabularies."""

import copy
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbsdk.backend import (
    LEAST,
    MaskDistribution,
    MaskedLMBackend,
    MaskedQuery,
    ModelIdentity,
    OpenVocabulary,
    Part,
    Vocabulary,
    digest,
    most_tokens_of,
)
from pbsdk.errors import BadAnswer, InputError


def _normalised(values):
    values = np.asarray(values, dtype=float)
    return values - np.log(np.exp(values).sum())


@given(st.lists(st.floats(-60, 0), min_size=1, max_size=50))
def test_the_grid_is_within_half_a_step_and_stable(values):
    logprobs = _normalised(values)
    answer = MaskDistribution.from_logprobs(logprobs)
    shown = np.maximum(logprobs, -LEAST / 1024)
    assert np.abs(answer.logprobs - shown).max() <= 0.5 / 1024 + 1e-12
    again = MaskDistribution.from_logprobs(answer.logprobs)
    assert (again.codes == answer.codes).all()


@given(st.lists(st.floats(-20, 0), min_size=3, max_size=30), st.data())
def test_a_tokens_code_does_not_depend_on_what_else_was_asked(values, data):
    logprobs = _normalised(values)
    whole = MaskDistribution.from_logprobs(logprobs)
    tokens = np.array(sorted(data.draw(st.sets(st.integers(0, len(values) - 1), min_size=1))))
    part = MaskDistribution.from_logprobs(logprobs[tokens], tokens)
    assert (part.codes == whole.at(tokens)).all()
    assert (whole.narrowed(tokens).codes == part.codes).all()


def test_minus_infinity_is_the_last_step_of_the_grid():
    assert MaskDistribution.from_logprobs([0.0, -np.inf]).codes.tolist() == [0, LEAST]


@pytest.mark.parametrize(
    ("logprobs", "tokens", "complaint"),
    [
        ([np.nan, 0.0], None, "not a number"),
        ([0.0, 0.0], None, "sum to 2"),
        ([np.inf], None, "sum to"),
        ([-5.0, -5.0], None, "sum to 0.01"),
        ([0.0, 0.0], [3, 4], "sum to 2"),
        ([-1.0, -2.0], [4, 4], "twice"),
        ([-1.0], [4, 5], "same length"),
        ([], None, "non-empty"),
    ],
)
def test_what_cannot_be_a_distribution_is_a_bad_answer(logprobs, tokens, complaint):
    with pytest.raises(BadAnswer, match=complaint):
        MaskDistribution.from_logprobs(logprobs, tokens)


def test_what_a_top_k_answer_hides_is_censored_at_its_least_value_and_never_zero():
    answer = MaskDistribution.from_logprobs(np.log([0.2, 0.5, 0.1]), [9, 2, 5], top=True)
    assert answer.tokens.tolist() == [2, 5, 9]
    hidden, shown = answer.at(np.array([3, 5]))
    assert hidden == shown == answer.rest
    assert answer.mass == pytest.approx(0.8, abs=1e-3)
    assert answer.covers(None)
    narrow = answer.narrowed(np.array([2, 3]))
    assert narrow.tokens.tolist() == [2]
    assert narrow.at(np.array([3]))[0] == answer.rest


def test_what_a_chosen_answer_was_not_asked_for_is_unknown():
    answer = MaskDistribution.from_logprobs(np.log([0.2, 0.5]), [2, 5])
    assert answer.covers(np.array([5]))
    assert not answer.covers(np.array([3, 5]))
    assert not answer.covers(None)
    with pytest.raises(BadAnswer, match="token 3 was not asked for"):
        answer.at(np.array([3, 5]))


def test_a_query_has_one_mask_and_knows_its_parts():
    query = MaskedQuery((Part("input", "Nice."), Part("prompt", " So "), Part("mask"), Part("prompt", "!")), "e", "p")
    assert query.text("[MASK]") == "Nice. So [MASK]!"
    assert [part.text for part in query.before_mask()] == ["Nice.", " So "]
    for masks in (0, 2):
        with pytest.raises(InputError, match=f"has {masks}"):
            MaskedQuery((Part("input", "x"), *[Part("mask")] * masks), "e", "p")


def test_the_content_tells_prompt_words_from_input_words():
    one = MaskedQuery((Part("input", "a b"), Part("mask")), "e", "p")
    other = MaskedQuery((Part("input", "a "), Part("prompt", "b"), Part("mask")), "e", "p")
    assert one.text() == other.text()
    assert one.content != other.content
    assert one.content == MaskedQuery(one.parts, "another example", "another prompt").content


def test_only_fill_is_abstract():
    assert MaskedLMBackend.__abstractmethods__ == {"fill"}


@given(st.text(max_size=40))
def test_a_bound_on_tokens_is_no_lower_than_the_characters_a_tokenizer_may_make_of_a_text(text):
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        assert most_tokens_of(text, 0) >= len(unicodedata.normalize(form, text))


def test_an_adapter_s_bound_is_never_below_its_count():
    class Dear(MaskedLMBackend):
        def fill(self, queries, tokens=None):
            return []

        def count_tokens(self, query):
            return 10_000

    short = MaskedQuery((Part("input", "x"), Part("mask")), "e", "p")
    assert Dear().most_tokens(short) == 10_000


def test_a_copy_of_a_backend_is_the_backend():
    class Silent(MaskedLMBackend):
        def fill(self, queries, tokens=None):
            return []

    backend = Silent()
    assert copy.deepcopy({"backend": backend})["backend"] is backend


def test_an_identity_survives_json_and_names_differences():
    one = ModelIdentity("m", {"b": "2", "a": "1"})
    assert ModelIdentity.from_json(one.to_json()) == one
    assert one.digest == ModelIdentity("m", {"a": "1", "b": "2"}).digest
    assert hash(one) == hash(ModelIdentity("m", {"a": "1", "b": "2"}))
    assert one.differences(one) == ""
    assert one.differences(ModelIdentity("n", {"a": "1"})) == "name: m here, n there; b: 2 here, nothing there"


def test_a_word_is_found_as_it_stands_in_a_sentence():
    words = Vocabulary(["World", " world", " Sports", "x"])
    assert words.find("World") == 1
    assert words.find("sports") == 2
    assert words.find("X") == 3
    assert words.find("business") is None


def test_an_open_vocabulary_learns_and_numbers_words_alike_everywhere():
    one, other = OpenVocabulary(), OpenVocabulary()
    other.token_of(" first")
    assert one.token_of(" good") == other.token_of(" good")
    one.learn(17, " bad")
    assert one.find("bad") == one.token_of(" bad") == 17
    assert dict(one.known)[17] == " bad"
    assert one[4711] == "<token 4711>"
    assert len(other) == 2


def test_an_open_vocabulary_believes_others_only_what_the_number_proves(monkeypatch):
    words, other = OpenVocabulary(), OpenVocabulary()
    token = other.token_of(" good")
    assert words.believe(token, " good")
    assert words[token] == " good"
    assert words.find("good") is None  # the model itself has not shown it
    assert not words.believe(token, " bad")
    assert not words.believe(17, " bad")
    words.learn(18, " fine")
    assert not words.believe(18, " bad")
    assert words[18] == " fine"
    assert words.believe(other.token_of("x" * 200), "x" * 200)
    assert not words.believe(other.token_of("x" * 201), "x" * 201)
    monkeypatch.setattr("pbsdk.backend.MOST_WORDS", 3)
    assert not words.believe(other.token_of(" more"), " more")
    assert len(words) == 3


@given(st.lists(st.text(max_size=5), max_size=4), st.lists(st.text(max_size=5), max_size=4))
def test_digests_differ_where_pieces_do(one, other):
    assert (digest(*one) == digest(*other)) == (one == other)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=60), st.integers(1, 70))
def test_the_likeliest_tokens_are_those_of_a_stable_sort(codes, top):
    whole = MaskDistribution(codes=np.array(codes, dtype=np.uint16), read_tokens=3)
    shown = whole.likeliest(top)
    expected = sorted(sorted(range(len(codes)), key=codes.__getitem__)[:top])
    assert shown.tokens.tolist() == expected
    assert shown.codes.tolist() == [codes[token] for token in expected]
    assert (shown.rest, shown.read_tokens) == (max(shown.codes), 3)
    less = shown.likeliest(2)
    assert less.tokens.tolist() == whole.likeliest(min(2, top)).tokens.tolist()


def test_an_answer_about_chosen_tokens_does_not_know_the_likeliest():
    with pytest.raises(BadAnswer, match="ask for all"):
        MaskDistribution(codes=np.array([5, 9], dtype=np.uint16), tokens=np.array([1, 4])).likeliest(1)
