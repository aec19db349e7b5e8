"""Ridge regressions on texts: the solution is exact, by way of examples or of features, on the rows in use alone."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix, random
from sklearn.linear_model import Ridge

from pbsdk.learning import ridge
from pbsdk.learning.ridge import PENALTY, STRETCH, Ridges, unit_scale

FEATURES = csr_matrix(random(60, 200, density=0.1, rng=np.random.default_rng(1)))
LABELS = np.random.default_rng(2).integers(0, 3, 60)


@pytest.fixture(params=["examples", "features"])
def ridges(request, monkeypatch):
    monkeypatch.setattr(ridge, "MOST_COMPARED", 100 if request.param == "examples" else 10)
    monkeypatch.setattr(ridge, "TOLERANCE", 1e-9)
    return Ridges(FEATURES, LABELS, 3)


def dense():
    centred = FEATURES.toarray() - FEATURES.toarray().mean(axis=0)
    return centred * unit_scale(FEATURES)


def test_features_are_brought_to_a_mean_square_length_of_1():
    assert np.square(dense()).sum() / 60 == pytest.approx(1)


def test_the_scores_are_those_of_a_ridge_regression_on_the_rows_in_use(ridges):
    used = np.arange(60) % 4 != 0
    targets = np.eye(3)[LABELS[used]]
    reference = Ridge(alpha=PENALTY, fit_intercept=False).fit(dense()[used], targets - targets.mean(axis=0))
    scores, duals, bias = ridges.solve(used)
    assert np.allclose(scores / STRETCH, dense() @ reference.coef_.T + targets.mean(axis=0), atol=1e-6)
    assert np.allclose(bias / STRETCH, targets.mean(axis=0))
    assert (duals[~used] == 0).all()


def test_duals_give_the_scores_back(ridges):
    scores, duals, bias = ridges.solve(np.ones(60, dtype=np.bool_))
    assert np.allclose(dense() @ (dense().T @ duals) + bias, scores, atol=1e-6)


def test_a_class_without_a_row_in_use_is_never_said(ridges):
    scores, _, bias = ridges.solve(LABELS != 2)
    assert bias[2] == 0
    assert (scores[:, 2] == 0).all()
