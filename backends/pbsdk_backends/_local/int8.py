"""Linear layers in eight bits, through torch's own kernels, where a model bears it.

A layer's weights get one scale a channel, once. Its input gets one scale for the whole batch, each time it runs
(`torch.ops.quantized.linear_dynamic`). A few huge activations, as many models have them at a text's first token, spoil that
scale for all other tokens. So some plain sentences are run first, and a layer whose output would change by more than
`MOST_CHANGE` of its length keeps its precision.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Int8Linear", "bearing", "share_of", "swap_in"]

MOST_CHANGE = 0.05
"""How much of its length a layer's output may change by, on average over the tokens."""
SENTENCES = (
    "The parcel came three days late, and nobody had called.",
    "She said that the film was slow at first, but moving in the end.",
    "Shares fell by 4.2% on Tuesday after the bank's report.",
    'How do I change my password?\nOpen the settings, then choose "Account".',
    "In 1969 two people walked on the moon for the first time. It was all over the news",
)


class Int8Linear(nn.Module):
    """A linear layer whose weights are eight-bit integers."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        weight = layer.weight.detach().float()
        scales = (weight.abs().amax(dim=1) / 127).clamp_min(1e-12).double()
        zeros = torch.zeros(len(scales), dtype=torch.int64)
        bias = None if layer.bias is None else layer.bias.detach().float()
        with _engine(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch plans to put other tensors in the place of these
            quantised = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
            self._packed: Any = torch.ops.quantized.linear_prepack(quantised, bias)
        adds_up: Any = getattr(torch.cpu, "_is_vnni_supported", bool)  # without overflow, in instructions made for it
        self._narrow = not adds_up()
        self.in_features, self.out_features = layer.in_features, layer.out_features

    def forward(self, states: Tensor) -> Tensor:
        """Return the layer's output, in float32."""
        answer: Tensor = torch.ops.quantized.linear_dynamic(states.float(), self._packed, reduce_range=self._narrow)
        return answer

    def drop(self) -> None:
        """Free the weights' memory."""
        self._packed = None


def bearing(model: Any, sequences: Sequence[Sequence[int]]) -> list[str]:
    """Return the names of the linear layers whose output hardly changes in eight bits."""
    changes: dict[str, list[float]] = {}
    hooks = [layer.register_forward_hook(_compare(changes.setdefault(name, []))) for name, layer in _layers(model)]
    try:
        with torch.inference_mode():
            for ids in sequences:
                model(input_ids=torch.tensor([list(ids)], device=model.device))
    finally:
        for hook in hooks:
            hook.remove()
    return sorted(name for name, values in changes.items() if values and sum(values) / len(values) <= MOST_CHANGE)


def share_of(model: Any, names: Sequence[str]) -> float:
    """Return which part of the linear layers' weights the named ones hold."""
    sizes = {name: layer.weight.numel() for name, layer in _layers(model)}
    return sum(sizes[name] for name in names) / max(sum(sizes.values()), 1)


def swap_in(model: Any, names: Sequence[str]) -> None:
    """Put eight-bit layers in the places of the named ones."""
    for name in names:
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, Int8Linear(model.get_submodule(name)))


def _compare(changes: list[float]) -> Any:
    def hook(layer: nn.Linear, given: tuple[Tensor, ...], output: Tensor) -> None:
        states, plain = given[0].flatten(0, -2), output.flatten(0, -2)
        apart = (Int8Linear(layer)(states) - plain).norm(dim=1) / plain.norm(dim=1).clamp_min(1e-12)
        changes.append(float(apart.mean()))

    return hook


def _layers(model: Any) -> Iterator[tuple[str, nn.Linear]]:
    return ((name, layer) for name, layer in model.named_modules() if type(layer) is nn.Linear)


@contextmanager
def _engine() -> Iterator[None]:
    """Pack weights for the engine that is fastest here."""
    quantized: Any = torch.backends.quantized
    before = quantized.engine
    if "onednn" in quantized.supported_engines:
        quantized.engine = "onednn"
    try:
        yield
    finally:
        quantized.engine = before
