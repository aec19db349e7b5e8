"""What one template's answers say about N examples, token by token.

Training asks again and again for the codes of a few tokens for all examples. So a `TokenMatrix`
holds one row per token, and each row all examples. Answers come the other way round, one example at
a time and all its templates together; `collect` transposes them, and never holds more than it must.
What exceeds `max_memory` goes to a temporary file (`spill`).

A provider that shows only its top k censors the rest. The matrix then has a row for each token that
appeared, and a token that is missing in an answer has the answer's code `rest`.

>>> matrix = TokenMatrix.from_codes([[0, 700, 900], [300, 100, 800]])
>>> matrix.codes_of([2, 0])
array([[900,   0],
       [800, 300]], dtype=uint16)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from pbsdk.backend import STEPS_PER_NAT, Codes, Floats, MaskDistribution, Tokens
from pbsdk.errors import BadAnswer, InputError
from pbsdk.learning.spill import Spill

__all__ = ["CHANCES", "Matrices", "TokenMatrix", "collect"]

MAX_MEMORY = 256 * 2**20
"""How many bytes the matrices of one `collect` may take in memory; more goes to disk."""

CHANCES: Floats = np.exp(np.arange(65536) / -STEPS_PER_NAT).astype(np.float32).astype(np.float64)
"""The probability that each code stands for; rounded to 24 bits, which all machines agree on."""


class TokenMatrix:
    """One template's answers: `n_columns` tokens over `n_examples` examples.

    `tokens` ascends and names the token of each column; None: column v is token v. `rest` (N,) holds
    the code of a token that is in no column; None: such a token is unknown.
    """

    def __init__(  # noqa: PLR0913 - what a matrix holds, and where
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
        self._spill = Spill(folder) if codes is None else None

    @classmethod
    def from_codes(cls, codes: npt.ArrayLike, tokens: npt.ArrayLike | None = None) -> Self:
        """Make a matrix of codes (N, columns), one row per example."""
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

    def answers(self, tokens: Tokens | None = None) -> Iterator[MaskDistribution]:
        """Yield the answers again, example by example; of some tokens, or as they are."""
        if tokens is not None:
            yield from (MaskDistribution(codes=codes, tokens=tokens) for codes in self.codes_of(tokens))
            return
        for start, panel in self.panels():
            for at, codes in enumerate(np.ascontiguousarray(panel.T), start):
                rest = None if self.rest is None else int(self.rest[at])
                yield MaskDistribution(codes=codes, tokens=self.tokens, rest=rest)

    def close(self) -> None:
        """Give back the disk space."""
        if self._spill is not None:
            self._spill.close()


class Matrices(list[TokenMatrix]):
    """The matrices of a pool, one per template; leaving the `with` block gives back their disk space."""

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

    def likeliest(self, top: int) -> Matrices:
        """Return what these answers would be if the model showed only its `top` likeliest tokens."""
        found = Matrices()
        for matrix in self:
            answers = (answer.likeliest(top) for answer in matrix.answers())
            found += collect(answers, matrix.n_examples, 1, folder=matrix.folder)
        return found


def collect(
    answers: Iterable[MaskDistribution],
    n_examples: int,
    n_templates: int,
    *,
    max_memory: int = MAX_MEMORY,
    folder: Path | str | None = None,
) -> Matrices:
    """Read answer k as that of example `k // n_templates` under template `k % n_templates`.

    Return one matrix per template. Those that don't fit into `max_memory` bytes are kept in `folder`
    (by default the system's place for temporary files). Answers of a top k are few tokens each, and
    are held until the last has come.
    """
    stream = _counted(answers, n_examples * n_templates)
    first = next(stream, None)
    if first is None:
        return Matrices(TokenMatrix.from_codes(np.empty((0, 0))) for _ in range(n_templates))
    stream = _alike(chain([first], stream), first)
    if first.rest is None:
        matrices = _collect_whole(stream, (len(first.codes), n_examples), n_templates, max_memory, folder)
        for matrix in matrices:
            matrix.tokens = first.tokens
        return matrices
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
    """Yield the answers, and see that all are whole, or for the same chosen tokens, or of a top k, as the first is."""
    for answer in answers:
        if (answer.tokens is None, answer.rest is None) != (first.tokens is None, first.rest is None) or (
            first.tokens is None and len(answer.codes) != len(first.codes)
        ):
            raise BadAnswer("some answers show the whole vocabulary, and others another part of it or another one")
        if first.rest is None and not _same(answer.tokens, first.tokens):
            raise BadAnswer("some answers show tokens that others were not asked for")
        yield answer


def _same(one: Tokens | None, other: Tokens | None) -> bool:
    return one is other or (one is not None and other is not None and np.array_equal(one, other))


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
