"""SAMME over prompts: each round asks one template for its best verbalizer, and weighs it.

The answers are all there before the first round; boosting only looks at them again under other
weights. `boost` is the loop, `_Rounds.one` a single round. A round ends in one of three ways
(`Outcome`) and the loop in one of three (`WayOut`):

- a learner with `err >= 1 - 1/C` is DROPPED: the round is spent and the weights stay;
- a learner without errors is PERFECT, and boosting can't go on, since its alpha would be infinite
  and no example would weigh more than another. One learner per prompt on the unweighted set takes
  the place of all: they vote (`on_perfect="vote"`, the better choice), or the best is used ("best",
  as in the paper);
- any other is KEPT, with `alpha = ln((1 - err) / err) + ln(C - 1)`. The weights of the examples it
  gets wrong are multiplied by `exp(alpha)`.

If every round is dropped there is no learner at all, and one learner per prompt takes its place
likewise (`WayOut.NO_LEARNER`). With a validation set, the ensemble is the prefix that does best on
it; of equal ones the longest.

Weights are whole numbers, so that errors are exact sums and equal examples stay equal. A weight
never falls to 0. Alphas are rounded to nine decimals, on which all machines agree; one that is 0
then (a learner as good as chance but for the rounding of weights) is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import numpy as np
import numpy.typing as npt

from pbsdk.errors import InputError
from pbsdk.learning.ensemble import Ensemble, WeakLearner
from pbsdk.learning.matrix import TokenMatrix
from pbsdk.learning.verbalizer import (
    TOTAL_WEIGHT,
    Verbalizer,
    VerbalizerSearch,
    Weights,
    check_labels,
    checked_m,
    uniform_weights,
)

__all__ = [
    "Boosted",
    "Outcome",
    "RoundRecord",
    "Validation",
    "WayOut",
    "best_single",
    "boost",
    "one_per_prompt",
    "reweigh",
    "samme_alpha",
    "vote",
]

Matrices = Sequence[TokenMatrix]
Validation = tuple[Matrices, npt.ArrayLike]
Draw = Literal["cycles", "independent"]
OnPerfect = Literal["vote", "best"]


class Outcome(StrEnum):
    """How a round ends."""

    KEPT = "kept"
    DROPPED = "dropped"
    PERFECT = "perfect"


class WayOut(StrEnum):
    """How boosting ends."""

    ROUNDS = "rounds"
    """All rounds were run."""
    PERFECT = "perfect"
    """A learner made no error; one learner per prompt took the place of all."""
    NO_LEARNER = "no learner"
    """Every round was dropped; one learner per prompt took their place."""


@dataclass(frozen=True)
class RoundRecord:
    """What happened in one round."""

    template: int
    tokens: tuple[int, ...]
    error: float
    alpha: float | None
    """None if the learner was not kept."""
    outcome: Outcome
    validation_accuracy: float | None
    """Of all learners kept so far, if there is a validation set and a learner."""


@dataclass(frozen=True)
class Boosted:
    """What boosting found: the ensemble, and how it came about."""

    ensemble: Ensemble
    learners: tuple[WeakLearner, ...]
    """All that were kept, of which the ensemble may be a prefix."""
    way_out: WayOut
    history: tuple[RoundRecord, ...]
    m: int
    validation_accuracy: float | None

    @property
    def rounds_kept(self) -> int:
        """How many learners the ensemble has."""
        return len(self.ensemble.learners)


def samme_alpha(wrong: int, total: int, n_classes: int) -> float:
    """Return a learner's weight; at most 0 if it is no better than chance.

    >>> samme_alpha(1, 4, 2), samme_alpha(1, 2, 2), samme_alpha(2, 3, 3)
    (1.098612289, 0.0, 0.0)
    """
    if wrong * n_classes >= total * (n_classes - 1):
        return 0.0
    return round(math.log((total - wrong) * (n_classes - 1) / wrong), 9)


def reweigh(weights: Weights, wrong: npt.NDArray[np.bool_], n_classes: int) -> Weights:
    """Multiply the weights of wrong examples by exp(alpha), and bring the sum back.

    >>> reweigh(np.array([100, 100, 100, 100]), np.array([True, False, False, False]), 2) / 2**52
    array([0.5       , 0.16666667, 0.16666667, 0.16666667])
    """
    lost = int(weights[wrong].sum())
    right = int(weights.sum()) - lost
    # exp(alpha) is right * (C - 1) / lost, so the new sum is right * C.
    up, down = TOTAL_WEIGHT * (n_classes - 1) / (n_classes * lost), TOTAL_WEIGHT / (n_classes * right)
    scaled: Weights = np.rint(weights * np.where(wrong, up, down)).astype(np.int64)
    return np.maximum(scaled, 1)


def draws(n_templates: int, draw: Draw, seed: int | np.random.Generator | None) -> Iterator[int]:
    """Yield templates for ever: in shuffled cycles, or each independently."""
    generator = np.random.default_rng(seed)
    while True:
        if draw == "cycles":
            yield from generator.permutation(n_templates).tolist()
        else:
            yield int(generator.integers(n_templates))


class _Rounds:
    """The searches of all templates, the weights, and a memory of what doesn't change with them."""

    def __init__(self, train: Matrices, labels: npt.NDArray[np.int64], n_classes: int, m: int) -> None:
        self.n_classes = n_classes
        self.weights = uniform_weights(len(labels))
        self._given = (train, labels, m)
        self._searches: dict[int, VerbalizerSearch] = {}
        self._dropped: dict[int, Verbalizer] = {}  # under the present weights
        self._unweighted: dict[int, Verbalizer] = {}
        self._at_start = True

    def best(self, template: int, weights: Weights) -> Verbalizer:
        """Return the template's best verbalizer under some weights."""
        if template not in self._searches:
            train, labels, m = self._given
            self._searches[template] = VerbalizerSearch(train[template], labels, self.n_classes, m)
        return self._searches[template].best(weights)

    def unweighted(self, template: int) -> Verbalizer:
        """Return the template's best verbalizer on the unweighted set."""
        if template not in self._unweighted:
            self._unweighted[template] = self.best(template, uniform_weights(len(self.weights)))
        return self._unweighted[template]

    def one(self, template: int) -> tuple[Verbalizer, float, float, Outcome]:
        """Run a round: return the verbalizer, its error and alpha, and the outcome."""
        total = int(self.weights.sum())
        if self._at_start:
            found = self.unweighted(template)
        else:
            found = self._dropped.get(template) or self.best(template, self.weights)
        error = found.error / total
        if found.error == 0:
            return found, 0.0, math.inf, Outcome.PERFECT
        alpha = samme_alpha(found.error, total, self.n_classes)
        if alpha <= 0:
            self._dropped[template] = found
            return found, error, alpha, Outcome.DROPPED
        self.weights = reweigh(self.weights, found.wrong, self.n_classes)
        self._dropped.clear()
        self._at_start = False
        return found, error, alpha, Outcome.KEPT

    def close(self) -> None:
        """Give back what the searches hold on disk."""
        for search in self._searches.values():
            search.close()


