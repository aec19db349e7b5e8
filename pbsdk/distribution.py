"""The answer at a mask: token log-probabilities on a fixed grid.

A `MaskDistribution` holds log-probabilities on a fixed grid of 1/1024 nat in sixteen bits, from
the moment an adapter makes it. Ledger, wire and trainer hold the same integers; that is why a
replay gives the same classifier bit for bit, and why a token's value doesn't depend on which other
tokens were asked for.

>>> answer = MaskDistribution.from_logprobs([-0.105, -2.303])
>>> answer.codes
array([ 108, 2358], dtype=uint16)
>>> answer.logprobs.round(3)
array([-0.105, -2.303])
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from pbsdk.errors import BadAnswer

__all__ = ["LEAST", "MASS_TOLERANCE", "STEPS_PER_NAT", "Codes", "Floats", "MaskDistribution", "Tokens"]

Codes = npt.NDArray[np.uint16]
"""Log-probabilities on the grid."""
Tokens = npt.NDArray[np.int64]
"""Token ids."""
Floats = npt.NDArray[np.float64]
"""Probabilities, scores, weights."""

STEPS_PER_NAT = 1024
"""How fine the grid is: a code is a log-probability times minus this."""
LEAST = 65535
"""The code of everything at or below e^-64: the grid's last step."""

MASS_TOLERANCE = 0.02
"""How far above 1 the probabilities may sum: providers round, and so does the grid."""


@dataclass(frozen=True, eq=False)
class MaskDistribution:
    """Token log-probabilities at the mask, as codes: `logprob = -code / 1024`.

    - whole: `tokens` is None and `codes[v]` belongs to token `v`;
    - top k: `tokens` ascends, and every token not in it has at most the probability of the code
      `rest` (it is censored, not zero);
    - chosen: `tokens` ascends, and `rest` is None: nothing is known about the others.
    """

    codes: Codes
    """A 16-bit code for each token."""
    tokens: Tokens | None = None
    """The tokens that the codes belong to, ascending; None for the whole vocabulary."""
    rest: int | None = None
    """In a top-k answer, the smallest code that a token it doesn't show can have."""
    read_tokens: int = 0
    """How many tokens the model read, if known."""
    cut_tokens: int = 0
    """How many tokens of input text were cut to fit the model."""

    @classmethod
    def from_logprobs(
        cls,
        logprobs: npt.ArrayLike,
        tokens: npt.ArrayLike | None = None,
        *,
        top: bool = False,
        read_tokens: int = 0,
        cut_tokens: int = 0,
    ) -> Self:
        """Put natural log-probabilities on the grid; a value that can't be one is a `BadAnswer`.

        `top=True` says that `tokens` are the most probable ones and the rest is censored.
        """
        values = np.asarray(logprobs, dtype=np.float64)
        ids = None if tokens is None else np.asarray(tokens, dtype=np.int64)
        if values.ndim != 1 or values.size == 0 or (ids is not None and ids.shape != values.shape):
            raise BadAnswer("log-probabilities and tokens must be non-empty lists of the same length")
        if np.isnan(values).any():
            raise BadAnswer("a log-probability is not a number")
        mass = float(np.exp(np.minimum(values, 1)).sum())
        whole = ids is None
        if mass > 1 + MASS_TOLERANCE or (whole and mass < 1 - MASS_TOLERANCE):
            raise BadAnswer(f"the probabilities sum to {mass:.4f}")
        codes = np.clip(np.rint(values * -STEPS_PER_NAT), 0, LEAST).astype(np.uint16)
        if ids is not None:
            order = np.argsort(ids, kind="stable")
            ids, codes = ids[order], codes[order]
            if (np.diff(ids) == 0).any():
                raise BadAnswer("a token is in the answer twice")
        return cls(
            codes=codes,
            tokens=ids,
            rest=int(codes.max()) if top else None,
            read_tokens=read_tokens,
            cut_tokens=cut_tokens,
        )

    @property
    def logprobs(self) -> Floats:
        """The log-probabilities, in the order of `codes`."""
        return self.codes / -float(STEPS_PER_NAT)

    @property
    def mass(self) -> float:
        """The total probability that the answer shows: 1 for a whole one, up to rounding to the grid."""
        return min(1.0, float(np.exp(self.logprobs).sum()))

    def at(self, tokens: Tokens) -> Codes:
        """Return the codes of `tokens`; censored ones have the code `rest`."""
        if self.tokens is None:
            return self.codes[tokens]
        if not len(self.tokens) and self.rest is not None:  # top k, narrowed to tokens that it doesn't show
            return np.full(len(tokens), self.rest, dtype=np.uint16)
        places = np.searchsorted(self.tokens, tokens).clip(max=len(self.tokens) - 1)
        codes: Codes = self.codes[places]
        hidden = self.tokens[places] != tokens
        if hidden.any():
            if self.rest is None:
                raise BadAnswer(f"token {int(tokens[hidden][0])} was not asked for")
            codes = np.where(hidden, np.uint16(self.rest), codes)
        return codes

    def covers(self, tokens: Tokens | None) -> bool:
        """Return whether `at(tokens)` would answer; None stands for all tokens."""
        if self.tokens is None or self.rest is not None:
            return True
        return tokens is not None and bool(np.isin(tokens, self.tokens, assume_unique=True).all())

    def likeliest(self, top: int) -> MaskDistribution:
        """Return what a provider would show that shows its `top` likeliest tokens, of equals the first; the rest is censored."""
        if self.tokens is not None and self.rest is None:
            raise BadAnswer("an answer about chosen tokens doesn't say which are the likeliest; ask for all")
        if self.tokens is not None and len(self.codes) <= top:
            return self
        last = min(top, len(self.codes)) - 1
        near = np.flatnonzero(self.codes <= np.partition(self.codes, last)[last])
        best = np.sort(near[np.argsort(self.codes[near], kind="stable")[:top]])
        codes = self.codes[best]
        tokens = best.astype(np.int64) if self.tokens is None else self.tokens[best]
        return replace(self, codes=codes, tokens=tokens, rest=int(codes.max()))

    def narrowed(self, tokens: Tokens) -> MaskDistribution:
        """Return the answer restricted to `tokens`, which must ascend."""
        kept = tokens
        if self.tokens is not None and self.rest is not None:
            kept = tokens[np.isin(tokens, self.tokens, assume_unique=True)]
        return MaskDistribution(
            codes=self.at(kept),
            tokens=kept,
            rest=self.rest,
            read_tokens=self.read_tokens,
            cut_tokens=self.cut_tokens,
        )
