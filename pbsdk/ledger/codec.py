"""How an answer becomes bytes, and under which key it is stored.

An answer is a header of 36 bytes and its codes, two bytes each, little-endian. A whole answer of
RoBERTa (50,265 tokens) is 100,566 bytes; one for 800 chosen tokens is 1,636, because the set of
tokens is stored once, under its own digest, and answers only name it.

| kind | after the header |
|---|---|
| whole | a code for each token of the vocabulary |
| chosen | a code for each token of the named set |
| top | the tokens shown (eight bytes each), then their codes |
| top of a set | one bit for each token of the named set: shown or not; then the codes of those shown |

A key is a digest of everything that affects an answer: the key's version, the model's identity, what the
model sees of the query, and which tokens were asked for. It does not include the phase, the example or
the template, so that the same question asked for another reason is recalled; and never a credential.

>>> data = encode(MaskDistribution.from_logprobs([-0.105, -2.303]), None)
>>> len(data), decode(data, lambda name: None).codes.tolist()
(40, [108, 2358])
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Mapping

import numpy as np

from pbsdk.backend import MaskDistribution, Tokens, digest
from pbsdk.errors import LedgerCorrupted

__all__ = [
    "SET_PREFIX",
    "TOKEN_BYTES",
    "WHOLE",
    "answer_digest",
    "decode",
    "encode",
    "encoded_size",
    "is_storable_of",
    "join_parts",
    "noted_words",
    "pack_tokens",
    "query_key",
    "set_digest",
    "set_key",
    "set_named_in",
    "split_parts",
    "storable",
    "unpack_tokens",
    "words_in",
]

KEY_VERSION = 1
WHOLE = "whole"
"""What stands for the name of a token set when all tokens are asked for."""
SET_PREFIX = "tokens:"
"""The prefix of a token set's key; the set's digest follows."""
TOKEN_BYTES = 8
"""Bytes of a token's number in a stored set."""

_HEADER = struct.Struct("<2sBBHHIII16s")  # magic, version, kind, rest, 0, read, cut, count, set
_MAGIC = b"pb"
_VERSION = 1
_KIND_WHOLE, _KIND_CHOSEN, _KIND_TOP, _KIND_TOP_OF_SET = range(4)
_NO_SET = bytes(16)
_SET_IN_HEADER = slice(_HEADER.size - len(_NO_SET), _HEADER.size)


def pack_tokens(tokens: Tokens) -> bytes:
    """Return a token set as bytes, eight per token: an open vocabulary has large numbers."""
    return tokens.astype("<u8").tobytes()


def unpack_tokens(data: bytes) -> Tokens:
    """Read what `pack_tokens` wrote."""
    return np.frombuffer(data, dtype="<u8").astype(np.int64)


def set_digest(tokens: Tokens | None) -> str:
    """Return the name of a token set."""
    return WHOLE if tokens is None else digest("tokens", pack_tokens(tokens))


def set_key(name: str) -> str:
    """Return the key under which a token set is stored.

    >>> set_key("ab12")
    'tokens:ab12'
    """
    return SET_PREFIX + name


def set_named_in(data: bytes) -> str | None:
    """Return the name of the token set that an answer's header refers to, if any."""
    name = data[_SET_IN_HEADER]
    return name.hex() if name.strip(b"\0") else None


def answer_digest(data: bytes) -> str:
    """Return the digest of an answer's bytes, by which records name it."""
    return hashlib.sha256(data).hexdigest()


def join_parts(content: str, tokens: str) -> str:
    """Return a key's parts as they are kept in a record's note, from which anyone can derive the key and compare it.

    >>> split_parts(join_parts("c0ffee", WHOLE))
    ('c0ffee', 'whole')
    """
    return f"{content} {tokens}"


def noted_words(words: Mapping[int, str]) -> str:
    """Return words of an open vocabulary as the record of the answer that was the first to show them keeps them.

    >>> noted_words({7: " great"})
    '{"7":" great"}'
    """
    return json.dumps({str(token): word for token, word in sorted(words.items())}, separators=(",", ":"))


def words_in(note: str) -> dict[int, str]:
    """Return the words that the note of an answer's record holds."""
    return {int(token): str(word) for token, word in json.loads(note).items()} if note else {}


