"""From a name to a model in memory: a model's own code is never run, and every failure says why.

A name is a folder, or a model on the Hugging Face hub; a hub model is first downloaded into a folder of
the hub's own cache, and from there on both are treated alike. Only safetensors files are read, since
other formats can run code, and code that comes with a model is never run. A checkpoint that lacks
the weights of its language-model head would be completed with random numbers, so it is refused.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from safetensors import SafetensorError
from transformers.utils import logging as transformers_logging

from pbsdk.backend import digest
from pbsdk.errors import InputError, ModelUnusable
from pbsdk_backends._local.precision import apply
from pbsdk_backends._local.remembered import recall, remember
from pbsdk_backends._local.threads import count_cores, settle_threads
from pbsdk_backends._tokens.chat import Frame, frame_of

__all__ = [
    "Loaded",
    "Source",
    "choose_device",
    "digest_files",
    "load",
    "locate",
    "quiet",
    "weight_files",
]

Kind = Literal["masked", "causal"]

DIGITS = 64
"""Of a SHA-256 in hexadecimal."""
SETTLED = 2 * 10**9
"""Nanoseconds after which another change would bring another time stamp, however coarse the clock."""
SMALL_FILES = ["*.json", "*.txt", "*.model"]
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
NOT_THE_MODEL = {"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache"}
"""Settings of a config that don't change answers."""


@dataclass(frozen=True)
class Source:
    """A folder that holds a model, and how to name it."""

    folder: Path
    name: str
    revision: str | None = None


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


def locate(model: str, revision: str | None, *, local_files_only: bool = False) -> Source:
    """Find the model's folder, downloading it from the hub if necessary."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        if revision is not None:
            raise InputError("only hub models have revisions; for a folder, leave revision out")
        return Source(folder, folder.resolve().name)
    try:
        with quiet():
            place = Path(_fetch(model, revision, SMALL_FILES, local_files_only))
            names = _shards(place) if (place / INDEX).is_file() else [WEIGHTS]
            place = Path(_fetch(model, revision, SMALL_FILES + names, local_files_only))
    except HFValidationError as error:
        raise ModelUnusable(
            f"{model!r} is neither a folder here nor a hub model's name; check the path, or write 'owner/name'"
        ) from error
    except GatedRepoError as error:
        raise ModelUnusable(
            f"{model!r} is gated; accept its terms on the hub and log in with `hf auth login`"
        ) from error
    except RevisionNotFoundError as error:
        raise ModelUnusable(f"{model!r} has no revision {revision!r}; check it on the model's hub page") from error
    except RepositoryNotFoundError as error:
        raise ModelUnusable(
            f"the hub has no model {model!r}, or it is private; check the name, or log in with `hf auth login`"
        ) from error
    except (OSError, HfHubHTTPError) as error:
        raise ModelUnusable(
            f"{model!r} is not in the local cache and the hub can't be reached; check the name and the connection "
            "(and that HF_HUB_OFFLINE is not set), or download the model elsewhere and give its folder: "
            'connect("local", model="path/to/folder")'
        ) from error
    return Source(place, model, place.name)


def _fetch(model: str, revision: str | None, patterns: Sequence[str], local_files_only: bool) -> str:
    return snapshot_download(
        model,
        revision=revision,
        allow_patterns=list(patterns),
        ignore_patterns=["*/*"],
        local_files_only=local_files_only,
    )


def _shards(folder: Path) -> list[str]:
    index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    return sorted({str(name) for name in index["weight_map"].values()})


def weight_files(source: Source) -> list[Path]:
    """Return the safetensors files that hold the model."""
    try:
        names = _shards(source.folder) if (source.folder / INDEX).is_file() else [WEIGHTS]
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ModelUnusable(f"{INDEX} of {source.name!r} can't be read; download the model again") from error
    missing = [name for name in names if not (source.folder / name).is_file()]
    if missing:
        others = sorted(path.name for path in source.folder.glob("*.bin"))
        cure = (
            f"it has only {', '.join(others)}, a format that can run code: convert it once where you trust it, with "
            "transformers' save_pretrained, or pick a revision that has safetensors"
            if others
            else "download the model again, or give the folder that holds it"
        )
        raise ModelUnusable(f"{source.name!r} has no {missing[0]}; {cure}")
    return [source.folder / name for name in names]


def digest_files(paths: Sequence[Path], *, again: bool = False) -> str:
    """Return the SHA-256 of the files' contents, in order.

    A file is read once, and `again` if that is wanted: what was found is remembered by the file's size and time stamps.
    """
    known = recall("digests")
    state = hashlib.sha256()
    for path in paths:
        place, told = str(path.resolve()), path.stat()
        stamp = [told.st_size, told.st_mtime_ns, told.st_ctime_ns, told.st_ino]
        match known.get(place):
            case [*before, str(content)] if before == stamp and len(content) == DIGITS and not again:
                pass
            case _:
                with path.open("rb") as file:
                    content = hashlib.file_digest(file, "sha256").hexdigest()
                if time.time_ns() - max(stamp[1:3]) > SETTLED:
                    remember("digests", place, [*stamp, content])
        state.update(bytes.fromhex(content))
    return state.hexdigest()


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
    model, precision = apply(model.eval(), tokenizer, device, offers, digest)
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
