"""Masks written out in a text: refused, or written apart, before a model takes one for its mask."""

from __future__ import annotations

from collections.abc import Sequence

from pbsdk.errors import InputError
from pbsdk.queries.examples import Example

__all__ = ["escape_markers", "refuse_markers"]

_MASK_MARKERS = ("<mask>", "[MASK]")


def refuse_markers(examples: Sequence[Example], mask_token: str, *, name: str = "texts") -> None:
    """Refuse examples in which a mask is written out: a model might take it for the mask."""
    markers = dict.fromkeys((*_MASK_MARKERS, mask_token))
    for at, example in enumerate(examples):
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
