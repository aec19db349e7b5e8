"""How an answer becomes bytes, and which key it lies under.

An answer is a header of 36 bytes and its codes, two bytes each, little-endian. A whole answer of
RoBERTa (50,265 tokens) is 100,566 bytes; one for 800 chosen tokens is 1,636, because the set of
tokens is stored once, under its own digest, and answers only name it.

| kind | after the header |
|---|---|
| whole | a code for each token of the vocabulary |
| chosen | a code for each token of the named set |
| top | the tokens shown (eight bytes each), then their codes |
| top of a set | one bit for each token of the named set: shown or not; then the codes of those shown |

A key digests everything that changes an answer: the key's version, the model's identity, what the
model sees of the query, and for which tokens it was asked. Not the phase, the example or the
template, so that the same question asked for another reason is recalled; never a credential.

>>> data = encode(MaskDistribution.from_logprobs([-0.105, -2.303]), None)
>>> len(data), decode(data, lambda name: None).codes.tolist()
(40, [108, 2358])
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable

import numpy as np

from pbsdk.backend import MaskDistribution, Tokens, digest
from pbsdk.errors import LedgerCorrupted

__all__ = ["WHOLE", "decode", "encode", "pack_tokens", "query_key", "set_digest", "unpack_tokens"]

KEY_VERSION = 1
WHOLE = "whole"

_HEADER = struct.Struct("<2sBBHHIII16s")  # magic, version, kind, rest, 0, read, cut, count, set
_MAGIC = b"pb"
_VERSION = 1
_KIND_WHOLE, _KIND_CHOSEN, _KIND_TOP, _KIND_TOP_OF_SET = range(4)
_NO_SET = bytes(16)


def pack_tokens(tokens: Tokens) -> bytes:
    """Return a token set as bytes, eight a token: an open vocabulary has large numbers."""
    return tokens.astype("<u8").tobytes()


def unpack_tokens(data: bytes) -> Tokens:
    """Read what `pack_tokens` wrote."""
    return np.frombuffer(data, dtype="<u8").astype(np.int64)


def set_digest(tokens: Tokens | None) -> str:
    """Return the name of a token set."""
    return WHOLE if tokens is None else digest("tokens", pack_tokens(tokens))


def query_key(model: str, content: str, tokens: str) -> str:
    """Return the key of an answer: the model's digest, the query's content, the token set's name."""
    parts = {"content": content, "model": model, "tokens": tokens, "version": KEY_VERSION}
    return hashlib.sha256(json.dumps(parts, separators=(",", ":"), sort_keys=True).encode()).hexdigest()


def encode(answer: MaskDistribution, asked: Tokens | None) -> bytes:
    """Return the bytes of an answer; one to `asked` tokens must have been narrowed to them."""
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


def decode(data: bytes, find_set: Callable[[str], Tokens | None]) -> MaskDistribution:
    """Read what `encode` wrote; `find_set` gives the token set of a name."""
    if len(data) < _HEADER.size:
        raise LedgerCorrupted("an answer is shorter than its header")
    magic, version, kind, rest, _, read, cut, count, name = _HEADER.unpack_from(data)
    if magic != _MAGIC or version != _VERSION or kind > _KIND_TOP_OF_SET:
        raise LedgerCorrupted("an answer is not in a format that this pbsdk knows")
    tokens: Tokens | None = None
    at = _HEADER.size
    if kind == _KIND_TOP:
        tokens = unpack_tokens(data[at : at + 8 * count])
        at += 8 * count
    elif kind in {_KIND_CHOSEN, _KIND_TOP_OF_SET}:
        tokens = find_set(name.hex())
        if tokens is None:
            raise LedgerCorrupted(f"an answer's token set {name.hex()} is missing")
        if kind == _KIND_TOP_OF_SET:
            size = (len(tokens) + 7) // 8
            shown = np.unpackbits(np.frombuffer(data[at : at + size], dtype=np.uint8), count=len(tokens))
            tokens, at = tokens[shown.astype(bool)], at + size
    if len(data) - at != 2 * count or (tokens is not None and len(tokens) != count):
        raise LedgerCorrupted("an answer's length doesn't fit its header")
    return MaskDistribution(
        codes=np.frombuffer(data, dtype="<u2", offset=at).astype(np.uint16, copy=False),
        tokens=tokens,
        rest=rest if kind in {_KIND_TOP, _KIND_TOP_OF_SET} else None,
        read_tokens=read,
        cut_tokens=cut,
    )
