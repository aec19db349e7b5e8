"""The model from inside: what a local adapter hands to a method that looks into it (`pbsdk.backend.Inside`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pbsdk.backend import MaskedQuery
from pbsdk_backends._tokens.reading import Reading

__all__ = ["Opened"]


@dataclass(frozen=True)
class Opened:
    """A model that is looked into. It stays the adapter's own: whoever trains takes a copy."""

    model: Any
    """A model of transformers with its language-model head, in evaluation mode."""
    tokenizer: Any
    causal: bool
    """Whether it reads nothing after the mask."""
    precision: str
    read: Callable[[MaskedQuery, int], Reading]
    """Returns a query's tokens and the place asked for, leaving room for so many tokens more."""
    batch_tokens: int
    """How many tokens run together at most."""
