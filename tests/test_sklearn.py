"""scikit-learn's own checks.

The estimator says that it takes strings, so `check_estimator` leaves out what needs tables of numbers. So
that those run too, a thin reader spells numbers out as texts; all of them must pass as well.
"""

import numpy as np
import pytest
from sklearn.exceptions import SkipTestWarning
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks
from sklearn.utils.validation import check_is_fitted, validate_data

from pbsdk.classifier import PromptBoostingClassifier
from pbsdk.testing import FakeBackend

PROMPTS = ["<input> So <mask>.", "<input> The <mask>"]


class SpelledOut(PromptBoostingClassifier):
    """Reads a table of numbers as texts: a word for each column, said as often as its value is high."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.string = False
        tags.input_tags.two_d_array = True
        return tags

    def fit(self, X, y, sample_weight=None):
        X, y = validate_data(self, X, y)
        self._quantiles = np.quantile(X, [0.2, 0.4, 0.6, 0.8], axis=0)
        return super().fit(X, y, sample_weight)

    def predict(self, X):
        check_is_fitted(self)
        return super().predict(validate_data(self, X, reset=False))

    def predict_proba(self, X):
        check_is_fitted(self)
        return super().predict_proba(validate_data(self, X, reset=False))

    def decision_function(self, X):
        check_is_fitted(self)
        return super().decision_function(validate_data(self, X, reset=False))

    def score(self, X, y, sample_weight=None):
        check_is_fitted(self)
        return super().score(validate_data(self, X, reset=False), y, sample_weight)

    def _readable(self, texts, name="texts"):
        levels = (np.asarray(texts)[:, None, :] > self._quantiles).sum(axis=1)
        return super()._readable(
            [" ".join(f"column{c}level{level}" for c, level in enumerate(row)) for row in levels], name
        )


def estimator(kind):
    return kind(FakeBackend(vocabulary_size=200, signal=8), PROMPTS, rounds=10, random_state=0)


def not_promised(_):
    return {
        "check_sample_weight_equivalence_on_dense_data": "a text that stands there twice is in two folds of cross-validation, one that weighs 2 in one"
    }


def test_check_estimator_finds_nothing_wrong():
    with pytest.warns(SkipTestWarning, match="requires input"):
        results = check_estimator(estimator(PromptBoostingClassifier), on_fail=None)
    assert results
    assert [result["check_name"] for result in results if result["status"] != "passed"] == []


@parametrize_with_checks([estimator(SpelledOut)], expected_failed_checks=not_promised)
def test_the_estimator_passes_the_checks_for_numbers_spelled_out(estimator, check):
    check(estimator)
