"""What a model on this machine is, but for its weights: enough to plan with, without torch.

Whoever opens a model leaves its outline in pbsdk's cache folder: its identity, its vocabulary, and how it reads. A plan opens that
instead, and counts the same tokens. An outline is named by all that it follows from: the model's files by size and time
stamps, the options, and the versions of the packages. So one that no longer holds isn't found, and the model itself is opened.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pbsdk.backend import (
    Abilities,
    MaskDistribution,
    MaskedLMBackend,
    MaskedQuery,
    ModelIdentity,
    Tokens,
    Vocabulary,
    digest,
)
from pbsdk.errors import BackendUnavailable
from pbsdk_backends._local.files import digest_files, find_file, locate, settled, stamp, unpacked_place
from pbsdk_backends._local.remembered import cache_folder
from pbsdk_backends._tokens.reading import Reader

if TYPE_CHECKING:
    from pbsdk_backends._local.model import TransformersBackend

__all__ = ["Outline", "keep", "local", "smollm2"]

FORM = "1"
"""Goes up when an outline holds something else."""
USUAL: dict[str, object] = {
    "device": "auto",
    "precision": "exact",
    "threads": None,
    "batch_tokens": None,
    "max_length": None,
    "share_text": True,
    "chat": False,
}
"""The options that an outline depends on, and what they are if nobody says."""
KEPT = 8
"""So many outlines are kept, of a few megabytes each; the oldest go first."""
MOST_BYTES = 2**28


class Outline(MaskedLMBackend):
    """A model that can be planned with, and not asked."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        self.identity = ModelIdentity(told["name"], told["details"])
        self.vocabulary = Vocabulary(told["words"])
        self.abilities = Abilities(**told["abilities"])
        self.mask_token = told["mask_token"]
        self._reader = Reader.again(told["reader"])

    def fill(
        self,
        queries: Sequence[MaskedQuery],  # noqa: ARG002 - the interface's
        tokens: Tokens | None = None,  # noqa: ARG002
    ) -> list[MaskDistribution]:
        """Refuse: the weights aren't here."""
        raise BackendUnavailable("this model was opened for a plan; connect to it to ask", retryable=False)

    def count_tokens(self, query: MaskedQuery) -> int:
        """Return how many tokens the model reads of the query, exactly."""
        return len(self._reader.read(query).ids)

    def most_tokens(self, query: MaskedQuery) -> int:
        """Return how many tokens the model reads of the query."""
        return self.count_tokens(query)


def local(
    model: str = "roberta-large", *, revision: str | None = None, local_files_only: bool = False, **options: object
) -> Outline | None:
    """Return the outline of a folder or of a hub model that was opened before."""
    folder = locate(model, revision, local_files_only=local_files_only).folder
    return _recalled("local", [folder], options)


def smollm2(**options: object) -> Outline | None:
    """Return the embedded model's outline, if it was opened before."""
    file = find_file()
    return _recalled("smollm2", [file, unpacked_place(file, digest_files([file]))], options)


def keep(backend: TransformersBackend, adapter: str, places: Sequence[Path], options: Mapping[str, object]) -> None:
    """Leave an outline of a model that was opened, if the cache can be written."""
    with suppress(OSError):
        file = _file(adapter, places, {name: options[name] for name in USUAL})
        if file is None or file.exists():
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, suffix=".part", delete=False) as fresh:
            json.dump(backend.outlined(), fresh)
        Path(fresh.name).replace(file)
        for old in sorted(file.parent.iterdir(), key=lambda path: path.stat().st_mtime_ns)[:-KEPT]:
            old.unlink(missing_ok=True)


def _recalled(adapter: str, places: Sequence[Path], options: Mapping[str, object]) -> Outline | None:
    if options.get("check_weights") or not options.keys() <= {*USUAL, "check_weights"}:
        return None
    try:
        file = _file(adapter, places, {**USUAL, **{name: options[name] for name in USUAL if name in options}})
        if file is None or file.stat().st_size > MOST_BYTES:
            return None
        return Outline(json.loads(file.read_bytes()))
    except Exception:  # noqa: BLE001 - tokenizers raises bare Exception, and whatever is wrong, the model itself is opened
        return None


def _file(adapter: str, places: Sequence[Path], options: Mapping[str, object]) -> Path | None:
    """Return where an outline is kept; None if it can't be told whether it would still hold."""
    if options["precision"] == "fast":  # as fast as this machine is today
        return None
    files = sorted(
        file for place in places for file in (place.iterdir() if place.is_dir() else [place]) if file.is_file()
    )
    stamps = {str(file): stamp(file) for file in files}
    if not settled(list(stamps.values())):
        return None
    versions = [metadata.version(name) for name in ("pbsdk", "tokenizers", "torch", "transformers")]
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    named = json.dumps([FORM, adapter, dict(options), stamps, versions, seen], sort_keys=True)
    return cache_folder() / "outlines" / f"{digest(named)[:32]}.json"
