"""Regressions in sample space: the same as scikit-learn's, many at once."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from pbsdk.learning.regression import Space, fit_many, log_softmax


def problem(n_examples=40, n_features=90, n_classes=3, seed=0):
    generator = np.random.default_rng(seed)
    labels = np.arange(n_examples) % n_classes
    features = generator.normal(size=(n_examples, n_features)) + 0.4 * np.eye(n_classes)[labels].repeat(
        n_features // n_classes, axis=1
    )
    features -= features.mean(axis=0)
    return features / np.sqrt(np.square(features).sum() / n_examples), labels


@pytest.mark.parametrize(("n_examples", "n_features"), [(40, 90), (120, 30)])
def test_coordinates_are_orthogonal_and_lose_nothing(n_examples, n_features):
    features, _ = problem(n_examples, n_features)
    space = Space.of(features)
    gram = space.coordinates.T @ space.coordinates
    assert np.allclose(gram, np.diag(np.diag(gram)), atol=1e-9)
    assert (np.diff(np.diag(gram)) <= 1e-9).all()
    assert np.allclose(space.within(features), features)
    assert np.allclose(space.coordinates @ space.coordinates.T, features @ features.T)


@pytest.mark.parametrize(("n_examples", "n_features", "strength"), [(40, 90, 1.0), (40, 90, 30.0), (120, 30, 10.0)])
def test_a_regression_is_scikit_learns(n_examples, n_features, strength):
    features, labels = problem(n_examples, n_features)
    space = Space.of(features)
    (solution,) = fit_many(space.coordinates, labels, 3, [strength])
    ours = log_softmax(features @ (features.T @ space.duals(solution[:-1])) + solution[-1])
    theirs = LogisticRegression(C=strength, tol=1e-10, max_iter=10_000).fit(features, labels)
    assert np.allclose(ours, theirs.predict_log_proba(features), atol=0.005)
    assert (ours.argmax(axis=1) == theirs.predict(features)).all()


def test_problems_side_by_side_are_those_alone():
    features, labels = problem()
    z = Space.of(features).coordinates
    weights = np.ones((3, len(labels)))
    weights[1, :8] = 0
    together = fit_many(z, labels, 3, [1.0, 10.0, 30.0], weights)
    for one, strength, rows in zip(together, (1.0, 10.0, 30.0), weights, strict=True):
        (alone,) = fit_many(z, labels, 3, [strength], rows[None])
        assert np.allclose(one, alone, atol=1e-9)


def test_a_row_of_weight_0_teaches_nothing():
    features, labels = problem()
    z = Space.of(features).coordinates
    weights = np.ones((1, len(labels)))
    weights[0, :5] = 0
    wrong = labels.copy()
    wrong[:5] = (wrong[:5] + 1) % 3
    assert (fit_many(z, labels, 3, [10.0], weights) == fit_many(z, wrong, 3, [10.0], weights)).all()


def test_features_without_variance_leave_the_shares_of_the_classes():
    space = Space.of(np.zeros((6, 4)))
    (solution,) = fit_many(space.coordinates, np.array([0, 0, 0, 0, 1, 1]), 2, [10.0])
    shares = np.exp(log_softmax(space.coordinates @ solution[:-1] + solution[-1]))
    assert np.allclose(shares, [2 / 3, 1 / 3], atol=1e-3)
