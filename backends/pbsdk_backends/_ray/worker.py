"""What an actor runs: a backend, opened by its name. Errors of ours come back as values, whole and with what they carry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pbsdk.backend import Abilities, MaskDistribution, MaskedLMBackend, MaskedQuery, ModelIdentity, Tokens, Vocabulary
from pbsdk.errors import InputError, PbsdkError
from pbsdk.plugins import BACKENDS

__all__ = ["Facts", "Worker"]


@dataclass(frozen=True)
class Facts:
    """What the driver needs to know of the model in an actor."""

    identity: ModelIdentity
    vocabulary: Vocabulary
    abilities: Abilities
    mask_token: str


class Worker:
    """A backend in a process of its own."""

    def __init__(self, inner: str, options: Mapping[str, Any]) -> None:
        self._inner = inner
        self._options = options
        self._backend: MaskedLMBackend

    def open(self) -> Facts | PbsdkError:
        """Open the backend."""
        try:
            self._backend = BACKENDS.load(self._inner)(**self._options)
        except PbsdkError as error:
            return error
        except TypeError as error:
            return InputError(f"the backend {self._inner!r} can't be opened with these options: {error}")
        backend = self._backend
        return Facts(backend.identity, backend.vocabulary, backend.abilities, backend.mask_token)

    def fill(self, queries: Sequence[MaskedQuery], tokens: Tokens | None) -> list[MaskDistribution] | PbsdkError:
        """Answer queries in order."""
        try:
            return self._backend.fill(queries, tokens)
        except PbsdkError as error:
            return error

    def count(self, query: MaskedQuery) -> tuple[int, int]:
        """Return how many tokens the model will read, and the most that it can be."""
        return self._backend.count_tokens(query), self._backend.most_tokens(query)
