"""Codes, sixty-four at a time."""

import numpy as np

from pbsdk.learning import kernels, vectors


def test_codes_are_compared_as_whole_numbers_without_sign():
    left = np.random.default_rng(0).integers(0, 65536, 192).astype(np.uint16)
    right = np.where(np.arange(192) % 3, left[::-1], left)

    @kernels.numba.njit
    def compared(at):
        return vectors.below(left, right, at)

    for at in (0, 64, 128):
        bits = compared(at)
        assert [bits >> t & 1 for t in range(64)] == (left < right)[at : at + 64].tolist()
