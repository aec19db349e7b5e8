"""One learner per prompt: each prompt's best verbalizer on the unweighted set, which vote, or of which the best is used.

The heads `voting` (the paper's PromptVoting) and `best` are these; boosting falls back on them where it can't go on.

Where an example wasn't asked under a prompt (`Trial.silent`), it weighs nothing in that prompt's search, and the
prompt's learner doesn't vote on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from pbsdk.backend import Floats
from pbsdk.errors import InputError
from pbsdk.learning.ascent import AscentSearch
from pbsdk.learning.ensemble import Ensemble, FittedEnsemble, WeakLearner
from pbsdk.learning.heads import Fitted, Head, TokenOf, Trial, Validation
from pbsdk.learning.matrix import TokenMatrix
from pbsdk.learning.parameters import check_count
from pbsdk.learning.verbalizer import (
    Verbalizer,
    VerbalizerSearch,
    Weights,
    check_labels,
    checked_m,
    kind_of_search,
    whole_weights,
)

__all__ = ["Best", "Searches", "Silent", "Validator", "Voting", "best_single", "one_per_prompt", "vote"]

Matrices = Sequence[TokenMatrix]
Silent = npt.NDArray[np.bool_]
"""Where (N, prompts) an example wasn't asked."""


class Searches:
    """The verbalizer search of each prompt, made when it is first needed; leaving the `with` block gives back its disk space."""

    def __init__(  # noqa: PLR0913, PLR0917 - a problem
        self,
        train: Matrices,
        labels: npt.ArrayLike,
        n_classes: int,
        m: int | None,
        silent: Silent | None = None,
        weights: Floats | None = None,
    ) -> None:
        if not train:
            raise InputError("the pool has no prompts; give at least one")
        self.n_classes = n_classes
        self.n_prompts = len(train)
        self.m = checked_m(m, n_classes)
        self._train = train
        self._labels = check_labels(labels, n_classes, train[0].n_examples)
        self._silent = None if silent is None else silent[: len(self._labels)]
        self.weights = whole_weights(None if weights is None else weights[: len(self._labels)], len(self._labels))
        self._searches: dict[int, VerbalizerSearch | AscentSearch] = {}
        self._unweighted: dict[int, Verbalizer] = {}

    @property
    def n_examples(self) -> int:
        """How many examples there are to learn from."""
        return len(self._labels)

    def silent(self, template: int) -> npt.NDArray[np.bool_] | None:
        """Return which examples (N,) weren't asked under the template; None if all were."""
        if self._silent is None or not self._silent[:, template].any():
            return None
        return self._silent[:, template]

    def best(self, template: int, weights: Weights) -> Verbalizer:
        """Return the template's best verbalizer under some weights; it gets nothing wrong that wasn't asked."""
        if template not in self._searches:
            search = VerbalizerSearch if kind_of_search(self.n_classes) == "exact" else AscentSearch
            self._searches[template] = search(self._train[template], self._labels, self.n_classes, self.m)
        silent = self.silent(template)
        if silent is None:
            return self._searches[template].best(weights)
        found = self._searches[template].best(np.where(silent, 0, weights))
        return replace(found, wrong=found.wrong & ~silent)

    def unweighted(self, template: int) -> Verbalizer:
        """Return the template's best verbalizer on the set as it was given."""
        if template not in self._unweighted:
            self._unweighted[template] = self.best(template, self.weights)
        return self._unweighted[template]

    def one_each(self) -> list[WeakLearner]:
        """Return each prompt's best learner on the set as it was given, with alpha 1."""
        return [WeakLearner(template, self.unweighted(template).tokens, 1.0) for template in range(self.n_prompts)]

    def best_of(self, learners: Sequence[WeakLearner], validator: Validator | None) -> WeakLearner:
        """Return the learner that does best on validation, or else on training; the first of equals."""
        if validator is not None:
            return max(learners, key=lambda learner: validator.accuracy([learner]))
        return min(learners, key=lambda learner: self._share_wrong(learner.template))

    def _share_wrong(self, template: int) -> float:
        silent = self.silent(template)
        return self.unweighted(template).error / int((self.weights if silent is None else self.weights[~silent]).sum())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for search in self._searches.values():
            search.close()


