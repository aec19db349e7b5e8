"""A matrix again, in one byte per answer: coarse, but fast to read.

*Which tokens may matter at all under these weights?* Every round asks this about the whole
vocabulary, so a `CoarseCopy` holds each probability as a share of the token's greatest one within a
span of examples. Since codes are logarithms, that byte is a function of the difference of two codes,
and a table of 65,536 bytes makes the copy. (One scale for all examples would not do where there are
thousands: what a token is once would hide what it is most of the time.)

Tokens are sorted, the greatest first, so that `kernels.scan` can stop early, and stand in blocks side
by side, as it reads them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from pbsdk.backend import Codes, Tokens
from pbsdk.learning.matrix import CHANCES, TokenMatrix
from pbsdk.learning.spill import Spill

__all__ = ["CoarseCopy"]

CHUNK = 32 * 2**20
"""How many bytes are worked on at a time where not all can be held."""

CACHE_LINE = 64
"""How many bytes a cache line has."""

LARGE = 4 * 2**20
"""How many bytes an array must have for numpy to ask for large pages."""

BYTES: npt.NDArray[np.uint8] = np.rint(255 * CHANCES).astype(np.uint8)
"""255 times the probability that each code stands for."""


def _room(shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Return an array that begins on a cache line and lies in large pages where there are any.

    numpy asks the system for those from 4 MiB on, so what is nearly as large is rounded up. All this
    is worth a tenth of the time that `kernels.scan` takes.
    """
    size = math.prod(shape)
    room = np.empty(max(size + CACHE_LINE, LARGE) if size > LARGE // 2 else size + CACHE_LINE, dtype=np.uint8)
    start = -room.ctypes.data % CACHE_LINE
    return room[start : start + size].reshape(shape)


class CoarseCopy:
    """A matrix again, in one byte per answer and sorted for `kernels.scan`.

    `order` puts the examples of each class side by side; `span` of them at a time have a scale of
    their own. `columns[slot]` is the matrix's column at a place of the blocks, or -1 where there is
    none. In a row of a block, bytes of its first half of tokens alternate with those of the second.
    """

    def __init__(self, matrix: TokenMatrix, order: Tokens, width: int, span: int) -> None:
        self._shape = (-(-matrix.n_columns // width), matrix.n_examples, width)
        self._span = span
        n_spans = -(-matrix.n_examples // span)
        place = np.argsort(order, kind="stable")  # where each example stands
        least = np.full((n_spans, matrix.n_columns), 65535, dtype=np.uint16)
        squares = np.zeros(matrix.n_columns)
        for start, panel in matrix.panels():
            by_span = list(self._by_span(place[start : start + panel.shape[1]]))
            for part in self._parts(panel):
                for span_number, examples in by_span:
                    lowest = least[span_number, part]
                    np.minimum(lowest, panel[part, examples].min(axis=1), out=lowest)
                squares[part] += (CHANCES * CHANCES)[panel[part]].sum(axis=1)
        sorted_columns = np.argsort(-squares, kind="stable")
        slots = self._shape[0] * width
        self.columns = np.full(slots, -1, dtype=np.int64)
        self.columns[: matrix.n_columns] = sorted_columns
        scales = np.zeros((slots, n_spans), dtype=np.float32)
        scales[: matrix.n_columns] = CHANCES[least[:, sorted_columns].T] / 255
        self._scales = np.ascontiguousarray(scales.reshape(-1, width, n_spans).transpose(0, 2, 1))
        self._norms = np.sqrt(squares[sorted_columns][::width]).astype(np.float32)
        self._blocks = None if matrix.spilled else _room(self._shape)
        self._spill = Spill(matrix.folder) if matrix.spilled else None
        for start, panel in matrix.panels():
            self._fill(panel, least, place[start : start + panel.shape[1]])

    def _by_span(self, place: Tokens) -> Iterator[tuple[int, Tokens]]:
        """Yield spans, and which examples of a panel stand in them, in the order in which they stand."""
        order = np.argsort(place)
        spans, starts = np.unique(place[order] // self._span, return_index=True)
        yield from zip(spans.tolist(), np.split(order, starts[1:]), strict=True)

    @staticmethod
    def _parts(panel: Codes) -> Iterator[slice]:
        """Cut a panel's tokens into parts of which a copy in double precision is small."""
        step = max(1, CHUNK // (8 * panel.shape[1]))
        return (slice(at, at + step) for at in range(0, len(panel), step))

    def _fill(self, panel: Codes, least: Codes, place: Tokens) -> None:
        """Write one panel; `place` says where its examples stand, `least` is by span and column."""
        n_blocks, n_examples, width = self._shape
        by_span = list(self._by_span(place))
        places = np.sort(place)
        step = max(1, CHUNK // (8 * width * len(places)))
        for at in range(0, n_blocks, step):
            columns = self.columns[at * width : (at + step) * width]  # -1 reads any row: its scale is 0
            codes = panel[columns]
            shares = [BYTES[codes[:, examples] - least[number, columns, None]] for number, examples in by_span]
            halves = np.concatenate(shares, axis=1).reshape(-1, 2, width // 2, len(places))  # their tokens alternate
            blocks = halves.transpose(0, 3, 2, 1).reshape(-1, len(places), width)
            if self._blocks is not None:
                self._blocks[at : at + step, places] = blocks
                continue
            assert self._spill is not None  # noqa: S101 - for the type checker
            runs = np.split(np.arange(len(places)), np.flatnonzero(np.diff(places) != 1) + 1)
            for b, block in enumerate(np.ascontiguousarray(blocks), start=at):
                for run in runs:
                    self._spill.write((b * n_examples + int(places[run[0]])) * width, block[run[0] : run[-1] + 1])

    def chunks(
        self,
    ) -> Iterator[tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32], npt.NDArray[np.float32], Tokens]]:
        """Yield blocks, and their scales, norms and columns; a chunk is good until the next."""
        if self._blocks is not None:
            yield self._blocks, self._scales, self._norms, self.columns
            return
        assert self._spill is not None  # noqa: S101 - for the type checker
        n_blocks, n_examples, width = self._shape
        step = max(1, min(n_blocks, CHUNK // (n_examples * width)))
        buffer = np.empty((step, n_examples, width), dtype=np.uint8)
        for at in range(0, n_blocks, step):
            part = buffer[: min(step, n_blocks - at)]
            self._spill.read(at * n_examples * width, part)
            columns = self.columns[at * width : (at + step) * width]
            yield part, self._scales[at : at + step], self._norms[at : at + step], columns

    def close(self) -> None:
        """Give back the disk space."""
        if self._spill is not None:
            self._spill.close()
