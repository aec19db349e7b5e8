"""The head `soft`: one softmax regression on all prompts' answers at once.

Where the paper reads one word per class, this reads hundreds of tokens of every prompt (`views`), weighs them all by one
L2-regularised regression (`regression`), and brings its probabilities in line with how often it is right on examples that
were left out (`calibration`). The validation set is learned from too. What comes out is linear: a weight per token and class, which
can be read, saved and asked for by tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict

from pbsdk.backend import Floats, MaskDistribution, Tokens
from pbsdk.errors import InputError
from pbsdk.learning.calibration import stratified_folds, temperature
from pbsdk.learning.explanation import Explanation, LearnerRow
from pbsdk.learning.heads import Fitted, Head, TokenOf, Trial, Word
from pbsdk.learning.matrix import TokenMatrix
from pbsdk.learning.regression import Space, fit_many, log_softmax
from pbsdk.learning.verbalizer import check_labels
from pbsdk.learning.views import SavedView, View, saved_fields, view_of
from pbsdk.queries.examples import Example

__all__ = ["FittedRegression", "Soft"]

FOLDS = 5
WORDS_SHOWN = 8
"""How many tokens of each prompt an explanation names per class."""

_DIGITS = 9


@dataclass(frozen=True)
class FittedRegression(Fitted):
    """A view and weights (D, C) per prompt, and a bias (C,): scores are log-probabilities up to a constant."""

    used: tuple[int, ...]
    views: tuple[View, ...]
    weights: tuple[Floats, ...]
    bias: Floats
    facts: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    history: tuple[Any, ...] = ()
    validation_accuracy: float | None = None

    @property
    def n_classes(self) -> int:  # type: ignore[override] # read only
        """How many classes it tells apart."""
        return len(self.bias)

    @property
    def prompts(self) -> tuple[int, ...]:  # type: ignore[override] # read only
        """The prompts whose answers are read."""
        return self.used

    @property
    def tokens(self) -> Tokens:  # type: ignore[override] # read only
        """The tokens that some view reads."""
        return np.unique(np.concatenate([view.tokens for view in self.views]))

    @property
    def size(self) -> int:  # type: ignore[override] # read only
        """How many prompts are weighed."""
        return len(self.used)

    def scores_of_one(self, answers: Sequence[MaskDistribution | None], example: Example) -> Floats:
        """Return the scores (C,) of one example."""
        del example
        scores = self.bias.copy()
        for answer, view, weights in zip(answers, self.views, self.weights, strict=True):
            if answer is not None:  # features are centred, so none at all is the mean answer
                scores += view.features_of_one(answer) @ weights
        return scores

    def scores_of(self, matrices: Sequence[TokenMatrix], examples: Sequence[Example]) -> Floats:
        """Return the scores (N, C) of examples whose answers lie in the matrices of the whole pool."""
        del examples
        parts = zip(self.used, self.views, self.weights, strict=True)
        total: Floats = sum(view.features(matrices[prompt]) @ weights for prompt, view, weights in parts) + self.bias
        return total

    def probabilities(self, scores: Floats) -> Floats:
        """Return the calibrated probabilities (..., C)."""
        return np.exp(log_softmax(scores))

    def state(self, word: Word) -> Mapping[str, Any]:
        """Return the views and weights as plain values, tokens beside their words."""
        prompts = tuple(
            _WeighedView(**saved_fields(prompt, view, word), weights=tuple(map(tuple, weights.tolist())))
            for prompt, view, weights in zip(self.used, self.views, self.weights, strict=True)
        )
        return _State(bias=tuple(self.bias.tolist()), prompts=prompts).model_dump(mode="json")

    def explain(self, classes: Sequence[Any], prompts: Sequence[str], word: Word) -> Explanation:
        """Return, prompt by prompt, the tokens that speak most for each class, and how much they weigh on average."""
        rows = []
        for prompt, view, weights in zip(self.used, self.views, self.weights, strict=True):
            # A token of a censored view has two weights: being shown, and a nat above the smallest.
            strength = (weights * view.scale[:, None] if view.censored else weights).reshape(
                -1, *self._token_shape(view)
            )
            speaks = strength.sum(axis=0)  # (tokens, C)
            order = np.argsort(-speaks, axis=0, kind="stable")[:WORDS_SHOWN]
            for ranked in order:
                words = tuple(word(int(view.tokens[at])) for at in ranked)
                weight = float(speaks[ranked, np.arange(self.n_classes)].mean())
                rows.append(LearnerRow(prompts[prompt], words, weight))
        return Explanation(tuple(classes), tuple(sorted(rows, key=lambda row: -row.weight)))

    def _token_shape(self, view: View) -> tuple[int, int]:
        return len(view.tokens), self.n_classes


class _WeighedView(SavedView):
    weights: tuple[tuple[float, ...], ...]


class _State(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    bias: tuple[float, ...]
    prompts: tuple[_WeighedView, ...]


def restored(state: Mapping[str, Any], n_classes: int, n_prompts: int, token_of: TokenOf) -> FittedRegression:
    """Return the regression that `FittedRegression.state` describes."""
    saved = _State.model_validate(state)
    if len(saved.bias) != n_classes or not saved.prompts:
        raise ValueError(f"it needs a bias for each of {n_classes} classes, and a prompt")
    for k, one in enumerate(saved.prompts):
        one.check(k, n_prompts)
        if len(one.weights) != one.n_features or any(len(row) != n_classes for row in one.weights):
            raise ValueError(f"prompts.{k} needs, for each feature, weights for {n_classes} classes")
    views, weights = [], []
    for one in saved.prompts:
        view, order = one.translated(token_of)
        views.append(view)
        weights.append(np.array(one.weights)[order])
    return FittedRegression(
        tuple(one.prompt for one in saved.prompts), tuple(views), tuple(weights), np.array(saved.bias)
    )


@dataclass(frozen=True)
class Soft(Head):
    """A softmax regression on the answers of all prompts.

    Args:
        strength: how far weights may go: scikit-learn's C, for features of mean square length 1. From 3 to 30 it hardly matters.
    """

    name: ClassVar[str] = "soft"

    strength: float = 10.0

    def __post_init__(self) -> None:
        if not (isinstance(self.strength, int | float) and 0 < self.strength < np.inf):
            raise InputError(f"strength must be a number above 0, not {self.strength!r}")

    def fit(self, trial: Trial) -> FittedRegression:
        """Choose views, regress with and without each fold, and calibrate on what was left out."""
        labels = check_labels(trial.labels, trial.n_classes, trial.answers[0].n_examples)
        pools = [trial.answers]
        if trial.validation is not None:
            pools.append(trial.validation[0])
            labels = np.concatenate([labels, np.asarray(trial.validation[1], dtype=np.int64)])
        views = [view_of(matrix) for matrix in trial.answers]
        blocks = [np.vstack([view.features(pool[p]) for pool in pools]) for p, view in enumerate(views)]
        features = np.hstack(blocks) / np.sqrt(len(blocks))
        centre = features.mean(axis=0)  # the views were centred on the training set alone
        space = Space.of(features - centre)
        n_folds = max(2, min(FOLDS, int(np.bincount(labels).min())))
        (folds,) = stratified_folds(labels, n_folds, 1, trial.seed)
        rows = np.array([np.ones(len(labels)), *((folds != fold).astype(float) for fold in range(n_folds))])
        whole, *parts = fit_many(space.coordinates, labels, trial.n_classes, [self.strength] * len(rows), rows)
        left_out = np.empty((len(labels), trial.n_classes))
        for fold, solution in enumerate(parts):
            left_out[folds == fold] = space.coordinates[folds == fold] @ solution[:-1] + solution[-1]
        factor = temperature(left_out, labels)
        weights = np.round(factor * space.weights(whole[:-1]) / np.sqrt(len(blocks)), _DIGITS)
        ends = np.cumsum([block.shape[1] for block in blocks])[:-1]
        facts = {
            "strength": float(self.strength),
            "temperature": round(factor, 6),
            "folds": n_folds,
            "cross_validated_accuracy": float((left_out.argmax(axis=1) == labels).mean()),
        }
        return FittedRegression(
            tuple(range(len(views))),
            tuple(views),
            tuple(np.split(weights, ends)),
            np.round(factor * whole[-1] - np.sqrt(len(blocks)) * centre @ weights, _DIGITS),
            facts,
        )

    @classmethod
    def restore(cls, state: Mapping[str, Any], n_classes: int, n_prompts: int, token_of: TokenOf) -> Fitted:
        """Return the regression of a file."""
        return restored(state, n_classes, n_prompts, token_of)
