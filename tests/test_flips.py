"""A bit flipped anywhere in a file that pbsdk reads is found, or harmless for a reason that is named.

Here are a few hundred flips; `make flips` makes three thousand (`bench/flips.py`).
"""

import pytest
from helpers.flips import KINDS, judged


@pytest.mark.parametrize(("kind", "flips"), [(kind, 25 if kind == "run folder" else 70) for kind in KINDS])
def test_a_flipped_bit_is_found_or_harmless(kind, flips, tmp_path):
    tally = judged(kind, tmp_path, flips, seed=14)
    assert not tally.crashed, tally
    assert not tally.unnoticed, tally
    assert tally.found + tally.harmless.total() == flips
    if kind == "run folder":  # whose pages are mostly free space
        assert tally.harmless, "whatever is flipped is found: something else is wrong with the copies"
    else:
        assert not tally.harmless, tally
