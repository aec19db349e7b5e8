"""One connection to a PostgreSQL server, with the manners of sqlite3: question marks for values, rows as tuples.

pg8000 speaks the protocol. It is plain Python and under a permissive licence, so it installs wherever pbsdk does.
A statement with values is prepared once and then takes one journey to the server; many rows are inserted in one. Whatever
breaks off in the midst of an exchange, an interrupt too, closes the connection: what would be read next
belongs to another question. The server then undoes what was not committed.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
import ssl
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from pbsdk.errors import LedgerCorrupted, LedgerError, MissingExtra
from pbsdk.ledger.address import Address

__all__ = ["ConnectionLost", "PostgresConnection", "Result"]

_PATIENCE = 60
"""Seconds to wait for another's transaction."""
_IDLE = 600
"""Seconds after which the server ends a transaction in which nothing happens: its client may have gone without a word."""
_FETCHED = 200
"""Rows fetched at once: with whole answers, some tens of megabytes."""
_INSERTED = 64
"""Rows inserted at once."""
_VALUES = re.compile(r"(?<=VALUES )\([^()]*\)")
_TEXT, _NUMERIC = 25, 1700
"""PostgreSQL's numbers for types."""
_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 60_000))
"""A server that has gone without a word is noticed after a minute."""

_UNREACHED = "can't be reached"
_LOST = ("08", "57P")
"""What the codes of errors begin with after which a new connection may do: the server was stopped, or the connection was."""
_CURES = {
    "28": "check the user and the password (PGPASSWORD)",
    "3D000": "create the database first, with `createdb`",
    "42501": "ask whoever runs the server for the right to create a schema there, or to use this one",
    "53100": "the server's disk is full: free some space there and run again; what was stored is kept",
    "53300": "the server has no connection left; close some, or raise its max_connections",
    "55P03": "another process has been writing to it for too long; try again later",
    "25006": "the server only reads (a standby?); give the address of one that writes",
}
_FOREIGN = ("42P01", "42703", "42883", "3F000")
"""A table, column, function or schema that isn't there."""


class ConnectionLost(LedgerError):
    """The connection broke off; whatever transaction was open has come to nothing, unless its end was being asked for."""


class Result:
    """The rows of a statement."""

    def __init__(self, rows: Iterable[Sequence[Any]] | None) -> None:
        self._rows = iter([tuple(row) for row in rows or ()])

    def fetchone(self) -> Any:
        """Return the next row, or None."""
        return next(self._rows, None)

    def fetchall(self) -> list[Any]:
        """Return all rows that are left."""
        return list(self._rows)

    def __iter__(self) -> Iterator[Any]:
        return self._rows


