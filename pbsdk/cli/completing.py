"""What the shell can complete: names of backends and of pools, and files beside the latter.

Nothing that takes long is imported: somebody waits for every key.
"""

from __future__ import annotations

from pathlib import Path

from pbsdk.plugins import PluginGroup

__all__ = ["backend_names", "pools"]


def backend_names(incomplete: str) -> list[str]:
    """Return the registered backends."""
    return [name for name in PluginGroup("pbsdk.backends", "backend").names() if name.startswith(incomplete)]


def pools(incomplete: str) -> list[str]:
    """Return the pools that ship, and JSON files and folders on the way to one."""
    from pbsdk.templates import pool_names

    folder = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    files = [
        f"{entry}/" if entry.is_dir() else str(entry) for entry in found if entry.is_dir() or entry.suffix == ".json"
    ]
    return [name for name in (*pool_names(), *files) if name.startswith(incomplete)]
