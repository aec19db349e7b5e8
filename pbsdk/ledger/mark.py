"""The mark: how far a run folder's record had come, kept outside SQLite's files.

What was written last is in SQLite's log, `cache.db-wal`. Without its log a database is still a whole one, but shorter, and after
a kill perhaps empty: a loss that nothing in it shows. So the number and the hash of the last record are also in a
file of their own, one short line that is overwritten after every transaction. A record that doesn't reach its mark has lost its end.

The line is written after the commit. A process that is killed in between leaves a mark that is behind, never one that
is ahead, so a kill alone raises no alarm. Only a session's opening is synced, record first: later lines reach
the disk when the operating system writes them, as the log does.

What the mark can't show is a loss of the last transaction between commit and mark, or one of which it was part: a
folder that was deleted or put back as a whole. A certificate that was kept elsewhere can.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from pbsdk.errors import LedgerCorrupted
from pbsdk.ledger import forking

__all__ = ["Mark", "Place", "check_mark", "read_mark"]

_NAME = "mark"
_TRIES = 5


class Place(NamedTuple):
    """A record's number and hash."""

    records: int
    head: str

    def line(self) -> bytes:
        """Return what the file says, in the same length for every place.

        >>> Place(12, "ab").line().decode().split()
        ['00000000000000000012', 'ab', 'eaa9860e']
        """
        text = f"{self.records:020d} {self.head}"
        return f"{text} {crc32(text.encode()):08x}\n".encode()


class Mark(forking.Forkable):
    """A run folder's mark, open for writing."""

    _file: int | None = None

    def __init__(self, folder: Path) -> None:
        self._path = folder / _NAME
        self._turn = threading.Lock()  # what is written after a close might be in another file of the same number
        forking.watch(self)

    def open(self) -> None:
        """Open the file, or make it. The folder is certainly the right one now, and may be another's later."""
        with self._turn:
            if self._file is None:
                self._file = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)

    def write(self, place: Place) -> None:
        """Say how far the record has come; a mark that can't be written stays behind, which is no reason to stop."""
        with self._turn, suppress(OSError):
            if self._file is not None:
                os.pwrite(self._file, place.line(), 0)

    def sync(self) -> None:
        """Have the disk keep the mark, and the folder's list of files with it."""
        with self._turn:
            if self._file is None:
                return
            os.fsync(self._file)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def close(self) -> None:
        """Close the file."""
        with self._turn:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def after_fork(self) -> None:
        """Leave the file to the parent, and any lock to its threads."""
        self._turn = threading.Lock()
        self.close()

    def __del__(self) -> None:
        if self._file is not None:  # an interrupt may have left it without a lock
            os.close(self._file)


def read_mark(folder: Path) -> Place | None:
    """Return what a folder's mark says, or None if there is none that can be read. Read it before the record."""
    for _ in range(_TRIES):
        try:
            line = (folder / _NAME).read_bytes()
        except OSError:
            return None
        with suppress(ValueError):  # too short, no number, or not ASCII
            number, head, _ = line.decode("ascii").split()
            place = Place(int(number), head)
            if line == place.line():
                return place
        time.sleep(0.001)  # somebody may be writing it
    return None


def check_mark(folder: Path, mark: Place | None, records: int, head: str | None) -> None:
    """Raise `LedgerCorrupted` if a folder has lost records.

    Args:
        folder: for the message.
        mark: what `read_mark` returned before the record was read.
        records: how many records there are.
        head: the hash of the record with the mark's number, if there is one.
    """
    if mark is None:
        return
    if records < mark.records:
        raise LedgerCorrupted(
            f"{folder} has lost the end of its record: {mark.records:,} records were written, and {records:,} are here. "
            "SQLite's log (cache.db-wal) was deleted or not copied with it, the folder was copied while it was in use, or the machine lost "
            f"power. Put the log back, or use another run folder; to go on with what is left, remove {folder / _NAME}: what was lost then "
            "counts as never asked"
        )
    if head not in {None, mark.head}:
        raise LedgerCorrupted(
            f"{folder} holds another record than the one that was written: record {mark.records:,} has a different hash than "
            f"{folder / _NAME} says. Its files are of different runs, or of different times; put back those that belong together"
        )
