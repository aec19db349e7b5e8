"""When an example needs no further answer: the rules of an early exit.

An `Exit` says in which order a model's prompts are asked, stage by stage. For each example it makes a `Hearing`, which takes
the answers one at a time and gives the scores as soon as they settle the verdict. Places count a model's own `prompts`, from 0.

Votes allow an exact rule (`VotesExit`): the heaviest prompts are asked first, and once the votes that are still out
can't bring any class up to the leader, the verdict is what all votes together would say.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pbsdk.backend import Floats, MaskDistribution
from pbsdk.queries.examples import Example

__all__ = ["Exit", "Hearing", "VotesExit"]

Asked = npt.NDArray[np.bool_]
Opinions = npt.NDArray[np.intp]

ROUNDING = 1e-9
"""Sums of weights may differ by this share of their total when they are added in another order."""


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
