"""Ensembles: how they vote, and what they need to see."""

import numpy as np
import pytest

from pbsdk.backend import MaskDistribution
from pbsdk.errors import BadAnswer, InputError
from pbsdk.learning.ensemble import Ensemble, WeakLearner
from pbsdk.learning.matrix import TokenMatrix


def random_ensemble(n_classes=3, n_learners=11, seed=0):
    generator = np.random.default_rng(seed)
    learners = tuple(
        WeakLearner(
            int(generator.choice([1, 4, 6])), tuple(generator.integers(0, 50, n_classes).tolist()), generator.random()
        )
        for _ in range(n_learners)
    )
    return Ensemble(n_classes, learners)


def random_codes(n_examples=9, seed=1):
    return np.random.default_rng(seed).integers(0, 5, (n_examples, 8, 50)).astype(np.uint16)  # many ties


def answers_for(ensemble, codes, narrow=False):
    for example in codes:
        for template in ensemble.templates:
            answer = MaskDistribution(codes=example[template])
            yield answer.narrowed(ensemble.tokens) if narrow else answer


def plain_votes(learners, codes, n_classes):
    votes = np.zeros((len(codes), n_classes))
    for learner in learners:
        for i, example in enumerate(codes):
            row = [int(example[learner.template][token]) for token in learner.tokens]
            votes[i, row.index(min(row))] += learner.alpha
    return votes


@pytest.mark.parametrize("narrow", [False, True])
def test_votes_are_summed_alphas_and_need_only_the_ensembles_tokens(narrow):
    ensemble, codes = random_ensemble(), random_codes()
    votes = ensemble.votes(answers_for(ensemble, codes, narrow), len(codes))
    assert (votes == plain_votes(ensemble.learners, codes, 3)).all()
    assert (ensemble.predict(answers_for(ensemble, codes, narrow), len(codes)) == votes.argmax(axis=1)).all()


def test_stages_add_one_learner_at_a_time():
    ensemble, codes = random_ensemble(), random_codes()
    stages = list(ensemble.staged_votes(answers_for(ensemble, codes), len(codes)))
    assert len(stages) == 11
    for k, votes in enumerate(stages):
        assert (votes == plain_votes(ensemble.learners[: k + 1], codes, 3)).all()
    assert (stages[-1] == ensemble.votes(answers_for(ensemble, codes), len(codes))).all()


def test_stages_from_matrices_are_the_same():
    ensemble, codes = random_ensemble(), random_codes()
    matrices = [TokenMatrix.from_codes(codes[:, template]) for template in range(8)]
    from_answers = ensemble.staged_votes(answers_for(ensemble, codes), len(codes))
    for one, other in zip(ensemble.staged_votes_of(matrices), from_answers, strict=True):
        assert (one == other).all()


def test_equal_votes_go_to_the_lowest_class():
    ensemble = Ensemble(2, (WeakLearner(0, (0, 1), 0.5), WeakLearner(0, (1, 0), 0.5)))
    answer = MaskDistribution(codes=np.array([100, 900], dtype=np.uint16))
    assert ensemble.votes([answer], 1).tolist() == [[0.5, 0.5]]
    assert ensemble.predict([answer], 1).tolist() == [0]


def test_equal_probabilities_go_to_the_lowest_class():
    ensemble = Ensemble(2, (WeakLearner(0, (1, 0), 1.0),))
    assert ensemble.predict([MaskDistribution(codes=np.array([700, 700], dtype=np.uint16))], 1).tolist() == [0]


def test_templates_and_tokens_are_those_in_use_ascending():
    ensemble = Ensemble(2, (WeakLearner(6, (9, 3), 1.0), WeakLearner(1, (3, 40), 1.0), WeakLearner(6, (9, 40), 1.0)))
    assert ensemble.templates == (1, 6)
    assert ensemble.tokens.tolist() == [3, 9, 40]
    assert ensemble.tokens.dtype == np.int64


def test_answers_are_read_as_they_come_and_not_held():
    ensemble, codes = random_ensemble(), random_codes(50)
    read = 0

    def counting():
        nonlocal read
        for answer in answers_for(ensemble, codes):
            read += 1
            yield answer

    opinions = ensemble.opinions(counting(), 50)
    next(opinions)
    assert read == len(ensemble.templates)


def test_censored_tokens_have_the_least_probability_shown():
    ensemble = Ensemble(2, (WeakLearner(0, (7, 5), 1.0),))
    answer = MaskDistribution.from_logprobs([-1, -2], [5, 9], top=True)
    assert ensemble.predict([answer], 1).tolist() == [1]


def test_too_few_answers_are_noticed():
    ensemble, codes = random_ensemble(), random_codes()
    answers = list(answers_for(ensemble, codes))[:-1]
    with pytest.raises(BadAnswer, match="fewer answers"):
        ensemble.votes(answers, len(codes))


def test_no_examples_have_no_votes():
    assert random_ensemble().votes([], 0).shape == (0, 3)


def test_ensembles_that_cannot_vote_are_refused():
    with pytest.raises(InputError, match="at least one"):
        Ensemble(2, ())
    with pytest.raises(InputError, match="one token for each of the 3"):
        Ensemble(3, (WeakLearner(0, (1, 2), 1.0),))
