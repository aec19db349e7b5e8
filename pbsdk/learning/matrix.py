"""What one template's answers say about N examples, token by token.

Training asks two things of the answers, and a `TokenMatrix` is laid out for both.

*What are the codes of these few tokens for all examples?* So the matrix holds a row a token, and
each row all examples. Answers come the other way round, an example at a time and all templates of
it together; `collect` turns them, and never holds more than it must. What is larger than
`max_memory` goes to a temporary file without a name, which is gone when the matrix is, even if the
process is killed.

*Which tokens may matter at all under these weights?* This goes over the whole vocabulary in every
round, so a `CoarseCopy` keeps the answers a second time in one byte each: a probability as a share
of the token's greatest one within a span of examples. Since codes are logarithms, that byte is a
function of the difference of two codes, and a table of 65,536 bytes makes the copy. Tokens are
sorted, the greatest first, and stand in blocks side by side. (One scale for all examples would not
do where they are thousands: what is probable once would hide what it is most of the time.)

A provider that shows only its top k censors the rest. The matrix then has a row for each token that
appeared, and a token that is missing in an answer has the answer's code `rest`.

>>> matrix = TokenMatrix.from_codes([[0, 700, 900], [300, 100, 800]])
>>> matrix.codes_of([2, 0])
array([[900,   0],
       [800, 300]], dtype=uint16)
"""

from __future__ import annotations

import math
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from pbsdk.backend import STEPS_PER_NAT, Codes, Floats, MaskDistribution, Tokens
from pbsdk.errors import BadAnswer, InputError

__all__ = ["CHANCES", "CoarseCopy", "Matrices", "TokenMatrix", "collect"]

MAX_MEMORY = 256 * 2**20
"""How many bytes the matrices of one `collect` may take in memory; more goes to disk."""

CHUNK = 32 * 2**20
"""How many bytes are worked on at a time where not all can be held."""

LINE = 64
"""How many bytes a cache line has."""

LARGE = 4 * 2**20
"""How many bytes an array must have for numpy to ask for large pages."""

CHANCES: Floats = np.exp(np.arange(65536) / -STEPS_PER_NAT).astype(np.float32).astype(np.float64)
"""The probability that each code stands for; rounded to 24 bits, which all machines agree on."""

BYTES: npt.NDArray[np.uint8] = np.rint(255 * CHANCES).astype(np.uint8)
"""255 times the probability that each code stands for."""


class _Spill:
    """A temporary file without a name."""

    def __init__(self, folder: Path | str | None) -> None:
        self._folder = folder or tempfile.gettempdir()
        try:
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - closed by `close`
        except OSError as error:
            raise self._trouble(error) from error
        self.close = weakref.finalize(self, self._file.close)

    def _trouble(self, error: OSError) -> InputError:
        return InputError(
            f"the answers are too many for memory and can't be kept in {self._folder} for the time of training "
            f"({error.strerror or error}); make room there, choose another folder, or raise max_memory"
        )

    def write(self, offset: int, values: npt.NDArray[Any]) -> None:
        left = np.ascontiguousarray(values).data.cast("B")
        try:
            self._file.seek(offset)
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise self._trouble(error) from error

    def read(self, offset: int, out: npt.NDArray[Any]) -> None:
        left = out.data.cast("B")
        self._file.seek(offset)
        while left:
            left = left[self._file.readinto(left) :]


