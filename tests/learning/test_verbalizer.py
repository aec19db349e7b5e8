"""The verbalizer: every line of the algorithm against a plain brute force that shares no code with it."""

import numpy as np
import pytest
from helpers.problems import plain_best, random_problem
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pbsdk.errors import InputError
from pbsdk.learning import kernels
from pbsdk.learning.boosting import reweigh
from pbsdk.learning.matrix import TokenMatrix
from pbsdk.learning.verbalizer import (
    VerbalizerSearch,
    check_labels,
    checked_m,
    default_m,
    uniform_weights,
)


@st.composite
def problems(draw, most_classes=5):
    n_classes = draw(st.integers(2, most_classes))
    n_examples = draw(st.integers(n_classes, 14))
    n_tokens = draw(st.integers(1, 12))
    level = draw(st.sampled_from([[0, 700], [300, 900, 1500], list(range(0, 9000, 500)), [0, 65535]]))
    cell = st.sampled_from(level)  # few levels make many ties
    codes = draw(
        st.lists(st.lists(cell, min_size=n_tokens, max_size=n_tokens), min_size=n_examples, max_size=n_examples)
    )
    labels = list(range(n_classes)) + draw(
        st.lists(st.integers(0, n_classes - 1), min_size=n_examples - n_classes, max_size=n_examples - n_classes)
    )
    weight = draw(st.sampled_from([st.just(7), st.integers(1, 4), st.integers(1, 2**45)]))
    weights = draw(st.lists(weight, min_size=n_examples, max_size=n_examples))
    return codes, draw(st.permutations(labels)), weights, n_classes, draw(st.integers(1, 4))


@settings(max_examples=400)
@given(problems())
@example(([[0], [0]], [0, 1], [1, 1], 2, 1))
@example(([[700, 0, 0], [0, 0, 0], [0, 0, 700]], [0, 1, 2], [1, 2, 3], 3, 2))  # equals, and the highest class heaviest
def test_the_search_equals_plain_brute_force_ties_included(problem):
    codes, labels, weights, n_classes, m = problem
    found = VerbalizerSearch(TokenMatrix.from_codes(codes), labels, n_classes, m).best(np.array(weights))
    assert (found.error, found.tokens) == plain_best(codes, labels, weights, n_classes, m)
    assert found.error == np.array(weights)[found.wrong].sum()


@pytest.mark.parametrize("kind", ["peaked", "flat", "spikes"])
@pytest.mark.parametrize(("n_classes", "n_examples"), [(2, 2), (2, 37), (3, 70), (4, 64), (6, 131)])
def test_screening_changes_nothing(kind, n_classes, n_examples):
    for seed, n_tokens in enumerate([63, 64, 65, 1000, 3001]):
        codes, labels, weights = random_problem(seed, n_tokens, n_examples, n_classes, kind)
        search = VerbalizerSearch(TokenMatrix.from_codes(codes), labels, n_classes)
        for w in (weights, uniform_weights(n_examples)):
            screened, whole = search.best(w), search.best(w, screened=False)
            assert (screened.tokens, screened.error) == (whole.tokens, whole.error)


@pytest.mark.parametrize("kind", ["peaked", "flat", "spikes"])
@pytest.mark.parametrize(("n_classes", "n_examples", "m"), [(2, 40, 50), (4, 60, 10), (6, 300, 5)])
def test_screening_changes_nothing_while_weights_grow_apart(kind, n_classes, n_examples, m):
    codes, labels, _ = random_problem(9, 1500, n_examples, n_classes, kind)
    search = VerbalizerSearch(TokenMatrix.from_codes(codes), labels, n_classes, m)
    weights = uniform_weights(n_examples)
    for _ in range(12):
        screened, whole = search.best(weights), search.best(weights, screened=False)
        assert (screened.tokens, screened.error) == (whole.tokens, whole.error)
        assert (screened.wrong == whole.wrong).all()
        weights = reweigh(weights, screened.wrong, n_classes) if screened.error else uniform_weights(n_examples)


@pytest.mark.parametrize("kind", ["peaked", "flat", "spikes"])
@pytest.mark.parametrize("share", [0.3, 0.05, 0.01, 1e-4, 1e-12])
def test_screening_changes_nothing_for_a_class_that_wins_few_tokens_or_none(kind, share):
    codes, labels, weights = random_problem(4, 2000, 90, 4, kind)
    weights = np.where(labels == 2, np.maximum(1, (weights * share).astype(np.int64)), weights)
    search = VerbalizerSearch(TokenMatrix.from_codes(codes), labels, 4)
    screened, whole = search.best(weights), search.best(weights, screened=False)
    assert (screened.tokens, screened.error) == (whole.tokens, whole.error)


