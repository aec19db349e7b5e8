"""The verbalizer: every line of the algorithm against a plain brute force that shares no code with it."""

import importlib
import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pbsdk.errors import InputError
from pbsdk.learning import kernels, vectors
from pbsdk.learning.boosting import reweigh
from pbsdk.learning.coarse import CoarseCopy
from pbsdk.learning.matrix import CHANCES, TokenMatrix
from pbsdk.learning.verbalizer import (
    TOTAL_WEIGHT,
    VerbalizerSearch,
    check_labels,
    checked_m,
    default_m,
    says,
    uniform_weights,
)


def plain_scores(codes, labels, weights, n_classes):
    """S[c][v], summed one example after another, class by class."""
    total = sum(weights)
    scores = []
    for v in range(len(codes[0])):
        masses = []
        for c in range(n_classes):
            mass = 0.0
            for i, label in enumerate(labels):
                if label == c:
                    mass += weights[i] / total * float(CHANCES[codes[i][v]])
            masses.append(mass)
        every = 0.0
        for mass in masses:
            every += mass
        scores.append([2 * mass - every for mass in masses])
    return [[scores[v][c] for v in range(len(codes[0]))] for c in range(n_classes)]


def plain_shortlists(scores, m):
    n_classes, n_tokens = len(scores), len(scores[0])
    won = [max(range(n_classes), key=lambda c, v=v: (scores[c][v], -c)) for v in range(n_tokens)]
    lists = []
    for c in range(n_classes):
        mine = [v for v in range(n_tokens) if won[v] == c] or list(range(n_tokens))
        lists.append(sorted(mine, key=lambda v, c=c: (-scores[c][v], v))[:m])
    return lists


def plain_error(codes, labels, weights, tokens):
    wrong = 0
    for i, label in enumerate(labels):
        said = min(range(len(tokens)), key=lambda c, i=i: (codes[i][tokens[c]], c))
        wrong += weights[i] * (said != label)
    return wrong


def plain_best(codes, labels, weights, n_classes, m):
    """All combinations, one by one."""
    scores = plain_scores(codes, labels, weights, n_classes)
    lists = plain_shortlists(scores, m)
    pools = [lists, lists[::-1]] if n_classes == 2 else [lists]
    tried = []
    for pool in pools:
        for tokens in itertools.product(*pool):
            summed = 0.0
            for c, token in enumerate(tokens):
                summed += scores[c][token]
            tried.append((plain_error(codes, labels, weights, tokens), -summed, tokens))
    error, _, tokens = min(tried)
    return error, tokens


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


def random_problem(seed, n_tokens, n_examples, n_classes, kind):
    generator = np.random.default_rng(seed)
    if kind == "peaked":
        logits = 3 * generator.standard_normal((n_examples, n_tokens))
    elif kind == "flat":
        logits = np.log(generator.standard_exponential((n_examples, n_tokens)))
    else:  # spikes over a floor: most of what is seen is one token in one example
        logits = np.where(generator.random((n_examples, n_tokens)) < 0.05, 0.0, -60.0)
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    codes = np.clip(np.rint(-1024 * logprobs), 0, 65535).astype(np.uint16)
    labels = np.concatenate([np.arange(n_classes), generator.integers(n_classes, size=n_examples - n_classes)])
    weights = np.maximum(1, TOTAL_WEIGHT * generator.dirichlet(np.full(n_examples, 0.3))).astype(np.int64)
    return codes, labels, weights


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


@pytest.mark.parametrize(("kind", "n_examples"), [("peaked", 53), ("flat", 128), ("spikes", 300)])
def test_the_coarse_estimate_is_never_further_off_than_it_says(kind, n_examples):
    # With room for every token, each must be named for every class it may win, with a score at most as high as said.
    codes, labels, weights = random_problem(5, 500, n_examples, 3, kind)
    order = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[order], np.arange(4))
    shares = weights[order] / weights.sum()
    matrix = TokenMatrix.from_codes(codes)
    exact = kernels.exact_scores(matrix.codes, np.arange(500), order, starts, shares, CHANCES)
    coarse = CoarseCopy(matrix, order, vectors.WIDTH, kernels.SPAN)
    room = 3 * len(coarse.columns)
    found, found_for, high = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.float32)
    lows = np.full((3, 500), -np.inf, dtype=np.float32)
    everywhere = np.ones(3, dtype=bool)
    (chunk,) = coarse.chunks()
    n_found, _ = kernels.scan(*chunk, shares, starts, everywhere, lows, found, found_for, high, 0)
    assert n_found == 1500
    assert (exact[found_for[:n_found], found[:n_found]] <= high[:n_found]).all()
    for c in range(3):
        assert (np.sort(lows[c]) <= np.sort(exact[c])).all()