class TokenMatrix:
    """One template's answers: `n_columns` tokens over `n_examples` examples.

    `tokens` ascends and names the token of each column; None: column v is token v. `rest` (N,) holds
    the code of a token that is in no column; None: such a token is unknown.
    """

    def __init__(
        self,
        codes: Codes | None,  # (tokens, N); None: spilled
        shape: tuple[int, int],  # (columns, examples)
        tokens: Tokens | None = None,
        rest: Codes | None = None,
        *,
        folder: Path | str | None = None,
        panel: int = 0,
    ) -> None:
        self.codes = codes
        self.n_columns, self.n_examples = shape
        self.tokens = tokens
        self.rest = rest
        self.folder = folder
        self._panel = panel or self.n_examples  # a spilled matrix lies in panels (tokens, `panel` examples)
        self._spill = _Spill(folder) if codes is None else None

    @classmethod
    def from_codes(cls, codes: npt.ArrayLike, tokens: npt.ArrayLike | None = None) -> Self:
        """Make a matrix of codes (N, columns), an example a row."""
        rows = np.asarray(codes, dtype=np.uint16)
        ids = None if tokens is None else np.asarray(tokens, dtype=np.int64)
        return cls(np.ascontiguousarray(rows.T), (rows.shape[1], rows.shape[0]), ids)

    @property
    def spilled(self) -> bool:
        """Whether the codes are on disk."""
        return self.codes is None

    def put(self, start: int, rows: Codes) -> None:
        """Write the codes (examples, columns) of the panel that begins at example `start`."""
        if self._spill is not None:
            self._spill.write(2 * start * self.n_columns, rows.T)

    def panels(self) -> Iterator[tuple[int, Codes]]:
        """Yield the codes in panels (columns, examples), each with its first example."""
        if self._spill is None:
            assert self.codes is not None  # noqa: S101 - for the type checker
            yield 0, self.codes
            return
        for start in range(0, self.n_examples, self._panel):
            panel = np.empty((self.n_columns, min(self._panel, self.n_examples - start)), dtype=np.uint16)
            self._spill.read(2 * start * self.n_columns, panel)
            yield start, panel

    def rows(self, columns: Tokens) -> Codes:
        """Return the codes (k, N) of some columns."""
        if self.codes is not None:
            rows: Codes = self.codes[columns]
            return rows
        assert self._spill is not None  # noqa: S101 - for the type checker
        rows = np.empty((len(columns), self.n_examples), dtype=np.uint16)
        for start in range(0, self.n_examples, self._panel):
            stop = min(start + self._panel, self.n_examples)
            for row, column in zip(rows, columns.tolist(), strict=True):
                self._spill.read(2 * (start * self.n_columns + column * (stop - start)), row[start:stop])
        return rows

    def token(self, column: int) -> int:
        """Return the token of a column."""
        return column if self.tokens is None else int(self.tokens[column])

    def codes_of(self, tokens: npt.ArrayLike) -> Codes:
        """Return the codes (N, k) of some tokens, in any order."""
        wanted = np.asarray(tokens, dtype=np.int64)
        known = np.ones(len(wanted), dtype=np.bool_)
        columns = wanted
        if self.tokens is not None:
            columns = np.searchsorted(self.tokens, wanted).clip(max=self.n_columns - 1)
            known = self.tokens[columns] == wanted
        elif len(wanted) and not 0 <= wanted.min() <= wanted.max() < self.n_columns:
            raise InputError(f"token {wanted.max()} is not among the {self.n_columns} of this model")
        codes = np.ascontiguousarray(self.rows(columns).T)
        if not known.all():
            if self.rest is None:
                raise BadAnswer(f"token {wanted[~known][0]} was not asked for")
            codes[:, ~known] = self.rest[:, None]
        return codes

    def close(self) -> None:
        """Give back the disk space."""
        if self._spill is not None:
            self._spill.close()


class Matrices(list[TokenMatrix]):
    """The matrices of a pool, one a template; leaving the `with` block gives back their disk space."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give back the disk space."""
        for matrix in self:
            matrix.close()


