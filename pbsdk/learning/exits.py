"""When an example needs no further answer: the rules of an early exit.

An `Exit` says in which order a model's prompts are asked, stage by stage. For each example it makes a `Hearing`, which takes
the answers one at a time and gives the scores as soon as they settle the verdict. Places count a model's own `prompts`, from 0.

Votes allow an exact rule (`VotesExit`): the heaviest prompts are asked first, and once the votes that are still out
can't bring any class up to the leader, the verdict is what all votes together would say. Regressions have a rule whose
share of changed verdicts cross-validation bounds (`PrefixExit`): smaller regressions, on the answers that have come so far, decide
where they are sure enough.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from scipy.special import stdtr

from pbsdk.backend import Floats, MaskDistribution
from pbsdk.queries.examples import Example

if TYPE_CHECKING:
    from pbsdk.learning.linear import FittedRegression

__all__ = ["Exit", "Hearing", "Prefix", "PrefixExit", "VotesExit"]

Asked = npt.NDArray[np.bool_]
Opinions = npt.NDArray[np.intp]

ROUNDING = 1e-9
"""Sums of weights may differ by this share of their total when they are added in another order."""

TAILS = 5
"""The degrees of freedom of Student's t distribution that changes of mind follow; fewer make rare ones likelier."""


class Hearing(ABC):
    """One example on its way to a verdict."""

    @abstractmethod
    def hear(self, place: int, answer: MaskDistribution) -> None:
        """Take the answer of one prompt."""

    @abstractmethod
    def settled(self, stage: int) -> Floats | None:
        """Return the scores (C,) if no stage after this one is needed; None: go on."""


class Exit(ABC):
    """In which order prompts are asked, and when to stop.

    Attributes:
        stages: the places of the prompts that are asked together, stage by stage; all of them in the end.
        expected: how many passes an example is expected to need, if it is known.
    """

    stages: tuple[tuple[int, ...], ...]
    expected: float | None = None

    @abstractmethod
    def hearing(self, example: Example, asked: Asked) -> Hearing:
        """Begin with an example, which is asked under some of the prompts (P,) alone: some may show it."""


@dataclass(frozen=True)
class VotesExit(Exit):
    """The exact rule for votes: same verdicts, ties included.

    Args:
        n_classes: how many classes there are.
        places: the place (L,) of each learner's prompt.
        alphas: the weight (L,) of each learner's vote.
        opinions: what the learners of the prompt at a place say, given its answer.
    """

    n_classes: int
    places: npt.NDArray[np.intp]
    alphas: Floats
    opinions: Callable[[int, MaskDistribution], Opinions]

    @cached_property
    def sizes(self) -> Floats:
        """By how much each prompt (P,) can move the difference of two classes."""
        sizes: Floats = np.bincount(self.places, np.abs(self.alphas)).astype(np.float64)
        return sizes

    @cached_property
    def stages(self) -> tuple[tuple[int, ...], ...]:  # type: ignore[override] # read only
        """One prompt at a time, the heaviest first."""
        return tuple((int(place),) for place in np.argsort(-self.sizes, kind="stable"))

    @cached_property
    def slack(self) -> float:
        """How far rounding may carry sums; whole-number weights are added exactly."""
        whole = bool((self.alphas == np.round(self.alphas)).all())
        return 0.0 if whole else ROUNDING * float(self.sizes.sum())

    def hearing(self, example: Example, asked: Asked) -> Hearing:
        """Begin with an example."""
        del example
        return _VotesHearing(self, asked)

    def votes(self, said: Opinions) -> Floats:
        """Return the summed alphas (C,), added in the learners' order; -1 is no vote."""
        voted = said >= 0
        votes: Floats = np.bincount(said[voted], self.alphas[voted], self.n_classes).astype(np.float64)
        return votes

    def is_settled(self, votes: Floats, out: float) -> bool:
        """Tell whether votes of this size in all can't change the verdict; of equals the lowest class leads.

        >>> rule = VotesExit(2, np.array([0, 1, 2, 3]), np.ones(4), lambda place, answer: np.array([0]))
        >>> rule.is_settled(np.array([2.0, 0.0]), 2.0), rule.is_settled(np.array([0.0, 2.0]), 2.0)
        (True, False)
        """
        best = int(votes.argmax())
        ahead = votes[best] - votes - out - self.slack
        return bool((ahead[:best] > 0).all() and (ahead[best + 1 :] >= 0).all())


class _VotesHearing(Hearing):
    def __init__(self, rule: VotesExit, asked: Asked) -> None:
        self._rule = rule
        self._out = asked.copy()
        self._said = np.full(len(rule.alphas), -1, dtype=np.intp)

    def hear(self, place: int, answer: MaskDistribution) -> None:
        self._said[self._rule.places == place] = self._rule.opinions(place, answer)
        self._out[place] = False

    def settled(self, stage: int) -> Floats | None:
        del stage
        votes = self._rule.votes(self._said)
        if not self._out.any() or self._rule.is_settled(votes, float(self._rule.sizes[self._out].sum())):
            return votes
        return None


