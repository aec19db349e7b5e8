"""Three ways to run a model over rows of tokens; each returns the logits only at the places asked for.

- `alone`: one row at a time, through the model as its authors wrote it, logits everywhere. It can't be
  wrong, and it is what the other two are measured against when a model is loaded.
- `padded`: rows side by side. A hook on the model's body keeps the hidden states of the asked
  places and drops the rest, so that the vocabulary head, whichever the architecture has, runs only
  there. Trees of tokens bring their own positions and their own sight, and may go on from beginnings
  that were read before.
- `packed`: for BERT-shaped encoders on a CPU. All rows stand in one long row without padding; only
  attention looks at the borders. The last layer needs every token's keys and values, but everything
  else of it only at the mask.

A way is used only if it gives the same numbers as `alone` on a short text; if not, the next one is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from pbsdk_backends._local.prefixes import Beginnings, Borrowed, States
from pbsdk_backends._local.sharing import Beginning, Row, chain

__all__ = ["Forward", "Way", "agree", "position_offset"]

Way = Callable[[Sequence[Row]], Tensor]

NEAR = 0.03
"""How far two probabilities of one token may lie apart where the numbers depend on the batch."""
LEAST_ROOM = 2**28
"""Bytes that may be kept for beginnings, whatever the model's size."""
SHARE_OF_WEIGHTS = 4
"""Large models may keep this part of their weights' size for beginnings."""
READ_TOGETHER = 1024
"""Tokens of beginnings that are read side by side at most, unless one alone has more."""


