"""The interface: a frozen language model, seen from outside.

An adapter subclasses `MaskedLMBackend`, says who it is (`identity`), which tokens it knows
(`vocabulary`) and what it can do (`abilities`), and writes one method, `fill`, which answers a
batch of `MaskedQuery` with one `MaskDistribution` each. Nothing else of the model is ever seen.

A `MaskedQuery` is a text in parts: words of the prompt, input texts, and one mask. The parts let an
adapter shorten an input that is too long without touching the prompt or the mask, and let it read
an input as plain text even if it looks like a control token. For models that are asked in conversations, parts of the
kind `turn` say where somebody else begins to speak.

Answers are defined in `pbsdk.distribution`, reading what a server says in `pbsdk.foreign`; adapters find everything they need here.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from types import TracebackType
from typing import Any, Literal, Protocol, Self, runtime_checkable

from pbsdk.distribution import LEAST, MASS_TOLERANCE, STEPS_PER_NAT, Codes, Floats, MaskDistribution, Tokens
from pbsdk.errors import BackendError, InputError
from pbsdk.foreign import bounded_json
from pbsdk.visible import has_half_character, visible

__all__ = [
    "LEAST",
    "MASS_TOLERANCE",
    "STEPS_PER_NAT",
    "Abilities",
    "Checkup",
    "Codes",
    "Floats",
    "HiddenStates",
    "Inside",
    "MaskDistribution",
    "MaskedLMBackend",
    "MaskedQuery",
    "ModelIdentity",
    "OpenVocabulary",
    "Part",
    "Phase",
    "Tokens",
    "Vocabulary",
    "answered_part",
    "bounded_json",
    "digest",
    "has_half_character",
    "most_tokens_of",
    "visible",
]


def digest(*pieces: str | bytes) -> str:
    """Return 32 hexadecimal digits that identify the pieces, including where each one ends.

    >>> digest("ab", "c") == digest("a", "bc")
    False
    """
    state = hashlib.blake2b(digest_size=16)
    for piece in pieces:
        data = piece.encode("utf-8", "surrogatepass") if isinstance(piece, str) else piece
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.hexdigest()


AROUND = 16
"""Tokens that a model may put around a text, such as those that open and close it."""


def most_tokens_of(text: str, around: int = AROUND) -> int:
    """Return a number of tokens that no tokenizer exceeds, whichever it is: one for each byte, and `around` more.

    Some tokenizers first write a character as several simpler ones; the longer form counts.

    >>> most_tokens_of("fine"), most_tokens_of("\u2167", 0)
    (20, 4)
    """
    plain = text if text.isascii() else max(text, unicodedata.normalize("NFKD", text), key=_bytes)
    return around + _bytes(plain)


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


class Phase(StrEnum):
    """What a query is asked for, which decides which budget pays."""

    TRAIN = "train"
    VALIDATE = "validate"
    REFINE = "refine"
    PREDICT = "predict"
    GENERATE = "generate"
    PROBE = "probe"
    FORWARD = "forward"
    """A pass through a model that is looked into; see `Inside`. No query is asked in this phase."""
    BACKWARD = "backward"
    """Likewise, for gradients."""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a query: prompt words, an input text, the mask, or the end of somebody's turn.

    What stands before the first `turn` is the instruction; then user and assistant take turns, and the user is the last. The text of a
    `turn` is what separates both where the query is read as one text.
    """

    kind: Literal["prompt", "input", "mask", "turn"]
    text: str = ""


@dataclass(frozen=True)
class MaskedQuery:
    """One rendered text with one mask, and the example and phase to charge.

    `example` names the text or pair asked about, `prompt` the template it was rendered under.
    """

    parts: tuple[Part, ...]
    """Prompt words, input texts and the mask, in order."""
    example: str
    """A name for the text or pair that is asked about, for the ledger."""
    prompt: str
    """The template that it was rendered under."""
    phase: Phase = Phase.TRAIN
    """What it is asked for, which decides which scope is charged."""

    def __post_init__(self) -> None:
        masks = sum(part.kind == "mask" for part in self.parts)
        if masks != 1:
            raise InputError(f"a query needs exactly one mask; this one has {masks}")
        if self.phase in {Phase.FORWARD, Phase.BACKWARD}:
            raise InputError(f"a query is not asked in the phase {self.phase}: that is for passes inside a model")

    def text(self, mask: str = "<mask>") -> str:
        """Return the query as one string, with `mask` where the mask is."""
        return "".join(mask if part.kind == "mask" else part.text for part in self.parts)

    def before_mask(self) -> tuple[Part, ...]:
        """Return the parts before the mask: all that a causal model reads."""
        at = next(i for i, part in enumerate(self.parts) if part.kind == "mask")
        return self.parts[:at]

    @cached_property
    def content(self) -> str:
        """A digest of everything a model may see: the parts and their kinds."""
        return digest(*(piece for part in self.parts for piece in (part.kind, part.text)))


