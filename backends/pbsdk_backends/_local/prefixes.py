"""Keys and values of beginnings: read once, seen by many rows, and kept for the calls to come.

A causal model's tokens leave in each layer a key and a value, and later tokens look at nothing else of
them. So the keys and values of a beginning stand for it. `Beginnings` keeps those that were used last: the
demonstrations of a classifier come with every batch of a stream. `Borrowed` is what the model takes for its own
cache: it puts the beginnings before the rows, layer by layer, and forgets the copies at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache

__all__ = ["Beginnings", "Borrowed", "States"]


class States(NamedTuple):
    """The keys and values of a beginning, a tensor (heads, tokens, width) each in every layer."""

    keys: list[Tensor]
    values: list[Tensor]

    @property
    def length(self) -> int:
        """How many tokens the beginning has."""
        return self.keys[0].shape[-2]

    @property
    def size(self) -> int:
        """Bytes of memory."""
        return sum(one.nbytes for one in (*self.keys, *self.values))


class Beginnings:
    """The beginnings used last, as many as fit in `room` bytes."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.size = 0
        self._kept: OrderedDict[tuple[int, ...], States] = OrderedDict()

    def get(self, ids: tuple[int, ...]) -> States | None:
        """Return what is kept for a beginning, and keep it longer."""
        if ids in self._kept:
            self._kept.move_to_end(ids)
        return self._kept.get(ids)

    def put(self, ids: tuple[int, ...], states: States) -> None:
        """Keep a beginning; the ones not used for longest go if there is no room."""
        self._kept[ids] = states
        self.size += states.size
        while self.size > self.room:
            _, oldest = self._kept.popitem(last=False)
            self.size -= oldest.size

    def lengths(self, ids: Sequence[int]) -> list[int]:
        """Return the lengths of the kept beginnings of a sequence."""
        lengths = {len(kept) for kept in self._kept}
        return [length for length in lengths if tuple(ids[:length]) in self._kept]

    def clear(self) -> None:
        """Give the memory back."""
        self._kept.clear()
        self.size = 0


class Borrowed(DynamicCache):
    """A cache that begins each row of a batch with its own beginning, padded to the longest.

    Args:
        beginnings: What each row begins with, or None.
        collect: Keep the rows' own keys and values, so that they can be `taken`.
    """

    def __init__(self, beginnings: Sequence[States | None], *, collect: bool = False) -> None:
        super().__init__()
        self.length = max((states.length for states in beginnings if states), default=0)
        self._beginnings = beginnings
        self._runs: list[tuple[slice, States | None]] = []  # rows with one beginning, next to each other
        for _, run in groupby(range(len(beginnings)), key=lambda index: id(beginnings[index])):
            first, *more = run
            self._runs.append((slice(first, first + 1 + len(more)), beginnings[first]))
        self._collected: list[tuple[Tensor, Tensor]] | None = [] if collect else None

    def get_seq_length(self, *_args: Any, **_kwargs: Any) -> int:
        """Return how many tokens the model is to believe came before."""
        return self.length

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_args: Any, **_kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Return a layer's keys and values (rows, heads, tokens, width) with the beginnings before them."""
        if self._collected is not None:
            self._collected.append((key_states, value_states))
        keys = [states.keys[layer_idx] if states else None for _, states in self._runs]
        values = [states.values[layer_idx] if states else None for _, states in self._runs]
        return self._joined(keys, key_states), self._joined(values, value_states)

    def taken(self, index: int, length: int) -> States:
        """Return the first `length` own tokens of a row, with its beginning before them."""
        before = self._beginnings[index]
        own = [[states[index, :, :length] for states in layer] for layer in self._collected or ()]
        keys, values = ([layer[part] for layer in own] for part in (0, 1))
        if before is None:
            return States([one.clone() for one in keys], [one.clone() for one in values])
        return States(
            [torch.cat(pair, dim=-2) for pair in zip(before.keys, keys, strict=True)],
            [torch.cat(pair, dim=-2) for pair in zip(before.values, values, strict=True)],
        )

    def _joined(self, before: Sequence[Tensor | None], own: Tensor) -> Tensor:
        if not self.length:
            return own
        rows, heads, tokens, width = own.shape
        joined = own.new_empty(rows, heads, self.length + tokens, width)
        joined[:, :, self.length :] = own
        for (run, _), states in zip(self._runs, before, strict=True):
            length = 0 if states is None else states.shape[-2]
            if states is not None:
                joined[run, :, :length] = states
            joined[run, :, length : self.length] = 0  # not seen, but what is no number would spread
        return joined
