"""How many bits a model calculates with: exactly, as fast as this machine can, or as named.

`exact` is float32. `fast` is what is fastest here, of float32, bfloat16 and, on a CPU, int8. What a processor has is not
read off its name but measured, in half a second, with a product of matrices, and remembered by torch's version and the processor's name. Since
int8 is borne by only some of a model's layers, its gain is reckoned for the model at hand before it is chosen. Causal models go without it: an
input has one scale for its whole batch, so a text's numbers would depend on what is read beside it, and nothing could be read once for all.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pbsdk.errors import InputError, ModelUnusable
from pbsdk_backends._local.int8 import SENTENCES, Int8Linear, bearing, share_of, swap_in
from pbsdk_backends._local.remembered import recall, remember

__all__ = ["apply", "choose_dtype", "choose_precision", "offers_to", "speeds"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
NAMES = ("exact", "fast", *DTYPES, "int8")
WORTH_IT = 1.2
"""What isn't this many times as fast as float32 isn't worth other numbers."""
ROWS, INPUTS, OUTPUTS = 512, 768, 3072
TURNS = 5


def choose_precision(precision: str, device: torch.device) -> dict[str, float]:
    """Return the precisions that are to be weighed, and how many times as fast as float32 each is."""
    if precision not in NAMES:
        known = "', '".join(NAMES)
        raise InputError(f"precision={precision!r} is not known; use '{known}'")
    if precision == "int8" and device.type != "cpu":
        raise InputError("precision='int8' runs on a CPU alone; use 'bfloat16' or 'fast', or device='cpu'")
    if precision == "fast":
        return {name: speed for name, speed in speeds(device).items() if speed >= WORTH_IT} | {"float32": 1.0}
    return {"float32" if precision == "exact" else precision: 1.0}


def choose_dtype(precision: str, device: torch.device) -> torch.dtype:
    """Return the floats to calculate with, for a model that can't do with eight bits."""
    if precision == "int8":
        raise InputError("precision='int8' is for models that answer at a mask; use 'fast' or 'bfloat16'")
    offers = {name: speed for name, speed in choose_precision(precision, device).items() if name in DTYPES}
    return DTYPES[max(offers, key=lambda name: offers[name])]


def offers_to(kind: str, offers: Mapping[str, float]) -> Mapping[str, float]:
    """Return the precisions to weigh for a model of this kind: a causal one goes without int8, unless it was named."""
    if kind != "causal" or len(offers) == 1:
        return offers
    return {name: speed for name, speed in offers.items() if name != "int8"}


def apply(
    model: Any, tokenizer: Any, device: torch.device, offers: Mapping[str, float], digest: str
) -> tuple[Any, str]:
    """Put a model on its device in the fastest precision on offer; return it with the precision's name.

    Args:
        model: The model as it was loaded, ready to answer.
        tokenizer: Its tokenizer.
        device: Where it is to run.
        offers: What `choose_precision` returned.
        digest: What tells the weights apart.
    """
    names: list[str] = []
    if "int8" in offers:
        model = model.float()
        names = _bearing(model, tokenizer, digest)
        if len(offers) == 1 and not names:
            raise ModelUnusable("none of the model's layers bears eight bits; use precision='bfloat16' or 'fast'")
        share = share_of(model, names)
        offers = {**offers, "int8": 1 / (1 - share + share / offers["int8"])}
    chosen = max(offers, key=lambda name: offers[name])
    if chosen == "int8":
        swap_in(model, names)
        return model, "int8"
    model = model.to(device=device, dtype=DTYPES[chosen])
    if chosen != "float32" and device.type == "cpu":
        _attend_plainly(model)
    return model, chosen


def speeds(device: torch.device) -> dict[str, float]:
    """Return how many times as fast as float32 each precision is here, measured now or earlier."""
    on_cpu = f"{device.type}, {_processor()}, one thread"
    place = torch.cuda.get_device_name(device) if device.type == "cuda" else on_cpu
    key = f"torch {torch.__version__}, {place}"
    known = recall("speeds").get(key)
    if not _usable(known):
        known = _measure(device)
        remember("speeds", key, known)
    return {str(name): float(speed) for name, speed in known.items()}  # type: ignore[attr-defined]


def _usable(known: object) -> bool:
    return isinstance(known, dict) and all(
        name in NAMES and isinstance(speed, float) and 0 < speed < float("inf") for name, speed in known.items()
    )


def _measure(device: torch.device) -> dict[str, float]:
    """Time a layer in each precision, by turns; the best turn of each counts.

    On a CPU it is the processor time of one thread: other work on the machine would stretch any other.
    """
    layer = nn.Linear(INPUTS, OUTPUTS)
    states = torch.randn(ROWS, INPUTS)
    ways: dict[str, Callable[[], Tensor]] = {}
    with torch.inference_mode():
        for name in ("float32", "bfloat16"):
            ways[name] = _product(layer, states, device, DTYPES[name])
        if device.type == "cpu":
            with suppress(RuntimeError, AttributeError):  # a torch without these kernels
                quantised = Int8Linear(layer)
                ways["int8"] = lambda: quantised(states)
        best: dict[str, float] = {}
        with _one_thread():
            for _ in range(TURNS):
                for name, way in ways.items():
                    try:
                        spent = _timed(way, device)
                    except RuntimeError:  # this device doesn't have it
                        continue
                    best[name] = min(spent, best.get(name, spent))
    return {name: best["float32"] / spent for name, spent in best.items() if name != "float32"}


def _product(layer: nn.Linear, states: Tensor, device: torch.device, dtype: torch.dtype) -> Callable[[], Tensor]:
    weight, given = layer.weight.to(device, dtype), states.to(device, dtype)
    return lambda: nn.functional.linear(given, weight)


def _timed(way: Callable[[], Tensor], device: torch.device) -> float:
    if device.type == "cpu":
        start = time.thread_time()
        way()
        return time.thread_time() - start
    start = time.perf_counter()
    way().sum().item()  # an item waits for the device
    return time.perf_counter() - start


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    told = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(told, platform.processor())


def _bearing(model: Any, tokenizer: Any, digest: str) -> list[str]:
    """Return the layers that bear eight bits, found out now or earlier."""
    known = recall("int8").get(digest)
    present = dict(model.named_modules())
    if isinstance(known, list) and all(type(present.get(name)) is nn.Linear for name in known):
        return known
    names = bearing(model, [tokenizer(sentence)["input_ids"] for sentence in SENTENCES])
    remember("int8", digest, names)
    return names


def _attend_plainly(model: Any) -> None:
    """Let a CPU multiply out its attention: in sixteen bits that is over twice as fast as torch's fused way."""
    try:
        model.set_attn_implementation("eager")
    except (ValueError, AttributeError, NotImplementedError):
        return