def test_a_token_speaks_for_the_class_where_it_is_probable():
    # Token 0 is probable in class 0, token 1 in class 1. With the sign as printed in the paper, argmax would pick
    # token 1 for class 0, and only the reversed pair would hide it: three classes have no reversed pair.
    likely, unlikely = 200, 3000
    codes = [[likely, unlikely, unlikely], [unlikely, likely, unlikely], [unlikely, unlikely, likely]]
    found = VerbalizerSearch(TokenMatrix.from_codes(codes), [0, 1, 2], 3, 1).best(uniform_weights(3))
    assert found.tokens == (0, 1, 2)
    assert found.error == 0


def test_two_tokens_are_scored_with_the_right_sign():
    codes = np.array([[200, 3000], [3000, 200]], dtype=np.uint16)
    scores = kernels.exact_scores(
        codes.T.copy(), np.arange(2), np.arange(2), np.array([0, 1, 2]), np.array([0.5, 0.5]), CHANCES
    )
    assert scores[0, 0] > 0 > scores[0, 1]
    assert scores[1, 1] > 0 > scores[1, 0]
    own, other = CHANCES[200] / 2, CHANCES[3000] / 2
    assert scores[0, 0] == pytest.approx(own - other)


def test_a_token_is_a_candidate_only_for_its_best_class_and_lists_are_not_padded():
    scores = np.array([[0.5, 0.4, -0.1], [0.1, -0.4, 0.2]])
    places, sizes, none = kernels.shortlists(scores, 3)
    assert [row[:size].tolist() for row, size in zip(places, sizes, strict=True)] == [[0, 1], [2]]
    assert not none.any()


def test_a_class_that_wins_no_token_falls_back_on_its_best_scored_ones():
    scores = np.array([[0.5, 0.4, 0.3], [-0.2, -0.1, -0.1]])
    places, sizes, none = kernels.shortlists(scores, 2)
    assert [row[:size].tolist() for row, size in zip(places, sizes, strict=True)] == [[0, 1], [1, 2]]
    assert none.tolist() == [False, True]


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


def test_equal_scores_go_to_the_lower_token_and_equal_classes_to_the_lowest():
    scores = np.array([[0.5, 0.5, 0.5], [0.5, 0.1, 0.1]])
    places, sizes, _ = kernels.shortlists(scores, 2)
    assert places[0, : sizes[0]].tolist() == [0, 1]
    assert says(np.array([[5, 5, 5], [9, 5, 5]], dtype=np.uint16)).tolist() == [0, 1]


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


def test_what_a_token_is_once_among_many_examples_does_not_hide_what_it_is_mostly():
    # With one scale for all examples, the greatest of 1,200 would make nearly every token look possible.
    generator = np.random.default_rng(6)
    logits = 2 * generator.standard_normal((1200, 2000)) + 2 * generator.standard_normal(2000)
    codes = np.rint(-1024 * (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))).astype(np.uint16)
    search = VerbalizerSearch(TokenMatrix.from_codes(codes), np.arange(1200) % 2, 2)
    assert len(search._named(np.full(1200, 1 / 1200), np.zeros(2, dtype=bool))) < 600


def test_codes_are_compared_as_whole_numbers_without_sign():
    left = np.random.default_rng(0).integers(0, 65536, 192).astype(np.uint16)
    right = np.where(np.arange(192) % 3, left[::-1], left)

    @kernels.numba.njit
    def compared(at):
        return vectors.below(left, right, at)

    for at in (0, 64, 128):
        bits = compared(at)
        assert [bits >> t & 1 for t in range(64)] == (left < right)[at : at + 64].tolist()


@pytest.mark.parametrize("n_classes", [2, 4])
def test_who_is_wrong_is_who_is_told_another_class(n_classes):
    generator = np.random.default_rng(3)
    codes = generator.integers(0, 3, (50, 30)).astype(np.uint16)  # few levels make many ties
    labels = generator.permutation(np.arange(50) % n_classes)
    found = VerbalizerSearch(TokenMatrix.from_codes(codes), labels, n_classes).best(uniform_weights(50))
    assert (found.wrong == (says(codes[:, found.tokens]) != labels)).all()


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


