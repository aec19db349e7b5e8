"""The fake model.

`FakeBackend` answers without a model, deterministically, and remembers what it was asked. Its answers
carry real signal: like a language model that picks up what a text is about, it prefers tokens that name
a theme of the input (money, sport, a place, ...) and tokens that its words bring to mind, each prompt
in its own way and with noise, so that a classifier trained on it learns something, and learns more
from more prompts.

>>> from pbsdk.queries.templates import Template
>>> from pbsdk.queries.examples import Example
>>> fake = FakeBackend()
>>> answer, = fake.fill([Template("<input> It was <mask>.").query(Example("a fine day"))])
>>> len(fake.asked), round(answer.mass, 2)
(1, 1.0)
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import numpy as np

from pbsdk.backend import (
    Abilities,
    Checkup,
    Floats,
    MaskDistribution,
    MaskedLMBackend,
    MaskedQuery,
    ModelIdentity,
    Part,
    Tokens,
    Vocabulary,
    digest,
)
from pbsdk.errors import BackendError, InputError, QueryRefused
from pbsdk.testing.themes import THEMES, themes_of

__all__ = ["FakeBackend"]

_ONSETS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z", "br", "st")
_VOWELS = ("a", "e", "i", "o", "u")
_WORD = re.compile(r"[^\W_]{3,}")
_ASSOCIATIONS = 2
"""How many tokens a word brings to mind."""
_PER_THEME = 6
"""How many tokens name a theme."""
_NAMES = [f" {stem}" for stems in THEMES.values() for stem in stems[:_PER_THEME]]


def _made_up_word(number: int) -> str:
    syllables = []
    for _ in range(2):
        number, onset = divmod(number, len(_ONSETS))
        number, vowel = divmod(number, len(_VOWELS))
        syllables.append(_ONSETS[onset] + _VOWELS[vowel])
    return " " + "".join(syllables) + (str(number) if number else "")


@lru_cache(maxsize=100_000)
def _seed(*pieces: str) -> int:
    return int(digest(*pieces)[:15], 16)


def _length(parts: Sequence[Part]) -> int:
    return 1 + sum(len(part.text.split()) for part in parts)


class FakeBackend(MaskedLMBackend):
    """A deterministic stand-in for a language model, with a memory.

    Args:
        vocabulary_size: how many tokens it knows.
        seed: another seed is another model.
        signal: how strongly the words of an input show in the answer; 0 is pure noise.
        mask: "anywhere", or "last" for a causal model.
        top: show only this many of the most probable tokens.
        chosen: answer `fill(..., tokens)` for exactly those tokens.
        batch_size: how many queries one call takes.
        latency: seconds that each call takes.
        failures: one entry per call, in order: an error to raise, or None for a call that succeeds.
        refuse: refuse every text that contains this, as a provider's filter does.
        sleep: the function that waits, for tests with their own clock.

    `asked` lists every query in order and `calls` the size of every batch, failed calls included.
    """

    def __init__(  # noqa: PLR0913 - independent settings, all keywords
        self,
        *,
        vocabulary_size: int = 1000,
        seed: int = 0,
        signal: float = 3.0,
        mask: str = "anywhere",
        top: int | None = None,
        chosen: bool = False,
        batch_size: int = 32,
        latency: float = 0.0,
        failures: Iterable[BackendError | None] = (),
        refuse: str | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if mask not in {"anywhere", "last"}:
            raise InputError(f'mask must be "anywhere" or "last", not {mask!r}')
        if vocabulary_size < 2 or batch_size < 1 or (top is not None and not 1 <= top <= vocabulary_size):
            raise InputError(
                "a fake model needs at least two tokens, a batch size of at least 1, and top within its vocabulary"
            )
        self.identity = ModelIdentity(
            "fake",
            {
                "seed": str(seed),
                "signal": str(signal),
                "vocabulary": str(vocabulary_size),
                "mask": mask,
                "top": str(top),
            },
        )
        self.vocabulary = Vocabulary(
            _NAMES[number] if number < len(_NAMES) else _made_up_word(number) for number in range(vocabulary_size)
        )
        self.abilities = Abilities(
            whole=top is None,
            top=top,
            chosen=chosen,
            mask="last" if mask == "last" else "anywhere",
            batch_size=batch_size,
        )
        self.asked: list[MaskedQuery] = []
        self.calls: list[int] = []
        self._size = vocabulary_size
        self._seed = str(seed)
        self._signal = signal
        self._latency = latency
        self._failures = iter(failures)
        self._refuse = refuse
        self._sleep = sleep

    @classmethod
    def checkup(cls) -> Checkup:
        """Answer once: it costs nothing."""
        fake = cls()
        (answer,) = fake.fill([MaskedQuery((Part("prompt", "It was "), Part("mask")), "doctor", "doctor")])
        return Checkup({"asked": f"{len(fake.asked)} query, {len(answer.codes):,} tokens answered"})

    def __repr__(self) -> str:
        return f"FakeBackend({', '.join(f'{name}={value}' for name, value in self.identity.details.items())})"

    def fill(self, queries: Sequence[MaskedQuery], tokens: Tokens | None = None) -> list[MaskDistribution]:
        """Answer from the words of each query."""
        self.asked.extend(queries)
        self.calls.append(len(queries))
        if self._latency:
            self._sleep(self._latency)
        failure = next(self._failures, None)
        if failure is not None:
            raise failure
        refused = {place for place, query in enumerate(queries) if self._refuse and self._refuse in query.text()}
        answers = {place: self._answer(query, tokens) for place, query in enumerate(queries) if place not in refused}
        if refused:
            raise QueryRefused(f"the fake model refuses texts with {self._refuse!r}", answered=answers)
        return list(answers.values())

    def count_tokens(self, query: MaskedQuery) -> int:
        """Return how many tokens it reads, exactly: its tokens are words."""
        return _length(self._read(query))

    def most_tokens(self, query: MaskedQuery) -> int:
        """Return how many tokens it reads."""
        return self.count_tokens(query)

    def _read(self, query: MaskedQuery) -> Sequence[Part]:
        return query.before_mask() if self.abilities.mask == "last" else query.parts

    def _answer(self, query: MaskedQuery, tokens: Tokens | None) -> MaskDistribution:
        parts = self._read(query)
        logits = self._logits(parts)
        logprobs = logits - np.log(np.exp(logits).sum())
        read = _length(parts)
        if self.abilities.top is not None:
            best = np.argsort(-logprobs, kind="stable")[: self.abilities.top]
            return MaskDistribution.from_logprobs(logprobs[best], best, top=True, read_tokens=read)
        answer = MaskDistribution.from_logprobs(logprobs, read_tokens=read)
        return answer.narrowed(tokens) if self.abilities.chosen and tokens is not None else answer

    def _logits(self, parts: Sequence[Part]) -> Floats:
        size = self._size
        prompt = digest(*(part.kind if part.kind != "prompt" else part.text for part in parts))
        content = digest(*(part.text for part in parts))
        logits = np.random.default_rng(_seed(self._seed, "content", content)).standard_normal(size) / 2
        logits += np.random.default_rng(_seed(self._seed, "prompt", prompt)).standard_normal(size)
        for part in parts:
            if part.kind == "input":
                for token in self._associations(part.text.lower()):
                    # A prompt favours some tokens over others.
                    logits[token % size] += self._signal * (_seed(prompt, str(token)) % 1000) / 1000
        return logits

    def _associations(self, text: str) -> list[int]:
        words = sorted(set(_WORD.findall(text)))
        tokens = [_seed(self._seed, word, str(number)) for word in words for number in range(_ASSOCIATIONS)]
        for theme in {theme for word in words for theme in themes_of(word)}:
            first = list(THEMES).index(theme) * _PER_THEME
            tokens.extend(range(first, first + _PER_THEME))
        return tokens
