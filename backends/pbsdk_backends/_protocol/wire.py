"""pbsdk's own protocol: whole distributions in two bytes per token, each tied to its question.

A request is JSON: queries in parts, and the tokens wanted. An answer is binary:

    PBA1 | length of the header, 4 bytes | header, JSON | rows, one after the other

and a row is the tokens (8 bytes each; left out where they are the whole vocabulary or exactly those asked
for) and then the codes (2 bytes each), little-endian. Every row carries the digest of its question
and a digest over question and numbers together: a row that was swapped, cut or changed on the way is
detected, and never used. If only part of a batch was answered, an error comes along with the rows that were.

>>> from pbsdk.backend import MaskedQuery, Part
>>> query = MaskedQuery((Part("input", "fine"), Part("mask")), example="e", prompt="p")
>>> answer = MaskDistribution.from_logprobs([-0.105, -2.303])
>>> body = encode_answers("m", [query], {0: answer}, asked=None)
>>> decode_answers(body, "m", [query], asked=None).answered[0].codes
array([ 108, 2358], dtype=uint16)
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pbsdk.backend import (
    LEAST,
    MASS_TOLERANCE,
    Abilities,
    MaskDistribution,
    MaskedQuery,
    Part,
    Phase,
    Tokens,
    Vocabulary,
    digest,
)
from pbsdk.errors import (
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    BadAnswer,
    InputError,
    QueryRefused,
)

__all__ = [
    "PROTOCOL",
    "REMAINING",
    "Failure",
    "FillRequest",
    "ModelCard",
    "Outcome",
    "decode_answers",
    "encode_answers",
    "encode_request",
    "read_remaining",
    "vocabulary_digest",
    "write_remaining",
]

PROTOCOL = 1
_MAGIC = b"PBA1"
_LENGTH = struct.Struct("<I")
_KINDS: dict[str, type[BackendError]] = {
    kind.__name__: kind for kind in (BackendError, BackendUnavailable, BackendTimeout, QueryRefused, BadAnswer)
}
_AMOUNT = re.compile(r"[0-9]{1,18}(\.[0-9]{1,15})?(e[+-]?[0-9]{1,2})?")
Token = Annotated[int, Field(ge=0, lt=1 << 63)]
Count = Annotated[int, Field(ge=0, lt=1 << 32)]
"""A number of tokens, as the ledger stores it."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class WireQuery(_Strict):
    """A query: its parts as (kind, text), its example, prompt and phase."""

    parts: list[tuple[Literal["prompt", "input", "mask", "turn"], str]]
    example: str
    prompt: str
    phase: Phase


class FillRequest(_Strict):
    """A batch of queries for one model."""

    model: str = Field(description="digest of the identity of the model asked for")
    queries: list[WireQuery]
    tokens: list[Token] | None = Field(default=None, description="ascending; if left out, all that the model shows")
    words: dict[Token, str] = Field(default_factory=dict, description="what these tokens say, for an open vocabulary")

    def unpacked(self) -> list[MaskedQuery]:
        """Return the queries; one without exactly one mask is an `InputError`."""
        return [
            MaskedQuery(tuple(Part(kind, text) for kind, text in query.parts), query.example, query.prompt, query.phase)
            for query in self.queries
        ]

    def asked(self) -> Tokens | None:
        """Return the tokens wanted; those that don't ascend are an `InputError`."""
        if self.tokens is None:
            return None
        tokens = np.array(self.tokens, dtype=np.int64)
        if not tokens.size or (np.diff(tokens) <= 0).any():
            raise InputError("the tokens wanted must be ascending, and there must be at least one")
        return tokens