class Validator:
    """Follows the votes of a growing ensemble on the validation set."""

    def __init__(
        self,
        validation: Validation,
        n_classes: int,
        n_templates: int,
        silent: Silent | None = None,
        weights: Floats | None = None,
    ) -> None:
        self.matrices, labels = validation
        if len(self.matrices) != n_templates:
            raise InputError(f"validation has {len(self.matrices)} templates and training {n_templates}; use the same")
        self._labels = np.asarray(labels, dtype=np.int64)
        if self._labels.shape != (self.matrices[0].n_examples,) or len(self._labels) == 0:
            raise InputError(
                f"validation needs a label for each of {self.matrices[0].n_examples} examples, at least one"
            )
        if not 0 <= self._labels.min() <= self._labels.max() < n_classes:
            raise InputError(f"a validation label is not one of training's {n_classes} classes")
        self._votes = np.zeros((len(self._labels), n_classes))
        self._voted = np.zeros(len(self._labels), dtype=np.bool_)
        every = np.ones((len(self._labels), n_templates), dtype=np.bool_)
        self._asked = every if silent is None else ~silent[-len(self._labels) :]
        self._weights = None if weights is None else weights[-len(self._labels) :]

    def add(self, learner: WeakLearner) -> float:
        """Let a learner vote too, and return the accuracy on the examples that someone voted on."""
        asked = self._asked[:, learner.template]
        self._votes[np.flatnonzero(asked), learner.says(self.matrices)[asked]] += learner.alpha
        self._voted |= asked
        return self._accuracy(self._weights)

    def accuracy(self, learners: Sequence[WeakLearner]) -> float:
        """Return the accuracy of learners on their own."""
        self._votes[:] = 0
        self._voted[:] = False
        return [self.add(learner) for learner in learners][-1]

    def share_right(self, learners: Sequence[WeakLearner]) -> float:
        """Return the same, each example counted once."""
        self.accuracy(learners)
        return self._accuracy(None)

    def _accuracy(self, weights: Floats | None) -> float:
        right = (self._votes.argmax(axis=1) == self._labels)[self._voted]
        return (
            float(np.average(right, weights=None if weights is None else weights[self._voted])) if len(right) else 0.0
        )


def one_per_prompt(  # noqa: PLR0913 - independent settings, all keywords
    train: Matrices,
    labels: npt.ArrayLike,
    n_classes: int,
    *,
    m: int | None = None,
    silent: Silent | None = None,
    weights: Floats | None = None,
) -> list[WeakLearner]:
    """Return each prompt's best learner on the set as it was given, with alpha 1."""
    with Searches(train, labels, n_classes, m, silent, weights) as searches:
        return searches.one_each()


def vote(  # noqa: PLR0913 - independent settings, all keywords
    train: Matrices,
    labels: npt.ArrayLike,
    n_classes: int,
    *,
    m: int | None = None,
    silent: Silent | None = None,
    weights: Floats | None = None,
) -> Ensemble:
    """Return the paper's PromptVoting: one learner per prompt, each with one vote."""
    return Ensemble(n_classes, tuple(one_per_prompt(train, labels, n_classes, m=m, silent=silent, weights=weights)))


def best_single(  # noqa: PLR0913 - independent settings, all keywords
    train: Matrices,
    labels: npt.ArrayLike,
    n_classes: int,
    *,
    m: int | None = None,
    validation: Validation | None = None,
    silent: Silent | None = None,
    weights: Floats | None = None,
) -> Ensemble:
    """Return the one learner per prompt that does best on validation, or else on training."""
    validator = None if validation is None else Validator(validation, n_classes, len(train), silent, weights)
    with Searches(train, labels, n_classes, m, silent, weights) as searches:
        return Ensemble(n_classes, (searches.best_of(searches.one_each(), validator),))


def _validated(ensemble: Ensemble, trial: Trial, m: int | None) -> FittedEnsemble:
    accuracy = None
    if trial.validation is not None:
        validator = Validator(trial.validation, trial.n_classes, len(trial.answers), trial.silent)
        accuracy = validator.share_right(ensemble.learners)
    facts = {
        "m": checked_m(m, trial.n_classes),
        "search": kind_of_search(trial.n_classes),
        "learners": len(ensemble.learners),
    }
    return FittedEnsemble(ensemble, facts=facts, validation_accuracy=accuracy)


@dataclass(frozen=True)
class Voting(Head):
    """One learner per prompt, each with one vote.

    From 21 classes on, the search over words isn't exact (`ascent`).

    Args:
        m: how many candidate words a class has; None: 50 for two classes, 10 for up to four, fewer for up to 20, and 10 for more.
    """

    name: ClassVar[str] = "voting"
    weighs: ClassVar[bool] = True

    m: int | None = None

    def __post_init__(self) -> None:
        check_count("m", self.m, optional=True)

    def check(self, n_classes: int) -> None:
        """Refuse an m that can't be searched."""
        checked_m(self.m, n_classes)

    def fit(self, trial: Trial) -> FittedEnsemble:
        """Let each prompt choose its words."""
        ensemble = vote(
            trial.answers, trial.labels, trial.n_classes, m=self.m, silent=trial.silent, weights=trial.weights
        )
        return _validated(ensemble, trial, self.m)

    @classmethod
    def restore(cls, state: Mapping[str, Any], n_classes: int, n_prompts: int, token_of: TokenOf) -> Fitted:
        """Return the ensemble of a file."""
        return FittedEnsemble.restored(state, n_classes, n_prompts, token_of)


@dataclass(frozen=True)
class Best(Voting):
    """The one learner per prompt that does best on validation, or else on training."""

    name: ClassVar[str] = "best"

    def fit(self, trial: Trial) -> FittedEnsemble:
        """Choose among the prompts' best learners."""
        chosen = best_single(
            trial.answers,
            trial.labels,
            trial.n_classes,
            m=self.m,
            validation=trial.validation,
            silent=trial.silent,
            weights=trial.weights,
        )
        return _validated(chosen, trial, self.m)
