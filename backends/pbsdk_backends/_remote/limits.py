"""How many tokens a server shows: found by asking for many, and for fewer where that is refused.

Most servers name their limit when they refuse, and are believed once it works. Where they don't, the smallest number
comes next: if that is refused too, the number is not what the server minds, and nothing else is tried.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from pbsdk.errors import QueryRefused

__all__ = ["LARGEST", "TooMany", "most_shown"]

LARGEST = 5000
"""More than anything needs to learn from, and as many as an answer can have without being unwieldy."""
_TOPS = (LARGEST, 1000, 500, 200, 100, 50, 20, 15, 10, 8, 5)
_LIMIT = re.compile(
    r"(?:max\w*|limit\w*|most|up to|between -?\d+ and|equal to|less than|[<\u2264]=?)\W*(?:\w+\W+){0,2}?(\d+)",
    re.IGNORECASE,
)


class TooMany(QueryRefused):
    """The server refused a request, perhaps for the number of tokens asked for."""


def most_shown(ask: Callable[[int], int]) -> int:
    """Return what `ask` returns for the largest number that it doesn't refuse with `TooMany`."""
    try:
        return ask(_TOPS[0])
    except TooMany as refusal:
        named = _named_limit(str(refusal))
    if named:
        try:
            return ask(named)
        except TooMany:
            pass
    least = ask(_TOPS[-1])
    for count in _TOPS[1:-1]:
        try:
            return ask(count)
        except TooMany:
            continue
    return least


def _named_limit(message: str) -> int:
    """Return the limit that a refusal names, or 0.

    >>> _named_limit("Requested sample logprobs of 5000, which is greater than max allowed: 20")
    20
    >>> _named_limit("top_logprobs must be between 0 and 20"), _named_limit("must be less than or equal to 5.")
    (20, 5)
    >>> _named_limit("answered 400: no such field")
    0
    """
    found = [int(number) for number in _LIMIT.findall(message) if 0 < int(number[:6]) < _TOPS[0]]
    return found[-1] if found else 0
