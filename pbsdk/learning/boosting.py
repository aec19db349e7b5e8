"""SAMME over prompts: each round asks one template for its best verbalizer, and weighs it.

The answers are all there before the first round; boosting only looks at them again under other
weights. `Boosting` is the head, `boost` the loop, `_Rounds.one` a single round. A round ends in one of three ways
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

Where examples count differently (`Trial.weights`), the first round starts from that. An example that wasn't asked under a template (`Trial.silent`) counts neither right nor wrong in its rounds, and keeps its weight.

Weights are whole numbers, so that errors are exact sums and equal examples stay equal. A weight
never falls to 0. Alphas are rounded to nine decimals, on which all machines agree; one that is 0
then (a learner as good as chance but for the rounding of weights) is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt

from pbsdk.backend import Floats
from pbsdk.learning.ensemble import Ensemble, FittedEnsemble, WeakLearner
from pbsdk.learning.heads import Fitted, Head, TokenOf, Trial, Validation
from pbsdk.learning.parameters import check_choice, check_count
from pbsdk.learning.verbalizer import TOTAL_WEIGHT, Verbalizer, Weights, checked_m, kind_of_search
from pbsdk.learning.voting import Matrices, Searches, Silent, Validator

__all__ = ["Boosted", "Boosting", "Outcome", "RoundRecord", "WayOut", "boost", "reweigh", "samme_alpha"]

Draw = Literal["cycles", "independent"]
OnPerfect = Literal["vote", "best"]
DRAWS: tuple[Draw, ...] = get_args(Draw)
ON_PERFECT: tuple[OnPerfect, ...] = get_args(OnPerfect)


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


def reweigh(
    weights: Weights, wrong: npt.NDArray[np.bool_], n_classes: int, silent: npt.NDArray[np.bool_] | None = None
) -> Weights:
    """Multiply the weights of wrong examples by exp(alpha), and bring the sum back; `silent` ones keep their weights.

    >>> reweigh(np.array([100, 100, 100, 100]), np.array([True, False, False, False]), 2) / 2**52
    array([0.5       , 0.16666667, 0.16666667, 0.16666667])
    """
    lost = int(weights[wrong].sum())
    kept = 0 if silent is None else int(weights[silent].sum())
    right, total = int(weights.sum()) - kept - lost, TOTAL_WEIGHT - kept
    # exp(alpha) is right * (C - 1) / lost, so the new sum is right * C.
    up, down = total * (n_classes - 1) / (n_classes * lost), total / (n_classes * right)
    scaled: Weights = np.maximum(np.rint(weights * np.where(wrong, up, down)).astype(np.int64), 1)
    return scaled if silent is None else np.where(silent, weights, scaled)


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

    def __init__(self, searches: Searches) -> None:
        self._searches = searches
        self._weights = searches.weights
        self._dropped: dict[int, Verbalizer] = {}  # under the present weights
        self._at_start = True

    def one(self, template: int) -> tuple[Verbalizer, float, float, Outcome]:
        """Run a round: return the verbalizer, its error and alpha, and the outcome."""
        silent, n_classes = self._searches.silent(template), self._searches.n_classes
        total = int((self._weights if silent is None else self._weights[~silent]).sum())
        if self._at_start:
            found = self._searches.unweighted(template)
        else:
            found = self._dropped.get(template) or self._searches.best(template, self._weights)
        error = found.error / total
        if found.error == 0:
            return found, 0.0, math.inf, Outcome.PERFECT
        alpha = samme_alpha(found.error, total, n_classes)
        if alpha <= 0:
            self._dropped[template] = found
            return found, error, alpha, Outcome.DROPPED
        self._weights = reweigh(self._weights, found.wrong, n_classes, silent)
        self._dropped.clear()
        self._at_start = False
        return found, error, alpha, Outcome.KEPT


class _Growing:
    """The learners kept so far, how they do on the validation set, and what happened in each round."""

    def __init__(self, validator: Validator | None) -> None:
        self.validator = validator
        self.learners: list[WeakLearner] = []
        self.history: list[RoundRecord] = []
        self._accuracies: list[float] = []

    def add(self, template: int, found: Verbalizer, error: float, alpha: float, outcome: Outcome) -> RoundRecord:
        """Note a round, and keep its learner if it is one to keep."""
        kept = alpha if outcome is Outcome.KEPT else None
        if kept is not None:
            self.learners.append(WeakLearner(template, found.tokens, kept))
            if self.validator is not None:
                self._accuracies.append(self.validator.add(self.learners[-1]))
        accuracy = self._accuracies[-1] if self._accuracies else None
        self.history.append(RoundRecord(template, found.tokens, error, kept, outcome, accuracy))
        return self.history[-1]

    @property
    def way_out(self) -> WayOut:
        """How boosting ended, if it ends now."""
        if self.history[-1].outcome is Outcome.PERFECT:
            return WayOut.PERFECT
        return WayOut.ROUNDS if self.learners else WayOut.NO_LEARNER

    @property
    def best_prefix(self) -> list[WeakLearner]:
        """The first learners that do best on validation, the longest of equals; all, if nothing was validated."""
        return self.learners[: _best_prefix(self._accuracies) if self._accuracies else None]


def boost(  # noqa: PLR0913 - independent settings, all keywords
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
    silent: Silent | None = None,
    weights: Floats | None = None,
    progress: Callable[[RoundRecord], None] | None = None,
) -> Boosted:
    """Train an ensemble on a pool's matrices; labels are 0 to `n_classes - 1`.

    Without a validation set, every learner of the `rounds` is in the ensemble. `silent` says where examples weren't
    asked and `weights` how much they count at first, as in `Trial`. `progress` is called after each round.
    """
    check_count("rounds", rounds)
    check_choice("draw", draw, DRAWS)
    check_choice("on_perfect", on_perfect, ON_PERFECT)
    with Searches(train, labels, n_classes, m, silent, weights) as searches:
        growing = _Growing(
            None if validation is None else Validator(validation, n_classes, len(train), silent, weights)
        )
        state = _Rounds(searches)
        for template, _ in zip(draws(len(train), draw, seed), range(rounds), strict=False):
            record = growing.add(template, *state.one(template))
            if progress is not None:
                progress(record)
            if record.outcome is Outcome.PERFECT:
                break
        chosen = growing.best_prefix
        if growing.way_out is not WayOut.ROUNDS:
            chosen = searches.one_each()
            if on_perfect == "best":
                chosen = [searches.best_of(chosen, growing.validator)]
    return Boosted(
        ensemble=Ensemble(n_classes, tuple(chosen)),
        learners=tuple(growing.learners),
        way_out=growing.way_out,
        history=tuple(growing.history),
        m=searches.m,
        validation_accuracy=growing.validator.share_right(chosen) if growing.validator is not None else None,
    )


def _best_prefix(accuracies: Sequence[float]) -> int:
    """Return the length of the prefix that does best, the longest of equals."""
    return max(range(1, len(accuracies) + 1), key=lambda length: (accuracies[length - 1], length))


@dataclass(frozen=True)
class Boosting(Head):
    """The paper's method, to the letter.

    From 21 classes on, the search over words isn't exact (`ascent`).

    Args:
        rounds: how many rounds at most.
        m: how many candidate words a class has; None: 50 for two classes, 10 for up to four, fewer for up to 20, and 10 for more.
        draw: "cycles" (every prompt before any comes again) or "independent".
        on_perfect: what to do when a learner makes no error on the training set, which boosting can't use: "vote" (one
            learner per prompt, majority) or "best" (the one that validates best).
    """

    name: ClassVar[str] = "boosting"
    weighs: ClassVar[bool] = True

    rounds: int = 200
    m: int | None = None
    draw: Draw = "cycles"
    on_perfect: OnPerfect = "vote"

    def __post_init__(self) -> None:
        check_count("rounds", self.rounds)
        check_count("m", self.m, optional=True)
        check_choice("draw", self.draw, DRAWS)
        check_choice("on_perfect", self.on_perfect, ON_PERFECT)

    @property
    def steps(self) -> int:
        """The rounds."""
        return self.rounds

    def check(self, n_classes: int) -> None:
        """Refuse an m that can't be searched."""
        checked_m(self.m, n_classes)

    def fit(self, trial: Trial) -> FittedEnsemble:
        """Run the rounds."""
        boosted = boost(
            trial.answers,
            trial.labels,
            trial.n_classes,
            rounds=self.rounds,
            m=self.m,
            draw=self.draw,
            on_perfect=self.on_perfect,
            seed=trial.seed,
            validation=trial.validation,
            silent=trial.silent,
            weights=trial.weights,
            progress=lambda _: trial.report(),
        )
        facts = {
            "rounds_run": len(boosted.history),
            "rounds_kept": boosted.rounds_kept,
            "m": boosted.m,
            "search": kind_of_search(trial.n_classes),
            "draw": self.draw,
            "on_perfect": self.on_perfect,
            "way_out": boosted.way_out.value,
        }
        return FittedEnsemble(boosted.ensemble, boosted.history, facts, boosted.validation_accuracy)

    @classmethod
    def restore(cls, state: Mapping[str, Any], n_classes: int, n_prompts: int, token_of: TokenOf) -> Fitted:
        """Return the ensemble of a file."""
        return FittedEnsemble.restored(state, n_classes, n_prompts, token_of)
