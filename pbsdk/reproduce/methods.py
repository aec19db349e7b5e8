"""Methods: the rows of the tables, the paper's and ours, each a head with its settings.

A method says how many texts per class it learns from, how many prompts it may use, whether they are chosen
first, how much of each answer it sees, and which head learns from the answers. A head never asks: that is why all methods
can share one set of answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

import numpy as np

from pbsdk.backend import Floats, Vocabulary
from pbsdk.errors import InputError
from pbsdk.learning.auto import Auto
from pbsdk.learning.boosting import Boosting, OnPerfect
from pbsdk.learning.ensemble import Ensemble, FittedEnsemble, WeakLearner
from pbsdk.learning.heads import Fitted, Head, TokenOf, Trial
from pbsdk.learning.matrix import TokenMatrix
from pbsdk.learning.soft import Soft
from pbsdk.learning.voting import Best, Voting
from pbsdk.prompting.refinement import RefinementMethod
from pbsdk.queries.examples import Example
from pbsdk.reproduce.benchmarks import LABEL_WORDS
from pbsdk.reproduce.figures import TOPS, small_m
from pbsdk.reproduce.references import hidden_probe, words_probe

__all__ = [
    "BLACK_BOX",
    "DEFAULT_METHODS",
    "METHODS",
    "Conditions",
    "FixedWords",
    "Learned",
    "Learner",
    "Method",
    "RandomWords",
    "manual_words",
]


class Learned(Protocol):
    """What a method has learned, as far as the tables need it; a head's `Fitted` is one."""

    @property
    def size(self) -> int:
        """How many learners it is made of."""

    def scores_of(self, matrices: Sequence[TokenMatrix], examples: Sequence[Example]) -> Floats:
        """Return the scores (N, C) of examples whose answers lie in the matrices."""

    def probabilities(self, scores: Floats) -> Floats:
        """Return the probabilities (..., C) that scores stand for."""


class Learner(Protocol):
    """What learns from a trial: a head, or a reference."""

    def fit(self, trial: Trial) -> Learned:
        """Learn from answered examples."""


@dataclass(frozen=True)
class Conditions:
    """What a method's head may depend on: a data set, a model's vocabulary, the settings of the run, and hidden states."""

    dataset: str
    classes: tuple[str, ...]
    vocabulary: Vocabulary
    rounds: int
    on_perfect: OnPerfect
    states: Callable[[Sequence[Example]], Floats]
    """Returns the model's own hidden states (N, H), where it shows them."""


class _Untrained(Head):
    """One learner per prompt, each with one vote, whose words are not searched for."""

    @classmethod
    def restore(cls, state: Mapping[str, Any], n_classes: int, n_prompts: int, token_of: TokenOf) -> Fitted:
        """Return the ensemble of a file."""
        return FittedEnsemble.restored(state, n_classes, n_prompts, token_of)

    @staticmethod
    def _voting(n_classes: int, words: Sequence[tuple[int, ...]]) -> FittedEnsemble:
        learners = (WeakLearner(template, tokens, 1.0) for template, tokens in enumerate(words))
        return FittedEnsemble(Ensemble(n_classes, tuple(learners)))


class RandomWords(_Untrained):
    """Words drawn at random for each prompt."""

    name: ClassVar[str] = "random"

    def fit(self, trial: Trial) -> FittedEnsemble:
        """Draw the words."""
        generator = np.random.default_rng(trial.seed)
        words = [
            tuple(map(matrix.token, generator.choice(matrix.n_columns, trial.n_classes, replace=False).tolist()))
            for matrix in trial.answers
        ]
        return self._voting(trial.n_classes, words)


@dataclass(frozen=True)
class FixedWords(_Untrained):
    """The same words for each prompt, given as one token per class."""

    name: ClassVar[str] = "manual"

    tokens: tuple[int, ...]

    def fit(self, trial: Trial) -> FittedEnsemble:
        """Learn nothing."""
        return self._voting(trial.n_classes, [self.tokens] * len(trial.answers))


def _boosting(given: Conditions) -> Head:
    return Boosting(rounds=given.rounds, on_perfect=given.on_perfect)


def _small_m(given: Conditions) -> Head:
    return Boosting(rounds=given.rounds, m=small_m(len(given.classes)), on_perfect=given.on_perfect)


def _manual(given: Conditions) -> Head:
    return FixedWords(manual_words(given.dataset, given.classes, given.vocabulary))


def manual_words(dataset: str, classes: Sequence[str], vocabulary: Vocabulary) -> tuple[int, ...]:
    """Return LM-BFF's word for each class as a token."""
    tokens = []
    for label in classes:
        word = LABEL_WORDS.get(dataset, {}).get(label, label)
        token = vocabulary.find(word)
        if token is None:
            raise InputError(f"this model has no single token for {word!r}; leave the method manual out for {dataset}")
        tokens.append(token)
    return tuple(tokens)


@dataclass(frozen=True)
class Method:
    """A row of the tables."""

    name: str
    head: Callable[[Conditions], Learner]
    """What learns from the answers."""
    k: int | None = 16
    """How many texts per class it learns from; None for all but a tenth."""
    prompts: int = 10
    """How many prompts it uses, the first of the pool."""
    merged: bool = False
    """Whether it learns from the validation set too."""
    manual: bool = False
    """Whether it needs a word of the vocabulary for each class."""
    refined: RefinementMethod | None = None
    """How its prompts are chosen from up to a hundred; None to use the first ones."""
    top: int | None = None
    """How many of an answer's likeliest tokens it sees; None for all."""
    states: int = 0
    """Under how many prompts it reads the model's own hidden states, which are not metered; 0: it is no white box."""

    @property
    def most_prompts(self) -> int:
        """How many prompts it uses in any way."""
        return max(self.prompts, self.states)


_OURS: Mapping[str, Callable[[Conditions], Head]] = MappingProxyType(
    {"soft": lambda _: Soft(), "auto": lambda _: Auto(text_features=False), "auto-text": lambda _: Auto()}
)
"""Our heads. All learn from the validation set too."""

METHODS: Mapping[str, Method] = MappingProxyType(
    {
        method.name: method
        for method in (
            Method("boosting", _boosting),
            Method("boosting-32", _boosting, merged=True),
            *(Method(f"boosting-{d}", _boosting, prompts=d) for d in (1, 5, 10, 20)),
            Method("small-m", _small_m),
            Method("refinement", _boosting, refined="paper"),
            Method("halving", _boosting, refined="halving"),
            Method("voting", lambda _: Voting()),
            Method("best-single", lambda _: Best()),
            Method("random", lambda _: RandomWords()),
            Method("manual", _manual, manual=True),
            *(Method(f"k-{k}", _boosting, k=k) for k in (32, 64, 128, 256)),
            Method("full", _boosting, k=None),
            *(Method(name, head, merged=True) for name, head in _OURS.items()),
            *(
                method
                for top in TOPS
                for method in (
                    Method(f"boosting-top{top}", _boosting, top=top),
                    *(Method(f"{name}-top{top}", head, merged=True, top=top) for name, head in _OURS.items()),
                )
            ),
            Method("tf-idf", lambda _: words_probe(), prompts=0, merged=True),
            Method("hidden-state", lambda given: hidden_probe(given.states), prompts=0, merged=True, states=10),
        )
    }
)
"""The methods by the names that `--methods` takes, in the order of the tables."""

BLACK_BOX = tuple(method.name for method in METHODS.values() if not method.states)
"""Those that need only the interface."""

DEFAULT_METHODS = ("boosting", "boosting-32", "voting", "best-single", "random", "manual")
"""Six that cost ten passes per example together."""
