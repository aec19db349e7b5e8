"""Methods: the rows of the paper's tables, each a function from answers to an ensemble.

A method says how many texts a class it learns from, how many prompts it may use, whether they are chosen
first, and what it makes of the answers. It never asks: that is why all of them can share one set of answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np
import numpy.typing as npt

from pbsdk.backend import Vocabulary
from pbsdk.errors import InputError
from pbsdk.learning.boosting import Validation, best_single, boost, vote
from pbsdk.learning.ensemble import Ensemble, WeakLearner
from pbsdk.learning.matrix import TokenMatrix
from pbsdk.prompting.refinement import RefinementMethod
from pbsdk.reproduce.benchmarks import LABEL_WORDS
from pbsdk.reproduce.figures import small_m

__all__ = ["DEFAULT_METHODS", "METHODS", "Method", "Trial", "manual_words"]


@dataclass(frozen=True)
class Trial:
    """One draw of a data set, answered: what a method learns from."""

    dataset: str
    classes: tuple[str, ...]
    train: Sequence[TokenMatrix]
    labels: npt.NDArray[np.intp]
    validation: Validation | None
    rounds: int
    on_perfect: Literal["vote", "best"]
    seed: int
    vocabulary: Vocabulary


def _boosting(trial: Trial, m: int | None = None) -> Ensemble:
    return boost(
        trial.train,
        trial.labels,
        len(trial.classes),
        rounds=trial.rounds,
        m=m,
        on_perfect=trial.on_perfect,
        seed=trial.seed,
        validation=trial.validation,
    ).ensemble


def _small_m(trial: Trial) -> Ensemble:
    return _boosting(trial, small_m(len(trial.classes)))


def _voting(trial: Trial) -> Ensemble:
    return vote(trial.train, trial.labels, len(trial.classes))


def _best_single(trial: Trial) -> Ensemble:
    return best_single(trial.train, trial.labels, len(trial.classes), validation=trial.validation)


def _random(trial: Trial) -> Ensemble:
    generator = np.random.default_rng(trial.seed)
    words = [
        tuple(map(matrix.token, generator.choice(matrix.n_columns, len(trial.classes), replace=False).tolist()))
        for matrix in trial.train
    ]
    return _one_vote_each(trial, words)


def _manual(trial: Trial) -> Ensemble:
    return _one_vote_each(trial, [manual_words(trial.dataset, trial.classes, trial.vocabulary)] * len(trial.train))


def _one_vote_each(trial: Trial, words: Sequence[tuple[int, ...]]) -> Ensemble:
    learners = (WeakLearner(template, tokens, 1.0) for template, tokens in enumerate(words))
    return Ensemble(len(trial.classes), tuple(learners))


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
    """A row of the paper's tables."""

    name: str
    fit: Callable[[Trial], Ensemble]
    k: int | None = 16
    """How many texts a class it learns from; None: all of them, but a tenth."""
    prompts: int = 10
    """How many prompts it uses, the first of the pool."""
    merged: bool = False
    """Whether it learns from the validation set too."""
    manual: bool = False
    """Whether it needs a word of the vocabulary for each class."""
    refined: RefinementMethod | None = None
    """How its prompts are chosen from up to a hundred; None: they are the first."""


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
            Method("voting", _voting),
            Method("best-single", _best_single),
            Method("random", _random),
            Method("manual", _manual, manual=True),
            *(Method(f"k-{k}", _boosting, k=k) for k in (32, 64, 128, 256)),
            Method("full", _boosting, k=None),
        )
    }
)
"""The methods by the names that `--methods` takes, in the order of the tables."""

DEFAULT_METHODS = ("boosting", "boosting-32", "voting", "best-single", "random", "manual")
"""Six that cost ten passes an example together."""
