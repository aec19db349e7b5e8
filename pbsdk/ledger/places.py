"""Where a ledger is kept: a folder on this machine's disk, or a schema of a PostgreSQL database."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from pbsdk.errors import InputError
from pbsdk.ledger.address import Address
from pbsdk.ledger.folder import RunFolder
from pbsdk.ledger.folder_view import FolderView

if TYPE_CHECKING:
    from pbsdk.backend import ModelIdentity
    from pbsdk.ledger.store import Store, View

__all__ = ["Place", "fixed", "locate", "open_store", "open_view"]

Place = Path | Address
"""What every message about a ledger names."""


def locate(run: str | os.PathLike[str]) -> Place:
    """Return where a run is kept, from what a user gave."""
    if isinstance(run, Address):
        return run
    text = os.fspath(run)
    if Address.is_one(text):
        return Address.parse(text)
    if text.startswith(("postgresql:/", "postgres:/")):
        raise InputError("a database's address is given as a string; as a Path it loses one of its slashes")
    if "://" in text:
        raise InputError(
            f"a run is a folder or a postgresql:// address; not one that begins with {text.partition('://')[0]}://"
        )
    return Path(text).expanduser()


def fixed(place: Place) -> Place:
    """Return a place that means the same when the process changes its working directory."""
    return place.resolve() if isinstance(place, Path) else place


def open_store(place: Place, identity: ModelIdentity) -> Store:
    """Open a ledger for writing, or create it; one that is refused is left unchanged."""
    if isinstance(place, Path):
        return RunFolder(place, identity)
    from pbsdk.ledger.postgres import Database  # noqa: PLC0415 - only who uses a database needs it

    return Database(place, identity)


def open_view(place: Place) -> View:
    """Open a ledger for reading."""
    if isinstance(place, Path):
        return FolderView(place)
    from pbsdk.ledger.postgres_view import DatabaseView  # noqa: PLC0415 - likewise

    return DatabaseView(place)
