"""What vLLM shows beyond OpenAI's API: every token, and tokens that one chooses.

Started with `--max-logprobs -1`, it takes -1 for the number of tokens and shows all. Whatever its limit, `logprob_token_ids` names up to 128
tokens, and the answer holds exactly these and the one that was drawn. They are named by number, while answers hold words; so the server's own
tokenizer says which number a word has.

Of all tokens, some have no word: they are pieces of characters. What probability they have is one entry more, under the word "".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, Field

from pbsdk.backend import Vocabulary
from pbsdk.errors import BadAnswer, QueryRefused
from pbsdk_backends._remote.transport import validated

__all__ = ["ALL", "MOST_CHOSEN", "Numbers", "is_vllm", "vocabulary_of", "whole_of"]

ALL = -1
MOST_CHOSEN = 128
"""More are refused by the server."""
_PIECES = ""
_LEAST = -60.0
"""Nothing is left to the pieces, up to rounding; the grid ends a little below."""

Ask = Callable[[str, Mapping[str, Any]], object]
"""Posts a request to a path beside the API, and returns what the answer's JSON says."""


class _Tokenized(BaseModel):
    tokens: list[Annotated[int, Field(ge=0)]]


class _Text(BaseModel):
    prompt: str


class Numbers:
    """Which number a word has in the server's vocabulary, each asked for once."""

    def __init__(self, model: str, ask: Ask) -> None:
        self._model, self._ask = model, ask
        self._known: dict[str, int | None] = {}

    def of(self, words: Sequence[str]) -> list[int] | None:
        """Return the words' numbers; None if there are too many, or some word has none."""
        if len(words) > MOST_CHOSEN:
            return None
        found = [self._of(word) for word in words]
        return None if None in found else [number for number in found if number is not None]

    def _of(self, word: str) -> int | None:
        if word not in self._known:
            self._known[word] = self._asked_for(word)
        return self._known[word]

    def _asked_for(self, word: str) -> int | None:
        request = {"model": self._model, "prompt": word, "add_special_tokens": False}
        try:
            tokens = validated(_Tokenized, self._ask("/tokenize", request)).tokens
            if len(tokens) != 1:
                return None
            text = validated(_Text, self._ask("/detokenize", {"model": self._model, "tokens": tokens})).prompt
        except (QueryRefused, BadAnswer):
            return None
        return tokens[0] if text == word else None


def is_vllm(fingerprint: str | None) -> bool:
    """Say whether an answer's `system_fingerprint` is vLLM's."""
    return (fingerprint or "").startswith("vllm-")


def vocabulary_of(words: Mapping[str, float]) -> Vocabulary:
    """Return the vocabulary of a server that shows these words when it shows all."""
    return Vocabulary([*sorted(words), _PIECES])


def whole_of(words: Mapping[str, float], vocabulary: Vocabulary) -> list[float]:
    """Return the log-probabilities of all of a vocabulary, in its order.

    >>> words = {" good": math.log(0.5), " bad": math.log(0.25)}
    >>> [round(math.exp(value), 3) for value in whole_of(words, vocabulary_of(words))]
    [0.25, 0.5, 0.25]
    """
    known = len(vocabulary) - 1
    values = [words[vocabulary[token]] for token in range(known) if vocabulary[token] in words]
    if len(words) != known or len(values) != known:
        raise BadAnswer(f"the answer shows {len(words):,} words; the vocabulary has {known:,}")
    rest = 1 - math.fsum(map(math.exp, values))
    return [*values, math.log(rest) if rest > math.exp(_LEAST) else _LEAST]
