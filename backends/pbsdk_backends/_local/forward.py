"""Three ways to run a model over rows of tokens; each returns the logits only at the places asked for.

- `alone`: one row at a time, through the model as its authors wrote it, with logits everywhere. It can't be
  wrong, and the other two are compared with it when a model is loaded.
- `padded`: rows side by side. A hook on the model's body keeps the hidden states of the places asked
  for and drops the rest, so that the vocabulary head, whatever the architecture, runs only
  there. Trees of tokens bring their own positions and their own attention mask (`sight`).
- `packed`: for BERT-shaped encoders on a CPU. All rows are joined into one long row without padding; only
  attention respects their borders. The last layer needs every token's keys and values, but everything
  else in it only at the mask.

A way is used only if it gives the same numbers as `alone` on a short text; if not, the next one is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from pbsdk_backends._local.sharing import Row

__all__ = ["Forward", "Way", "agree", "position_offset"]

Way = Callable[[Sequence[Row]], Tensor]


def position_offset(model: Any) -> int:
    """Return how many positions come before a text's first: models like RoBERTa reserve some for padding."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            return int(module.padding_idx) + 1
    return 0


def agree(ours: Tensor, plain: Tensor) -> bool:
    """Say whether two sets of logits mean the same distributions, as far as their precision goes."""
    if ours.shape != plain.shape:
        return False
    left, right = ours.float().log_softmax(-1), plain.float().log_softmax(-1)
    if plain.dtype == torch.float32:
        seen = torch.isfinite(right)
        return bool(torch.equal(torch.isfinite(left), seen) and ((left - right)[seen].abs() < 1e-4).all())
    return bool(((left.exp() - right.exp()).abs() < 0.02).all())


class Forward:
    """A model on a device, and the ways to run it."""

    def __init__(self, model: Any, *, causal: bool) -> None:
        self.model = model
        self.causal = causal
        self.device: torch.device = model.device
        self._offset = position_offset(model)
        self._extra = {"use_cache": False} if causal else {}

    def alone(self, rows: Sequence[Row]) -> Tensor:
        """Run rows one at a time, with logits everywhere."""
        answers = []
        for row in rows:
            logits = self.model(input_ids=self._tensor([row.ids]), **self._extra).logits[0]  # (T, V)
            answers.append(logits[row.asks])
        return torch.cat(answers)

    def padded(self, rows: Sequence[Row]) -> Tensor:
        """Run rows side by side, with logits at the asked places."""
        width = max(len(row.ids) for row in rows)
        ids = self._tensor([row.ids + [row.ids[0]] * (width - len(row.ids)) for row in rows])  # (B, T)
        where = [(index, ask) for index, row in enumerate(rows) for ask in row.asks]
        index = self._tensor(where)

        def at_asks(_module: Any, _args: Any, output: Any) -> Any:
            kept = output[0][index[:, 0], index[:, 1]].unsqueeze(0)  # (B, T, H) -> (1, asks, H)
            if isinstance(output, tuple):
                return (kept, *output[1:])
            output.last_hidden_state = kept
            return output

        hook = self.model.base_model.register_forward_hook(at_asks)
        try:
            logits = self.model(input_ids=ids, **self._sight(rows, width), **self._extra).logits
        finally:
            hook.remove()
        return logits[0]  # type: ignore[no-any-return]

    def _sight(self, rows: Sequence[Row], width: int) -> dict[str, Tensor]:
        """Return the attention mask, and for trees the positions."""
        if rows[0].sight is None:
            mask = [[1] * len(row.ids) + [0] * (width - len(row.ids)) for row in rows]
            return {"attention_mask": self._tensor(mask)}
        seen = np.zeros((len(rows), 1, width, width), dtype=np.bool_)
        depths = np.zeros((len(rows), width), dtype=np.int64)
        for index, row in enumerate(rows):
            seen[index, 0, : len(row.ids), : len(row.ids)] = row.sight
            depths[index, : len(row.ids)] = row.depths or 0
        # Additive and finite: every attention implementation handles it, and padding that sees nothing gives no NaN.
        dtype = self.model.dtype
        hidden = torch.zeros(seen.shape, dtype=dtype).masked_fill_(torch.from_numpy(~seen), torch.finfo(dtype).min)
        return {"attention_mask": hidden.to(self.device), "position_ids": torch.from_numpy(depths).to(self.device)}

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
