"""The coarse copy: every token once, in order, and no byte further off than half a step."""

import numpy as np
import pytest

from pbsdk.learning.coarse import BYTES, CoarseCopy
from pbsdk.learning.matrix import CHANCES, TokenMatrix


def test_bytes_follow_the_grid():
    assert BYTES[0] == 255
    assert BYTES[1024] == round(255 * np.exp(-1))


@pytest.mark.parametrize("span", [4, 9, 128])
@pytest.mark.parametrize("n_tokens", [1, 63, 64, 65, 200])
def test_a_coarse_copy_holds_every_token_once_the_greatest_first(n_tokens, span):
    codes = np.random.default_rng(0).integers(0, 9000, (9, n_tokens)).astype(np.uint16)
    order = np.random.default_rng(0).permutation(9)
    copy = CoarseCopy(TokenMatrix.from_codes(codes), order, 64, span)
    ((blocks, scales, norms, columns),) = copy.chunks()
    assert (columns == copy.columns).all()
    assert blocks.shape == (-(-n_tokens // 64), 9, 64)
    assert scales.shape == (-(-n_tokens // 64), -(-9 // span), 64)
    assert sorted(copy.columns[copy.columns >= 0]) == list(range(n_tokens))
    assert ((scales == 0).any(axis=1).ravel() == (copy.columns < 0)).all()
    lengths = np.sqrt((CHANCES[codes] ** 2).sum(axis=0))[copy.columns[:n_tokens]]
    assert (np.diff(lengths) <= 0).all()
    assert norms == pytest.approx(lengths[::64])
    halves = blocks.reshape(-1, 9, 32, 2).transpose(0, 3, 2, 1)  # a block's first 32 tokens alternate with its others
    shares = halves.reshape(-1, 9)[:n_tokens].astype(float)  # (tokens, examples), as `order` has them
    scale = scales.transpose(0, 2, 1).reshape(-1, scales.shape[1])[:n_tokens, np.arange(9) // span]
    chances = CHANCES[codes[order]].T[copy.columns[:n_tokens]]
    assert (np.abs(scale * shares - chances) <= scale * 0.50001).all()
    for at in range(0, 9, span):
        assert (shares[:, at : at + span].max(axis=1) == 255).all()
