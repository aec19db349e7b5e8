"""Views: what a regression reads of one prompt's answers, as few numbers per example.

A view is chosen without labels, from the answers to the labelled texts, and turns any answers into centred features.

Where answers are whole, the features are the log-probabilities of the tokens that are likeliest on average, from which half of each answer's
own level is taken away: how peaked an answer is says more about a text than about its class. Each feature is brought to mean 0 and
deviation 1. Where a provider shows only its top k, what isn't shown is censored, and any number in its place would be
invented. So there are two features per token: whether it is above the smallest one shown, and by how much.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from pbsdk.backend import STEPS_PER_NAT, Codes, Floats, MaskDistribution, Tokens
from pbsdk.errors import BadAnswer
from pbsdk.learning.heads import Fitted, TokenOf, Word
from pbsdk.learning.matrix import CHANCES, TokenMatrix

__all__ = ["OfViews", "SavedView", "View", "saved_fields", "view_of"]

LIKELIEST = 300
"""How many tokens of whole answers a view has; from 100 to 1,000 it makes no difference."""

SHOWN = 1000
"""How many tokens of censored answers a view has at most, those that are shown most often."""

SLICE = 4096
"""How many tokens are looked at together."""

LEVEL = 0.5
"""How much of an answer's mean log-probability is taken away: with none of it, unusually peaked answers outweigh all others; all of it is missed where it does tell classes apart."""

LEAST_DEVIATION = 1e-3
"""Added to each deviation, in nats: a token that hardly moves says hardly anything."""


@dataclass(frozen=True)
class View:
    """Which tokens of a prompt's answers are read, and how they become features: `(value - mean) * scale`."""

    tokens: Tokens
    censored: bool
    mean: Floats
    scale: Floats

    def features(self, matrix: TokenMatrix) -> Floats:
        """Return the features (N, D) of the examples of a matrix."""
        return self._features(matrix.codes_of(self.tokens), matrix.rest)

    def features_of_one(self, answer: MaskDistribution) -> Floats:
        """Return the features (D,) of one example."""
        rest = None if answer.rest is None else np.array([answer.rest], dtype=np.uint16)
        features: Floats = self._features(answer.at(self.tokens)[None], rest)[0]
        return features

    def moved(self, centre: Floats) -> View:
        """Return the same view with other features as its origin."""
        return replace(self, mean=self.mean + centre / self.scale)

    def _features(self, codes: Codes, rest: Codes | None) -> Floats:
        if self.censored and rest is None:
            raise BadAnswer("this classifier learned from a model's top k, and the answer doesn't say where it ends")
        return (_values(codes, rest if self.censored else None) - self.mean) * self.scale


class OfViews(Fitted):
    """A fitted model that reads a view of each of some prompts."""

    used: tuple[int, ...]
    views: tuple[View, ...]

    @property
    def prompts(self) -> tuple[int, ...]:  # type: ignore[override] # read only
        """The prompts whose answers are read."""
        return self.used

    @property
    def tokens(self) -> Tokens:  # type: ignore[override] # read only
        """The tokens that some view reads."""
        return np.unique(np.concatenate([view.tokens for view in self.views]))

    @property
    def censored(self) -> bool:  # type: ignore[override] # read only
        """Whether it reads where an answer ends."""
        return any(view.censored for view in self.views)


class SavedView(BaseModel):
    """A prompt's view in a file, tokens beside their words; a head adds what it learned about each feature."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    prompt: Annotated[int, Field(ge=0)]
    censored: bool
    tokens: tuple[Annotated[int, Field(ge=0, lt=1 << 63)], ...]
    words: tuple[str, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]

    @property
    def n_features(self) -> int:
        """How many features the view has."""
        return len(self.tokens) * (2 if self.censored else 1)

    def check(self, place: int, n_prompts: int) -> None:
        """Refuse what can't be a view of one of a pool's prompts."""
        if not (len(self.words) == len(self.tokens) and len(self.mean) == len(self.scale) == self.n_features):
            raise ValueError(f"prompts.{place} needs a word, a mean and a scale for each token")
        if self.prompt >= n_prompts:
            raise ValueError(f"prompts.{place} needs a prompt of the {n_prompts}, counted from 0")

    def translated(self, token_of: TokenOf) -> tuple[View, npt.NDArray[np.intp]]:
        """Return the view in the vocabulary at hand, tokens ascending, and how its features are reordered for that."""
        tokens = np.array([token_of(*pair) for pair in zip(self.tokens, self.words, strict=True)], dtype=np.int64)
        order = np.argsort(tokens, kind="stable")
        both = np.concatenate([order, order + len(order)]) if self.censored else order
        return View(tokens[order], self.censored, np.array(self.mean)[both], np.array(self.scale)[both]), both


def saved_fields(prompt: int, view: View, word: Word) -> dict[str, Any]:
    """Return the fields of a `SavedView`."""
    return {
        "prompt": prompt,
        "censored": view.censored,
        "tokens": tuple(view.tokens.tolist()),
        "words": tuple(word(token) for token in view.tokens.tolist()),
        "mean": tuple(view.mean.tolist()),
        "scale": tuple(view.scale.tolist()),
    }


def view_of(matrix: TokenMatrix) -> View:
    """Choose the tokens of one prompt, and how they are scaled: to a mean square length of 1 in all."""
    censored = matrix.rest is not None
    weights = _times_shown(matrix) if matrix.rest is not None else _summed_chances(matrix)
    best = np.argsort(-weights, kind="stable")[: SHOWN if censored else LIKELIEST]
    columns = np.sort(best[weights[best] > 0])
    tokens = columns if matrix.tokens is None else matrix.tokens[columns]
    values = _values(np.ascontiguousarray(matrix.rows(columns).T), matrix.rest)
    mean = values.mean(axis=0)
    scale = np.ones_like(mean) if censored else 1 / (values.std(axis=0) + LEAST_DEVIATION)
    length = np.square((values - mean) * scale).sum() / max(1, len(values))
    return View(tokens.astype(np.int64), censored, mean, scale / np.sqrt(length) if length else scale)


def _values(codes: Codes, rest: Codes | None) -> Floats:
    """Return log-probabilities (N, k), half levelled; of censored answers indicators and heights (N, 2k), side by side."""
    if rest is None:
        logprobs = codes / -float(STEPS_PER_NAT)
        levelled: Floats = logprobs - LEVEL * logprobs.mean(axis=1, keepdims=True)
        return levelled
    heights = np.maximum(rest[:, None].astype(np.int64) - codes, 0) / float(STEPS_PER_NAT)
    return np.hstack([heights > 0, heights])


def _summed_chances(matrix: TokenMatrix) -> Floats:
    total = np.zeros(matrix.n_columns)
    for _, panel in matrix.panels():
        for at in range(0, len(panel), SLICE):
            total[at : at + SLICE] += CHANCES[panel[at : at + SLICE]].sum(axis=1)
    return total


def _times_shown(matrix: TokenMatrix) -> npt.NDArray[np.int64]:
    total = np.zeros(matrix.n_columns, dtype=np.int64)
    assert matrix.rest is not None  # noqa: S101 - for the type checker
    for start, panel in matrix.panels():
        total += (panel < matrix.rest[start : start + panel.shape[1]]).sum(axis=1)
    return total