def position_offset(model: Any) -> int:
    """Return how many positions come before a text's first: models like RoBERTa reserve some for padding."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            return int(module.padding_idx) + 1
    return 0


def agree(ours: Tensor, plain: Tensor, *, exact: bool) -> bool:
    """Say whether two sets of logits mean the same distributions, as far as their precision goes."""
    if ours.shape != plain.shape:
        return False
    left, right = ours.float().log_softmax(-1), plain.float().log_softmax(-1)
    if exact:
        seen = torch.isfinite(right)
        return bool(torch.equal(torch.isfinite(left), seen) and ((left - right)[seen].abs() < 1e-4).all())
    return bool(((left.exp() - right.exp()).abs() < NEAR).all())


class Forward:
    """A model on a device, and the ways to run it.

    What causal rows go on from is kept in `beginnings`: at most 256 MiB, or a quarter of the weights' size if that is more.
    The beginnings of one batch are held besides, while it runs.
    """

    def __init__(self, model: Any, *, causal: bool) -> None:
        self.model = model
        self.causal = causal
        self.device: torch.device = model.device
        self._offset = position_offset(model)
        self._extra = {"use_cache": False} if causal else {}
        weights = sum(weight.nbytes for weight in model.parameters())
        self.beginnings = Beginnings(max(LEAST_ROOM, weights // SHARE_OF_WEIGHTS))

    def alone(self, rows: Sequence[Row]) -> Tensor:
        """Run rows one at a time, with logits everywhere."""
        answers = []
        for row in rows:
            logits = self.model(input_ids=self._tensor([row.ids]), **self._extra).logits[0]  # (T, V)
            answers.append(logits[row.asks])
        return torch.cat(answers)

    def padded(self, rows: Sequence[Row]) -> Tensor:
        """Run rows side by side, with logits at the asked places."""
        where = [(index, ask) for index, row in enumerate(rows) for ask in row.asks]
        index = self._tensor(where)

        def at_asks(_module: Any, _args: Any, output: Any) -> Any:
            kept = output[0][index[:, 0], index[:, 1]].unsqueeze(0)  # (B, T, H) -> (1, asks, H)
            if isinstance(output, tuple):
                return (kept, *output[1:])
            output.last_hidden_state = kept
            return output

        extra: dict[str, Any] = self._extra
        if any(row.after for row in rows):
            held = self._hold(row.after for row in rows)
            cache = Borrowed([held[row.after.ids] if row.after else None for row in rows])
            extra = {"past_key_values": cache, "use_cache": True}
        hook = self.model.base_model.register_forward_hook(at_asks)
        try:
            logits = self.model(**self._side_by_side(rows), **extra).logits
        finally:
            hook.remove()
        return logits[0]  # type: ignore[no-any-return]

    def _hold(self, wanted: Iterable[Beginning | None]) -> dict[tuple[int, ...], States]:
        """Return the states of beginnings; those not kept are read, the shorter ones first."""
        held: dict[tuple[int, ...], States] = {}
        missing: dict[tuple[int, ...], Beginning] = {}
        for one in wanted:
            beginning = one
            while beginning and beginning.ids not in held and beginning.ids not in missing:
                states = self.beginnings.get(beginning.ids)
                if states:
                    held[beginning.ids] = states
                    break
                missing[beginning.ids] = beginning
                beginning = beginning.after
        while missing:
            ready = [one for one in missing.values() if one.after is None or one.after.ids in held]
            ready = sorted(ready, key=lambda one: len(one.ids))
            together = ready[: max(1, READ_TOGETHER // len(ready[-1].ids))]
            for one, states in zip(together, self._read(together, held), strict=True):
                held[one.ids] = states
                self.beginnings.put(one.ids, states)
                del missing[one.ids]
        return held

    def _read(self, beginnings: Sequence[Beginning], held: dict[tuple[int, ...], States]) -> list[States]:
        """Read beginnings side by side."""
        rows = [chain(beginning) for beginning in beginnings]
        cache = Borrowed([held[row.after.ids] if row.after else None for row in rows], collect=True)
        self.model.base_model(**self._side_by_side(rows), past_key_values=cache, use_cache=True)
        return [cache.taken(index, len(row.ids)) for index, row in enumerate(rows)]

    def _side_by_side(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """Return tokens (B, T), the attention mask, and for trees the positions."""
        width = max(len(row.ids) for row in rows)
        ids = self._tensor([row.ids + [row.ids[0]] * (width - len(row.ids)) for row in rows])
        if rows[0].sight is None:
            mask = [[1] * len(row.ids) + [0] * (width - len(row.ids)) for row in rows]
            return {"input_ids": ids, "attention_mask": self._tensor(mask)}
        start = max(row.start for row in rows)
        seen = np.zeros((len(rows), 1, width, start + width), dtype=np.bool_)
        depths = np.zeros((len(rows), width), dtype=np.int64)
        for index, row in enumerate(rows):
            seen[index, 0, : len(row.ids), : row.start] = True
            seen[index, 0, : len(row.ids), start : start + len(row.ids)] = row.sight
            depths[index, : len(row.ids)] = row.depths or 0
        # Additive and finite: every attention implementation handles it, and padding that sees nothing gives no NaN.
        dtype = self.model.dtype
        hidden = torch.zeros(seen.shape, dtype=dtype).masked_fill_(torch.from_numpy(~seen), torch.finfo(dtype).min)
        positions = torch.from_numpy(depths).to(self.device)
        return {"input_ids": ids, "attention_mask": hidden.to(self.device), "position_ids": positions}

    def can_pack(self) -> bool:
        """Say whether the model's body is built like BERT's, whose layers `packed` knows."""
        body = self.model.base_model
        layers = getattr(getattr(body, "encoder", None), "layer", None)
        if self.causal or self.device.type != "cpu" or not layers or not hasattr(body, "embeddings"):
            return False
        places = "attention.self.query attention.self.key attention.self.value attention.output.dense"
        places += " attention.output.LayerNorm intermediate.dense output.dense output.LayerNorm"
        names = dict(layers[0].named_modules())
        return all(place in names for place in places.split())

    def packed(self, rows: Sequence[Row]) -> Tensor:
        """Run rows as one long row without padding, with logits at the asked places."""
        lengths = [len(row.ids) for row in rows]
        starts = [0, *np.cumsum(lengths).tolist()]
        asks = self._tensor([start + ask for start, row in zip(starts, rows, strict=False) for ask in row.asks])
        per_row = [len(row.asks) for row in rows]
        ids = self._tensor([[token for row in rows for token in row.ids]])  # (1, T)
        positions = torch.cat([torch.arange(length) for length in lengths]) + self._offset

        def encode(hidden: Tensor, *_args: Any, **_kwargs: Any) -> BaseModelOutputWithPastAndCrossAttentions:
            hidden = hidden[0]  # (T, H)
            *layers, last = encoder.layer
            for layer in layers:
                hidden = _layer(layer, hidden, hidden, lengths, lengths)
            hidden = _layer(last, hidden, hidden[asks], lengths, per_row)
            return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=hidden.unsqueeze(0))

        encoder = self.model.base_model.encoder
        with _stand_in(encoder, encode):
            outputs = self.model(
                input_ids=ids, position_ids=positions.unsqueeze(0), token_type_ids=torch.zeros_like(ids)
            )
        return outputs.logits[0]  # type: ignore[no-any-return]

    def _tensor(self, values: Any) -> Tensor:
        return torch.tensor(values, device=self.device)


@contextmanager
def _stand_in(module: Any, forward: Callable[..., Any]) -> Iterator[None]:
    """Let `forward` do a module's work within a block."""
    module.forward = forward  # an instance's attribute hides the class's method
    try:
        yield
    finally:
        del module.forward


def _layer(layer: Any, hidden: Tensor, asked: Tensor, lengths: Sequence[int], asks: Sequence[int]) -> Tensor:
    """Return the layer's output for the `asked` states, which look at all of `hidden` in their own row."""
    this = layer.attention.self
    heads = this.num_attention_heads
    query, key, value = this.query(asked), this.key(hidden), this.value(hidden)
    seen = torch.empty_like(query)
    start = begin = 0
    for length, count in zip(lengths, asks, strict=True):
        stop, end = start + length, begin + count
        context = functional.scaled_dot_product_attention(
            _heads(query[begin:end], heads), _heads(key[start:stop], heads), _heads(value[start:stop], heads)
        )
        _heads(seen[begin:end], heads).copy_(context)
        start, begin = stop, end
    after = layer.attention.output
    middle = after.LayerNorm(after.dense(seen).add_(asked))
    wide = layer.intermediate.intermediate_act_fn(layer.intermediate.dense(middle))
    return layer.output.LayerNorm(layer.output.dense(wide).add_(middle))  # type: ignore[no-any-return]


def _heads(states: Tensor, heads: int) -> Tensor:
    """Show states (T, H) as one text of many heads (1, heads, T, H / heads)."""
    return states.view(1, len(states), heads, -1).transpose(1, 2)