def collect(
    answers: Iterable[MaskDistribution],
    n_examples: int,
    n_templates: int,
    *,
    max_memory: int = MAX_MEMORY,
    folder: Path | str | None = None,
) -> Matrices:
    """Read answer k as that of example `k // n_templates` under template `k % n_templates`.

    Return a matrix a template. Those that don't fit into `max_memory` bytes are kept in `folder`
    (by default the system's place for temporary files). Partial answers are few tokens each, and
    are held until the last has come.
    """
    stream = _counted(answers, n_examples * n_templates)
    first = next(stream, None)
    if first is None:
        return Matrices(TokenMatrix.from_codes(np.empty((0, 0))) for _ in range(n_templates))
    stream = _alike(chain([first], stream), first)
    if first.tokens is None:
        return _collect_whole(stream, (len(first.codes), n_examples), n_templates, max_memory, folder)
    held = list(stream)
    matrices = Matrices()
    for template in range(n_templates):
        rows = held[template::n_templates]
        tokens = np.unique(np.concatenate([answer.tokens for answer in rows if answer.tokens is not None]))
        narrow = (MaskDistribution(codes=answer.at(tokens)) for answer in rows)
        matrices += _collect_whole(narrow, (len(tokens), n_examples), 1, max_memory // n_templates, folder)
        matrices[-1].tokens = tokens
        if all(answer.rest is not None for answer in rows):
            matrices[-1].rest = np.array([answer.rest for answer in rows], dtype=np.uint16)
    return matrices


def _counted(answers: Iterable[MaskDistribution], expected: int) -> Iterator[MaskDistribution]:
    """Yield the answers, and see that they are as many as expected."""
    count = 0
    for count, answer in enumerate(answers, start=1):
        if count > expected:
            break
        yield answer
    if count != expected:
        raise BadAnswer(f"{expected} answers were asked for, and {'more' if count > expected else count} came")


def _alike(answers: Iterable[MaskDistribution], first: MaskDistribution) -> Iterator[MaskDistribution]:
    """Yield the answers, and see that all are whole if the first is, or none."""
    size = len(first.codes) if first.tokens is None else None
    for answer in answers:
        if (len(answer.codes) if answer.tokens is None else None) != size:
            raise BadAnswer("some answers show the whole vocabulary, and others another part of it or another one")
        yield answer


def _collect_whole(
    answers: Iterator[MaskDistribution],
    shape: tuple[int, int],
    n_templates: int,
    max_memory: int,
    folder: Path | str | None,
) -> Matrices:
    n_columns, n_examples = shape
    example_bytes = 2 * n_columns * n_templates
    fits = n_examples * example_bytes <= max_memory
    panel = n_examples if fits else max(1, max_memory // example_bytes)
    buffers = [np.empty((panel, n_columns), dtype=np.uint16) for _ in range(n_templates)]  # (examples, tokens)
    spilled = Matrices() if fits else Matrices(TokenMatrix(None, shape, folder=folder, panel=panel) for _ in buffers)
    for k, answer in enumerate(answers):
        example, template = divmod(k, n_templates)
        at = example % panel
        buffers[template][at] = answer.codes
        if spilled and (at + 1 == panel or example + 1 == n_examples):
            spilled[template].put(example - at, buffers[template][: at + 1])
    if spilled:
        return spilled
    matrices = Matrices()
    while buffers:  # let go of each buffer when it is turned
        matrices.append(TokenMatrix(np.ascontiguousarray(buffers.pop(0).T), shape, folder=folder))
    return matrices


def _room(shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Return an array that begins on a cache line and lies in large pages where there are any.

    numpy asks the system for those from 4 MiB on, so what is nearly as large is rounded up. All this
    is worth a tenth of the time that `kernels.scan` takes.
    """
    size = math.prod(shape)
    room = np.empty(max(size + LINE, LARGE) if size > LARGE // 2 else size + LINE, dtype=np.uint8)
    start = -room.ctypes.data % LINE
    return room[start : start + size].reshape(shape)


class CoarseCopy:
    """A matrix again, in one byte an answer and sorted for `kernels.scan`.

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
        self._spill = _Spill(matrix.folder) if matrix.spilled else None
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
