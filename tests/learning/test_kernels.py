"""The compiled loops: scores, shortlists and bounds, and where what was compiled is kept."""

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.problems import random_problem

from pbsdk.learning import kernels, vectors
from pbsdk.learning.coarse import CoarseCopy
from pbsdk.learning.matrix import CHANCES, TokenMatrix
from pbsdk.learning.verbalizer import (
    says,
)


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


def test_equal_scores_go_to_the_lower_token_and_equal_classes_to_the_lowest():
    scores = np.array([[0.5, 0.5, 0.5], [0.5, 0.1, 0.1]])
    places, sizes, _ = kernels.shortlists(scores, 2)
    assert places[0, : sizes[0]].tolist() == [0, 1]
    assert says(np.array([[5, 5, 5], [9, 5, 5]], dtype=np.uint16)).tolist() == [0, 1]


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