class ModelCard(_Strict):
    """What a server says about its model."""

    protocol: int
    identity: str = Field(description="the identity's canonical JSON")
    mask_token: str
    whole: bool
    top: Annotated[int, Field(ge=1, lt=1 << 32)] | None
    chosen: bool
    mask: Literal["anywhere", "last"]
    turns: bool = False
    max_batch: int = Field(ge=1, lt=1 << 32)
    open_vocabulary: bool
    vocabulary_size: int = Field(ge=0, lt=1 << 32)
    vocabulary_digest: str

    def abilities(self, batch_size: int) -> Abilities:
        """Return what a client of this server can be asked for."""
        return Abilities(
            whole=self.whole,
            top=self.top,
            chosen=self.chosen,
            mask=self.mask,
            batch_size=batch_size,
            turns=self.turns,
        )


class Failure(_Strict):
    """A backend's error, as answers to the three questions that a meter asks; `failures` are those of single queries."""

    kind: str
    message: str
    retryable: bool
    may_have_run: bool
    retry_after: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    failures: dict[int, Failure] = Field(default_factory=dict)

    @classmethod
    def of(cls, error: BackendError) -> Failure:
        """Describe an error."""
        return cls(
            kind=type(error).__name__,
            message=str(error),
            retryable=error.retryable,
            may_have_run=error.may_have_run,
            retry_after=error.retry_after,
            failures={place: cls.of(own) for place, own in error.failures.items() if own is not error},
        )

    def error(self, answered: Mapping[int, MaskDistribution] | None = None) -> BackendError:
        """Return the error that was described."""
        return _KINDS.get(self.kind, BackendError)(
            self.message,
            retryable=self.retryable,
            may_have_run=self.may_have_run,
            retry_after=self.retry_after,
            answered=answered,
            failures={place: own.error() for place, own in self.failures.items()},
        )


class _Row(_Strict):
    place: int = Field(ge=0)
    query: str
    count: int = Field(ge=1, lt=1 << 32)
    form: Literal["whole", "asked", "listed"]
    rest: Annotated[int, Field(ge=0, le=LEAST)] | None
    read: Count
    cut: Count
    check: str


class _Header(_Strict):
    model: str
    rows: list[_Row]
    failure: Failure | None = None
    words: dict[Token, str] = Field(default_factory=dict)


class Outcome(_Strict):
    """What a batch brought: answers, and perhaps a failure."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    answered: dict[int, MaskDistribution]
    failure: Failure | None
    words: dict[int, str]


REMAINING = "Pbsdk-Remaining"
"""The header in which a gate says what is left of an allowance, as `passes=12, money=0.5`."""


def write_remaining(remaining: Mapping[str, float]) -> str:
    """Return what is left as the header has it.

    >>> write_remaining({"passes": 12, "money": 0.5})
    'passes=12, money=0.5'
    """
    return ", ".join(f"{name}={amount:.15g}" for name, amount in remaining.items())


def read_remaining(text: str) -> dict[str, float]:
    """Return what the header says; what isn't a name and an amount is left out.

    >>> read_remaining("passes=12, money=0.5, and=more, nan=nan")
    {'passes': 12.0, 'money': 0.5}
    """
    pairs = (part.strip().partition("=") for part in text[:1000].split(","))
    return {name: float(amount) for name, _, amount in pairs if name.isidentifier() and _AMOUNT.fullmatch(amount)}


def vocabulary_digest(vocabulary: Vocabulary) -> str:
    """Return a digest of a closed vocabulary's words in their order."""
    return digest(*(vocabulary[token] for token in range(len(vocabulary))))


def encode_request(
    model: str, queries: Sequence[MaskedQuery], asked: Tokens | None, words: Mapping[int, str] | None = None
) -> dict[str, object]:
    """Return a batch of queries, ready for JSON."""
    return {
        "model": model,
        "queries": [
            {
                "parts": [(part.kind, part.text) for part in query.parts],
                "example": query.example,
                "prompt": query.prompt,
                "phase": query.phase,
            }
            for query in queries
        ],
        "tokens": None if asked is None else [int(token) for token in asked],
        "words": words or {},
    }


