"""What isn't ours, read within bounds: files that somebody sent, and what a server answers.

JSON can be small and still hurt who reads it: lists within lists exhaust the stack, thousands of digits the arithmetic,
millions of empty lists the memory. `bounded_json` refuses all of these with a `ValueError` that says what is wrong; each
caller makes it an error of its own, with the cure. `bounded_file` reads no more of a file than it may have. What pbsdk
writes as JSON may carry a digest of the rest, which `check_digest` compares where it is there.

>>> bounded_json('{"a": [1, 2]}')
{'a': [1, 2]}
>>> bounded_json("[" * 1000)
Traceback (most recent call last):
...
ValueError: it nests more than 100 deep
>>> bounded_json('{"size": NaN}')
Traceback (most recent call last):
...
ValueError: NaN is not a number
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from functools import partial
from itertools import accumulate
from typing import Any

__all__ = ["LISTS", "bounded_file", "bounded_json", "check_digest", "digest_of"]

DEPTH = 100
"""How deep lists and objects may nest."""
LISTS = 2_000_000
"""How many lists and objects there may be: an empty one takes two bytes in a file and thirty times as many in memory."""
DIGITS = 20
"""How many characters a whole number may have: enough for 64 bits."""

_STRING = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\Z)', re.DOTALL)
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKETS = bytes(set(range(256)) - _STEPS.keys())


def bounded_file(path: str | os.PathLike[str], most: int) -> bytes:
    """Read a file, or raise a ValueError if it has more than `most` bytes."""
    with open(path, "rb") as file:  # noqa: PTH123 - a path of any kind
        data = file.read(min(most, os.fstat(file.fileno()).st_size) + 1)
        while len(data) <= most and (more := file.read(1 << 20)):  # a pipe doesn't know its size
            data += more
    if len(data) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    return data


def bounded_json(data: bytes | str, *, digits: int = DIGITS) -> Any:
    """Read JSON as the standard has it, or raise a ValueError; `digits` bounds whole numbers.

    NaN, infinite numbers and a key that appears twice in one object are refused too.
    """
    try:
        text = data if isinstance(data, str) else data.decode("utf-8-sig")
        _check_nesting(text)
        return json.loads(
            text,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=partial(_whole, digits=digits),
            object_pairs_hook=_unique,
        )
    except RecursionError:  # who called was near the end of the stack already
        raise ValueError("it nests too deep") from None


def digest_of(content: Mapping[str, Any]) -> str:
    """Return a digest of everything in an object of JSON but its own digest, however it is laid out.

    >>> digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "digest": "any", "a": 1})
    True
    """
    rest = {name: value for name, value in content.items() if name != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def check_digest(content: Mapping[str, Any]) -> None:
    """Raise a ValueError if an object carries a digest that doesn't match the rest."""
    if "digest" in content and content["digest"] != digest_of(content):
        raise ValueError(
            "it doesn't match its digest: it was edited, or damaged on the way; if the change is yours, delete the line "
            '"digest" and it is taken as it is'
        )


def _check_nesting(text: str) -> None:
    if text.count("[") + text.count("{") <= DEPTH:
        return
    brackets = _STRING.sub("", text).encode("ascii", "replace").translate(None, _NO_BRACKETS)
    if len(brackets) > 2 * LISTS:
        raise ValueError(f"it holds more than {LISTS:,} lists and objects")
    if max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > DEPTH:
        raise ValueError(f"it nests more than {DEPTH} deep")


def _whole(text: str, *, digits: int) -> int:
    if len(text) > digits:
        raise ValueError(f"{text[:12]}... is a whole number of {len(text):,} digits")
    return int(text)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:12]} is too large for a number")
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key appears twice in one object")
    return found
