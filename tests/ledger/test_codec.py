"""The codec: sizes, names and keys agree with the bytes."""

import numpy as np
import pytest

from pbsdk.backend import MaskDistribution
from pbsdk.ledger.codec import WHOLE, encode, encoded_size, join_parts, set_digest, set_named_in, split_parts

ASKED = np.arange(0, 40, 2)


def shown(tokens, *, top):
    return MaskDistribution.from_logprobs(np.full(len(tokens), -4.0), tokens, top=top)


@pytest.mark.parametrize(
    ("answer", "asked", "size"),
    [
        (MaskDistribution.from_logprobs(np.full(50, -np.log(50))), None, encoded_size(50)),
        (shown(ASKED, top=False), ASKED, encoded_size(20)),
        (shown(np.arange(7), top=True), None, encoded_size(7, listed=True)),
        (shown(ASKED[:3], top=True), ASKED, encoded_size(3, of_set=20)),
    ],
    ids=["whole", "chosen", "top", "top of a set"],
)
def test_an_answer_takes_the_bytes_that_are_foretold_and_names_its_set(answer, asked, size):
    data = encode(answer, asked)
    assert len(data) == size
    assert set_named_in(data) == (None if asked is None else set_digest(asked))


def test_the_parts_of_a_key_survive_their_note():
    assert split_parts(join_parts("c0ffee", WHOLE)) == ("c0ffee", WHOLE)
