"""Which rows run together, and what happens when they don't fit.

Rows are sorted by length (trees apart from plain rows, rows with one beginning together), and cut into batches by a
budget of tokens; a batch ends early where the next row would bring much padding. If memory runs out, the batch is halved and the
budget with it, and work goes on. What comes out is log-probabilities in float32, whatever
the model's own precision. Nothing here looks at a result, so a GPU is given its next batch while it runs the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor

from pbsdk.errors import BackendUnavailable
from pbsdk_backends._local.forward import Way
from pbsdk_backends._local.sharing import Row

__all__ = ["Passes", "batches"]

LITTLE_PADDING = 0.85
"""A row this long, next to its batch's longest, is no waste."""
SEEN = 8
"""So many tokens of a row's beginning count as one: they are not run, but copied and looked at."""


def batches(rows: Sequence[Row], budget: int, *, padded: bool) -> Iterator[list[Row]]:
    """Split rows into batches of at most `budget` tokens, padding included if there will be any.

    >>> rows = [Row([0] * length, [0], [0]) for length in (3, 8, 2, 8)]
    >>> [[len(row.ids) for row in batch] for batch in batches(rows, 16, padded=True)]
    [[8, 8], [3, 2]]
    """
    ordered = _ordered(rows)
    if not padded and ordered:
        total = sum(len(row.ids) for row in ordered)
        budget = max(total // -(-total // budget) + 1, len(ordered[0].ids))  # batches of one size
    batch: list[Row] = []
    used = width = start = 0
    for row in ordered:
        wide, far = max(width, len(row.ids)), max(start, row.start)
        total = (len(batch) + 1) * (wide + far // SEEN) if padded else used + len(row.ids)
        wasteful = padded and min(width, len(row.ids)) < LITTLE_PADDING * wide and used >= budget / 2
        unlike = bool(batch) and (batch[0].sight is None) != (row.sight is None)
        if batch and (total > budget or wasteful or unlike):
            yield batch
            batch, wide, far = [], len(row.ids), row.start
            total = wide + far // SEEN
        batch.append(row)
        used, width, start = total, wide, far
    if batch:
        yield batch


def _ordered(rows: Sequence[Row]) -> list[Row]:
    """Return rows by length, those with one beginning together; by turns the longest or the shortest come first."""

    def kind(row: Row) -> tuple[bool, int, tuple[int, ...]]:
        return row.sight is None, -row.start, row.after.ids if row.after else ()

    groups = groupby(sorted(rows, key=kind), key=kind)
    turns = [sorted(group, key=lambda row: -len(row.ids)) for _, group in groups]
    return [row for turn, group in enumerate(turns) for row in (group[::-1] if turn % 2 else group)]


class Passes:
    """Runs rows in one way, batch by batch."""

    def __init__(self, way: Way, *, batch_tokens: int, padded: bool) -> None:
        self.way = way
        self.batch_tokens = batch_tokens
        self._padded = padded

    def run(self, rows: Sequence[Row]) -> Iterator[tuple[list[int], Tensor]]:
        """Yield owners and their log-probabilities (asks, V), in any order."""
        waiting = list(batches(rows, self.batch_tokens, padded=self._padded))[::-1]
        while waiting:
            batch = waiting.pop()
            logits = self._try(batch)
            if logits is None:
                half = len(batch) // 2
                waiting += [batch[half:], batch[:half]]
                continue
            yield [owner for row in batch for owner in row.owners], logits.float().log_softmax(-1)

    def _try(self, batch: list[Row]) -> Tensor | None:
        """Run a batch; None if memory ran out and a smaller one may do."""
        try:
            with torch.inference_mode():
                return self.way(batch)
        except RuntimeError as error:  # torch.OutOfMemoryError is one; MPS and the CPU only say so in the message
            if not isinstance(error, torch.OutOfMemoryError) and not _tells_of_memory(error):
                raise BackendUnavailable(f"the model failed: {error}", retryable=False) from error
            if len(batch) == 1:
                raise BackendUnavailable(
                    f"out of memory for one text of {len(batch[0].ids)} tokens; lower max_length, "
                    "free memory, or choose device='cpu'"
                ) from error
        # Past the except block the failed pass's tensors are free.
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self.batch_tokens = max(self.batch_tokens // 2, 1)
        return None


def _tells_of_memory(error: RuntimeError) -> bool:
    words = str(error).lower()
    return "out of memory" in words or "can't allocate memory" in words
