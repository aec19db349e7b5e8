"""A model of which only the likeliest tokens are seen, as with many providers.

A recording of whole answers is large, and no part of them can be left out without changing what is trained on them. A
model that shows its top k is a different model to the trainer, with its own identity; what is trained on it is the
same when it is recorded and when it is replayed, and its answers take a few bytes per token shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pbsdk.backend import MaskDistribution, MaskedLMBackend, MaskedQuery, ModelIdentity, Tokens
from pbsdk.errors import InputError

__all__ = ["TopOnly"]


class TopOnly(MaskedLMBackend):
    """A backend that wraps a backend and shows its `top` likeliest tokens; the rest is censored.

    Args:
        backend: the model; it must show its whole vocabulary.
        top: how many tokens an answer shows.
    """

    def __init__(self, backend: MaskedLMBackend, top: int) -> None:
        if not backend.abilities.whole:
            raise InputError(
                f"{backend.identity.name} already shows only its top {backend.abilities.top}; leave top out"
            )
        if isinstance(top, bool) or not isinstance(top, int) or not 1 <= top <= len(backend.vocabulary):
            raise InputError(f"top must be a whole number from 1 to {len(backend.vocabulary)}; not {top!r}")
        self.backend = backend
        self.identity = ModelIdentity(backend.identity.name, {**backend.identity.details, "shown": f"top {top}"})
        self.vocabulary = backend.vocabulary
        self.abilities = replace(backend.abilities, whole=False, top=top, chosen=False)
        self.mask_token = backend.mask_token
        self._top = top

    def fill(self, queries: Sequence[MaskedQuery], tokens: Tokens | None = None) -> list[MaskDistribution]:
        """Ask for everything, and show the top; `tokens` are answered from it."""
        del tokens
        return [answer.likeliest(self._top) for answer in self.backend.fill(queries)]

    def count_tokens(self, query: MaskedQuery) -> int:
        """Return how many tokens the model will read."""
        return self.backend.count_tokens(query)

    def most_tokens(self, query: MaskedQuery) -> int:
        """Return the most tokens that asking the query can cost."""
        return self.backend.most_tokens(query)

    def close(self) -> None:
        """Close the model."""
        self.backend.close()