def answered_part(error: BackendError) -> dict[int, MaskDistribution]:
    """Return the answers that the failed batch did get, by their position in it."""
    return {place: answer for place, answer in error.answered.items() if isinstance(answer, MaskDistribution)}


class Vocabulary:
    """The tokens of a model: what each one says, and which token says a word.

    >>> words = Vocabulary(["<s>", " great", "great", " bad"])
    >>> words[1], words.find("great"), words.find("awful")
    (' great', 1, None)
    """

    def __init__(self, words: Iterable[str]) -> None:
        self._words = tuple(words)

    def __len__(self) -> int:
        return len(self._words)

    def __getitem__(self, token: int) -> str:
        return self._words[token]

    @property
    def _ids(self) -> Mapping[str, int]:
        return self._by_word

    @cached_property
    def _by_word(self) -> dict[str, int]:
        ids: dict[str, int] = {}
        for token, word in enumerate(self._words):
            ids.setdefault(word, token)
        return ids

    def get(self, word: str) -> int | None:
        """Return the token that says exactly `word`, spaces included, or None."""
        return self._ids.get(word)

    def find(self, word: str) -> int | None:
        """Return the token that says `word` within a sentence, or None if no single token does."""
        bare = word.strip()
        spellings = (f" {bare}", f" {bare.lower()}", f" {bare.capitalize()}", bare, bare.lower(), bare.capitalize())
        return next((self._ids[spelling] for spelling in spellings if spelling in self._ids), None)


class OpenVocabulary(Vocabulary):
    """The tokens of a model whose vocabulary is known only from its answers: they are learned as they appear.

    Where a provider numbers its tokens, its numbers are kept; where it gives words alone, a token's
    number is derived from its word, so that it is the same in every process.

    >>> words = OpenVocabulary()
    >>> token = words.token_of(" great")
    >>> words[token], words.find("great") == token, len(words)
    (' great', True, 1)
    """

    def __init__(self) -> None:
        super().__init__(())
        self._known: dict[int, str] = {}
        self._tokens: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._known)

    def __getitem__(self, token: int) -> str:
        return self._known.get(token, f"<token {token}>")

    @property
    def known(self) -> Mapping[int, str]:
        """Every token seen so far."""
        return self._known

    @property
    def _ids(self) -> Mapping[str, int]:
        return self._tokens

    def learn(self, token: int, word: str) -> None:
        """Remember what a token says."""
        self._known[token] = word
        self._tokens.setdefault(word, token)

    def believe(self, token: int, word: str) -> bool:
        """Remember what somebody else says a token says, if the token's number proves it and there is room; return whether.

        It only says what the token says: `find` still looks for words that the model itself has shown.
        """
        if token in self._known:
            return self._known[token] == word
        if len(self._known) >= MOST_WORDS or len(word) > LONGEST_WORD or _number_of(word) != token:
            return False
        self._known[token] = word
        return True

    def token_of(self, word: str) -> int:
        """Return the token that says exactly `word`, adding one if necessary."""
        if word not in self._tokens:
            self.learn(_number_of(word), word)
        return self._tokens[word]


MOST_WORDS = 300_000
"""How many words an open vocabulary holds before it believes nobody but the model."""
LONGEST_WORD = 200
"""How many characters a word may have that anybody but the model says."""


def _number_of(word: str) -> int:
    """Return the token of a word, where the model doesn't number its tokens."""
    return int(digest(word)[:12], 16)  # 48 bits: exact in every number format, and no two words collide in practice


