"""Room: what the answers to new queries will take in the run folder, before any of them is asked.

A backend that shows whole answers gives exact figures, and so does one that is asked for chosen tokens. A fit that screens the vocabulary keeps
tokens that nobody knows yet: then it is about the most that they can take, or what they take if an earlier fit's screen is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pbsdk.backend import Abilities, MaskedLMBackend, Tokens
from pbsdk.learning.screen import KEPT, most_kept
from pbsdk.ledger.codec import TOKEN_BYTES, encoded_size, set_digest
from pbsdk.ledger.store import Connection
from pbsdk.queries.grid import Foreseen

__all__ = ["PlannedScreen", "bytes_stored", "screens_known"]


def screens_known(backend: MaskedLMBackend) -> list[Tokens]:
    """Return the token sets that may serve a fit that screens the vocabulary."""
    return [tokens for tokens in backend.token_sets() if len(tokens) <= most_kept(len(backend.vocabulary))]


@dataclass(frozen=True)
class PlannedScreen:
    """How many queries are asked in full, and the tokens of the others' answers: those kept before, or the most that may be kept."""

    in_full: int
    kept: int

    @classmethod
    def of(cls, seen: Foreseen, known: Sequence[Tokens], vocabulary: int) -> PlannedScreen:
        """Return how the fit will screen, if answers for some sets are known."""
        most = min(KEPT * len(seen.templates), most_kept(vocabulary))
        return cls(seen.pilot * len(seen.templates), max(map(len, known), default=most))


def bytes_stored(
    backend: MaskedLMBackend, con: Connection, new: int, tokens: Tokens | None, screen: PlannedScreen | None
) -> int:
    """Return what the answers to so many new queries take, and their token set, if it is new too."""
    if not new:
        return 0
    each = _answer_bytes(backend.abilities, len(backend.vocabulary), tokens)
    if screen is None:
        return new * each + _set_bytes(con, tokens)
    in_full = min(new, screen.in_full)
    return in_full * each + (new - in_full) * encoded_size(screen.kept) + TOKEN_BYTES * screen.kept


def _answer_bytes(abilities: Abilities, vocabulary: int, tokens: Tokens | None) -> int:
    """Return the bytes an answer takes; for a top-k backend asked for chosen tokens, an upper bound."""
    if abilities.whole:
        return encoded_size(vocabulary if tokens is None else len(tokens))
    shown = abilities.top or 0
    if tokens is None:
        return encoded_size(shown, listed=True)
    return encoded_size(min(shown, len(tokens)), of_set=len(tokens))


def _set_bytes(con: Connection, tokens: Tokens | None) -> int:
    """Return the bytes that the token set takes; it is stored once."""
    if tokens is None:
        return 0
    stored = con.execute("SELECT 1 FROM sets WHERE digest = ?", (set_digest(tokens),)).fetchone()
    return 0 if stored else TOKEN_BYTES * len(tokens)
