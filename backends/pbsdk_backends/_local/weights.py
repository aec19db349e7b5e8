"""From a folder to a model in memory: a model's own code is never run, and every failure says why.

Only safetensors files are read, since other formats can run code, and code that comes with a model is never run. A
checkpoint that lacks the weights of its language-model head would be completed with random numbers, so it is refused.
"""

from __future__ import annotations

import hashlib
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import transformers
from safetensors import SafetensorError
from transformers.utils import logging as transformers_logging

from pbsdk.backend import digest
from pbsdk.errors import InputError, ModelUnusable
from pbsdk_backends._local.files import Source, weight_files
from pbsdk_backends._local.precision import apply, offers_to
from pbsdk_backends._local.threads import count_cores, settle_threads
from pbsdk_backends._tokens.chat import Frame, frame_of

__all__ = ["Loaded", "choose_device", "describe_device", "load", "quiet"]

Kind = Literal["masked", "causal"]

NOT_THE_MODEL = {"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache"}
"""Settings of a config that don't change answers."""


@dataclass(frozen=True)
class Loaded:
    """A model in memory."""

    model: Any
    tokenizer: Any
    kind: Kind
    precision: str
    """`float32`, `bfloat16`, `float16` or `int8`."""
    config_digest: str
    tokenizer_digest: str
    frame: Frame | None = None
    """The chat template around a query, if it is to be used."""

    @property
    def reading(self) -> dict[str, str]:
        """What tells apart two ways to read a text: the tokenizer, and the chat template if it is used."""
        chat = {} if self.frame is None else {"chat": digest(*self.frame)}
        return {"tokenizer": self.tokenizer_digest, **chat}

    def chatting(self, name: str) -> Loaded:
        """Return the same model, asked by its chat template."""
        return replace(self, frame=frame_of(self.tokenizer, name, causal=self.kind == "causal"))


@contextmanager
def quiet() -> Iterator[None]:
    """Hold back transformers' progress bars, log lines and warnings."""
    bars = transformers_logging.is_progress_bar_enabled()
    level = transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    transformers_logging.set_verbosity(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def choose_device(device: str) -> torch.device:
    """Return the device asked for; `auto` is CUDA, else MPS, else the CPU."""
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if device == "auto":
        return torch.device("cuda" if cuda else "mps" if mps else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise InputError(f"device={device!r} is not a device; use 'auto', 'cpu', 'cuda', 'cuda:1' or 'mps'") from error
    absent = (chosen.type == "cuda" and not cuda) or (chosen.type == "mps" and not mps)
    if absent or (chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count()):
        raise ModelUnusable(
            f"device={device!r} is not available; use device='cpu' or 'auto', or install a torch built for it"
        )
    return chosen


def describe_device() -> dict[str, str]:
    """Say which device `auto` is, for `pbsdk doctor`."""
    chosen = choose_device("auto")
    settle_threads(None)
    cores, threads = count_cores(), torch.get_num_threads()
    said = f"{chosen.type}, torch {torch.__version__}"
    if chosen.type == "cuda":
        free, memory = torch.cuda.mem_get_info()
        said += f", {torch.cuda.get_device_name()}, {free / 1e9:.1f} of {memory / 1e9:.1f} GB free"
    usable = (
        f"{cores.usable} core{'s' if cores.usable > 1 else ''}, {min(cores.free, cores.limit):.1f} of them free now"
    )
    return {"device": said, "threads": f"{threads} for {usable}; threads= chooses another number"}


def load(source: Source, device: torch.device, offers: Mapping[str, float], digest: str) -> Loaded:
    """Load the tokenizer and the weights, check that they are complete, and give them the best precision on offer."""
    weight_files(source)
    folder = str(source.folder)
    with _explained(source), quiet():
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    if not getattr(tokenizer, "is_fast", False):
        raise ModelUnusable(
            f"{source.name!r} has no tokenizer.json, and its tokenizer can't be made into one; "
            "choose a model with a fast tokenizer"
        )
    kind = _kind(config, tokenizer, source.name)
    auto: Any = transformers.AutoModelForMaskedLM if kind == "masked" else transformers.AutoModelForCausalLM
    with _explained(source), quiet():
        model, report = auto.from_pretrained(
            folder, config=config, use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )
    if report["missing_keys"]:
        first = min(report["missing_keys"])
        raise ModelUnusable(
            f"the weights of {source.name!r} lack {first!r}"
            f" and {len(report['missing_keys']) - 1} more: it was saved without its language-model head, or for "
            "another task; choose the pre-trained model it was made from"
        )
    model, precision = apply(model.eval(), tokenizer, device, offers_to(kind, offers), digest)
    stored = json.loads((source.folder / "config.json").read_text(encoding="utf-8"))
    settings = {key: value for key, value in stored.items() if key not in NOT_THE_MODEL}
    spelling = tokenizer.backend_tokenizer.to_str() + json.dumps(tokenizer.special_tokens_map, default=str)
    return Loaded(
        model=model,
        tokenizer=tokenizer,
        kind=kind,
        precision=precision,
        config_digest=_sha256(json.dumps(settings, sort_keys=True)),
        tokenizer_digest=_sha256(spelling),
    )


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@contextmanager
def _explained(source: Source) -> Iterator[None]:
    """Turn what transformers raises into one clear error."""
    try:
        yield
    except SafetensorError as error:
        raise ModelUnusable(
            f"a weight file of {source.name!r} is broken ({error}); delete it and download the model again"
        ) from error
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError, ImportError) as error:
        reason = str(error).strip().split("\n", maxsplit=1)[0].replace(str(source.folder), source.name)
        raise ModelUnusable(
            f"{source.name!r} can't be loaded: {reason} - check that it is a complete language model for "
            "transformers, with config.json and tokenizer files; models that bring their own code are not run"
        ) from error


def _kind(config: Any, tokenizer: Any, name: str) -> Kind:
    """Say whether the model fills masks or continues texts."""
    fills = type(config) in transformers.MODEL_FOR_MASKED_LM_MAPPING
    continues = type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    decoder = bool(getattr(config, "is_decoder", False))
    if fills and not decoder:
        if tokenizer.mask_token_id is None:
            raise ModelUnusable(
                f"the tokenizer of {name!r} has no mask token; choose a masked or a causal language model"
            )
        return "masked"
    if continues:
        return "causal"
    raise ModelUnusable(
        f"{name!r} ({config.model_type}) has no language-model head that fills a mask or continues a text; "
        "choose a masked language model such as roberta-large, or a causal one"
    )