@dataclass(frozen=True)
class ModelIdentity:
    """Which model answers, exactly: a name for people, and the details that change an answer.

    Examples of details are the revision, a digest of the weights, the precision, the length at which
    texts are cut, and the adapter's protocol version. Never a credential, never a machine's address.
    """

    name: str
    details: Mapping[str, str] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def digest(self) -> str:
        """A digest of the name and all details."""
        return digest(self.to_json())

    def to_json(self) -> str:
        """Return the canonical JSON form."""
        return json.dumps({"name": self.name, **dict(sorted(self.details.items()))}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> ModelIdentity:
        """Read what `to_json` wrote."""
        details = bounded_json(text)
        if not isinstance(details, dict) or not all(isinstance(value, str) for value in details.values()):
            raise ValueError("a model's identity is an object of strings")
        if "name" not in details:
            raise ValueError("a model's identity has a name")
        return cls(details.pop("name"), details)

    def differences(self, other: ModelIdentity) -> str:
        """Describe what differs from another identity; empty if nothing does.

        >>> ModelIdentity("a", {"dtype": "float32"}).differences(ModelIdentity("a", {"dtype": "float16"}))
        'dtype: float32 here, float16 there'
        """
        here, there = {"name": self.name, **self.details}, {"name": other.name, **other.details}
        return visible(
            "; ".join(
                f"{key}: {here.get(key, 'nothing')} here, {there.get(key, 'nothing')} there"
                for key in dict.fromkeys([*here, *there])
                if here.get(key) != there.get(key)
            )
        )


@dataclass(frozen=True)
class Abilities:
    """What a backend can be asked for."""

    whole: bool = True
    """It shows the whole vocabulary."""
    top: int | None = None
    """It shows only its `top` most probable tokens (where `whole` is False)."""
    chosen: bool = False
    """`fill(..., tokens)` answers for exactly those tokens, more cheaply than for the whole vocabulary."""
    mask: Literal["anywhere", "last"] = "anywhere"
    """`last` for a causal model, which reads nothing after the mask."""
    batch_size: int = 1
    """The most queries that one call of `fill` takes."""
    turns: bool = False
    """It is asked in conversations: demonstrations come to it as turns (parts of the kind `turn`)."""


@dataclass(frozen=True)
class Checkup:
    """What an adapter knows about its setup before a model is loaded or anything is sent, for `pbsdk doctor`."""

    facts: Mapping[str, str] = field(default_factory=dict)
    """For example the device, or whether a key is in the environment; never the key itself."""
    folders: Mapping[str, str] = field(default_factory=dict)
    """What it keeps on disk, and where."""
    problem: str = ""
    """What keeps it from working, and the cure."""


class MaskedLMBackend(ABC):
    """A frozen language model, seen from outside.

    A subclass sets `identity`, `vocabulary` and `abilities` and writes `fill`. It raises nothing but
    pbsdk's errors. It need not retry, cache, count or check budgets: the meter around it does.
    """

    identity: ModelIdentity
    vocabulary: Vocabulary
    abilities: Abilities
    mask_token: str = "<mask>"  # noqa: S105 - a marker in a text, not a secret
    """How the model writes its own mask; inputs that contain it are refused."""

    @abstractmethod
    def fill(self, queries: Sequence[MaskedQuery], tokens: Tokens | None = None) -> list[MaskDistribution]:
        """Answer each query in order, asking the model once for each.

        `tokens` (ascending ids): the caller needs only these; a backend may answer for exactly
        these, or for more. At most `abilities.batch_size` queries come in one call.
        """

    def stream(self, queries: Sequence[MaskedQuery], tokens: Tokens | None = None) -> Iterator[MaskDistribution]:
        """Answer any number of queries in order, a batch at a time."""
        size = self.abilities.batch_size
        for start in range(0, len(queries), size):
            batch = queries[start : start + size]
            try:
                filled = self.fill(batch, tokens)
            except BackendError as error:
                error.failures = {start + place: why for place, why in error.each(len(batch)).items()}
                raise
            yield from filled

    def count_tokens(self, query: MaskedQuery) -> int:
        """Return how many tokens the model will read: by default an estimate, for plans."""
        return 2 + _bytes(query.text()) // 3

    def most_tokens(self, query: MaskedQuery) -> int:
        """Return the most tokens that asking the query can cost: what a budget reserves before it is sent.

        An adapter that counts exactly returns its count. One that cuts texts, or wraps them in a conversation, counts what it
        sends. By default no text is cut, and every byte is a token.
        """
        return max(self.count_tokens(query), most_tokens_of(query.text(self.mask_token)))

    def check_budget(self, queries: Sequence[MaskedQuery], sets: Sequence[Tokens] = ()) -> None:  # noqa: B027 - most backends know no budget
        """Raise `BudgetExceeded` if the budget doesn't allow to ask these queries, for all tokens or one of the sets; nothing is sent."""

    def token_sets(self) -> list[Tokens]:
        """Return the sets of tokens that were asked for before, where somebody keeps the answers; nothing by default."""
        return []

    def remaining(self) -> Mapping[str, float]:
        """Return what whoever serves the model last said is left of an allowance, by its name; nothing by default."""
        return {}

    @classmethod
    def checkup(cls) -> Checkup:
        """Return what `pbsdk doctor` should report, without loading a model or sending anything."""
        return Checkup()

    def close(self) -> None:  # noqa: B027 - most backends hold nothing
        """Release what the backend holds."""

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """Return the backend itself: it stands for a model outside, which copies of an estimator share."""
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@runtime_checkable
class Inside(Protocol):
    """A backend whose model runs in this process and may be looked into: the counterpart of the interface, for white boxes.

    No meter sees what is done with the model, so what asks for it charges its passes itself (`pbsdk.metering.passes`). Nothing
    that learns or predicts in pbsdk may need it.
    """

    def inside(self) -> Any:
        """Return the model, its tokenizer and what reads queries, in the adapter's own form."""


@runtime_checkable
class HiddenStates(Protocol):
    """A backend that also shows the model from inside, for comparisons; what asks for this is no longer a black box.

    It is not part of the interface: no meter counts it, and nothing that learns or predicts may need it.
    """

    def hidden_states(self, queries: Sequence[MaskedQuery]) -> Floats:
        """Return the last hidden state (N, H) at each query's mask, or, in a causal model, at the token before it."""
