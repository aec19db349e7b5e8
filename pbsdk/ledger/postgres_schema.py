"""A ledger's tables in PostgreSQL: those of a run folder, and what stands there for diskcache's table and for locked files.

As in a folder, whatever reads a ledger first compares its schema with what pbsdk creates: tables, columns, keys, triggers, functions, and
that there is nothing else, such as a view, a rule, a default or a policy, which could answer the report otherwise than the verifier.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pbsdk.errors import LedgerCorrupted, LedgerError
from pbsdk.ledger.address import Address
from pbsdk.ledger.chain import SCHEMA
from pbsdk.ledger.postgres_connection import PostgresConnection

__all__ = ["STATEMENTS", "check_schema", "is_there"]

_REFUSAL = " BEGIN RAISE EXCEPTION 'records are append-only'; END "
_OWN = (
    "CREATE TABLE stored (key TEXT PRIMARY KEY, value BLOB NOT NULL)",
    "CREATE TABLE leases (session TEXT PRIMARY KEY, machine TEXT NOT NULL, beat INTEGER NOT NULL, term INTEGER NOT NULL)",
)
"""What answers are kept in; and until when a session counts as alive, in microseconds of the server's clock."""
_TABLES = tuple(
    statement.removesuffix(" WITHOUT ROWID") for statement in (*SCHEMA, *_OWN) if statement.startswith("CREATE TABLE")
)
_TYPES = {"TEXT": 'text COLLATE "C"', "INTEGER": "bigint", "BLOB": "bytea"}
_TRANSLATED = re.compile(rf"\b({'|'.join(_TYPES)})\b")

STATEMENTS = (
    *(_TRANSLATED.sub(lambda found: _TYPES[found[1]], statement) for statement in _TABLES),
    "ALTER TABLE stored ALTER value SET STORAGE EXTERNAL",  # answers hardly compress
    f"CREATE FUNCTION append_only() RETURNS trigger LANGUAGE plpgsql AS '{_REFUSAL.replace(chr(39), chr(39) * 2)}'",
    "CREATE TRIGGER records_stay BEFORE UPDATE OR DELETE OR TRUNCATE ON records FOR EACH STATEMENT EXECUTE FUNCTION append_only()",
    *(statement for statement in SCHEMA if statement.startswith("INSERT")),
)
"""What makes a ledger in a schema that is empty."""

_LISTING = """
    SELECT concat_ws(' ', 'table', relname, relkind, relpersistence, relrowsecurity) FROM pg_class WHERE relnamespace = {space}
    UNION ALL SELECT concat_ws(' ', 'column', relname, attnum, attname, format_type(atttypid, atttypmod), attnotnull, atthasdef,
        coalesce((SELECT collname FROM pg_collation WHERE pg_collation.oid = attcollation), '-'))
        FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
        WHERE relnamespace = {space} AND relkind = 'r' AND attnum > 0 AND NOT attisdropped
    UNION ALL SELECT concat_ws(' ', 'constraint', relname, pg_get_constraintdef(pg_constraint.oid))
        FROM pg_constraint JOIN pg_class ON pg_class.oid = conrelid WHERE relnamespace = {space} AND contype <> 'n'
    UNION ALL SELECT concat_ws(' ', 'trigger', relname, tgname, tgtype, tgenabled, tgfoid::regproc, tgqual IS NULL)
        FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid WHERE relnamespace = {space}
    UNION ALL SELECT concat_ws(' ', 'function', proname, prokind, (SELECT lanname FROM pg_language l WHERE l.oid = prolang), prosrc)
        FROM pg_proc WHERE pronamespace = {space}
    UNION ALL SELECT concat_ws(' ', 'rule', relname, rulename)
        FROM pg_rewrite JOIN pg_class ON pg_class.oid = ev_class WHERE relnamespace = {space}
    UNION ALL SELECT concat_ws(' ', 'policy', relname, polname)
        FROM pg_policy JOIN pg_class ON pg_class.oid = polrelid WHERE relnamespace = {space}
    UNION ALL SELECT concat_ws(' ', 'heir', inhrelid::regclass)
        FROM pg_inherits JOIN pg_class ON pg_class.oid = inhparent WHERE relnamespace = {space}"""
_STATEMENT_WISE = 2 + 8 + 16 + 32
"""How PostgreSQL notes a trigger that fires before a deletion, an update or a truncation, once for each statement."""


def _expected() -> Iterator[str]:
    """Yield what `_LISTING` returns for a ledger."""
    for statement in _TABLES:
        found = re.fullmatch(r"CREATE TABLE (\w+) \((.*)\)", " ".join(statement.split()))
        table, body = ("", "") if found is None else found.groups()
        yield f"table {table} r p f"
        yield f"table {table}_pkey i p f"
        key = re.search(r", PRIMARY KEY \(([^)]*)\)", body)
        columns = re.sub(r", PRIMARY KEY \([^)]*\)", "", body).split(", ")
        for at, (name, kind, *_) in enumerate((column.split() for column in columns), 1):
            shown, collation = {"TEXT": ("text", "C"), "INTEGER": ("bigint", "-"), "BLOB": ("bytea", "-")}[kind]
            yield f"column {table} {at} {name} {shown} t f {collation}"
        own = [column.split()[0] for column in columns if column.endswith("PRIMARY KEY") or " PRIMARY KEY" in column]
        if key or own:
            yield f"constraint {table} PRIMARY KEY ({key[1] if key else own[0]})"
    yield f"trigger records records_stay {_STATEMENT_WISE} O append_only t"
    yield f"function append_only f plpgsql {_REFUSAL}"


_EXPECTED = frozenset(_expected()) - {"table totals_pkey i p f"}  # its one row needs no key


def _listed(con: PostgresConnection, address: Address) -> set[str]:
    space = f"(SELECT oid FROM pg_namespace WHERE nspname = '{address.schema}')"  # noqa: S608 - letters, digits and _
    return {str(line) for (line,) in con.run(_LISTING.format(space=space))}


def is_there(con: PostgresConnection, address: Address) -> bool:
    """Return whether the schema holds anything at all."""
    return bool(_listed(con, address))


def check_schema(con: PostgresConnection, address: Address) -> None:
    """Raise an error unless the tables are exactly those of a ledger."""
    found = _listed(con, address)
    if not found:
        raise LedgerError(
            f"{address} holds no ledger: nothing was recorded in the schema {address.schema} of this database"
        )
    if not any(line.startswith("table records ") for line in found):
        raise LedgerError(f"{address} holds tables that are not a pbsdk ledger's (no records); use another schema")
    if odd := sorted(found ^ _EXPECTED):
        names = sorted({" ".join(line.split()[:2]) for line in odd})
        raise LedgerCorrupted(
            f"{address}: the schema has been changed: {', '.join(names)}; nothing was read. Use another one"
        )