@pytest.mark.parametrize("kind", ["peaked", "flat"])
def test_screening_names_few_tokens(kind):
    codes, labels, weights = random_problem(3, 20000, 64, 4, kind)
    search = VerbalizerSearch(TokenMatrix.from_codes(codes), labels, 4)
    named = search._named(weights[search._order] / weights.sum(), np.zeros(4, dtype=bool))
    assert len(named) < 400


def test_a_token_speaks_for_the_class_where_it_is_probable():
    # Token 0 is probable in class 0, token 1 in class 1. With the sign as printed in the paper, argmax would pick
    # token 1 for class 0, and only the reversed pair would hide it: three classes have no reversed pair.
    likely, unlikely = 200, 3000
    codes = [[likely, unlikely, unlikely], [unlikely, likely, unlikely], [unlikely, unlikely, likely]]
    found = VerbalizerSearch(TokenMatrix.from_codes(codes), [0, 1, 2], 3, 1).best(uniform_weights(3))
    assert found.tokens == (0, 1, 2)
    assert found.error == 0


def test_a_fallback_is_the_same_when_screened():
    generator = np.random.default_rng(0)
    codes = generator.integers(0, 9000, (12, 700)).astype(np.uint16)
    labels = np.array([0, 1, 2] * 4)
    codes[labels == 2] += 20000  # class 2 is nowhere most probable
    search = VerbalizerSearch(TokenMatrix.from_codes(codes), labels, 3)
    named = search._named(np.full(12, 1 / 12), np.zeros(3, dtype=bool))
    assert kernels.shortlists(search._scores(named, np.full(12, 1 / 12)), 10)[2].tolist() == [False, False, True]
    screened, whole = (search.best(uniform_weights(12), screened=way) for way in (True, False))
    assert screened.tokens == whole.tokens


def test_what_a_token_is_once_among_many_examples_does_not_hide_what_it_is_mostly():
    # With one scale for all examples, the greatest of 1,200 would make nearly every token look possible.
    generator = np.random.default_rng(6)
    logits = 2 * generator.standard_normal((1200, 2000)) + 2 * generator.standard_normal(2000)
    codes = np.rint(-1024 * (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))).astype(np.uint16)
    search = VerbalizerSearch(TokenMatrix.from_codes(codes), np.arange(1200) % 2, 2)
    assert len(search._named(np.full(1200, 1 / 1200), np.zeros(2, dtype=bool))) < 600


@pytest.mark.parametrize(
    ("n_classes", "m"), [(2, 50), (3, 10), (4, 10), (5, 5), (6, 5), (7, 3), (10, 3), (11, 2), (20, 2)]
)
def test_m_has_the_papers_defaults_and_stays_searchable(n_classes, m):
    assert default_m(n_classes) == checked_m(None, n_classes) == m


def test_a_small_m_and_a_large_one_are_allowed():
    assert checked_m(5, 4) == 5
    assert checked_m(2048, 2) == 2048


@pytest.mark.parametrize(
    ("m", "n_classes", "message"), [(0, 2, "at least 1"), (100, 4, "use m=45 or less"), (3, 20, "use m=2")]
)
def test_an_m_that_cannot_work_is_refused(m, n_classes, message):
    with pytest.raises(InputError, match=message):
        checked_m(m, n_classes)


def test_the_m_that_an_error_names_is_allowed():
    assert checked_m(45, 4) == 45
    assert checked_m(2, 20) == 2


@pytest.mark.parametrize("labels", [[0, 1, 2], [0, 0], [-1, 1], [0, 2], [0]])
def test_labels_that_do_not_fit_are_refused(labels):
    with pytest.raises(InputError):
        check_labels(labels, 2, 2)


def test_one_class_is_refused():
    with pytest.raises(InputError, match="at least 2"):
        check_labels([0, 0], 1, 2)


def test_other_columns_are_named_by_their_tokens():
    matrix = TokenMatrix.from_codes([[100, 2000], [2000, 100]], tokens=[17, 40])
    assert VerbalizerSearch(matrix, [0, 1], 2).best(uniform_weights(2)).tokens == (17, 40)
