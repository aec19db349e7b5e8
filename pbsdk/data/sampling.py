"""Sampling: few-shot draws that anybody can reproduce.

LM-BFF's sampler: shuffle the rows with numpy's legacy generator, group them by label in the order in
which labels then first appear, and take the first k of each for training and the next k for
validation. With the seeds 13, 21, 42, 87 and 100 it gives the files that the literature compares on,
row for row. Larger training sets keep validation at 16 per class; full data holds out a tenth.

>>> few_shot_rows(["a", "b", "a", "b", "a", "b"], k=1, seed=13)
([1, 4], [3, 0])
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pbsdk.data.loading import LabelledTexts
from pbsdk.errors import InputError

__all__ = ["SEEDS", "FewShot", "few_shot", "few_shot_rows", "held_out", "held_out_rows"]

SEEDS = (13, 21, 42, 87, 100)
"""The seeds of LM-BFF's published draws."""

MOST = 256
_USUAL_VALIDATION = 16


@dataclass(frozen=True)
class FewShot:
    """A training set and a validation set that share no row."""

    train: LabelledTexts
    validation: LabelledTexts


def few_shot(
    data: LabelledTexts, *, k: int = 16, seed: int = 13, validation: int | None = None, fewer: bool = False
) -> FewShot:
    """Draw k texts per class for training, and others for validation; see `few_shot_rows`."""
    train, dev = few_shot_rows(data.labels, k=k, seed=seed, validation=validation, fewer=fewer)
    return FewShot(data.take(train), data.take(dev))


def few_shot_rows(
    labels: Sequence[Any], *, k: int = 16, seed: int = 13, validation: int | None = None, fewer: bool = False
) -> tuple[list[int], list[int]]:
    """Return the rows of a few-shot draw: training and validation, class by class.

    Args:
        labels: the labels of all rows, in the data set's own order.
        k: how many rows per class to train on, 1 to 256.
        seed: the seed of the shuffle.
        validation: how many rows per class to validate on; None for k, and at most 16.
        fewer: accept classes that have too few rows, and use what there is; their validation rows come first.
    """
    if not 1 <= k <= MOST:
        raise InputError(f"k is {k}; it must be 1 to {MOST}, or take the full data with held_out()")
    wanted = min(k, _USUAL_VALIDATION) if validation is None else validation
    if wanted < 0:
        raise InputError(f"validation is {wanted}; it must be 0 or more")
    train: list[int] = []
    dev: list[int] = []
    for label, rows in _shuffled_by_label(labels, seed).items():
        if len(rows) < k + wanted and not fewer:
            raise InputError(
                f"the class {label!r} has {len(rows)} rows, but {k} + {wanted} were asked for; lower k or validation, "
                "or use what there is with fewer=True"
            )
        first = min(k, max(1, len(rows) - wanted))
        train += rows[:first]
        dev += rows[first : first + wanted]
    return train, dev


def held_out(data: LabelledTexts, *, seed: int = 13, part: float = 0.1) -> FewShot:
    """Split full data into training and validation; see `held_out_rows`."""
    train, dev = held_out_rows(data.labels, seed=seed, part=part)
    return FewShot(data.take(train), data.take(dev))


def held_out_rows(labels: Sequence[Any], *, seed: int = 13, part: float = 0.1) -> tuple[list[int], list[int]]:
    """Return all rows but `part` of every class, and that part; both in the data set's own order.

    >>> held_out_rows(["a"] * 10 + ["b"] * 20, seed=13)[1]
    [1, 15, 22]
    """
    if not 0 < part < 1:
        raise InputError(f"part is {part}; it must be between 0 and 1, such as 0.1")
    dev: set[int] = set()
    for label, rows in _shuffled_by_label(labels, seed).items():
        if len(rows) < 2:
            raise InputError(f"the class {label!r} has only one row, but training and validation need one each")
        dev.update(rows[: max(1, min(round(part * len(rows)), len(rows) - 1))])
    return [row for row in range(len(labels)) if row not in dev], sorted(dev)


def _shuffled_by_label(labels: Sequence[Hashable], seed: int) -> dict[Hashable, list[int]]:
    if not len(labels):
        raise InputError("there are no labelled rows to draw from")
    rows = list(range(len(labels)))
    # The published draws were made with this legacy generator; another one would give other rows.
    np.random.RandomState(seed).shuffle(rows)
    groups: dict[Hashable, list[int]] = {}
    for row in rows:
        groups.setdefault(labels[row], []).append(row)
    return groups
