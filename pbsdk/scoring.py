"""Scoring: a fitted classifier is compared with true labels, as a whole or after each of its learners."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sklearn.metrics import accuracy_score

from pbsdk.backend import Floats
from pbsdk.predicting import Labels, Predicting
from pbsdk.queries.examples import Example, read_labels
from pbsdk.queries.reuse import warn_of_reuse

__all__ = ["Scoring"]


class Scoring(Predicting):
    """`score` and everything that is staged, for an estimator that predicts."""

    _chose_all: frozenset[str]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy on texts and their labels.

        Texts that chose both the prompts and the number of rounds give a `ReusedExamplesWarning`.
        """
        examples, labels = self._to_score(X, y)
        predicted = self._labels(self._scores(examples, scoring=True))
        return float(accuracy_score(labels, predicted, sample_weight=sample_weight))

    def staged_score(self, X: Any, y: Any, sample_weight: Any = None) -> Iterator[float]:
        """Yield the accuracy after the first learner, the first two, and so on to all."""
        examples, labels = self._to_score(X, y)
        for scores in self._staged(examples):
            yield float(accuracy_score(labels, self._labels(scores), sample_weight=sample_weight))

    def staged_predict(self, X: Any) -> Iterator[Labels]:
        """Yield the label of each text after the first learner, the first two, and so on to all; for heads that add learners."""
        for scores in self._staged(self._new_examples(X)):
            yield self._labels(scores)

    def staged_predict_proba(self, X: Any) -> Iterator[Floats]:
        """Yield the same as `predict_proba` after the first learner, the first two, and so on to all."""
        for scores in self._staged(self._new_examples(X)):
            yield self.fitted_.probabilities(scores)

    def _staged(self, examples: list[Example]) -> Iterator[Floats]:
        answers = self._answers(examples, self.fitted_.prompts, self._needed_tokens)
        return self.fitted_.staged_scores(answers, len(examples))

    def _to_score(self, X: Any, y: Any) -> tuple[list[Example], Labels]:
        examples = self._new_examples(X)
        warn_of_reuse(examples, self._chose_all)
        return examples, read_labels(y, len(examples))
