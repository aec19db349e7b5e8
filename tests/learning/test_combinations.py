"""Combinations of words: which wins, and that none that could win is passed over."""

import numpy as np
import pytest
from helpers.problems import plain_best, plain_error, random_problem

from pbsdk.learning.matrix import TokenMatrix
from pbsdk.learning.verbalizer import (
    VerbalizerSearch,
    says,
    uniform_weights,
)


def test_reversed_pairs_are_tried_for_two_classes():
    # Token 0 has more mass in class 0 (one example where it is nearly certain), and yet is a better word for class 1.
    codes = [[0, 4000], [4000, 3000], [4000, 3000], [2000, 2500], [2000, 2500], [2000, 2500]]
    labels = [0, 0, 0, 1, 1, 1]
    search = VerbalizerSearch(TokenMatrix.from_codes(codes), labels, 2)
    assert search.best(uniform_weights(6)).tokens == (1, 0)


def test_ties_between_combinations_go_to_the_larger_score_then_to_the_lower_tokens():
    # All of tokens 0, 1 and 2 separate class 0 from class 1's token 3; 1 and 2 are equal and more probable than 0.
    codes = [[500, 100, 100, 2000], [2000, 2000, 2000, 100]]
    found = VerbalizerSearch(TokenMatrix.from_codes(codes), [0, 1], 2).best(uniform_weights(2))
    assert (found.error, found.tokens) == (0, (1, 3))


@pytest.mark.parametrize("n_classes", [2, 4])
def test_who_is_wrong_is_who_is_told_another_class(n_classes):
    generator = np.random.default_rng(3)
    codes = generator.integers(0, 3, (50, 30)).astype(np.uint16)  # few levels make many ties
    labels = generator.permutation(np.arange(50) % n_classes)
    found = VerbalizerSearch(TokenMatrix.from_codes(codes), labels, n_classes).best(uniform_weights(50))
    assert (found.wrong == (says(codes[:, found.tokens]) != labels)).all()


@pytest.mark.parametrize("n_classes", [8, 13, 20])
def test_many_classes_come_to_an_end(n_classes):
    codes, labels, weights = random_problem(1, 400, 4 * n_classes, n_classes, "peaked")
    search = VerbalizerSearch(TokenMatrix.from_codes(codes), labels, n_classes)
    for weighed in (weights, uniform_weights(4 * n_classes)):
        found = search.best(weighed)
        assert len(found.tokens) == n_classes
        assert found.error == plain_error(codes.tolist(), labels.tolist(), weighed.tolist(), found.tokens)


def test_a_search_with_many_words_of_bits_equals_every_combination():
    codes, labels, weights = random_problem(2, 40, 200, 3, "flat")
    found = VerbalizerSearch(TokenMatrix.from_codes(codes), labels, 3, 4).best(weights)
    assert (found.error, found.tokens) == plain_best(codes.tolist(), labels.tolist(), weights.tolist(), 3, 4)
