"""The screen: which tokens of whole answers are worth keeping, judged by some of the texts.

A whole answer has a code for each of fifty thousand tokens, and what is learned from a hundred thousand texts reads a few hundred of them per
prompt. So a pilot is enough: some of the texts, drawn at random, are asked about in full, and of all others the answers are kept for
those tokens alone that were likeliest in the pilot.

Why that may be done: a regression reads each prompt's 300 likeliest tokens (`views`), and the screen keeps the 1,000 likeliest. How far the
dropped ones are from ever being among the 300 is known from the pilot, as a number of standard errors (`margin`). A candidate word of
boosting is scored by a difference of mean chances, which can't exceed the token's own mean chance, and of dropped tokens that is small.

>>> pilot = Pilot(1)
>>> for codes in ([10, 5000, 60000], [12, 5100, 60000]):
...     pilot.add(0, MaskDistribution(codes=np.array(codes, dtype=np.uint16)))
>>> pilot.screen(kept=2).tokens.tolist()
[0, 1]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pbsdk.backend import Abilities, Floats, MaskDistribution, Tokens
from pbsdk.errors import BadAnswer, InputError
from pbsdk.learning.matrix import CHANCES
from pbsdk.learning.views import LIKELIEST

__all__ = ["KEPT", "LARGE", "PILOT", "Pilot", "Screen", "most_kept", "pilot_size"]

KEPT = 1000
"""How many tokens of each prompt are kept."""

PILOT = 1000
"""How many texts are asked about in full, if nothing else is wanted."""

LARGE = 10 * 10**9
"""From how many bytes of whole answers on screening is the default."""

_BYTES = 2
"""What a token of an answer takes."""


def pilot_size(screen: int | None, abilities: Abilities, vocabulary: int, texts: int, prompts: int) -> int:
    """Return how many of so many texts to ask about in full; 0: all, since screening isn't wanted or would save nothing.

    `screen` is how many are wanted; None: the usual number where whole answers would be large.
    """
    if not abilities.whole:
        if screen:
            raise InputError(
                f"this model shows only its top {abilities.top} tokens, so its answers are small already; leave screen out",
                setting="screen",
                value="0",
            )
        return 0
    if screen is None:
        screen = PILOT if texts * prompts * vocabulary * _BYTES > LARGE else 0
    return screen if screen < texts else 0


def most_kept(vocabulary: int) -> int:
    """Return how many tokens may be kept: with more, screening would save too little, and all are."""
    return vocabulary // 2


@dataclass(frozen=True)
class Screen:
    """Which tokens are kept, and what speaks for it."""

    tokens: Tokens
    """Those that were among the likeliest under some prompt, ascending."""
    texts: int
    """How many texts the pilot had."""
    share: float
    """Their mean share of an answer's probability, in the pilot."""
    margin: float
    """By how many standard errors the dropped token that comes closest is below a prompt's last feature; infinite if none is dropped."""

    def to_dict(self) -> dict[str, int | float | None]:
        """Return all but the tokens themselves as plain values."""
        margin = self.margin if np.isfinite(self.margin) else None
        return {"tokens": len(self.tokens), "texts": self.texts, "share": self.share, "margin": margin}

    def __str__(self) -> str:
        return (
            f"{len(self.tokens):,} tokens kept, which have {self.share:.1%} of the probability in {self.texts:,} texts asked about in full; "
            f"the others are at least {self.margin:.1f} standard errors from being read"
        )


class Pilot:
    """The answers of some texts, summed up as they come: nothing of a single one is held."""

    def __init__(self, n_prompts: int) -> None:
        self._counts = np.zeros(n_prompts, dtype=np.int64)
        self._sums: list[Floats] = [np.empty(0)] * n_prompts
        self._squares: list[Floats] = [np.empty(0)] * n_prompts

    def add(self, prompt: int, answer: MaskDistribution) -> None:
        """Add a text's answer under one of the prompts."""
        if answer.tokens is not None:
            raise BadAnswer("only whole answers can be screened")
        chances = CHANCES[answer.codes]
        if not self._counts[prompt]:
            self._sums[prompt], self._squares[prompt] = np.zeros_like(chances), np.zeros_like(chances)
        self._counts[prompt] += 1
        self._sums[prompt] += chances
        self._squares[prompt] += chances * chances

    def needed(self) -> Tokens:
        """Return the tokens that any screen must keep: what a regression would read of the pilot."""
        return self._likeliest(LIKELIEST)

    def screen(self, known: Sequence[Tokens] = (), *, kept: int = KEPT) -> Screen:
        """Return what to keep: the largest of the `known` sets that has all that is needed, or else the likeliest."""
        needed = self.needed()
        serving = [tokens for tokens in known if np.isin(needed, tokens, assume_unique=True).all()]
        tokens = max(serving, key=len, default=None)
        return self._judged(self._likeliest(kept) if tokens is None else tokens)

    def _likeliest(self, count: int) -> Tokens:
        """Return the union of each prompt's likeliest tokens, ascending."""
        best = [np.argsort(-sums, kind="stable")[:count] for sums in self._sums if len(sums)]
        return np.unique(np.concatenate(best)).astype(np.int64)

    def _judged(self, tokens: Tokens) -> Screen:
        """Return how much the tokens have of the probability, and how far the others are from a prompt's features."""
        shares, margin = [], np.inf
        for count, sums, squares in zip(self._counts, self._sums, self._squares, strict=True):
            if not count:
                continue
            means = sums / count
            errors = np.sqrt(np.maximum(squares / count - means * means, 0) / count)
            shares.append(means[tokens].sum() / means.sum())
            last = np.argsort(-means, kind="stable")[:LIKELIEST][-1]
            dropped = np.ones(len(means), dtype=np.bool_)
            dropped[tokens] = False
            error = np.hypot(errors[dropped], errors[last])
            apart = (means[last] - means[dropped]) / np.maximum(error, np.finfo(np.float64).tiny)
            margin = min(margin, float(apart.min(initial=np.inf)))
        return Screen(tokens, int(self._counts.max()), float(np.mean(shares)), margin)
