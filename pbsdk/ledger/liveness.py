"""Who is alive: one locked file per open ledger.

A query that was sent by a process that has since died will never be answered; one that was sent by
a live process will be. The operating system knows which: each session holds a lock on a file of
its own for as long as it lives, and the kernel drops the lock however the process ends. Whoever
can take the lock knows that the session is dead.

A forked child inherits its parent's open files, and with them the lock. It closes its copy at
once, so that a parent's death shows, and opens a session of its own when it uses the ledger.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pbsdk.ledger import forking

__all__ = ["Session", "folder_lock"]


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Lock a folder while it is created, checked or entered."""
    with forking.in_use():  # a child would inherit the lock, and keep it
        file = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)


class Session(forking.Forkable):
    """One opening of a run folder, alive until it is closed or its process ends.

    Create it under `folder_lock`: between creating a file and locking it, a sweep would consider it dead.
    """

    def __init__(self, folder: Path) -> None:
        self._file: int | None = None
        self.name = secrets.token_hex(6)
        self.process = os.getpid()
        self.path = _path(folder, self.name)
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        for path in self.path.parent.glob("*.lock"):
            self.alive(folder, path.stem)
        self._file = os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        forking.watch(self)

    def close(self) -> None:
        """End the session; in a forked child, only the child's copy of it."""
        if self._file is None:
            return
        if os.getpid() == self.process:
            with suppress(OSError):  # unlocked, it is a dead session's: the next one removes it
                self.path.unlink()
        self.drop()

    def drop(self) -> None:
        """Close the file without ending the session elsewhere."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def after_fork(self) -> None:
        """Leave the session to the parent."""
        self.drop()

    def __del__(self) -> None:
        self.drop()

    @staticmethod
    def alive(folder: Path, name: str) -> bool:
        """Return whether a session's process is still alive; a dead session's file is removed."""
        if not re.fullmatch("[0-9a-f]{12}", name):  # never a path of somebody's choosing
            return False
        path = _path(folder, name)
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            path.unlink(missing_ok=True)
            return False
        finally:
            os.close(file)


def _path(folder: Path, name: str) -> Path:
    return folder / "sessions" / f"{name}.lock"