@pytest.mark.parametrize("n_classes", [8, 13, 20])
def test_many_classes_come_to_an_end(n_classes):
    codes, labels, weights = random_problem(1, 400, 4 * n_classes, n_classes, "peaked")
    search = VerbalizerSearch(TokenMatrix.from_codes(codes), labels, n_classes)
    assert len(search.best(weights).tokens) == n_classes
    assert search.best(uniform_weights(4 * n_classes)).error >= 0


def test_a_search_with_many_words_of_bits_equals_every_combination():
    codes, labels, weights = random_problem(2, 40, 200, 3, "flat")
    found = VerbalizerSearch(TokenMatrix.from_codes(codes), labels, 3, 4).best(weights)
    assert (found.error, found.tokens) == plain_best(codes.tolist(), labels.tolist(), weights.tolist(), 3, 4)


def test_other_columns_are_named_by_their_tokens():
    matrix = TokenMatrix.from_codes([[100, 2000], [2000, 100]], tokens=[17, 40])
    assert VerbalizerSearch(matrix, [0, 1], 2).best(uniform_weights(2)).tokens == (17, 40)


SCRIPT = """
import numpy as np
from pbsdk.learning.matrix import TokenMatrix
from pbsdk.learning.verbalizer import VerbalizerSearch
generator = np.random.default_rng(1)
codes = generator.integers(0, 9000, (48, 3000)).astype(np.uint16)
search = VerbalizerSearch(TokenMatrix.from_codes(codes), np.arange(48) % 4, 4)
for _ in range(5):
    found = search.best(generator.integers(1, 2**46, 48))
    print(found.tokens, found.error)
"""


def test_the_number_of_threads_changes_nothing():
    def run(threads):
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
        environment = {**os.environ, **dict.fromkeys(names, threads)}
        return subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True
        )

    one, two = run("1").stdout, run("2").stdout
    assert one == two
    assert len(one.splitlines()) == 5


def test_compiled_code_is_kept_until_any_module_with_compiled_functions_changes(tmp_path, monkeypatch):
    folder = Path(kernels.__file__).parent
    texts = {path.name: path.read_text() for path in folder.rglob("*.py")}
    assert {name for name, text in texts.items() if "@njit" in text or "@intrinsic" in text} == set(kernels.COMPILED)
    (tmp_path / "kept.py").write_text("def one_more(x):\n    return x + 1\n")
    monkeypatch.syspath_prepend(tmp_path)

    def hits(stamp):
        monkeypatch.setattr(kernels, "source_stamp", lambda _: stamp)
        compiled = kernels.njit(importlib.import_module("kept").one_more)
        assert compiled(1) == 2
        return sum(compiled.stats.cache_hits.values())

    assert [hits("a"), hits("a"), hits("b"), hits("b")] == [0, 1, 0, 1]


@pytest.mark.parametrize("changed", kernels.COMPILED)
def test_the_stamp_of_compiled_code_follows_each_module(tmp_path, changed):
    for name in kernels.COMPILED:
        shutil.copy(Path(kernels.__file__).parent / name, tmp_path)
    before = kernels.source_stamp(tmp_path)
    (tmp_path / changed).write_text((tmp_path / changed).read_text() + "\n")
    assert before == kernels.source_stamp(Path(kernels.__file__).parent) != kernels.source_stamp(tmp_path)


def test_kernels_compile_where_nothing_can_be_kept(monkeypatch):
    def refuse(*args, cache=False, **kwargs):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return args[0]

    monkeypatch.setattr(
        kernels.numba,
        "njit",
        lambda *args, **kwargs: refuse(*args, **kwargs) if args else (lambda f: refuse(f, **kwargs)),
    )
    assert kernels.njit(len) is len


RENAMED = """
import sys
from numba.core import caching
attribute, owner = sys.argv[1:]
owner = getattr(caching, owner)
made = owner.__init__
def renamed(self, *args, **kwargs):
    made(self, *args, **kwargs)
    vars(self)["_renamed"] = vars(self).pop(attribute)
owner.__init__ = renamed
from pbsdk.learning import kernels, vectors
assert not kernels.scan.stats.cache_path, "nothing may be kept that can't be told apart"
"""


@pytest.mark.parametrize(("attribute", "owner"), [("_source_stamp", "IndexDataCacheFile"), ("_cache_file", "Cache")])
def test_a_numba_that_renames_its_privates_is_slower_but_works(attribute, owner):
    run = [sys.executable, "-c", RENAMED + SCRIPT, attribute, owner]
    renamed = subprocess.run(run, capture_output=True, text=True, check=False)
    assert renamed.returncode == 0, renamed.stderr
    plain = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert renamed.stdout == plain.stdout
