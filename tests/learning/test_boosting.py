"""Boosting: each rule of SAMME, each way out, and a plain reference of the whole loop."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbsdk.errors import InputError
from pbsdk.learning import boosting, voting
from pbsdk.learning.boosting import Outcome, WayOut, boost, reweigh, samme_alpha
from pbsdk.learning.matrix import TokenMatrix, collect
from pbsdk.learning.verbalizer import TOTAL_WEIGHT, VerbalizerSearch, uniform_weights
from pbsdk.learning.voting import best_single, one_per_prompt, vote

LIKELY, UNLIKELY = 100, 5000


def noisy_pool(n_templates=3, n_examples=24, n_classes=2, n_tokens=40, seed=0):
    generator = np.random.default_rng(seed)
    codes = generator.integers(0, 9000, (n_templates, n_examples, n_tokens)).astype(np.uint16)
    return [TokenMatrix.from_codes(rows) for rows in codes], np.arange(n_examples) % n_classes


def words_pool(*saying):
    """A template each, of two tokens, that says the given class for each example."""
    return [
        TokenMatrix.from_codes([[LIKELY, UNLIKELY] if said == 0 else [UNLIKELY, LIKELY] for said in row])
        for row in saying
    ]


def accuracy(learners, matrices, labels, n_classes):
    votes = np.zeros((len(labels), n_classes))
    for learner in learners:
        votes[np.arange(len(labels)), learner.says(matrices)] += learner.alpha
    return (votes.argmax(axis=1) == labels).mean()


@pytest.mark.parametrize(("wrong", "total", "n_classes"), [(1, 4, 2), (3, 10, 3), (2**50, 2**52, 6)])
def test_alpha_is_sammes(wrong, total, n_classes):
    err = wrong / total
    assert samme_alpha(wrong, total, n_classes) == pytest.approx(
        math.log((1 - err) / err) + math.log(n_classes - 1), abs=1e-9
    )


@pytest.mark.parametrize("n_classes", [2, 3, 6])
def test_alpha_is_nothing_from_chance_on(n_classes):
    total = 60
    chance = total * (n_classes - 1) // n_classes
    assert samme_alpha(chance, total, n_classes) == samme_alpha(chance + 1, total, n_classes) == 0
    assert samme_alpha(chance - 1, total, n_classes) > 0


@settings(max_examples=200)
@given(st.data(), st.integers(2, 6))
def test_wrong_examples_weigh_exp_alpha_more(data, n_classes):
    weights = np.array(data.draw(st.lists(st.integers(2**30, 2**40), min_size=2, max_size=30)))
    wrong = np.array(data.draw(st.lists(st.booleans(), min_size=len(weights), max_size=len(weights))))
    wrong[:2] = [True, False]
    alpha = samme_alpha(int(weights[wrong].sum()), int(weights.sum()), n_classes)
    raw = weights * np.where(wrong, math.exp(alpha) if alpha else 1, 1)
    if alpha:
        assert reweigh(weights, wrong, n_classes) / TOTAL_WEIGHT == pytest.approx(raw / raw.sum(), rel=1e-4)
        assert abs(int(reweigh(weights, wrong, n_classes).sum()) - TOTAL_WEIGHT) <= len(weights)


def test_equal_examples_stay_equal_and_no_weight_falls_to_nothing():
    weights = uniform_weights(9)
    wrong = np.arange(9) < 2
    for _ in range(300):
        weights = (
            reweigh(weights, wrong, 2) if weights[wrong].sum() * 2 < weights.sum() else reweigh(weights, ~wrong, 2)
        )
        assert len(set(weights[wrong])) == len(set(weights[~wrong])) == 1
    tiny = np.array([1, TOTAL_WEIGHT // 2, 1, 1])
    assert reweigh(tiny, np.array([False, False, True, False]), 2).min() >= 1


def test_rounds_follow_a_plain_loop():
    pool, labels = noisy_pool(n_templates=4, n_classes=3)
    boosted = boost(pool, labels, 3, rounds=25, m=2, seed=5)
    assert boosted.way_out is WayOut.ROUNDS
    generator = np.random.default_rng(5)
    drawn = [int(t) for _ in range(7) for t in generator.permutation(4)][:25]
    assert [record.template for record in boosted.history] == drawn
    weights = np.full(24, 1 / 24)
    for record in boosted.history:
        said = pool[record.template].codes_of(record.tokens).argmin(axis=1)
        error = weights[said != labels].sum()
        assert record.error == pytest.approx(error, abs=1e-9)
        best = VerbalizerSearch(pool[record.template], labels, 3, 2).best((weights * TOTAL_WEIGHT).astype(np.int64))
        assert best.error / TOTAL_WEIGHT == pytest.approx(error, abs=1e-9)
        if record.outcome is Outcome.KEPT:
            alpha = math.log((1 - error) / error) + math.log(2)
            assert record.alpha == pytest.approx(alpha, abs=1e-6)
            weights = weights * np.exp(alpha * (said != labels))
            weights /= weights.sum()
    kept = [record for record in boosted.history if record.outcome is Outcome.KEPT]
    assert [(learner.template, learner.tokens, learner.alpha) for learner in boosted.ensemble.learners] == [
        (record.template, record.tokens, record.alpha) for record in kept
    ]


def test_cycles_cover_every_prompt_before_any_comes_again():
    pool, labels = noisy_pool(n_templates=5)
    history = boost(pool, labels, 2, rounds=20, m=1, seed=3).history
    templates = [record.template for record in history]
    cycles = [templates[at : at + 5] for at in range(0, 20, 5)]
    assert all(sorted(cycle) == list(range(5)) for cycle in cycles)
    assert len({tuple(cycle) for cycle in cycles}) > 1


def test_independent_draws_are_uniform_and_seeded():
    expected = np.random.default_rng(3)
    pool, labels = noisy_pool(n_templates=5)
    templates = [
        record.template for record in boost(pool, labels, 2, rounds=30, m=1, seed=3, draw="independent").history
    ]
    assert templates == [int(expected.integers(5)) for _ in range(30)]
    assert any(sorted(templates[at : at + 5]) != list(range(5)) for at in range(0, 30, 5))


def test_the_seed_decides_and_nothing_else():
    pool, labels = noisy_pool(n_templates=6)
    one, same, other = (boost(pool, labels, 2, rounds=12, m=2, seed=seed) for seed in (1, 1, 2))
    assert one.ensemble == same.ensemble
    assert one.history == same.history
    assert one.ensemble != other.ensemble


def test_a_learner_no_better_than_chance_is_dropped_the_round_is_spent_and_weights_stay():
    # One token for both classes: it always says class 0, which is wrong for half of the examples.
    useless = TokenMatrix.from_codes(np.full((4, 1), 500))
    good = words_pool([0, 1, 0, 0])[0]
    labels = [0, 1, 0, 1]
    boosted = boost([useless, good], labels, 2, rounds=2, seed=0)
    outcomes = {record.template: record for record in boosted.history}
    assert outcomes[0].outcome is Outcome.DROPPED
    assert outcomes[0].alpha is None
    assert outcomes[1].outcome is Outcome.KEPT
    assert outcomes[1].error == 0.25
    assert [learner.template for learner in boosted.ensemble.learners] == [1]
    assert len(boosted.history) == 2


def test_a_drop_below_chance_leaves_the_weights_alone():
    labels = np.array([0, 1, 1, 2, 2, 1, 2])
    useless = TokenMatrix.from_codes(np.full((7, 1), 500))  # says class 0: wrong for six of seven
    other = TokenMatrix.from_codes(np.random.default_rng(3).integers(0, 9000, (7, 3)))
    seed = next(seed for seed in range(99) if next(boosting.draws(2, "cycles", seed)) == 0)
    first, second = boost([useless, other], labels, 3, rounds=2, seed=seed).history
    assert (first.outcome, first.error) == (Outcome.DROPPED, pytest.approx(6 / 7))
    unweighted = VerbalizerSearch(other, labels, 3).best(uniform_weights(7))
    assert second.tokens == unweighted.tokens
    assert second.error == unweighted.error / int(uniform_weights(7).sum()) > 0


def test_weights_stay_after_a_drop(monkeypatch):
    seen = []
    original = voting.VerbalizerSearch.best
    monkeypatch.setattr(
        voting.VerbalizerSearch, "best", lambda self, weights: seen.append(weights) or original(self, weights)
    )
    only = words_pool([0, 1, 0, 0])
    boosted = boost(only, [0, 1, 0, 1], 2, rounds=6, seed=0)
    assert [record.outcome for record in boosted.history] == [Outcome.KEPT] + [Outcome.DROPPED] * 5
    assert len(seen) == 2  # what was dropped is not looked for again while the weights are the same
    assert boosted.history[1].error == pytest.approx(0.5)


@settings(max_examples=100)
@given(st.data(), st.integers(2, 6))
def test_a_learner_that_was_just_kept_is_at_chance_under_the_new_weights(data, n_classes):
    weights = np.array(data.draw(st.lists(st.integers(1, 2**44), min_size=2, max_size=60)))
    wrong = np.array(data.draw(st.lists(st.booleans(), min_size=len(weights), max_size=len(weights))))
    wrong[:2] = [True, False]
    after = reweigh(weights, wrong, n_classes)
    assert samme_alpha(int(after[wrong].sum()), int(after.sum()), n_classes) == 0


PERFECT = ([0, 0, 1, 0], [0, 0, 1, 1], [0, 1, 1, 1])
LABELS = [0, 0, 1, 1]


def test_a_perfect_learner_ends_boosting_and_all_prompts_vote():
    pool = words_pool(*PERFECT)
    boosted = boost(pool, LABELS, 2, rounds=50, seed=0)
    assert boosted.way_out is WayOut.PERFECT
    assert boosted.history[-1].outcome is Outcome.PERFECT
    assert boosted.history[-1].template == 1
    assert len(boosted.history) <= 3
    assert [learner.template for learner in boosted.ensemble.learners] == [0, 1, 2]
    assert [learner.alpha for learner in boosted.ensemble.learners] == [1.0] * 3
    assert boosted.ensemble == vote(pool, LABELS, 2)
    assert list(boosted.ensemble.learners) == one_per_prompt(pool, LABELS, 2)


def test_on_perfect_best_takes_the_learner_that_validates_best():
    pool = words_pool(*PERFECT)
    validation = words_pool([0, 1, 1], [1, 1, 1], [0, 1, 0])
    boosted = boost(pool, LABELS, 2, seed=0, on_perfect="best", validation=(validation, [0, 1, 0]))
    assert [learner.template for learner in boosted.ensemble.learners] == [2]
    assert boosted.validation_accuracy == 1
    assert boosted.ensemble == best_single(pool, LABELS, 2, validation=(validation, [0, 1, 0]))


def test_on_perfect_best_takes_the_first_of_equals():
    pool = words_pool(*PERFECT)
    validation = words_pool([0, 1], [0, 1], [0, 1])
    assert best_single(pool, LABELS, 2, validation=(validation, [0, 1])).learners[0].template == 0


def test_on_perfect_best_without_validation_goes_by_training():
    pool = words_pool(*PERFECT)
    boosted = boost(pool, LABELS, 2, seed=0, on_perfect="best")
    assert [learner.template for learner in boosted.ensemble.learners] == [1]
    assert boosted.ensemble == best_single(pool, LABELS, 2)


@pytest.mark.parametrize(("on_perfect", "templates"), [("vote", [0, 1]), ("best", [0])])
def test_without_any_learner_each_prompt_has_its_own(on_perfect, templates):
    useless = TokenMatrix.from_codes(np.full((4, 1), 500))
    boosted = boost([useless, useless], LABELS, 2, rounds=7, seed=0, on_perfect=on_perfect)
    assert boosted.way_out is WayOut.NO_LEARNER
    assert {record.outcome for record in boosted.history} == {Outcome.DROPPED}
    assert len(boosted.history) == 7
    assert boosted.learners == ()
    assert [learner.template for learner in boosted.ensemble.learners] == templates


def test_the_prefix_that_validates_best_is_taken():
    pool, labels = noisy_pool(n_templates=4, n_examples=40, seed=2)
    validation, validation_labels = noisy_pool(n_templates=4, n_examples=31, seed=3)
    boosted = boost(pool, labels, 2, rounds=30, m=2, seed=1, validation=(validation, validation_labels))
    scores = [
        accuracy(boosted.learners[: k + 1], validation, validation_labels, 2) for k in range(len(boosted.learners))
    ]
    assert len(set(scores)) > 2
    longest_best = max(k + 1 for k, score in enumerate(scores) if score == max(scores))
    assert boosted.ensemble.learners == boosted.learners[:longest_best]
    assert boosted.rounds_kept == longest_best < len(boosted.learners)
    assert boosted.validation_accuracy == max(scores)
    kept = [record for record in boosted.history if record.outcome is Outcome.KEPT]
    assert [record.validation_accuracy for record in kept] == scores


def test_of_equal_prefixes_the_longest_is_taken():
    assert boosting._best_prefix([0.5, 0.75, 0.6, 0.75, 0.7]) == 4


def test_without_validation_all_rounds_are_kept():
    pool, labels = noisy_pool(n_templates=4, n_examples=40, seed=2)
    boosted = boost(pool, labels, 2, rounds=9, m=2, seed=1)
    assert boosted.ensemble.learners == boosted.learners
    assert len(boosted.learners) == 9
    assert boosted.validation_accuracy is None
    assert {record.validation_accuracy for record in boosted.history} == {None}


def test_training_lowers_the_error_of_the_ensemble():
    pool, labels = noisy_pool(n_templates=4, n_examples=60, seed=4)
    boosted = boost(pool, labels, 2, rounds=60, m=3, seed=1)
    assert accuracy(boosted.learners, pool, labels, 2) > accuracy(boosted.learners[:1], pool, labels, 2)


def test_the_default_is_two_hundred_rounds_and_progress_sees_each():
    pool, labels = noisy_pool(n_examples=60)
    seen = []
    boosted = boost(pool, labels, 2, m=1, seed=0, progress=seen.append)
    assert len(seen) == len(boosted.history) == 200
    assert tuple(seen) == boosted.history
    assert boosted.m == 1
    assert boost(pool, labels, 2, rounds=1, seed=0).m == 50


def test_what_does_not_change_is_made_once(monkeypatch):
    made = []
    original = voting.VerbalizerSearch

    def counted(*args):
        made.append(args)
        return original(*args)

    monkeypatch.setattr(voting, "VerbalizerSearch", counted)
    pool, labels = noisy_pool(n_templates=3, n_examples=60)
    boost(pool, labels, 2, rounds=30, m=2, seed=0)
    assert len(made) == 3


def test_spilled_matrices_train_the_same():
    pool, labels = noisy_pool()
    boosted = boost(pool, labels, 2, rounds=12, m=2, seed=0)
    from pbsdk.backend import MaskDistribution

    answers = (MaskDistribution(codes=matrix.codes[:, i].copy()) for i in range(24) for matrix in pool)
    with collect(answers, 24, 3, max_memory=0) as spilled:
        assert boost(spilled, labels, 2, rounds=12, m=2, seed=0) == boosted


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rounds": 0}, "rounds must be a whole number of at least 1"),
        ({"m": 0}, "m is 0"),
        ({"draw": "random"}, "one of cycles, independent"),
        ({"on_perfect": "stop"}, "one of vote, best"),
        ({"labels": [0, 1]}, "labels for 24 examples"),
        ({"train": []}, "no prompts"),
        ({"n_classes": 3}, "each must have an example"),
        ({"validation": ([], [])}, "0 templates and training 3"),
        ({"validation": (noisy_pool()[0], [0])}, "a label for each of 24"),
        ({"validation": (noisy_pool()[0], [2] * 24)}, "not one of training's 2"),
    ],
)
def test_what_cannot_work_is_refused(change, message):
    pool, labels = noisy_pool()
    given_ = {"train": pool, "labels": labels, "n_classes": 2, **change}
    with pytest.raises(InputError, match=message):
        boost(**given_)


def with_silence(pool, silent, seed):
    """Other answers where nothing was asked."""
    generator = np.random.default_rng(seed)
    changed = []
    for template, matrix in enumerate(pool):
        codes = matrix.codes.T.copy()
        codes[silent[:, template]] = generator.integers(0, 9000, (silent[:, template].sum(), matrix.n_columns))
        changed.append(TokenMatrix.from_codes(codes))
    return changed


@pytest.mark.parametrize("n_classes", [2, 3])
def test_rounds_with_silent_examples_follow_a_plain_loop(n_classes):
    pool, labels = noisy_pool(n_templates=4, n_classes=n_classes)
    silent = np.random.default_rng(1).random((24, 4)) < 0.2
    boosted = boost(pool, labels, n_classes, rounds=25, m=2, seed=5, silent=silent)
    assert boosted.way_out is WayOut.ROUNDS
    weights = np.full(24, 1 / 24)
    for record in boosted.history:
        asked = ~silent[:, record.template]
        wrong = asked & (pool[record.template].codes_of(record.tokens).argmin(axis=1) != labels)
        error = weights[wrong].sum() / weights[asked].sum()
        assert record.error == pytest.approx(error, abs=1e-9)
        sub = TokenMatrix.from_codes(pool[record.template].codes.T[asked])
        weighed = (weights[asked] * TOTAL_WEIGHT).astype(np.int64)
        best = VerbalizerSearch(sub, labels[asked], n_classes, 2).best(weighed)
        assert best.error / weighed.sum() == pytest.approx(error, abs=1e-9)
        if record.outcome is Outcome.KEPT:
            alpha = math.log((1 - error) / error) + math.log(n_classes - 1)
            assert record.alpha == pytest.approx(alpha, abs=1e-6)
            scaled = weights[asked] * np.exp(alpha * wrong[asked])
            weights[asked] = scaled / scaled.sum() * weights[asked].sum()


@pytest.mark.parametrize("n_examples", [24, 34])  # of 17 in a class, the last is alone in its piece
def test_what_stands_in_for_a_silent_example_changes_nothing(n_examples):
    pool, labels = noisy_pool(n_templates=4, n_examples=n_examples)
    dev, dev_labels = noisy_pool(n_templates=4, n_examples=12, seed=9)
    silent = np.random.default_rng(2).random((n_examples + 12, 4)) < 0.3
    silent[n_examples - 2 : n_examples] = True
    found = []
    for seed in (3, 4):
        train = with_silence(pool, silent[:n_examples], seed)
        validation = (with_silence(dev, silent[n_examples:], seed), dev_labels)
        found.append(
            (
                boost(train, labels, 2, rounds=30, m=4, seed=1, validation=validation, silent=silent),
                boost(train, labels, 2, rounds=30, m=4, seed=1, silent=silent[:n_examples]),
                vote(train, labels, 2, m=4, silent=silent),
                best_single(train, labels, 2, m=4, validation=validation, silent=silent),
                best_single(train, labels, 2, m=4, silent=silent),
            )
        )
    assert found[0] == found[1]
    assert found[0][0] != boost(pool, labels, 2, rounds=30, m=4, seed=1, validation=(dev, dev_labels))


def test_nobody_silent_is_as_if_nothing_was_said():
    pool, labels = noisy_pool()
    none = np.zeros((48, 3), dtype=np.bool_)
    validation = noisy_pool(seed=5)
    assert boost(pool, labels, 2, rounds=20, seed=1, validation=validation, silent=none) == boost(
        pool, labels, 2, rounds=20, seed=1, validation=validation
    )


def test_the_best_prompt_is_the_one_with_the_least_share_of_errors_among_what_it_was_asked():
    labels = [0, 0, 0, 1, 1, 1]
    pool = words_pool([1, 0, 0, 0, 1, 1], [1, 0, 0, 0, 1, 1])
    silent = np.zeros((6, 2), dtype=np.bool_)
    silent[1, 0] = True  # 2 of 5 are wrong, against 2 of 6
    assert best_single(pool, labels, 2, silent=silent).learners[0].template == 1
    silent[[0, 3], 1] = True
    assert best_single(pool, labels, 2, silent=silent).learners[0].template == 1


def test_validation_counts_only_what_somebody_voted_on():
    labels = [0, 0, 1, 1]
    pool = words_pool([0, 0, 1, 1], [0, 0, 1, 1])
    silent = np.zeros((8, 2), dtype=np.bool_)
    silent[4] = True  # the first of validation, which both get wrong
    silent[5, 0] = True  # the second, which the first gets wrong and the second right
    dev = (words_pool([1, 1, 1, 1], [1, 0, 1, 1]), labels)
    assert boost(pool, labels, 2, validation=dev, silent=silent).validation_accuracy == 1
    assert boost(pool, labels, 2, validation=dev).validation_accuracy == 0.75
    silent[4:] = True
    assert boost(pool, labels, 2, validation=dev, silent=silent).validation_accuracy == 0