class _Validator:
    """Follows the votes of a growing ensemble on the validation set."""

    def __init__(self, validation: Validation, n_classes: int, n_templates: int) -> None:
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

    def add(self, learner: WeakLearner) -> float:
        """Let a learner vote too, and return the accuracy."""
        self._votes[np.arange(len(self._labels)), learner.says(self.matrices)] += learner.alpha
        return float((self._votes.argmax(axis=1) == self._labels).mean())

    def accuracy(self, learners: Sequence[WeakLearner]) -> float:
        """Return the accuracy of learners on their own."""
        self._votes[:] = 0
        return [self.add(learner) for learner in learners][-1]


def boost(
    train: Matrices,
    labels: npt.ArrayLike,
    n_classes: int,
    *,
    rounds: int = 200,
    m: int | None = None,
    draw: Draw = "cycles",
    on_perfect: OnPerfect = "vote",
    seed: int | np.random.Generator | None = None,
    validation: Validation | None = None,
    progress: Callable[[RoundRecord], None] | None = None,
) -> Boosted:
    """Train an ensemble on a pool's matrices; labels are 0 to `n_classes - 1`.

    Without a validation set, every learner of the `rounds` is in the ensemble. `progress` is called
    after each round.
    """
    if rounds < 1:
        raise InputError(f"rounds is {rounds}; at least 1 is needed")
    if draw not in ("cycles", "independent"):
        raise InputError(f"draw is {draw!r}; it can be 'cycles' or 'independent'")
    if on_perfect not in ("vote", "best"):
        raise InputError(f"on_perfect is {on_perfect!r}; it can be 'vote' or 'best'")
    state, validator = _prepared(train, labels, n_classes, m, validation)
    learners: list[WeakLearner] = []
    accuracies: list[float] = []
    history: list[RoundRecord] = []
    try:
        for template, _ in zip(draws(len(train), draw, seed), range(rounds), strict=False):
            found, error, alpha, outcome = state.one(template)
            if outcome is Outcome.KEPT:
                learners.append(WeakLearner(template, found.tokens, alpha))
                if validator is not None:
                    accuracies.append(validator.add(learners[-1]))
            accuracy = accuracies[-1] if accuracies else None
            kept = alpha if outcome is Outcome.KEPT else None
            history.append(RoundRecord(template, found.tokens, error, kept, outcome, accuracy))
            if progress is not None:
                progress(history[-1])
            if outcome is Outcome.PERFECT:
                break
        way_out = WayOut.ROUNDS
        if history[-1].outcome is Outcome.PERFECT or not learners:
            way_out = WayOut.NO_LEARNER if history[-1].outcome is not Outcome.PERFECT else WayOut.PERFECT
            chosen = _one_each(state, len(train))
            if on_perfect == "best":
                chosen = [_best_of(chosen, state, validator)]
        else:
            chosen = learners[: _best_prefix(accuracies) if accuracies else None]
    finally:
        state.close()
    return Boosted(
        ensemble=Ensemble(n_classes, tuple(chosen)),
        learners=tuple(learners),
        way_out=way_out,
        history=tuple(history),
        m=checked_m(m, n_classes),
        validation_accuracy=validator.accuracy(chosen) if validator is not None else None,
    )


