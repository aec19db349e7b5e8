"""Who is alive among several machines: a lease for each session, in the database.

No kernel knows of processes on other machines, so a session gives a sign of life now and then: a row with the moment of the last
one, by the server's clock, and with the time after which the session counts as dead. What it had sent is then unknown and stays
spent, what it had only reserved is released. A process that comes back after that takes a new lease and goes on. Time
in which the server itself was down counts for nobody.

Of a process on the same machine the kernel does know. There a session also holds a locked file (`liveness.py`), in a folder of its user's,
and its death shows at once. The folder holds a random number: who reads the same number shares the folder, and nobody else does.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
import threading
import weakref
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import cache
from pathlib import Path

from pbsdk.errors import LedgerError
from pbsdk.ledger import forking
from pbsdk.ledger.address import Address
from pbsdk.ledger.liveness import Session, folder_lock
from pbsdk.ledger.postgres_connection import PostgresConnection

__all__ = ["Lease", "survivors"]

_NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_UP = "(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint"
_VALID = f"greatest(beat, {_UP}) + term > {_NOW}"
_BEATS = 4
"""Signs of life in the time of a lease."""


def survivors(con: PostgresConnection, sessions: AbstractSet[str]) -> AbstractSet[str]:
    """Return which sessions are alive; the leases of all others are deleted."""
    place, here = _here()
    rows = con.run(f"SELECT session, machine, {_VALID} FROM leases").fetchall()  # noqa: S608 - a constant
    alive = {
        str(name)
        for name, machine, valid in rows
        if (Session.alive(place, str(name)) if place is not None and machine == here else valid)
    }
    con.executemany("DELETE FROM leases WHERE session = ?", [(name,) for name, *_ in rows if name not in alive])
    return sessions & alive


@cache
def _here() -> tuple[Path | None, str]:
    """Return the folder of this user's sessions on this machine, and what names it; None if there can't be one."""
    folder = Path(tempfile.gettempdir()) / f"pbsdk-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if found.st_uid != os.getuid() or found.st_mode & 0o170077 != 0o040000:  # somebody else's, or open to others
            return None, ""
        with folder_lock(folder):
            name = folder / "name"
            if not name.exists():
                name.write_text(secrets.token_hex(16))
            drawn = name.read_text()
        with suppress(OSError):
            drawn += Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return None, ""
    return folder, hashlib.sha256(drawn.encode()).hexdigest()[:32]


class Lease(forking.Forkable):
    """One opening of a ledger in a database, alive as long as it gives signs of life."""

    def __init__(self, address: Address) -> None:
        self.process = os.getpid()
        self._address = address
        self._session: Session | None = None
        folder, self._machine = _here()
        if folder is not None:
            with suppress(OSError), folder_lock(folder):
                self._session = Session(folder)
        if self._session is None:
            self._machine = ""
        self.name = secrets.token_hex(6) if self._session is None else self._session.name
        self._over = threading.Event()
        self._con: PostgresConnection | None = None
        forking.watch(self)
        threading.Thread(
            target=_beat, args=(weakref.ref(self), self._over, address.lease / _BEATS), daemon=True
        ).start()

    @property
    def statement(self) -> str:
        """What gives a sign of life."""
        return (
            f"INSERT INTO leases VALUES ('{self.name}', '{self._machine}', {_NOW}, {self._address.lease * 1_000_000})"  # noqa: S608 - a number and hexadecimal digits
            " ON CONFLICT (session) DO UPDATE SET beat = excluded.beat"
        )

    @property
    def ending(self) -> str:
        """What ends the lease."""
        return f"DELETE FROM leases WHERE session = '{self.name}'"  # noqa: S608 - hexadecimal digits

    def beat(self) -> None:
        """Give a sign of life, on a connection of its own: the other may be waiting for somebody's transaction."""
        with suppress(LedgerError), forking.in_use():
            if self._session is not None:
                with suppress(OSError):
                    os.utime(self._session.path)  # what nobody touches for days is cleared away in such folders
            if self._con is None or self._con.lost:
                self._con = PostgresConnection(self._address)
            if not self._over.is_set():
                self._con.run(self.statement)

    def close(self) -> None:
        """Give no more signs of life."""
        self._over.set()
        if self._con is not None and os.getpid() == self.process:
            self._con.close()
        if self._session is not None:
            self._session.close()

    def after_fork(self) -> None:
        """Leave the session to the parent."""
        self._over = threading.Event()
        if self._con is not None:
            self._con.forget()

    def __del__(self) -> None:
        self._over.set()


def _beat(lease: weakref.ref[Lease], over: threading.Event, every: float) -> None:
    while not over.wait(every):
        here = lease()
        if here is None:
            return
        here.beat()
        del here
