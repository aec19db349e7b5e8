r"""Text that may come from anywhere, made safe to print: what would steer a terminal is shown instead.

A provider, a prompt, a label or a text may hold escape sequences that clear the screen, rewrite a line or reverse the
order of letters. Whatever is printed or written as a table shows them as `\x1b` and the like; files of data keep them.

>>> print(visible("fine\x1b[2Jtoo\r"))
fine\x1b[2Jtoo\x0d
>>> print(visible_json({"said": "a\x7f\u202eb"}))
{"said": "a\u007f\u202eb"}
>>> [for_spreadsheet(text) for text in ("=1+1", "-5", "fine")]
["'=1+1", "'-5", 'fine']
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

__all__ = ["for_spreadsheet", "has_half_character", "visible", "visible_json"]

# Control characters but for line break and tab; line separators; what turns the direction of writing; half characters.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_HALF = re.compile("[\ud800-\udfff]")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for the beginning of a formula."""


def visible(text: str) -> str:
    """Show the characters that would steer a terminal; line breaks and tabs stay as they are."""
    return _STEERING.sub(_shown, text)


def visible_json(data: Any, *, indent: int | None = None, default: Callable[[Any], Any] | None = None) -> str:
    """Write JSON that is safe to print and means the same; `default` says what to write for what JSON doesn't know."""
    text = json.dumps(data, indent=indent, ensure_ascii=False, default=default)
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def has_half_character(text: str) -> bool:
    r"""Return whether a text holds half of a character (a lone surrogate), which no file, reply or tokenizer can take.

    >>> has_half_character("\U0001f642"), has_half_character("\ud83d")
    (False, True)
    """
    return not text.isascii() and _HALF.search(text) is not None


def for_spreadsheet(text: str) -> str:
    """Put an apostrophe before what a spreadsheet would take for a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def _shown(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
