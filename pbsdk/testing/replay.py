"""The replay: a backend that gives only recorded answers.

It is the recorded model to everything above it: same identity, same vocabulary as far as answers show it, same
numbers. So a classifier trained on a replay is the one trained on the model bit for bit, and a saved one loads
without a warning. A query that was not recorded is refused; the error says what was asked and what comes closest.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence

import numpy as np

from pbsdk.backend import MaskDistribution, MaskedLMBackend, MaskedQuery, Tokens
from pbsdk.errors import NotRecorded
from pbsdk.ledger.codec import WHOLE, query_key, set_digest
from pbsdk.ledger.inflight import Ask
from pbsdk.testing.recording import Recording

__all__ = ["ReplayBackend"]

_SHOWN = 120
"""How many characters of a query an error quotes."""


class ReplayBackend(MaskedLMBackend):
    """The answers of a recording: no model, no network, no key.

    Args:
        file: what `pbsdk record`, `Recording.save` or `pytest --pbsdk-record` wrote.
    """

    def __init__(self, file: str | os.PathLike[str]) -> None:
        self.file = os.fspath(file)
        self.recording = Recording.load(file)
        self.identity = self.recording.identity
        self.vocabulary = self.recording.vocabulary()
        self.abilities = self.recording.abilities
        self.mask_token = self.recording.mask_token

    def fill(self, queries: Sequence[MaskedQuery], tokens: Tokens | None = None) -> list[MaskDistribution]:
        """Give the recorded answers, or none if one of them is missing."""
        keys = [self._key(query, tokens) for query in queries]
        missing = [query for query, key in zip(queries, keys, strict=True) if key is None]
        if missing:
            raise NotRecorded(self._complaint(missing, tokens))
        return [self.recording.answer(key) for key in keys if key is not None]

    def token_sets(self) -> list[Tokens]:
        """Return the sets of tokens that were asked for."""
        return list(self.recording.sets.values())

    def count_tokens(self, query: MaskedQuery) -> int:
        """Return how many tokens the model read, where that was recorded."""
        return self._recorded_tokens(query) or super().count_tokens(query)

    def most_tokens(self, query: MaskedQuery) -> int:
        """Return how many tokens the model read, where that was recorded."""
        return self._recorded_tokens(query) or super().most_tokens(query)

    def _recorded_tokens(self, query: MaskedQuery) -> int:
        for name in (WHOLE, *self.recording.sets):
            key = query_key(self.identity.digest, query.content, name)
            if key in self.recording.answers:
                return self.recording.answer(key).read_tokens
        return 0

    def _key(self, query: MaskedQuery, tokens: Tokens | None) -> str | None:
        """Return the key of a recorded answer that serves, as the meter would find it."""
        places = [WHOLE]
        if tokens is not None:
            own = set_digest(tokens)
            serving = [name for name, kept in self.recording.sets.items() if np.isin(tokens, kept).all()]
            places += sorted(serving, key=lambda name: name != own)
        keys = (query_key(self.identity.digest, query.content, place) for place in places)
        return next((key for key in keys if key in self.recording.answers), None)

    def _complaint(self, missing: Sequence[MaskedQuery], tokens: Tokens | None) -> str:
        query = missing[0]
        text = query.text()
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        wanted = "the whole vocabulary" if tokens is None else f"{len(tokens)} tokens"
        more = f", nor to {len(missing) - 1} more of this batch" if len(missing) > 1 else ""
        return (
            f"{self.file} holds no answer to {shown!r}{more} (phase {query.phase}, prompt {query.prompt!r}, {wanted}). "
            f"{self._closest(query, tokens)}. Nothing was asked; to record it on a machine that has the model: pytest --pbsdk-record, "
            "or pbsdk record RUN FILE"
        )

    def _closest(self, query: MaskedQuery, tokens: Tokens | None) -> str:
        """Describe the closest recorded answers."""
        example = Ask.of("", query).example
        answers = self.recording.answers
        texts = {answer.example for answer in answers.values()}
        prompts = {answer.prompt for answer in answers.values()}
        same_text = {answer.prompt for answer in answers.values() if answer.example == example}
        if query.prompt in same_text:
            if tokens is None and not any(self.recording.answer(key).covers(None) for key in answers):
                return "This text and prompt are recorded only for a prediction's tokens, but training needs all tokens"
            return (
                "This text and prompt are recorded, but for other tokens or rendered otherwise: the classifier has "
                "other words, or another style or markers, than when it was recorded"
            )
        if same_text:
            near = difflib.get_close_matches(query.prompt, same_text, n=1, cutoff=0)[0]
            return f"This text is recorded under other prompts, {len(same_text)} of them; the closest is {near!r}"
        if query.prompt in prompts:
            count = len({answer.example for answer in answers.values() if answer.prompt == query.prompt})
            return f"This prompt is recorded with other texts, {count} of them, and this text with none: it is new, or it was changed"
        near = difflib.get_close_matches(query.prompt, prompts, n=1, cutoff=0)[0]
        return (
            f"Neither the text nor the prompt is recorded; there are {len(texts)} texts and {len(prompts)} prompts, the "
            f"closest of which is {near!r}"
        )
