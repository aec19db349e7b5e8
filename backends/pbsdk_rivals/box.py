"""The white box: a local model run from inside, with every pass paid for.

What a black box gives is a distribution at the mask. Here a model takes embeddings and prompts for its layers too, shows
hidden states, and lets gradients through; masked and causal ones alike. Each row that runs spends a pass that was charged before
(`pbsdk.metering.passes`), so nothing runs that the ledger doesn't have.

A hook on the model's body keeps the hidden states at the asked places and drops the rest, so the vocabulary head, whichever an
architecture has, runs only there. In a causal model without gradients, a soft prompt that all rows begin with is read once for all of them;
each row still counts as a pass.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pbsdk.backend import MaskedLMBackend, MaskedQuery
from pbsdk.errors import InputError, ModelUnusable
from pbsdk.metering.passes import PassMeter

__all__ = ["Row", "SoftPrompt", "WhiteBox", "padded_batches"]


class _Opened(Protocol):
    """What `pbsdk.backend.Inside` gives."""

    model: Any
    tokenizer: Any
    causal: bool
    precision: str
    read: Callable[[MaskedQuery, int], Any]
    batch_tokens: int


@dataclass(frozen=True)
class Row:
    """An example as a model reads it, and the place that is asked for."""

    example: str
    ids: tuple[int, ...]
    at: int


@dataclass(frozen=True)
class SoftPrompt:
    """Vectors that stand at the beginning of every row.

    Args:
        embeddings: in place of tokens (P, H).
        layers: what is added to the hidden states before each layer but the first (L, P, H); None for nothing.
    """

    embeddings: Tensor
    layers: Tensor | None = None


class WhiteBox:
    """A local model that may be looked into.

    Args:
        backend: the model's adapter, which must have `inside`.
        meter: where passes are charged.
        room: how many tokens of the model's length to leave for a soft prompt.
    """

    def __init__(self, backend: MaskedLMBackend, meter: PassMeter, *, room: int = 0) -> None:
        opened: _Opened = backend.inside()  # type: ignore[attr-defined] # checked by Rival.check
        self.meter = meter
        self.model = opened.model
        self.tokenizer = opened.tokenizer
        self.causal = opened.causal
        self.precision = opened.precision
        self._read, self._room, self._batch_tokens = opened.read, room, opened.batch_tokens
        self._extra = {"use_cache": False} if self.causal else {}

    @property
    def width(self) -> int:
        """How many numbers a hidden state has."""
        return int(self.model.get_input_embeddings().weight.shape[1])

    @property
    def embeddings(self) -> Tensor:
        """The vectors of the vocabulary (V, H), in float32."""
        weights: Tensor = self.model.get_input_embeddings().weight.detach().float()
        return weights

    def layers(self) -> list[nn.Module]:
        """Return the model's layers in order."""
        depth = getattr(self.model.config, "num_hidden_layers", 0)
        stacks = [m for m in self.model.base_model.modules() if isinstance(m, nn.ModuleList) and len(m) == depth]
        if not stacks or len({id(layer) for layer in stacks[0]}) < depth:
            raise ModelUnusable(
                f"the layers of {self.model.config.model_type} are not a list of {depth}, so they can't be prompted one by one; choose another "
                "model, or leave this method out"
            )
        return list(stacks[0])

    def trainable(self) -> nn.Module:
        """Return a copy of the model that gradients may change."""
        if self.precision not in {"float32", "bfloat16"}:
            raise InputError(
                f"gradients need numbers that can change a little, and this model is loaded in {self.precision}; use precision='exact' or 'bfloat16'"
            )
        model: nn.Module = copy.deepcopy(self.model).float()
        for weight in model.parameters():
            weight.requires_grad_(True)
        return model

    def autocast(self) -> Any:
        """Return the context in which a trainable copy runs: in bfloat16 if the model was loaded so."""
        return torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.precision == "bfloat16")

    def row(self, query: MaskedQuery) -> Row:
        """Read a query."""
        reading = self._read(query, self._room)
        return Row(query.example, tuple(reading.ids), reading.at)

    def text_row(self, query: MaskedQuery) -> Row:
        """Read a query's text without its mask, asked at the token that stands for all of it: a masked model's first, a causal one's last."""
        row = self.row(query)
        if self.causal:
            return row
        return replace(row, ids=row.ids[: row.at] + row.ids[row.at + 1 :], at=0)

    @property
    def opening(self) -> int:
        """How many tokens the tokenizer puts before every text."""
        special = set(self.tokenizer.all_special_ids)
        ids = self.tokenizer("a")["input_ids"]
        return 1 if len(ids) > 1 and ids[0] in special else 0

    def logits(
        self,
        rows: Sequence[Row],
        *,
        model: nn.Module | None = None,
        prompt: SoftPrompt | None = None,
        places: Sequence[Sequence[int]] | None = None,
        states: bool = False,
    ) -> Tensor:
        """Run rows side by side, a pass each, and return the logits (N, V) at the places asked for.

        Args:
            rows: what runs.
            model: the model, if it is not the box's own.
            prompt: vectors before every row.
            places: the places asked for in each row, in place of the one that the row says.
            states: return the last hidden states (N, H) instead.
        """
        self.meter.spend("forward", (row.example for row in rows))
        runs: Any = self.model if model is None else model
        asked = [[row.at] for row in rows] if places is None else places
        ids, mask = self._side_by_side(rows)
        before = 0 if prompt is None else len(prompt.embeddings)
        shift = [before if before and place >= self.opening else 0 for each in asked for place in each]
        index = torch.tensor(
            [(row, place) for row, each in enumerate(asked) for place in each], device=self.model.device
        )
        index[:, 1] += torch.tensor(shift, device=index.device)
        body = runs.base_model
        with _gathered(body, index), self._prompted_layers(runs, prompt):
            if prompt is None:
                output = (body if states else runs)(input_ids=ids, attention_mask=mask, **self._extra)
            else:
                output = (body if states else runs)(**self._with_prompt(runs, ids, mask, prompt), **self._extra)
        result: Tensor = output[0][0]
        return result

    def each(self, rows: Sequence[Row], run: Callable[[list[Row]], Tensor]) -> Tensor:
        """Run rows in batches of similar length without gradients, and return one result for each in their order."""
        found: list[Tensor | None] = [None] * len(rows)
        with torch.inference_mode():
            for places in padded_batches([len(row.ids) + self._room for row in rows], self._batch_tokens):
                for place, result in zip(places, run([rows[place] for place in places]), strict=True):
                    found[place] = result
        return torch.stack([one for one in found if one is not None])

    def prompted(self, rows: Sequence[Row], prompt: SoftPrompt) -> Tensor:
        """Return the logits (N, V) after a soft prompt, without gradients; a causal model reads the prompt once."""
        if not self.causal:
            return self.each(rows, lambda batch: self.logits(batch, prompt=prompt))
        with torch.inference_mode():
            head = torch.tensor([rows[0].ids[: self.opening]], dtype=torch.long, device=self.model.device)
            given = self._with_prompt(self.model, head, torch.ones_like(head), prompt)
            with self._prompted_layers(self.model, prompt):
                cache = self.model.base_model(**given, use_cache=True).past_key_values
            return self.each(rows, lambda batch: self._after(batch, cache, self.opening + len(prompt.embeddings)))

    def _after(self, rows: list[Row], cache: Any, length: int) -> Tensor:
        """Run rows that go on from a cache."""
        self.meter.spend("forward", (row.example for row in rows))
        shorter = [replace(row, ids=row.ids[self.opening :], at=row.at - self.opening) for row in rows]
        ids, mask = self._side_by_side(shorter)
        seen = torch.cat([mask.new_ones(len(rows), length), mask], dim=1)
        index = torch.tensor([(place, row.at) for place, row in enumerate(shorter)], device=self.model.device)
        past = copy.deepcopy(cache)
        past.batch_repeat_interleave(len(rows))
        with _gathered(self.model.base_model, index):
            output = self.model(input_ids=ids, attention_mask=seen, past_key_values=past, use_cache=True)
        result: Tensor = output[0][0]
        return result

    def _side_by_side(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
        width = max(len(row.ids) for row in rows)
        ids = [[*row.ids, *[row.ids[0]] * (width - len(row.ids))] for row in rows]
        mask = [[1] * len(row.ids) + [0] * (width - len(row.ids)) for row in rows]
        return torch.tensor(ids, device=self.model.device), torch.tensor(mask, device=self.model.device)

    def _with_prompt(self, model: nn.Module, ids: Tensor, mask: Tensor, prompt: SoftPrompt) -> dict[str, Tensor]:
        vectors = model.get_input_embeddings()(ids)  # type: ignore[operator] # transformers' own
        given = prompt.embeddings.to(vectors.dtype).expand(len(ids), -1, -1)
        first, rest = vectors[:, : self.opening], vectors[:, self.opening :]
        seen = torch.cat([mask[:, : self.opening], mask.new_ones(given.shape[:2]), mask[:, self.opening :]], dim=1)
        return {"inputs_embeds": torch.cat([first, given, rest], dim=1), "attention_mask": seen}

    @contextmanager
    def _prompted_layers(self, model: nn.Module, prompt: SoftPrompt | None) -> Iterator[None]:
        """Add a prompt's vectors to the hidden states before each layer but the first."""
        if prompt is None or prompt.layers is None:
            yield
            return
        if model is not self.model:
            raise InputError("prompts for layers are for the model itself, not for a copy of it")
        start, stop = self.opening, self.opening + len(prompt.embeddings)

        def adding(vectors: Tensor) -> Callable[..., Any]:
            def add(_module: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
                hidden = args[0] if args else given["hidden_states"]
                hidden = hidden.clone()
                hidden[:, start:stop] += vectors.to(hidden.dtype)
                return ((hidden, *args[1:]), given) if args else (args, {**given, "hidden_states": hidden})

            return add

        hooks = [
            layer.register_forward_pre_hook(adding(vectors), with_kwargs=True)
            for layer, vectors in zip(self.layers()[1:], prompt.layers[1:], strict=True)
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def backward(self, loss: Tensor, rows: Sequence[Row]) -> None:
        """Let the gradients of a loss flow back through these rows."""
        self.meter.spend("backward", (row.example for row in rows))
        loss.backward()  # type: ignore[no-untyped-call] # torch's own

    def tokens(self, rows: Sequence[Row], passes: Counter[str]) -> int:
        """Return how many tokens these passes read, each example as its row says."""
        length = {row.example: len(row.ids) + self._room for row in rows}
        return sum(many * length[example] for example, many in passes.items())


@contextmanager
def _gathered(body: nn.Module, index: Tensor) -> Iterator[None]:
    """Let a model's body return only the states at these (row, place), as one long row."""

    def at_places(_module: nn.Module, _args: Any, output: Any) -> Any:
        kept = output[0][index[:, 0], index[:, 1]].unsqueeze(0)  # (B, T, H) -> (1, N, H)
        if isinstance(output, tuple):
            return (kept, *output[1:])
        output.last_hidden_state = kept
        return output

    hook = body.register_forward_hook(at_places)
    try:
        yield
    finally:
        hook.remove()


def padded_batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Yield the places of rows that run side by side, longest first: at most `budget` tokens with padding, at least one row.

    >>> list(padded_batches([3, 8, 2, 8], 16))
    [[1, 3], [0, 2]]
    """
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        if batch and (len(batch) + 1) * lengths[batch[0]] > budget:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch
