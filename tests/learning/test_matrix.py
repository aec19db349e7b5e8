"""Matrices from streams: whole and partial answers, in memory and on disk."""

import numpy as np
import pytest
from helpers.problems import drawn, stream

from pbsdk.backend import MaskDistribution
from pbsdk.errors import BadAnswer, InputError
from pbsdk.learning.matrix import CHANCES, TokenMatrix, collect
from pbsdk.learning.verbalizer import VerbalizerSearch, uniform_weights


@pytest.mark.parametrize("max_memory", [10**9, 0, 3 * 2 * 37 * 4, 3 * 2 * 37 * 5])
def test_answers_are_told_apart_by_example_and_template(max_memory):
    codes = drawn(10, 3, 37)
    with collect(stream(codes), 10, 3, max_memory=max_memory) as matrices:
        assert [matrix.spilled for matrix in matrices] == [max_memory < 10**9] * 3
        for template, matrix in enumerate(matrices):
            assert (matrix.n_columns, matrix.n_examples) == (37, 10)
            tokens = [36, 0, 5, 5]
            assert (matrix.codes_of(tokens) == codes[:, template, tokens]).all()
            assert matrix.codes_of(tokens).dtype == np.uint16


def test_no_more_answers_are_held_than_memory_allows():
    alive, most = set(), 0

    class Watched(MaskDistribution):
        def __del__(self):
            alive.discard(id(self))

    def watched():
        nonlocal most
        for answer in stream(drawn(200, 2, 50)):
            watched_answer = Watched(codes=answer.codes)
            alive.add(id(watched_answer))
            most = max(most, len(alive))
            yield watched_answer

    with collect(watched(), 200, 2, max_memory=2000):
        assert most < 5


@pytest.mark.parametrize("n_classes", [2, 3])
def test_training_on_a_spilled_matrix_is_the_same(n_classes, monkeypatch):
    monkeypatch.setattr("pbsdk.learning.coarse.CHUNK", 4000)  # many chunks, many parts
    generator = np.random.default_rng(1)
    codes = drawn(50, 2, 300, seed=2)
    labels = generator.permutation(np.arange(50) % n_classes)
    weights = generator.integers(1, 2**40, 50)
    with collect(stream(codes), 50, 2) as held, collect(stream(codes), 50, 2, max_memory=9000) as spilled:
        for one, other in zip(held, spilled, strict=True):
            found = VerbalizerSearch(one, labels, n_classes).best(weights)
            search = VerbalizerSearch(other, labels, n_classes)
            for again in (search.best(weights), search.best(weights, screened=False)):
                assert (again.tokens, again.error) == (found.tokens, found.error)
                assert (again.wrong == found.wrong).all()


def test_spilled_scores_are_read_in_parts(monkeypatch):
    monkeypatch.setattr("pbsdk.learning.verbalizer.AT_A_TIME", 7)
    codes = drawn(12, 1, 40)
    labels = np.arange(12) % 2
    with collect(stream(codes), 12, 1, max_memory=0) as (spilled,):
        whole = VerbalizerSearch(spilled, labels, 2).best(uniform_weights(12), screened=False)
    held = VerbalizerSearch(TokenMatrix.from_codes(codes[:, 0]), labels, 2).best(uniform_weights(12))
    assert whole.tokens == held.tokens


def test_top_k_answers_make_a_column_for_each_token_that_appeared():
    answers = [
        MaskDistribution.from_logprobs([-1, -2], [5, 9], top=True),
        MaskDistribution.from_logprobs([-1, -3], [9, 2], top=True),
    ]
    (matrix,) = collect(answers, 2, 1)
    assert matrix.tokens.tolist() == [2, 5, 9]
    # a token that an answer lacks has the answer's least code: censored, not zero; also one that no answer has
    assert matrix.codes_of([2, 5, 9, 7]).tolist() == [[2048, 1024, 2048, 2048], [3072, 3072, 1024, 3072]]


def test_top_k_answers_are_spilled_too():
    generator = np.random.default_rng(0)
    answers = [
        MaskDistribution.from_logprobs(-5 - generator.random(8), generator.choice(60, 8, replace=False), top=True)
        for _ in range(20)
    ]
    held, spilled = collect(answers, 10, 2), collect(iter(answers), 10, 2, max_memory=50)
    for one, other in zip(held, spilled, strict=True):
        assert other.spilled
        assert not one.spilled
        assert (one.codes_of(np.arange(60)) == other.codes_of(np.arange(60))).all()
    spilled.close()


def test_chosen_tokens_must_be_the_same_in_all_answers():
    same = [MaskDistribution.from_logprobs([-1, -2], [5, 9])] * 2
    (matrix,) = collect(same, 2, 1)
    assert matrix.codes_of([9]).tolist() == [[2048], [2048]]
    with pytest.raises(BadAnswer, match="token 7 was not asked for"):
        matrix.codes_of([7])
    with pytest.raises(BadAnswer, match="not asked for"):
        collect([*same[:1], MaskDistribution.from_logprobs([-1, -2], [5, 8])], 2, 1)


def test_a_token_outside_the_vocabulary_is_refused():
    matrix = TokenMatrix.from_codes(drawn(2, 1, 5)[:, 0])
    with pytest.raises(InputError, match="token 5 "):
        matrix.codes_of([0, 5])


@pytest.mark.parametrize(
    ("came", "message"), [(5, "6 answers were asked for, and 5 came"), (7, "and more came"), (0, "and 0 came")]
)
def test_too_few_or_too_many_answers_are_noticed(came, message):
    answers = list(stream(drawn(7, 1, 4)))[:came]
    with pytest.raises(BadAnswer, match=message):
        collect(answers, 6, 1)


def test_answers_of_different_kinds_are_refused():
    whole = MaskDistribution(codes=np.zeros(4, dtype=np.uint16))
    for other in (MaskDistribution(codes=np.zeros(5, dtype=np.uint16)), MaskDistribution.from_logprobs([-1], [1])):
        for pair in ([whole, other], [other, whole]):
            with pytest.raises(BadAnswer, match="others"):
                collect(pair, 2, 1)


def test_no_examples_make_empty_matrices():
    with collect(iter(()), 0, 3) as matrices:
        assert [matrix.n_examples for matrix in matrices] == [0, 0, 0]


def test_probabilities_follow_the_grid():
    assert CHANCES[0] == 1
    assert CHANCES[1024] == pytest.approx(np.exp(-1), rel=1e-7)
    assert (np.diff(CHANCES) < 0).all()


@pytest.mark.parametrize("max_memory", [10**6, 50])
def test_whole_answers_can_be_seen_as_top_k(max_memory):
    codes = drawn(6, 2, 40)
    expected = collect((answer.likeliest(5) for answer in stream(codes)), 6, 2)
    with collect(stream(codes), 6, 2, max_memory=max_memory) as whole, whole.likeliest(5) as shown:
        for one, other in zip(shown, expected, strict=True):
            assert one.tokens.tolist() == other.tokens.tolist()
            assert (one.codes == other.codes).all()
            assert (one.rest == other.rest).all()
