"""What is on disk, and whether run folders are safe there: free space, locks, and SQLite's write-ahead log."""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Folder", "Storage", "bytes_in", "compiled_loops", "run_folders", "storage_for"]

_SHARED = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "afs", "9p"}
"""File systems of other machines, where SQLite's locks can't be relied on."""


@dataclass(frozen=True)
class Folder:
    """Something on the disk that can be made again, or a run folder."""

    what: str
    path: str
    bytes: int
    note: str = ""


@dataclass(frozen=True)
class Storage:
    """Where run folders go: the kind of file system, its free space, and whether its locks work."""

    path: str
    kind: str
    free: int
    locks: bool
    problem: str = ""


def bytes_in(path: str | Path) -> int:
    """Return the bytes in a folder; linked files are counted once, where they are."""
    total = 0
    for root, _, files in os.walk(path):
        for name in files:
            with suppress(OSError):
                total += os.lstat(os.path.join(root, name)).st_size
    return total


def compiled_loops() -> list[Folder]:
    """Return the compiled loops: beside the code, or where NUMBA_CACHE_DIR says."""
    place = os.environ.get("NUMBA_CACHE_DIR")
    folder = Path(place) if place else Path(__file__).parents[1] / "learning" / "__pycache__"
    files = [file for pattern in ("*.nbi", "*.nbc") for file in folder.rglob(pattern)] if folder.is_dir() else []
    note = "" if files else "none yet: the first fit compiles them, which takes some seconds"
    return [Folder("compiled loops", str(folder), sum(file.stat().st_size for file in files), note)]


def run_folders(folder: Path) -> Iterator[Folder]:
    """Yield the run folders: the folder itself, or those up to two levels below it."""
    for pattern in ("cache.db", "*/cache.db", "*/*/cache.db"):
        for database in sorted(folder.glob(pattern)):
            run = database.parent
            try:
                from pbsdk.ledger.reader import LedgerReader

                with LedgerReader(run) as reader:
                    totals, model = reader.totals(), reader.model().name
                note = f"{totals.passes:,} {'pass' if totals.passes == 1 else 'passes'} on {model}"
            except Exception as error:  # noqa: BLE001 - a broken run is reported, and the next one is examined
                note = " ".join(str(error).split())
            yield Folder("run", str(run), bytes_in(run), note)


def storage_for(run: Path) -> Storage:
    """Try locks and SQLite's write-ahead log where run folders go."""
    place = run.absolute()
    while not place.is_dir():
        place = place.parent
    kind = _kind(place)
    try:
        free = shutil.disk_usage(place).free
        with tempfile.TemporaryDirectory(prefix=".pbsdk-doctor-", dir=place) as scratch:
            problem = _locks_problem(Path(scratch))
    except OSError as error:
        return Storage(str(place), kind, 0, locks=False, problem=f"can't be written: {error.strerror or error}")
    if not problem and kind in _SHARED:
        problem = f"{kind} is another machine's disk: its locks can't be relied on; keep run folders on a local one"
    return Storage(str(place), kind, free, locks=not problem, problem=problem)


def _locks_problem(folder: Path) -> str:
    try:
        with (folder / "lock").open("w") as one, (folder / "lock").open("w") as other:
            fcntl.flock(one, fcntl.LOCK_EX)
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pass
            else:
                return "locks don't lock here; keep run folders on another disk"
        path = folder / "test.db"
        with closing(sqlite3.connect(path, timeout=0)) as one_db, closing(sqlite3.connect(path, timeout=0)) as other_db:
            if one_db.execute("PRAGMA journal_mode = wal").fetchone()[0] != "wal":
                return "SQLite can't keep a write-ahead log here; keep run folders on another disk"
            one_db.execute("BEGIN IMMEDIATE")
            try:
                other_db.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return ""
            return "SQLite's locks don't lock here; keep run folders on another disk"
    except sqlite3.Error as error:
        return f"SQLite doesn't work here ({error}); keep run folders on another disk"


def _kind(place: Path) -> str:
    """Return the kind of file system, if the operating system says."""
    best, kind = "", "unknown"
    with suppress(OSError):
        for line in Path("/proc/self/mounts").read_text("utf-8", "replace").splitlines():
            _, mount, name, *_ = line.split(" ")
            mount = mount.replace("\\040", " ")
            if len(mount) >= len(best) and (place == Path(mount) or Path(mount) in place.parents):
                best, kind = mount, name
    return kind
