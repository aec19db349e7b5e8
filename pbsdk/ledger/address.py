"""The address of a ledger in PostgreSQL: `postgresql://user@host:port/database?schema=name`.

A database can hold many ledgers, each in a schema of its own. An address carries its password, if it was given one, and
never shows it: neither when it is printed, nor in an error, a record or a report, nor when it is pickled. So whoever reads it
elsewhere needs the password from the environment variable PGPASSWORD, which is the better place for it anyway.
"""

from __future__ import annotations

import getpass
import os
import re
from dataclasses import dataclass, field, replace
from typing import Any, Self
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from pbsdk.errors import InputError

__all__ = ["Address"]

_FORM = "postgresql://user@host:5432/database?schema=name"
_SCHEMA = "pbsdk"
_MODES = ("disable", "prefer", "require", "verify-full")
_SECONDS = {"connect_timeout": (1, 3600), "lease": (1, 86400)}
"""Options that are numbers of seconds, from and to."""
_OPTIONS = {"schema", "host", "sslmode", "sslrootcert", "password", *_SECONDS}


@dataclass(frozen=True)
class Address(os.PathLike[str]):
    """Where a ledger is, and how to get there; like a path, it can be given wherever a run is asked for."""

    host: str
    """A host's name or number, or the folder of a Unix socket."""
    port: int
    user: str
    database: str
    password: str | None = field(default=None, repr=False, compare=False)
    schema: str = _SCHEMA
    sslmode: str = "prefer"
    sslrootcert: str = ""
    connect_timeout: int = 10
    lease: int = 60
    """Seconds after which a session that gives no sign of life counts as dead."""

    @staticmethod
    def is_one(run: str) -> bool:
        """Return whether this is an address rather than a folder."""
        return run.startswith(("postgresql://", "postgres://"))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an address. What isn't given comes from PGHOST, PGPORT, PGUSER, PGDATABASE and PGSSLMODE, as with other clients.

        Raises:
            InputError: it is not an address; the error doesn't show it.
        """
        try:
            parts = urlsplit(text)
            port, given = parts.port, dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
        except ValueError as error:
            raise InputError(
                f"this is not an address of a PostgreSQL database (it is not shown: it may hold a password); write {_FORM}"
            ) from error
        unknown = sorted(given.keys() - _OPTIONS)
        if unknown or parts.fragment:
            raise InputError(
                f"a ledger's address doesn't take {', '.join(unknown) or 'a # sign'}; it takes {', '.join(sorted(_OPTIONS))}: {_FORM}"
            )
        user = unquote(parts.username or "") or os.environ.get("PGUSER") or getpass.getuser()
        password = unquote(parts.password) if parts.password else given.get("password")
        found = cls(
            host=given.get("host") or unquote(parts.hostname or "") or os.environ.get("PGHOST") or "localhost",
            port=port or _number("PGPORT", os.environ.get("PGPORT") or "5432", 1, 65535),
            user=user,
            database=unquote(parts.path.removeprefix("/")) or os.environ.get("PGDATABASE") or user,
            password=password or None,
            schema=given.get("schema", _SCHEMA),
            sslmode=given.get("sslmode") or os.environ.get("PGSSLMODE") or "prefer",
            sslrootcert=given.get("sslrootcert", ""),
        )
        return replace(found, **found._checked(given))

    def _checked(self, given: dict[str, str]) -> dict[str, Any]:
        if not re.fullmatch("[a-z][a-z0-9_]{0,62}", self.schema) or self.schema.startswith("pg_"):
            raise InputError(
                f"a ledger's schema is named with small letters, digits and _, such as 'reviews'; not {self.schema!r}"
            )
        if self.sslmode not in _MODES:
            raise InputError(f"sslmode is one of {', '.join(_MODES)}; not {self.sslmode!r}")
        return {name: _number(name, given[name], *ends) for name, ends in _SECONDS.items() if name in given}

    def secret(self) -> str | None:
        """Return the password: the address's own, or that of PGPASSWORD."""
        return self.password or os.environ.get("PGPASSWORD") or None

    def __str__(self) -> str:
        socket = self.host.startswith("/")
        host = "" if socket else f"[{self.host}]" if ":" in self.host else quote(self.host)
        standard = Address(self.host, self.port, self.user, self.database)
        shown: dict[str, Any] = {"host": self.host} if socket else {}
        for name in ("schema", "sslmode", "sslrootcert", "connect_timeout", "lease"):
            if getattr(self, name) != getattr(standard, name):
                shown[name] = getattr(self, name)
        query = f"?{urlencode(shown, safe='/')}" if shown else ""
        return f"postgresql://{quote(self.user, safe='')}@{host}:{self.port}/{quote(self.database, safe='')}{query}"

    def __fspath__(self) -> str:
        return str(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return Address.parse, (str(self),)


def _number(name: str, text: str, least: int, most: int) -> int:
    if not text.isdecimal() or len(text) > 6 or not least <= int(text) <= most:
        raise InputError(f"{name} is a whole number from {least} to {most}; not {text!r}")
    return int(text)
