"""The tables of a run folder and the settings beside them, compared exactly with what pbsdk and diskcache create.

Whoever can write a run folder could put a view or a virtual table where a table belongs, and answer the report
otherwise than the verifier. So whatever reads a ledger first compares its schema, statement by statement; anything
that is missing, different or added is refused before a row is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path

from pbsdk.backend import ModelIdentity
from pbsdk.errors import LedgerCorrupted, LedgerError, LedgerMismatch
from pbsdk.ledger.chain import FORMAT, SCHEMA

__all__ = ["DISKCACHE_NAMES", "SETTINGS", "Row", "check_format", "check_schema", "is_unfinished"]

SETTINGS: dict[str, int | str] = {
    "eviction_policy": "none",
    "cull_limit": 0,
    "size_limit": 2**62,
    "statistics": 0,
    "tag_index": 0,
    "disk_min_file_size": 2**62,
    "sqlite_auto_vacuum": 0,
    "sqlite_journal_mode": "wal",
    "sqlite_mmap_size": 0,
    "sqlite_synchronous": 1,
    "sqlite_wal_autocheckpoint": 4096,
}
"""What diskcache is told, each time a folder is opened."""
DISKCACHE_NAMES = frozenset({*SETTINGS, "sqlite_cache_size", "disk_pickle_protocol", "count", "size", "hits", "misses"})
"""The names of all settings that diskcache keeps."""

_COUNTERS = (
    ("count_insert", "INSERT", "+ 1"),
    ("count_delete", "DELETE", "- 1"),
    ("size_insert", "INSERT", "+ NEW.size"),
    ("size_update", "UPDATE", "+ NEW.size - OLD.size"),
    ("size_delete", "DELETE", "- OLD.size"),
)
_TRIGGER = 'CREATE TRIGGER Settings_{} AFTER {} ON Cache FOR EACH ROW BEGIN UPDATE Settings SET value = value {} WHERE key = "{}"; END'
_DISKCACHE = (
    "CREATE TABLE Settings ( key TEXT NOT NULL UNIQUE, value)",
    """CREATE TABLE Cache ( rowid INTEGER PRIMARY KEY, key BLOB, raw INTEGER, store_time REAL, expire_time REAL, access_time REAL,
    access_count INTEGER DEFAULT 0, tag BLOB, size INTEGER DEFAULT 0, mode INTEGER DEFAULT 0, filename TEXT, value BLOB)""",
    "CREATE UNIQUE INDEX Cache_key_raw ON Cache(key, raw)",
    "CREATE INDEX Cache_expire_time ON Cache (expire_time)",
    *(_TRIGGER.format(name, event, change, name.partition("_")[0]) for name, event, change in _COUNTERS),
)
_OURS = frozenset(" ".join(statement.split()) for statement in SCHEMA if statement.startswith("CREATE"))
_THEIRS = frozenset(" ".join(statement.split()) for statement in _DISKCACHE)
_UNSPOKEN = ("index", "sqlite_autoindex_Settings_1", "Settings")
"""SQLite's own index behind UNIQUE, which has no statement."""


Row = tuple[str, str, str, str | None]
"""Type, name, table and statement, as `sqlite_master` has them."""


def _statements(rows: Iterable[Row]) -> set[str]:
    return {" ".join(str(sql).split()) for *what, sql in rows if sql is not None or tuple(what) != _UNSPOKEN}


def is_unfinished(rows: Iterable[Row]) -> bool:
    """Return whether a folder's maker died before our tables were there: they are all created at once, after diskcache's."""
    return _statements(rows) <= _THEIRS


def check_schema(rows: Iterable[Row], folder: Path) -> None:
    """Raise an error unless the tables are exactly those of a ledger."""
    listed = list(rows)
    found = _statements(listed)
    if not any(name == "records" for _, name, _, _ in listed):
        raise LedgerError(f"{folder} holds a database that is not a pbsdk ledger (no records); use another run folder")
    odd = found ^ (_OURS | _THEIRS)
    if odd:
        names = sorted(str(name) for _, name, _, sql in listed if " ".join(str(sql).split()) in odd)
        what = f"has been changed: {', '.join(names)}" if names else "lacks a table, an index or a trigger"
        raise LedgerCorrupted(f"{folder}: the schema {what}; nothing was read. Use another run folder")


def check_format(meta: Mapping[str, str], identity: ModelIdentity, folder: PathLike[str]) -> None:
    """Raise `LedgerMismatch` if the folder was written by another model or a newer pbsdk."""
    written = meta.get("format", "")
    if not written.isdecimal() or "model" not in meta:
        raise LedgerCorrupted(f"{folder} doesn't say its format or its model; use another run folder")
    if int(written) > FORMAT:
        raise LedgerMismatch(
            f"{folder} was written by a newer pbsdk (format {written}; this one knows {FORMAT}); upgrade pbsdk, "
            "or use another run folder"
        )
    try:
        there = ModelIdentity.from_json(meta["model"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LedgerCorrupted(f"{folder} doesn't say which model it belongs to; use another run folder") from error
    if there.digest != identity.digest:
        raise LedgerMismatch(
            f"{folder} holds the answers of another model ({identity.differences(there)}); give this model a run "
            "folder of its own"
        )