def storable(text: str) -> str:
    r"""Return a text that SQLite can hold: one with half characters (lone surrogates) as a JSON string.

    >>> storable("fine"), storable("\ud800")
    ('fine', '"\\ud800"')
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(text)
    return text


def is_storable_of(stored: str, name: str) -> bool:
    """Return whether a stored text is what `storable` made of the text with this digest."""
    if digest(stored) == name:
        return True
    try:
        text = json.loads(stored)
    except ValueError:
        return False
    return isinstance(text, str) and storable(text) == stored and digest(text) == name


def split_parts(note: str) -> tuple[str, str]:
    """Read what `join_parts` wrote: the query's content, and the token set's name."""
    content, _, tokens = note.partition(" ")
    return content, tokens


def query_key(model: str, content: str, tokens: str) -> str:
    """Return the key of an answer: the model's digest, the query's content, the token set's name."""
    parts = {"content": content, "model": model, "tokens": tokens, "version": KEY_VERSION}
    return hashlib.sha256(json.dumps(parts, separators=(",", ":"), sort_keys=True).encode()).hexdigest()


def encode(answer: MaskDistribution, asked: Tokens | None) -> bytes:
    """Return the bytes of an answer, which must already be narrowed to the `asked` tokens."""
    codes = answer.codes.astype("<u2").tobytes()
    name, front, rest = _NO_SET, b"", answer.rest or 0
    if answer.tokens is None:
        kind = _KIND_WHOLE
    elif asked is None:
        kind, front = _KIND_TOP, pack_tokens(answer.tokens)
    else:
        name = bytes.fromhex(set_digest(asked))
        kind = _KIND_CHOSEN
        if answer.rest is not None:
            kind, front = _KIND_TOP_OF_SET, np.packbits(np.isin(asked, answer.tokens)).tobytes()
    head = (_MAGIC, _VERSION, kind, rest, 0, answer.read_tokens, answer.cut_tokens, len(answer.codes), name)
    return _HEADER.pack(*head) + front + codes


def encoded_size(codes: int, *, listed: bool = False, of_set: int | None = None) -> int:
    """Return how many bytes an answer with this many codes takes.

    Its tokens may be `listed` in it, or marked in a named set of `of_set` tokens.

    >>> encoded_size(50_265), encoded_size(800), encoded_size(20, listed=True), encoded_size(20, of_set=800)
    (100566, 1636, 236, 176)
    """
    front = TOKEN_BYTES * codes if listed else 0 if of_set is None else _bitmap_size(of_set)
    return _HEADER.size + front + 2 * codes


def _bitmap_size(tokens: int) -> int:
    return (tokens + 7) // 8


def decode(data: bytes, find_set: Callable[[str], Tokens | None]) -> MaskDistribution:
    """Read what `encode` wrote; `find_set` returns the token set with a name."""
    if len(data) < _HEADER.size:
        raise LedgerCorrupted("an answer is shorter than its header")
    magic, version, kind, rest, _, read, cut, count, name = _HEADER.unpack_from(data)
    if magic != _MAGIC or version != _VERSION or kind > _KIND_TOP_OF_SET:
        raise LedgerCorrupted("an answer is in a format that this version of pbsdk doesn't know")
    tokens: Tokens | None = None
    at = _HEADER.size
    if kind == _KIND_TOP:
        tokens = unpack_tokens(data[at : at + TOKEN_BYTES * count])
        at += TOKEN_BYTES * count
    elif kind in {_KIND_CHOSEN, _KIND_TOP_OF_SET}:
        tokens = find_set(name.hex())
        if tokens is None:
            raise LedgerCorrupted(f"an answer's token set {name.hex()} is missing")
        if kind == _KIND_TOP_OF_SET:
            size = _bitmap_size(len(tokens))
            shown = np.unpackbits(np.frombuffer(data[at : at + size], dtype=np.uint8), count=len(tokens))
            tokens, at = tokens[shown.astype(bool)], at + size
    if len(data) - at != 2 * count or (tokens is not None and len(tokens) != count):
        raise LedgerCorrupted("an answer's length doesn't match its header")
    return MaskDistribution(
        codes=np.frombuffer(data, dtype="<u2", offset=at).astype(np.uint16, copy=False),
        tokens=tokens,
        rest=rest if kind in {_KIND_TOP, _KIND_TOP_OF_SET} else None,
        read_tokens=read,
        cut_tokens=cut,
    )
