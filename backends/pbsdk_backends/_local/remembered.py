"""What was found out once and holds until something changes: small JSON files in pbsdk's cache folder.

What can't be read or written is found out again, so nothing here is ever needed. A file is replaced as a whole, and of two
processes that write at once the later one wins.
"""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from platformdirs import user_cache_dir

__all__ = ["cache_folder", "recall", "remember"]

MOST_BYTES = 2**22
"""A file larger than this isn't ours, and is begun again."""
KEPT = 200
"""So many things are kept of a subject; the oldest go first."""


def cache_folder() -> Path:
    """Return where pbsdk keeps what it can recreate."""
    return Path(os.environ.get("PBSDK_CACHE") or user_cache_dir("pbsdk"))


def recall(subject: str) -> dict[str, object]:
    """Return what is known of a subject, by key."""
    file = _file(subject)
    try:
        if file.stat().st_size <= MOST_BYTES:
            known = json.loads(file.read_bytes())
            return known if isinstance(known, dict) else {}
    except (OSError, ValueError, RecursionError):
        pass
    return {}


def remember(subject: str, key: str, value: object) -> None:
    """Add what was found out, if the folder can be written."""
    known = recall(subject)
    known.pop(key, None)
    known = dict([*known.items(), (key, value)][-KEPT:])
    file = _file(subject)
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, suffix=".json", delete=False) as fresh:
            json.dump(known, fresh, indent=1)
        try:
            Path(fresh.name).replace(file)
        except OSError:
            Path(fresh.name).unlink(missing_ok=True)


def _file(subject: str) -> Path:
    return cache_folder() / f"{subject}.json"
