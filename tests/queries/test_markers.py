"""Masks written out in a text never reach a model."""

import pytest

from pbsdk.errors import InputError
from pbsdk.queries.examples import Example
from pbsdk.queries.markers import escape_markers, refuse_markers


def test_texts_with_a_mask_in_them_are_refused_or_written_apart():
    for text, mask in (("a <mask> b", "[MASK]"), ("a [MASK] b", "<mask>"), ("a <|m|> b", "<|m|>")):
        with pytest.raises(InputError, match=r'texts\[1\] contains .*markers="escape"'):
            refuse_markers([Example("fine"), Example("x", text)], mask)
        escaped = escape_markers(Example(text, "y"), mask)
        refuse_markers([escaped], mask)
        assert escaped.text.replace(" ", "") == text.replace(" ", "")
        assert escaped.pair == "y"
    refuse_markers([Example("a mask, <masks> and [mask] are words")], "<mask>")