@dataclass(frozen=True)
class Prefix:
    """A regression on the answers of a few prompts, and how far it agreed with the whole on examples left out.

    Attributes:
        model: the regression, over some of the prompts of the whole and the same views.
        margins: by how many nats (N,) its likeliest class was ahead of the second.
        finals: by how many nats (N,) the whole had the same class ahead of all others; below 0: it said another one.
    """

    model: FittedRegression
    margins: Floats
    finals: Floats

    def risk(self, margins: Floats) -> Floats:
        """Return how likely the whole is to say another class, where this one is ahead by so many nats.

        What the whole says is taken to be a line in the margin and noise about it, both fitted to the examples left out. Counting how
        often it said something else would need far more of them.
        """
        design = np.column_stack([np.ones_like(self.margins), self.margins])
        line, *_ = np.linalg.lstsq(design, self.finals)
        noise = np.sqrt(np.square(self.finals - design @ line).sum() / max(1, len(design) - 2))
        ahead = line[0] + line[1] * margins
        risk: Floats = stdtr(TAILS, -ahead / max(float(noise), ROUNDING))
        return risk


@dataclass(frozen=True)
class PrefixExit(Exit):
    """The rule for regressions: an example stops at the first prefix that is sure enough.

    How sure that is, cross-validation says: so sure that, of the examples left out, a share of no more than `max_changed` is expected to
    stop with another verdict than the whole's, an equal part of them at each prefix.
    """

    whole: FittedRegression
    prefixes: tuple[Prefix, ...]
    max_changed: float

    @cached_property
    def stages(self) -> tuple[tuple[int, ...], ...]:  # type: ignore[override] # read only
        """The prompts that each prefix adds, and then the rest."""
        stages, before = [], set[int]()
        for model in (*(prefix.model for prefix in self.prefixes), self.whole):
            stages.append(tuple(at for at, p in enumerate(self.whole.used) if p in model.used and p not in before))
            before |= set(model.used)
        return tuple(stages)

    @cached_property
    def thresholds(self) -> tuple[float, ...]:
        """The margin, in nats, from which on each prefix decides."""
        return self._rehearsed[0]

    @property
    def expected(self) -> float:  # type: ignore[override] # read only
        """How many passes an example took when it was left out."""
        return self._rehearsed[1]

    @cached_property
    def _rehearsed(self) -> tuple[tuple[float, ...], float]:
        """Go through the prefixes with the examples that were left out."""
        if not self.prefixes:
            return (), float(len(self.whole.used))
        undecided = np.ones(len(self.prefixes[0].margins), dtype=np.bool_)
        thresholds, spent, passes = [], 0.0, 0
        for k, prefix in enumerate(self.prefixes, 1):
            allowed = self.max_changed * len(undecided) * k / len(self.prefixes) - spent
            surest = np.sort(prefix.margins[undecided])[::-1]
            stopping = int((np.cumsum(prefix.risk(surest)) <= allowed).sum())
            thresholds.append(float(surest[stopping - 1]) if stopping else np.inf)
            stops = undecided & (prefix.margins >= thresholds[-1])
            spent += float(prefix.risk(prefix.margins[stops]).sum())
            passes += int(stops.sum()) * len(prefix.model.used)
            undecided &= ~stops
        passes += int(undecided.sum()) * len(self.whole.used)
        return tuple(thresholds), passes / len(undecided)

    def hearing(self, example: Example, asked: Asked) -> Hearing:
        """Begin with an example."""
        return _PrefixHearing(self, example, asked)


class _PrefixHearing(Hearing):
    def __init__(self, rule: PrefixExit, example: Example, asked: Asked) -> None:
        self._rule = rule
        self._example = example
        self._out = asked.copy()
        self._models = [*(prefix.model for prefix in rule.prefixes), rule.whole]
        self._parts: list[dict[int, Floats]] = [{} for _ in self._models]

    def hear(self, place: int, answer: MaskDistribution) -> None:
        prompt = self._rule.whole.used[place]
        features = self._rule.whole.views[place].features_of_one(answer)
        for model, parts in zip(self._models, self._parts, strict=True):
            if prompt in model.used:
                parts[prompt] = features @ model.weights[model.used.index(prompt)]
        self._out[place] = False

    def settled(self, stage: int) -> Floats | None:
        if not self._out.any():
            return self._scores(-1)
        if not self._parts[stage]:  # all that were due show the example
            return None
        scores = self._scores(stage)
        second, best = np.sort(scores)[-2:]
        return scores if best - second >= self._rule.thresholds[stage] else None

    def _scores(self, at: int) -> Floats:
        model, parts = self._models[at], self._parts[at]
        return model.summed([parts.get(prompt) for prompt in model.used], self._example)