def one_per_prompt(
    train: Matrices, labels: npt.ArrayLike, n_classes: int, *, m: int | None = None
) -> list[WeakLearner]:
    """Return each prompt's best learner on the unweighted set, with alpha 1."""
    state, _ = _prepared(train, labels, n_classes, m, None)
    try:
        return _one_each(state, len(train))
    finally:
        state.close()


def vote(train: Matrices, labels: npt.ArrayLike, n_classes: int, *, m: int | None = None) -> Ensemble:
    """Return the paper's PromptVoting: one learner per prompt, each with one vote."""
    return Ensemble(n_classes, tuple(one_per_prompt(train, labels, n_classes, m=m)))


def best_single(
    train: Matrices,
    labels: npt.ArrayLike,
    n_classes: int,
    *,
    m: int | None = None,
    validation: Validation | None = None,
) -> Ensemble:
    """Return the one learner per prompt that does best on validation, or else on training."""
    state, validator = _prepared(train, labels, n_classes, m, validation)
    try:
        return Ensemble(n_classes, (_best_of(_one_each(state, len(train)), state, validator),))
    finally:
        state.close()


def _prepared(
    train: Matrices, labels: npt.ArrayLike, n_classes: int, m: int | None, validation: Validation | None
) -> tuple[_Rounds, _Validator | None]:
    """Check everything before the first round."""
    if not train:
        raise InputError("the pool has no prompts; give at least one")
    values = check_labels(labels, n_classes, train[0].n_examples)
    validator = None if validation is None else _Validator(validation, n_classes, len(train))
    return _Rounds(train, values, n_classes, checked_m(m, n_classes)), validator


def _one_each(state: _Rounds, n_templates: int) -> list[WeakLearner]:
    return [WeakLearner(template, state.unweighted(template).tokens, 1.0) for template in range(n_templates)]


def _best_of(learners: list[WeakLearner], state: _Rounds, validator: _Validator | None) -> WeakLearner:
    """Return the most accurate learner, the first of equals."""
    if validator is not None:
        return max(learners, key=lambda learner: validator.accuracy([learner]))
    return min(learners, key=lambda learner: state.unweighted(learner.template).error)


def _best_prefix(accuracies: Sequence[float]) -> int:
    """Return the length of the prefix that does best, the longest of equals."""
    return max(range(1, len(accuracies) + 1), key=lambda length: (accuracies[length - 1], length))
