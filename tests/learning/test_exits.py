"""Early exits: which answers are enough."""

import numpy as np
import pytest

from pbsdk.backend import MaskDistribution
from pbsdk.errors import BadAnswer
from pbsdk.learning.ensemble import Ensemble, WeakLearner
from pbsdk.learning.exits import SAFETY, Prefix, PrefixExit
from pbsdk.learning.linear import FittedRegression
from pbsdk.queries.examples import Example
from pbsdk.stopping import ask_in_stages


def random_case(seed, *, whole, n_examples=40):
    """Return an ensemble, codes (N, prompts, tokens) and which prompts are asked (N, prompts)."""
    generator = np.random.default_rng(seed)
    n_classes, n_prompts = int(generator.integers(2, 6)), int(generator.integers(1, 8))
    learners = tuple(
        WeakLearner(
            int(generator.integers(n_prompts)) * 2,
            tuple(generator.integers(0, 12, n_classes).tolist()),
            float(generator.integers(1, 4)) if whole else float(generator.choice([0.1, 0.2, 0.3, 0.7, 1.1])),
        )
        for _ in range(int(generator.integers(1, 20)))
    )
    ensemble = Ensemble(n_classes, learners)
    codes = generator.integers(0, 9, (n_examples, len(ensemble.templates), 12)).astype(np.uint16)
    asked = generator.random(codes.shape[:2]) < 0.8
    asked[~asked.any(axis=1), 0] = True
    return ensemble, codes, asked


def run(ensemble, codes, asked):
    """Ask in stages, with the place of each answer in the query's stead."""
    slots = [(i, k) if asked[i, k] else None for i in range(len(codes)) for k in range(codes.shape[1])]
    examples = [Example(str(i)) for i in range(len(codes))]
    return ask_in_stages(
        ensemble.exit, examples, slots, lambda queries: (MaskDistribution(codes=codes[query]) for query in queries)
    )


@pytest.mark.parametrize("whole", [True, False])
def test_random_ensembles_say_the_same_with_fewer_answers(whole):
    saved = 0
    for seed in range(60):
        ensemble, codes, asked = random_case(seed, whole=whole)
        answers = [
            MaskDistribution(codes=codes[i, k]) if asked[i, k] else None
            for i in range(len(codes))
            for k in range(codes.shape[1])
        ]
        scores, passes = run(ensemble, codes, asked)
        assert (np.array(scores).argmax(axis=1) == ensemble.predict(answers, len(codes))).all(), seed
        assert (passes <= asked.sum(axis=1)).all()
        saved += asked.sum() - passes.sum()
    assert saved > 500


def lone_votes(says, alphas):
    """Return what one example takes whose prompts say these classes, one learner each."""
    ensemble = Ensemble(2, tuple(WeakLearner(k, (0, 1), alpha) for k, alpha in enumerate(alphas)))
    codes = np.array([[[0, 5] if said == 0 else [5, 0] for said in says]], dtype=np.uint16)
    return run(ensemble, codes, np.ones((1, len(says)), dtype=bool))[1][0]


def test_a_tie_that_the_leader_would_win_stops_and_one_that_it_would_lose_does_not():
    assert lone_votes([0, 0, 1, 1], [1, 1, 1, 1]) == 2
    assert lone_votes([1, 1, 0, 1], [1, 1, 1, 1]) == 4
    assert lone_votes([1, 1, 1, 0], [1, 1, 1, 1]) == 3


def test_heavy_prompts_come_first():
    assert lone_votes([0, 0, 0, 1], [1.5, 1.5, 1.5, 5.0]) == 1
    assert lone_votes([1, 0, 0], [0.1, 0.2, 0.3]) == 2


def test_prompts_that_are_not_asked_are_not_waited_for():
    ensemble = Ensemble(2, tuple(WeakLearner(k, (0, 1), 1.0) for k in range(5)))
    codes = np.array([[[5, 0]] * 5], dtype=np.uint16)
    asked = np.array([[False, True, False, True, False]])
    scores, passes = run(ensemble, codes, asked)
    assert (scores[0].tolist(), passes.tolist()) == ([0, 2], [2])


def test_an_answer_that_is_missing_is_an_error():
    ensemble, codes, asked = random_case(0, whole=True)
    slots = [(i, k) if asked[i, k] else None for i in range(len(codes)) for k in range(codes.shape[1])]
    with pytest.raises(BadAnswer, match="answers came to"):
        ask_in_stages(ensemble.exit, [Example(str(i)) for i in range(len(codes))], slots, lambda _: iter(()))


def regression(used):
    return FittedRegression(used, (), (), np.zeros(2))


def test_thresholds_leave_no_more_changed_than_allowed_and_a_nat_to_spare():
    margins = np.arange(100) / 10
    changed = np.isin(np.arange(100), [10, 40, 60])
    prefixes = (Prefix(regression((2,)), margins, changed), Prefix(regression((1, 2)), margins, changed))
    rule = PrefixExit(regression((0, 1, 2)), prefixes, 0.0)
    assert rule.stages == ((2,), (1,), (0,))
    assert rule.thresholds == (6.0 + SAFETY, 6.0 + SAFETY)
    assert rule.expected == (29 * 1 + 71 * 3) / 100
    # One change in each stage; the second has an allowance of two in all.
    assert PrefixExit(regression((0, 1, 2)), prefixes, 0.02).thresholds == (4.0 + SAFETY, 1.0 + SAFETY)
