"""Reading a ledger in a PostgreSQL database, as it was at one moment, beside those who write it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pbsdk.ledger.address import Address
from pbsdk.ledger.postgres_connection import PostgresConnection
from pbsdk.ledger.postgres_schema import check_schema

__all__ = ["DatabaseView"]


class DatabaseView:
    """A snapshot of a ledger in a database. It is a transaction that is never committed, so whatever it does leaves nothing."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._derived: set[str] = set()
        self._con = PostgresConnection(address)
        try:
            self._con.run("BEGIN ISOLATION LEVEL REPEATABLE READ")
            check_schema(self._con, address)
        except BaseException:
            self._con.close()
            raise

    def select(self, statement: str, *values: int | str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a statement, a few at a time."""
        return self._con.stream(statement, values)

    def derive(self, name: str, query: str) -> None:
        """Keep a query's rows in a temporary table."""
        if name not in self._derived:
            self._con.run(f"CREATE TEMP TABLE {name} ON COMMIT DROP AS {query}; ANALYZE {name}")
            self._derived.add(name)

    def size(self) -> int:
        """Return how many bytes the tables take on the server's disk."""
        ((size,),) = self._con.run(
            "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace"  # noqa: S608 - letters, digits and _
            f" WHERE relkind = 'r' AND nspname = '{self._address.schema}'"
        )
        return int(size)

    def damage(self) -> str:
        """Nothing: whether the server's files are sound is for the server to say."""
        return ""

    def oddity(self) -> str:
        """Nothing: every table is pbsdk's own, and compared already."""
        return ""

    def close(self) -> None:
        """End the transaction and the connection."""
        self._con.close()