class PostgresConnection:
    """An open connection; where statements are executed outside a transaction, each is one of its own."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._pg8000 = _driver()
        self._prepared: dict[str, Any] = {}
        self._names = itertools.count(1)
        self._socket: socket.socket | None = None
        try:
            self._socket = _connected(address)
            self._con = self._pg8000.Connection(
                address.user,
                database=address.database,
                password=address.secret() or "",  # where none is asked for, it is not sent
                sock=self._socket,
                ssl_context=False,  # it is encrypted already, if it is to be
                application_name="pbsdk",
            )
            self._socket.settimeout(None)
        except (OSError, ValueError, self._pg8000.Error) as error:
            self.drop()
            raise self._translated(error, _UNREACHED) from error
        self._con.register_in_adapter(_TEXT, _unescaped)
        self._con.register_in_adapter(_NUMERIC, int)
        ((self._backend, self._since),) = self.run(
            f"SET search_path TO {address.schema}, pg_temp; SET lock_timeout = '{_PATIENCE}s'; SET client_min_messages = error;"  # noqa: S608 - letters, digits and _
            f" SET idle_in_transaction_session_timeout = '{_IDLE}s'; SET tcp_keepalives_idle = 15; SET tcp_keepalives_interval = 5;"
            " SET tcp_keepalives_count = 3; SET synchronous_commit = on; SET quote_all_identifiers = off;"
            " SELECT pid, backend_start::text FROM pg_stat_activity WHERE pid = pg_backend_pid()"
        )

    @property
    def lost(self) -> bool:
        """Whether the connection can't be used any more."""
        return self._socket is None

    def run(self, statements: str) -> Result:
        """Execute statements without values, all in one journey; what the last query returned comes back."""
        return self._exchange(lambda: self._con.run(statements))

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Result:
        """Execute a statement with question marks for values."""
        return self._exchange(lambda: self._prepare(statement).run(**_named(values)))

    def executemany(self, statement: str, values: Iterable[Sequence[Any]], /) -> None:
        """Execute a statement for each row of values; rows to be inserted travel together."""
        rows = [tuple(row) for row in values]
        form = _VALUES.search(statement)
        size = _INSERTED if form and statement.startswith("INSERT") else 1
        for at in range(0, len(rows), size):
            some = rows[at : at + size]
            many = _VALUES.sub(", ".join([form[0]] * len(some)), statement) if form and size > 1 else statement
            self.execute(many, [value for row in some for value in row])

    def stream(self, statement: str, values: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query a few at a time, within a transaction."""
        name = f"pbsdk_{next(self._names)}"
        self.run(f"DECLARE {name} NO SCROLL CURSOR FOR {_filled(statement, values)}")
        while rows := self.run(f"FETCH {_FETCHED} FROM {name}").fetchall():
            yield from rows
        self.run(f"CLOSE {name}")

    def _prepare(self, statement: str) -> Any:
        if statement not in self._prepared:
            parts = statement.split("?")
            named = "".join(f"{part}:v{at}" for at, part in enumerate(parts[:-1])) + parts[-1]
            self._prepared[statement] = self._con.prepare(named)
        return self._prepared[statement]

    def _exchange(self, exchange: Any) -> Result:
        if self.lost:
            raise ConnectionLost(f"the connection to {self.address} was lost")
        try:
            return Result(exchange())
        except self._pg8000.DatabaseError as error:
            raise self._translated(error, "can't be used") from error
        except BaseException as error:
            self.drop()  # in the midst of an exchange
            if isinstance(error, OSError | self._pg8000.Error):
                raise self._translated(error, "can't be used") from error
            raise

    def again(self) -> PostgresConnection:
        """Return a new connection in the place of this lost one, which the server may not have missed yet: it might still hold a lock."""
        new = PostgresConnection(self.address)
        new.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"  # noqa: S608 - the server's own values
            f" WHERE pid = {self._backend} AND backend_start = '{self._since}'"
        )
        return new

    def rollback(self) -> None:
        """Undo the open transaction, if the connection is still there to say so."""
        with suppress(LedgerError):
            self.run("ROLLBACK")

    def close(self) -> None:
        """Take leave of the server."""
        if self._socket is not None:
            with suppress(OSError, self._pg8000.Error):
                self._con.close()
            self.drop()

    def forget(self) -> None:
        """Leave the connection to the parent, in a forked child."""
        self.drop()
        self._backend, self._since = 0, "epoch"

    def drop(self) -> None:
        """Close the connection without a word: in a forked child the server would take it for its parent's."""
        if self._socket is not None:
            number = self._socket.detach()  # close() would leave it open for the file object on top of it
            if number >= 0:
                os.close(number)
            self._socket, self._con, self._prepared = None, None, {}

    def __del__(self) -> None:
        if getattr(self, "_socket", None) is not None:
            self.drop()

    def _translated(self, error: Exception, what: str) -> LedgerError:
        """Return an error that says what is wrong with the database, and the cure; never a password."""
        told = error.args[0] if error.args and isinstance(error.args[0], dict) else {}
        code, said = str(told.get("C", "")), str(told.get("M", "")) or str(error.__cause__ or error)
        if code.startswith(_LOST) or not code:
            self.drop()
            if what == _UNREACHED:
                cure = (
                    "check the password (PGPASSWORD)"
                    if "password" in said
                    else "is the server running, and is the address right?"
                )
                return ConnectionLost(f"{self.address} {what}: {said}; {cure}")
            return ConnectionLost(
                f"the connection to {self.address} was lost ({said}); run again: what was stored is kept"
            )
        if code.startswith(_FOREIGN):
            return LedgerCorrupted(
                f"{self.address} holds tables that are not a pbsdk ledger's ({said}); use another schema"
            )
        cure = next((cure for begin, cure in _CURES.items() if code.startswith(begin)), "")
        return LedgerError(f"{self.address} {what}: {said}{f'; {cure}' if cure else ''}")


def _driver() -> Any:
    """Return the module that speaks the protocol, or say which package it is in."""
    try:
        import pg8000.native as pg8000  # noqa: PLC0415 - only who uses a database needs it
    except ImportError as error:
        raise MissingExtra(f'a ledger in PostgreSQL needs pg8000 ({error}); pip install "pbsdk[postgres]"') from error
    return pg8000


def _connected(address: Address) -> socket.socket:
    """Return a socket to the server, encrypted if the address or the server wants it."""
    if address.host.startswith("/"):
        plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            plain.settimeout(address.connect_timeout)
            plain.connect(f"{address.host}/.s.PGSQL.{address.port}")
        except BaseException:
            plain.close()
            raise
        return plain
    plain = socket.create_connection((address.host, address.port), address.connect_timeout)
    try:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if hasattr(socket, name):
                plain.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        return plain if address.sslmode == "disable" else _encrypted(plain, address)
    except BaseException:
        plain.close()
        raise


def _encrypted(plain: socket.socket, address: Address) -> socket.socket:
    plain.sendall((8).to_bytes(4, "big") + (80877103).to_bytes(4, "big"))  # the protocol's request for encryption
    if plain.recv(1) != b"S":
        if address.sslmode == "prefer":
            return plain
        raise OSError(f"the server doesn't encrypt, and the address says sslmode={address.sslmode}")
    context = ssl.create_default_context(cafile=address.sslrootcert or None)
    if address.sslmode != "verify-full":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(plain, server_hostname=address.host)


def _named(values: Sequence[Any]) -> dict[str, Any]:
    return {f"v{at}": _escaped(value) if isinstance(value, str) else value for at, value in enumerate(values)}


def _filled(statement: str, values: Sequence[Any]) -> str:
    """Write values into a statement: a cursor's takes none."""
    parts = statement.split("?")
    quoted = [str(value) if isinstance(value, int) else _quoted(_escaped(value)) for value in values]
    return "".join(itertools.chain.from_iterable(zip(parts, [*quoted, ""], strict=True)))


def _quoted(text: str) -> str:
    doubled = text.replace("\\", "\\\\").replace("'", "''")
    return f" E'{doubled}'"


def _escaped(text: str) -> str:
    r"""Return a text without the one character that PostgreSQL can't store.

    >>> _unescaped(_escaped("a\0b\1")) == "a\0b\1"
    True
    """
    return text.replace("\x01", "\x01\x01").replace("\0", "\x01\x02") if "\0" in text or "\x01" in text else str(text)


def _unescaped(text: str) -> str:
    return (
        re.sub("\x01([\x01\x02])", lambda found: "\x01" if found[1] == "\x01" else "\0", text)
        if "\x01" in text
        else text
    )
