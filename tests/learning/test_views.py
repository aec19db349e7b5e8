"""Views: which tokens of the answers are read, and what becomes of those that aren't shown."""

import numpy as np
import pytest

from pbsdk.backend import MaskDistribution
from pbsdk.errors import BadAnswer
from pbsdk.learning import views
from pbsdk.learning.matrix import TokenMatrix, collect
from pbsdk.learning.views import view_of


def whole(n_examples=12, n_tokens=700, seed=0):
    codes = np.random.default_rng(seed).integers(0, 30_000, (n_examples, n_tokens)).astype(np.uint16)
    return codes, TokenMatrix.from_codes(codes)


def censored(n_examples=12, k=6, seed=0):
    generator = np.random.default_rng(seed)
    answers = [
        MaskDistribution.from_logprobs(
            np.log(generator.dirichlet(np.ones(k)) * 0.9), generator.choice(40, k, replace=False), top=True
        )
        for _ in range(n_examples)
    ]
    (matrix,) = collect(answers, n_examples, 1)
    return answers, matrix


def test_whole_answers_are_read_at_the_likeliest_tokens_each_standardised():
    codes, matrix = whole()
    view = view_of(matrix)
    likely = np.exp(codes / -1024.0).sum(axis=0)
    assert set(view.tokens.tolist()) == set(np.argsort(-likely)[: views.LIKELIEST].tolist())
    features = view.features(matrix)
    assert np.allclose(features.mean(axis=0), 0)
    assert np.allclose(features.std(axis=0), features.std(axis=0)[0], rtol=0.01)
    assert np.square(features).sum() / len(features) == pytest.approx(1)


def test_how_peaked_an_answer_is_counts_half():
    codes, matrix = whole()
    view = view_of(matrix)
    flatter = codes.copy()
    flatter[3, view.tokens] += 512
    moved = view.features(TokenMatrix.from_codes(flatter)) - view.features(matrix)
    assert np.allclose(moved[3], -0.25 * view.scale)
    assert np.allclose(np.delete(moved, 3, axis=0), 0)


def test_one_answer_has_the_features_of_its_row():
    codes, matrix = whole()
    view = view_of(matrix)
    answer = MaskDistribution(codes=codes[3])
    assert np.allclose(view.features_of_one(answer), view.features(matrix)[3])
    assert np.allclose(view.features_of_one(answer.narrowed(view.tokens)), view.features(matrix)[3])


def test_what_is_not_shown_is_nothing_and_what_is_shown_stands_above_the_smallest():
    answers, matrix = censored()
    view = view_of(matrix)
    assert view.censored
    raw = view.features(matrix) / view.scale + view.mean
    k = len(view.tokens)
    for row, answer in zip(raw, answers, strict=True):
        shown = dict(zip(answer.tokens.tolist(), answer.logprobs, strict=True))
        smallest = min(shown.values())
        heights = np.array([max(shown.get(token, smallest) - smallest, 0) for token in view.tokens.tolist()])
        assert np.allclose(row[k:], heights, atol=1e-9)
        assert np.allclose(row[:k], heights > 0)


def test_one_censored_answer_has_the_features_of_its_row_narrowed_or_not():
    answers, matrix = censored()
    view = view_of(matrix)
    for row, answer in zip(view.features(matrix), answers, strict=True):
        assert np.allclose(view.features_of_one(answer), row)
        assert np.allclose(view.features_of_one(answer.narrowed(view.tokens)), row)


def test_a_view_of_a_top_k_refuses_answers_that_do_not_say_where_they_end():
    _, matrix = censored()
    view = view_of(matrix)
    with pytest.raises(BadAnswer, match="top k"):
        view.features_of_one(MaskDistribution(codes=np.zeros(40, dtype=np.uint16)))


def test_only_so_many_tokens_are_read_those_shown_most_often(monkeypatch):
    monkeypatch.setattr(views, "SHOWN", 5)
    answers, matrix = censored(n_examples=30)
    counts = np.zeros(40)
    for answer in answers:
        counts[answer.tokens[answer.codes < answer.rest]] += 1
    view = view_of(matrix)
    assert len(view.tokens) == 5
    assert sorted(counts[view.tokens]) == sorted(np.sort(counts)[-5:])


def test_answers_that_never_differ_have_features_of_0():
    matrix = TokenMatrix.from_codes(np.full((5, 20), 3000))
    assert (view_of(matrix).features(matrix) == 0).all()


def test_a_spilled_matrix_gives_the_same_view(tmp_path):
    codes, matrix = whole()
    (spilled,) = collect((MaskDistribution(codes=row) for row in codes), 12, 1, max_memory=5000, folder=tmp_path)
    assert spilled.spilled
    one, other = view_of(matrix), view_of(spilled)
    assert (one.tokens == other.tokens).all()
    assert np.allclose(one.features(matrix), other.features(spilled))
    spilled.close()
