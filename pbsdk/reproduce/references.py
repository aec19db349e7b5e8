"""Reference rows: what a user would try without prompts, from the same labelled texts.

A `Probe` is a logistic regression on features of the texts, whose strength is chosen by cross-validation, all of it scikit-learn's.
The features are TF-IDF of words and character n-grams, which needs no model at all, or the model's own last hidden states
(`pbsdk.backend.HiddenStates`), which no black box shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from pbsdk.backend import Floats
from pbsdk.learning.heads import Trial
from pbsdk.learning.matrix import TokenMatrix
from pbsdk.learning.regression import log_softmax
from pbsdk.learning.texts import TextView
from pbsdk.queries.examples import Example

__all__ = ["FittedProbe", "Probe", "hidden_probe", "words_probe"]

FOLDS = 5

Features = Any
"""A matrix (N, D), sparse or dense."""
Read = Callable[[Sequence[Example]], Features]
"""What turns texts into features."""


@dataclass(frozen=True)
class FittedProbe:
    """A logistic regression, and how its features are read."""

    read: Read
    model: Any
    size: int = 1
    """How many learners it is made of."""

    def scores_of(self, matrices: Sequence[TokenMatrix], examples: Sequence[Example]) -> Floats:
        """Return the log-probabilities (N, C) of examples; the answers are not looked at."""
        del matrices
        scores: Floats = self.model.predict_log_proba(self.read(examples))
        return scores

    def probabilities(self, scores: Floats) -> Floats:
        """Return the probabilities (..., C)."""
        return np.exp(log_softmax(scores))


@dataclass(frozen=True)
class Probe:
    """A logistic regression on features of the texts.

    Args:
        reader: given the texts to learn from, returns what reads features of any text.
        model: the regression, as an estimator of scikit-learn whose parameter `strength` names C.
        strengths: the values of C that are tried.
    """

    reader: Callable[[Sequence[Example]], Read]
    model: Any
    strength: str
    strengths: tuple[float, ...]

    def fit(self, trial: Trial) -> FittedProbe:
        """Choose the strength by cross-validation, and learn from all examples."""
        labels = np.asarray(trial.labels)
        read = self.reader(trial.examples)
        folds = min(FOLDS, int(np.bincount(labels, minlength=trial.n_classes).min()))
        model = self.model
        if folds > 1:
            split = StratifiedKFold(folds, shuffle=True, random_state=trial.seed)
            model = GridSearchCV(model, {self.strength: self.strengths}, scoring="neg_log_loss", cv=split)
        return FittedProbe(read, model.fit(read(trial.examples), labels))


def words_probe() -> Probe:
    """Return a regression on TF-IDF of words and of character n-grams."""
    regression = LogisticRegression(C=10.0, max_iter=1000)
    return Probe(lambda examples: TextView.of(examples).features, regression, "C", (1.0, 10.0, 100.0, 1000.0))


def hidden_probe(states: Callable[[Sequence[Example]], Floats]) -> Probe:
    """Return a regression on hidden states (N, H), each brought to mean 0 and deviation 1."""
    regression = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000))
    return Probe(lambda _: states, regression, "logisticregression__C", (1e-4, 1e-3, 1e-2, 1e-1, 1.0))
