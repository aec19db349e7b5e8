"""What a ledger is kept in: what a run folder and a database have in common.

Everything above this line speaks one SQL, in which the few words that differ between SQLite and PostgreSQL don't occur, to tables
that are the same in both. A `Store` is where a ledger is written: its transactions, its answers, and who is alive. A
`View` is how it is read, as of one moment. `folder.py` and `folder_view.py` keep them in a folder on
this machine's disk, `postgres.py` and `postgres_view.py` in a database that several machines share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

__all__ = ["Connection", "Rows", "Session", "Store", "View"]

Result = TypeVar("Result")


class Rows(Protocol):
    """What a statement returned."""

    def fetchone(self) -> Any:
        """Return the next row, or None."""

    def fetchall(self) -> list[Any]:
        """Return all rows that are left."""

    def __iter__(self) -> Iterator[Any]:
        """Yield the rows."""


class Connection(Protocol):
    """Executes statements, with question marks for values, within a transaction."""

    def execute(self, statement: str, values: Sequence[Any] = ..., /) -> Rows:
        """Execute a statement."""

    def executemany(self, statement: str, values: Iterable[Sequence[Any]], /) -> Any:
        """Execute a statement once for each row of values."""


class Session(Protocol):
    """One opening of a ledger, alive until it is closed, or for as long as its process lives and can be reached."""

    name: str
    process: int

    def close(self) -> None:
        """End the session."""


class Store(Protocol):
    """An open ledger: bytes under keys, and tables beside them, written together or not at all."""

    def get(self, key: str) -> bytes | None:
        """Return the bytes under a key, within `read` or `write`."""

    def set(self, key: str, data: bytes) -> None:
        """Store bytes under a key, within `write`."""

    def transaction(self) -> AbstractContextManager[Connection]:
        """A transaction: all or nothing, exclusive among all threads, processes and machines."""

    def write(self, work: Callable[[Connection], Result]) -> Result:
        """Do work in a transaction; perhaps again, if the first transaction certainly came to nothing."""

    def read(self, work: Callable[[Connection], Result]) -> Result:
        """Do work that only reads, outside a transaction or within the thread's own."""

    def enter(self) -> Session:
        """Begin a session. It counts as alive from now on."""

    def alive(self, sessions: AbstractSet[str]) -> AbstractSet[str]:
        """Return which of these sessions are alive, within `write`."""

    def sync(self) -> None:
        """Have what was written so far survive a loss of power."""

    def close(self) -> None:
        """Leave the ledger; what was stored stays."""


class View(Protocol):
    """A ledger as it was when the view was opened; what it reads has been compared with the schema."""

    def select(self, statement: str, *values: int | str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a statement, a few at a time."""

    def derive(self, name: str, query: str) -> None:
        """Keep a query's rows under a name, until the view is closed."""

    def size(self) -> int:
        """Return how many bytes the ledger takes."""

    def damage(self) -> str:
        """Return what is wrong with the files or tables as such, or nothing."""

    def oddity(self) -> str:
        """Return what is stored beside the ledger's tables that pbsdk doesn't write, or nothing."""

    def close(self) -> None:
        """Close the view."""
