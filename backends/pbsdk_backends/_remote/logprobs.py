"""Log-probabilities in the two forms that OpenAI's API has, and words for its tokens.

Completions show a mapping of words, `top_logprobs: [{" good": -0.7, ...}]`; chat shows a list,
`content: [{"top_logprobs": [{"token", "logprob", "bytes"}, ...]}]`. Servers mix them: llama.cpp answers
completions in chat's form. So either form is read from either route.

A word is the token, and its bytes say which word it is: as text, all pieces of characters look
alike. A piece has no word of its own and is left out, as is a control token, which is shown as nothing.
Two tokens with other numbers and the same word are that word together.

Some servers put numbers where they have none: -9999 for a token whose probability they don't know, or 0 for whichever
token they drew. Such an answer is refused, since it would be learned from like any other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, Field

from pbsdk.errors import BadAnswer
from pbsdk_backends._remote.transport import validated

__all__ = ["Answer", "Logprob", "NoProbabilities", "read_answer", "real", "together"]

Logprob = Annotated[float, Field(le=0.01, allow_inf_nan=False)]
_SENTINELS = (-100_000.0, -999.0)
"""No model's numbers are between these; below them, llama.cpp writes the smallest float for a probability of 0."""


class NoProbabilities(BadAnswer):
    """The server understood, and showed nothing that is a probability."""


class _Shown(BaseModel):
    token: str
    logprob: Logprob
    bytes: list[Annotated[int, Field(ge=0, le=255)]] | None = None
    id: int | None = None

    def word(self) -> str:
        """Return what the token says; nothing if it is a piece of a character."""
        if self.bytes is None:
            return self.token if _is_whole(self.token) else ""
        try:
            return bytes(self.bytes).decode()
        except UnicodeDecodeError:
            return ""


class _Place(BaseModel):
    top_logprobs: list[_Shown]


class _Logprobs(BaseModel):
    top_logprobs: list[dict[str, Logprob]] | None = None
    content: list[_Place] | None = None


class _Choice(BaseModel):
    logprobs: _Logprobs | None = None


class _Usage(BaseModel):
    prompt_tokens: Annotated[int, Field(ge=0, lt=1 << 32)] = 0


class Answer(BaseModel):
    """A server's answer to one request."""

    model: str
    system_fingerprint: str | None = None
    usage: _Usage | None = None
    choices: Annotated[list[_Choice], Field(min_length=1, max_length=1)]

    def words(self) -> Mapping[str, float]:
        """Return the words shown at the first place, with their log-probabilities."""
        logprobs = self.choices[0].logprobs or _Logprobs()
        if logprobs.content:
            found = _merged(logprobs.content[0].top_logprobs)
        else:
            named = (logprobs.top_logprobs or [{}])[0]
            found = {word: value for word, value in named.items() if word and _is_whole(word)}
        return real(found)

    @property
    def read_tokens(self) -> int:
        """How many tokens the model read, as far as the server says."""
        return self.usage.prompt_tokens if self.usage else 0


def read_answer(said: object) -> Answer:
    """Check the form of an answer."""
    return validated(Answer, said)


def real(found: Mapping[str, float]) -> Mapping[str, float]:
    """Return words with their log-probabilities, unless these are none."""
    if not found:
        raise NoProbabilities("the answer holds no log-probabilities")
    for value in found.values():
        if _SENTINELS[0] <= value <= _SENTINELS[1]:
            raise NoProbabilities(f"the answer shows {value:g} for a token, which stands for no log-probability at all")
    if not any(found.values()):
        raise NoProbabilities("all log-probabilities of the answer are 0, which says nothing")
    return found


def _is_whole(word: str) -> bool:
    """Return whether a word has no piece of a character in it, shown as a stand-in or as half of a pair."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return "\ufffd" not in word


def _merged(entries: list[_Shown]) -> dict[str, float]:
    found: dict[str, float] = {}
    seen: set[tuple[str, int | None]] = set()
    for entry in entries:
        word = entry.word()
        if not word:
            continue
        if (word, entry.id) in seen or (word in found and entry.id is None):
            raise BadAnswer(f"the token {word!r} stands in the answer twice")
        seen.add((word, entry.id))
        found[word] = together(found[word], entry.logprob) if word in found else entry.logprob
    return found


def together(one: float, other: float) -> float:
    """Return the logarithm of two probabilities' sum.

    >>> round(math.exp(together(math.log(0.25), math.log(0.5))), 6)
    0.75
    """
    least, most = sorted((one, other))
    return most + math.log1p(math.exp(least - most))
