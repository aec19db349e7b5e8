"""Fewer passes: texts are asked stage by stage, and each only until its verdict is settled.

A fitted model gives the rule (`learning.exits`). Each stage asks for all texts that are still open at once, so batches stay large.
What is asked is what `predict` would ask, only less of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pbsdk.backend import Floats, MaskDistribution, MaskedQuery
from pbsdk.errors import BadAnswer, InputError
from pbsdk.formatting import number, percent
from pbsdk.learning.exits import Exit
from pbsdk.learning.heads import Fitted
from pbsdk.queries.examples import Example

__all__ = ["EarlyPredictions", "PassesSaved", "ask_in_stages", "exit_of"]

Stream = Callable[[Sequence[MaskedQuery]], Iterator[MaskDistribution]]
Slots = Sequence[MaskedQuery | None]


@dataclass(frozen=True)
class PassesSaved:
    """What an early exit came to."""

    asked: int
    """Queries that were asked for, recalled ones among them."""
    saved: int
    """Queries that `predict` would have asked for too."""
    examples: int

    @property
    def per_example(self) -> float:
        """Passes per example."""
        return self.asked / self.examples if self.examples else 0.0

    def __str__(self) -> str:
        every = self.asked + self.saved
        share = percent(self.saved / every) if every else percent(0.0)
        return (
            f"{self.per_example:.1f} passes per example instead of {every / max(1, self.examples):.1f}: "
            f"{number(self.saved)} of {number(every)} saved ({share})"
        )


@dataclass(frozen=True)
class EarlyPredictions:
    """The verdicts of an early exit, and what it saved.

    Attributes:
        labels: the label (N,) of each text.
        probabilities: each class's share (N, C) when the verdict was settled; not what `predict_proba` says after all answers.
        passes: how many prompts (N,) each text was asked under.
        saved: the sums.
    """

    labels: npt.NDArray[Any]
    probabilities: Floats
    passes: npt.NDArray[np.intp]
    saved: PassesSaved


def exit_of(fitted: Fitted, max_changed: float | None) -> Exit:
    """Return a model's rule, or say why it has none."""
    if max_changed is not None and not (isinstance(max_changed, int | float) and 0 <= max_changed < 1):
        raise InputError(
            f"max_changed must be a share of verdicts from 0 to below 1, such as 0.01, not {max_changed!r}"
        )
    return fitted.exit(max_changed)


def ask_in_stages(
    rule: Exit, examples: Sequence[Example], slots: Slots, stream: Stream
) -> tuple[list[Floats], npt.NDArray[np.intp]]:
    """Return the scores of each example when its verdict was settled, and how many prompts (N,) it was asked under.

    `slots` has what may be asked, example by example, under all of the model's prompts; None where a prompt shows the example.
    """
    width = len(slots) // len(examples) if examples else 0
    asked = np.array([slot is not None for slot in slots], dtype=np.bool_).reshape(len(examples), width)
    hearings = [rule.hearing(example, row) for example, row in zip(examples, asked, strict=True)]
    scores: list[Floats | None] = [None] * len(examples)
    passes = np.zeros(len(examples), dtype=np.intp)
    still_open = list(range(len(examples)))
    for stage, places in enumerate(rule.stages):
        wanted = [(at, place) for at in still_open for place in places if asked[at, place]]
        queries = [query for at, place in wanted if (query := slots[at * width + place]) is not None]
        heard = 0
        for (at, place), answer in zip(wanted, stream(queries), strict=False):
            hearings[at].hear(place, answer)
            passes[at] += 1
            heard += 1
        if heard < len(wanted):
            raise BadAnswer(f"{heard} answers came to {len(wanted)} queries")
        for at in still_open:
            scores[at] = hearings[at].settled(stage)
        still_open = [at for at in still_open if scores[at] is None]
    return [one for one in scores if one is not None], passes