def encode_answers(  # noqa: PLR0913 - what a message holds, each part given by its caller
    model: str,
    queries: Sequence[MaskedQuery],
    answered: Mapping[int, MaskDistribution],
    *,
    asked: Tokens | None,
    failure: Failure | None = None,
    words: Mapping[int, str] | None = None,
) -> bytes:
    """Encode the answers that there are, by their place in the batch."""
    rows, payload = [], []
    for place, answer in sorted(answered.items()):
        form: Literal["whole", "asked", "listed"] = "listed"
        if answer.tokens is None:
            form = "whole"
        elif asked is not None and np.array_equal(answer.tokens, asked):
            form = "asked"
        tokens = b"" if answer.tokens is None or form == "asked" else answer.tokens.astype("<i8").tobytes()
        data = tokens + answer.codes.astype("<u2").tobytes()
        row = _Row(
            place=place,
            query=queries[place].content,
            count=len(answer.codes),
            form=form,
            rest=answer.rest,
            read=answer.read_tokens,
            cut=answer.cut_tokens,
            check="",
        )
        rows.append(row.model_copy(update={"check": _check(row, data)}))
        payload.append(data)
    header = _Header(model=model, rows=rows, failure=failure, words=dict(words or {})).model_dump_json().encode()
    return b"".join((_MAGIC, _LENGTH.pack(len(header)), header, *payload))


def decode_answers(body: bytes, model: str, queries: Sequence[MaskedQuery], *, asked: Tokens | None) -> Outcome:
    """Decode an answer, and check every row against the question it should belong to."""
    start = len(_MAGIC) + _LENGTH.size
    if len(body) < start or body[: len(_MAGIC)] != _MAGIC:
        raise BadAnswer("the answer is not in pbsdk's protocol; is this a `pbsdk serve` address?")
    at = start + _LENGTH.unpack_from(body, len(_MAGIC))[0]
    try:
        header = _Header.model_validate_json(body[start:at])
    except ValidationError as error:
        raise BadAnswer(f"the answer's header can't be read: {error.errors()[0]['msg']}") from None
    if header.model != model:
        raise BadAnswer("a different model answered than the one that was asked")
    answered: dict[int, MaskDistribution] = {}
    for row in header.rows:
        if row.place >= len(queries) or row.place in answered:
            raise BadAnswer(f"row {row.place} was not asked for, or came twice")
        size = row.count * (10 if row.form == "listed" else 2)
        answered[row.place] = _distribution(row, body[at : at + size], queries[row.place], asked)
        at += size
    if at != len(body):
        raise BadAnswer("the answer is longer than its rows")
    if header.failure is None and len(answered) != len(queries):
        raise BadAnswer(f"{len(queries)} queries were asked and {len(answered)} answered")
    return Outcome(answered=answered, failure=header.failure, words=header.words)


def _distribution(row: _Row, data: bytes, query: MaskedQuery, asked: Tokens | None) -> MaskDistribution:
    if row.query != query.content or row.check != _check(row, data):
        raise BadAnswer(f"row {row.place} doesn't belong to its question, or was damaged on the way")
    tokens: Tokens | None = None
    if row.form == "asked":
        if asked is None or len(asked) != row.count:
            raise BadAnswer(f"row {row.place} answers for tokens that were not asked for")
        tokens = asked
    elif row.form == "listed":
        tokens = np.frombuffer(data[: row.count * 8], dtype="<i8").astype(np.int64)
        if (np.diff(tokens) <= 0).any():
            raise BadAnswer(f"the tokens of row {row.place} are not ascending")
    codes = np.frombuffer(data[-row.count * 2 :], dtype="<u2").astype(np.uint16)
    answer = MaskDistribution(codes=codes, tokens=tokens, rest=row.rest, read_tokens=row.read, cut_tokens=row.cut)
    mass = float(np.exp(answer.logprobs).sum())
    if mass > 1 + MASS_TOLERANCE or (tokens is None and mass < 1 - MASS_TOLERANCE):
        raise BadAnswer(f"the probabilities of row {row.place} sum to {mass:.4f}")
    return answer


def _check(row: _Row, data: bytes) -> str:
    about = f"{row.count} {row.form} {row.rest} {row.read} {row.cut}"
    return digest(row.query, about, data)
