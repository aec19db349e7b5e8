"""What the shell can complete: names of backends, pools (and files beside them), data sets and methods.

Nothing slow is imported: the user is waiting at every key.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pbsdk.plugins import BACKENDS, HEADS
from pbsdk.reproduce.figures import ROWS, TITLES

__all__ = ["backend_names", "data_sets", "folders", "heads", "methods", "pools"]


def backend_names(incomplete: str) -> list[str]:
    """Return the registered backends."""
    return [name for name in BACKENDS.names() if name.startswith(incomplete)]


def heads(incomplete: str) -> list[str]:
    """Return the registered heads."""
    return [name for name in HEADS.names() if name.startswith(incomplete)]


def folders(incomplete: str) -> list[str]:
    """Return the folders that continue what was typed."""
    return [entry for entry in _entries(incomplete) if entry.endswith("/") and entry.startswith(incomplete)]


def pools(incomplete: str) -> list[str]:
    """Return the pools that come with pbsdk, and JSON files and the folders that lead to them."""
    from pbsdk.queries.pools import pool_names

    files = [entry for entry in _entries(incomplete) if entry.endswith(("/", ".json"))]
    return [name for name in (*pool_names(), *files) if name.startswith(incomplete)]


def _entries(incomplete: str) -> list[str]:
    """Return what lies in the folder that is being typed; folders end with a slash."""
    folder = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    return [f"{entry}/" if entry.is_dir() else str(entry) for entry in found]


def data_sets(incomplete: str) -> list[str]:
    """Complete the last name of a comma-separated list of the paper's data sets."""
    return _one_more(incomplete, TITLES)


def methods(incomplete: str) -> list[str]:
    """Complete the last name of a comma-separated list of the paper's methods."""
    return _one_more(incomplete, ROWS)


def _one_more(incomplete: str, names: Iterable[str]) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in names if name.startswith(last) and name not in before.split(",")]
