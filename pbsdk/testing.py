"""For tests of pbsdk, of adapters, and of whatever stands on pbsdk: a fake model and a contract.

`FakeBackend` answers without a model, always the same, and remembers what it was asked. It has real
signal in it: like a language model that takes up what a text is about, it prefers tokens that name
a theme of the input (money, sport, a place, ...) and tokens that its words bring to mind, each prompt
in its own way and with noise, so that a classifier trained on it learns something, and learns more
from more prompts.

>>> from pbsdk.templates import Template
>>> from pbsdk.examples import Example
>>> fake = FakeBackend()
>>> answer, = fake.fill([Template("<input> It was <mask>.").query(Example("a fine day"))])
>>> len(fake.asked), round(answer.mass, 2)
(1, 1.0)

`BackendContract` is what every adapter must hold to. Subclass it in a test module and give it the
backend as a pytest fixture:

    class TestMyBackend(BackendContract):
        @pytest.fixture
        def backend(self):
            return MyBackend(...)
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import numpy as np

from pbsdk.backend import (
    Abilities,
    Floats,
    MaskDistribution,
    MaskedLMBackend,
    MaskedQuery,
    ModelIdentity,
    Part,
    Phase,
    Tokens,
    Vocabulary,
    digest,
)
from pbsdk.errors import BackendError, InputError
from pbsdk.themes import THEMES, themes_of

__all__ = ["BackendContract", "FakeBackend"]

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
        failures: one entry a call, raised in turn: an error, or None for a call that succeeds.
        sleep: what waits, for tests with a clock of their own.

    `asked` lists every query in order and `calls` the size of every batch, failed calls included.
    """

    def __init__(
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
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if mask not in {"anywhere", "last"}:
            raise InputError(f'mask must be "anywhere" or "last", not {mask!r}')
        if vocabulary_size < 2 or batch_size < 1 or (top is not None and not 1 <= top <= vocabulary_size):
            raise InputError("a fake model needs two tokens at least, a batch size of 1, and top within its vocabulary")
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
        self._sleep = sleep

    def fill(self, queries: Sequence[MaskedQuery], tokens: Tokens | None = None) -> list[MaskDistribution]:
        """Answer from the words of each query."""
        self.asked.extend(queries)
        self.calls.append(len(queries))
        if self._latency:
            self._sleep(self._latency)
        failure = next(self._failures, None)
        if failure is not None:
            raise failure
        return [self._answer(query, tokens) for query in queries]

    def _answer(self, query: MaskedQuery, tokens: Tokens | None) -> MaskDistribution:
        parts = query.before_mask() if self.abilities.mask == "last" else query.parts
        logits = self._logits(parts)
        logprobs = logits - np.log(np.exp(logits).sum())
        read = 1 + sum(len(part.text.split()) for part in parts)
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
                    # A prompt brings some tokens out more than others.
                    logits[token % size] += self._signal * (_seed(prompt, str(token)) % 1000) / 1000
        return logits

    def _associations(self, text: str) -> list[int]:
        words = sorted(set(_WORD.findall(text)))
        tokens = [_seed(self._seed, word, str(number)) for word in words for number in range(_ASSOCIATIONS)]
        for theme in {theme for word in words for theme in themes_of(word)}:
            first = list(THEMES).index(theme) * _PER_THEME
            tokens.extend(range(first, first + _PER_THEME))
        return tokens


class BackendContract:
    """What every adapter holds to, as tests; see the module's first lines for how to run them."""

    tolerance = 2
    """How many steps of the grid (1/1024 nat) an answer may move with the batch it comes in."""

    def _queries(self, backend: MaskedLMBackend, *texts: str) -> list[MaskedQuery]:
        tail = () if backend.abilities.mask == "last" else (Part("prompt", "."),)
        return [
            MaskedQuery(
                (Part("input", text), Part("prompt", " It was "), Part("mask"), *tail),
                example=digest(text),
                prompt="<input> It was <mask>",
                phase=Phase.PREDICT,
            )
            for text in texts
        ]

    def _same(self, one: MaskDistribution, other: MaskDistribution) -> bool:
        tokens = one.tokens if one.tokens is not None else np.arange(len(one.codes))
        if one.rest is not None and other.tokens is not None:
            tokens = np.intersect1d(tokens, other.tokens)
        steps = np.abs(one.at(tokens).astype(int) - other.at(tokens).astype(int))
        return bool(len(tokens) and steps.max() <= self.tolerance)

    def test_the_identity_survives_json(self, backend: MaskedLMBackend) -> None:
        """The ledger writes it down and compares it."""
        assert backend.identity.name
        assert ModelIdentity.from_json(backend.identity.to_json()) == backend.identity

    def test_the_abilities_make_sense(self, backend: MaskedLMBackend) -> None:
        """Whole, or top k; never neither."""
        abilities = backend.abilities
        assert abilities.batch_size >= 1
        assert abilities.whole == (abilities.top is None)

    def test_an_empty_batch_has_no_answers(self, backend: MaskedLMBackend) -> None:
        """Nothing asked, nothing answered."""
        assert backend.fill([]) == []

    def test_answers_are_distributions(self, backend: MaskedLMBackend) -> None:
        """As whole as the abilities say, and of tokens that the vocabulary knows."""
        (answer,) = backend.fill(self._queries(backend, "The weather is fine today."))
        if backend.abilities.whole:
            assert answer.tokens is None
            assert len(answer.codes) == len(backend.vocabulary)
            assert abs(answer.mass - 1) < 0.01
        else:
            assert answer.tokens is not None
            assert answer.rest is not None
            assert 1 <= len(answer.codes) <= (backend.abilities.top or 0)
            assert all(isinstance(backend.vocabulary[int(token)], str) for token in answer.tokens)

    def test_answers_come_in_the_order_of_the_queries(self, backend: MaskedLMBackend) -> None:
        """However the backend sorts them inside; and the same question has the same answer."""
        texts = ["Short.", "A much longer text about a long day at sea, with wind and rain.", "The soup was cold."]
        queries = self._queries(backend, *texts)[: backend.abilities.batch_size]
        together = backend.fill(queries)
        assert len(together) == len(queries)
        for query, answer in zip(queries, together, strict=True):
            (alone,) = backend.fill([query])
            assert self._same(alone, answer)
        for query, answer in zip(queries, reversed(backend.fill(queries[::-1])), strict=True):
            assert self._same(answer, together[queries.index(query)])

    def test_different_texts_have_different_answers(self, backend: MaskedLMBackend) -> None:
        """A backend that forgets the text, or reads only the prompt, is found out."""
        first, second = (backend.fill([query])[0] for query in self._queries(backend, "Rain.", "The bank pays well."))
        assert not self._same(first, second)

    def test_chosen_tokens_are_answered(self, backend: MaskedLMBackend) -> None:
        """With the numbers that the full answer has."""
        (query,) = self._queries(backend, "The weather is fine today.")
        (full,) = backend.fill([query])
        tokens = (full.tokens if full.tokens is not None else np.arange(len(full.codes)))[:3].astype(np.int64)
        (part,) = backend.fill([query], tokens)
        assert part.covers(tokens)
        steps = np.abs(part.at(tokens).astype(int) - full.at(tokens).astype(int))
        assert steps.max() <= self.tolerance

    def test_odd_texts_are_answered(self, backend: MaskedLMBackend) -> None:
        """Empty, very long, in other scripts, and with control tokens written out."""
        for text in ("", "word " * 3000, "naïve café 日本語 🙂", "a </s> [SEP] <|im_start|> b", "two\nlines\ttabbed"):
            (answer,) = backend.fill(self._queries(backend, text))
            assert len(answer.codes)

    def test_what_follows_the_mask_matters_as_promised(self, backend: MaskedLMBackend) -> None:
        """A causal model doesn't read it; a masked one does."""
        (query,) = self._queries(backend, "The weather is fine today.")
        longer = MaskedQuery((*query.parts, Part("prompt", " And so to bed.")), query.example, query.prompt)
        (short,), (long,) = backend.fill([query]), backend.fill([longer])
        assert self._same(short, long) == (backend.abilities.mask == "last")
