"""Early exits: which answers are enough."""

import numpy as np
import pytest

from pbsdk.backend import MaskDistribution
from pbsdk.errors import BadAnswer
from pbsdk.learning.ensemble import Ensemble, WeakLearner
from pbsdk.learning.exits import Prefix, PrefixExit
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


def prefixes_of(generator, noise=1.0, n_examples=100):
    """Return two prefixes whose margins the whole doubles, give or take noise; the second is the less noisy."""
    found = []
    for used, factor in (((2,), 1.0), ((1, 2), 0.5)):
        margins = generator.exponential(3, n_examples)
        finals = 2 * margins + noise * factor * generator.standard_normal(n_examples)
        found.append(Prefix(regression(used), margins, finals))
    return tuple(found)


def test_the_risk_falls_with_the_margin_and_is_even_where_the_whole_is_undecided():
    prefix, _ = prefixes_of(np.random.default_rng(1))
    risk = prefix.risk(np.array([0.0, 1.0, 3.0, 6.0]))
    assert risk[0] == pytest.approx(0.5, abs=0.15)
    assert (np.diff(risk) < 0).all()
    assert risk[-1] < 0.001


def test_thresholds_spend_what_is_allowed_stage_by_stage_and_no_more():
    prefixes = prefixes_of(np.random.default_rng(2))
    rules = [PrefixExit(regression((0, 1, 2)), prefixes, allowed) for allowed in (0.0, 0.01, 0.1)]
    none, few, many = rules
    assert none.stages == ((2,), (1,), (0,))
    assert none.thresholds == (np.inf, np.inf)
    assert none.expected == 3
    assert many.thresholds[0] < few.thresholds[0] < np.inf
    assert 1 < many.expected < few.expected < 3
    first = prefixes[0]
    stops = first.margins >= few.thresholds[0]
    assert 0 < first.risk(first.margins[stops]).sum() <= 0.01 * 100 / 2


def test_verdicts_change_no_more_often_than_allowed_where_the_noise_is_as_seen():
    generator = np.random.default_rng(3)
    changed = []
    for _ in range(20):
        rule = PrefixExit(regression((0, 1, 2)), prefixes_of(generator, n_examples=64), 0.02)
        margins = generator.exponential(3, 2000)
        finals = 2 * margins + generator.standard_normal(2000)
        changed.append(((margins >= rule.thresholds[0]) & (finals < 0)).mean())
    assert np.mean(changed) <= 0.01  # the first stage's half
    assert max(changed) <= 0.02
