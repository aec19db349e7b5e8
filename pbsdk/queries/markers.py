"""Masks written out in a text: refused, or written apart, before a model takes one for its mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pbsdk.errors import InputError
from pbsdk.queries.examples import Example, read_examples

__all__ = ["Markers", "escape_markers", "read_unmarked", "refuse_markers"]

Markers = Literal["refuse", "escape"]
"""What to do with texts in which a mask is written out."""

_MASK_MARKERS = ("<mask>", "[MASK]")


def read_unmarked(
    texts: Any, mask_token: str, markers: Markers, *, name: str = "texts", first: int = 0
) -> list[Example]:
    """Read texts or pairs of texts, and refuse or escape those in which a mask is written out."""
    examples = read_examples(texts, name=name, first=first)
    if markers == "escape":
        return [escape_markers(example, mask_token) for example in examples]
    refuse_markers(examples, mask_token, name=name, first=first)
    return examples


def refuse_markers(examples: Sequence[Example], mask_token: str, *, name: str = "texts", first: int = 0) -> None:
    """Refuse examples in which a mask is written out: a model might take it for the mask."""
    everything = "\0".join(text for example in examples for text in example.texts)
    markers = [marker for marker in dict.fromkeys((*_MASK_MARKERS, mask_token)) if marker in everything]
    for at, example in enumerate(examples if markers else (), first):
        for marker in markers:
            if any(marker in text for text in example.texts):
                raise InputError(
                    f"{name}[{at}] contains {marker!r}, which a model may take for its mask; change that text, "
                    "or let pbsdk write it apart with",
                    setting="markers",
                    value='"escape"',
                )


def escape_markers(example: Example, mask_token: str) -> Example:
    """Write masks apart, so that no model takes them for its mask.

    >>> escape_markers(Example("say <mask> now"), "<mask>").text
    'say < mask> now'
    """
    texts = example.texts
    for marker in dict.fromkeys((*_MASK_MARKERS, mask_token)):
        texts = tuple(text.replace(marker, f"{marker[:1]} {marker[1:]}") for text in texts)
    return Example(*texts)
