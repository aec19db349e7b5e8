"""Shortening texts: where the server's tokenizer is out of reach, inputs are cut by characters.

A model reads only so many tokens, and a server cuts what is too long wherever it likes, the mask
included, or refuses it. So inputs are shortened before they are sent: at their ends, between words,
the longest first. The prompt and the mask are never touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pbsdk.backend import Part

__all__ = ["shortened"]


def shortened(parts: Sequence[Part], limit: int) -> tuple[list[Part], int]:
    """Return the parts with at most `limit` characters of input, and how many words were cut.

    >>> shortened([Part("input", "a long and winding road"), Part("prompt", " was")], 12)
    ([Part(kind='input', text='a long and'), Part(kind='prompt', text=' was')], 2)
    """
    lengths = [len(part.text) for part in parts if part.kind == "input"]
    if sum(lengths) <= limit:
        return list(parts), 0
    room = _common_length(lengths, limit)
    kept, cut = [], 0
    for part in parts:
        if part.kind == "input" and len(part.text) > room:
            text = _start(part.text, room)
            cut += max(1, len(part.text[len(text) :].split()))
            kept.append(replace(part, text=text))
        else:
            kept.append(part)
    return kept, cut


def _common_length(lengths: Sequence[int], limit: int) -> int:
    """Return the length that all longer inputs are cut to, so that together they fit.

    >>> _common_length([100, 10], 50), _common_length([100, 90], 50)
    (40, 25)
    """
    left = limit
    ascending = sorted(lengths)
    for place, length in enumerate(ascending):
        share = left // (len(ascending) - place)
        if length > share:
            return share
        left -= length
    return limit


def _start(text: str, room: int) -> str:
    start = text[:room]
    # Back to the last space, unless one word is all there is.
    return start if text[room : room + 1].isspace() else start.rpartition(" ")[0] or start
