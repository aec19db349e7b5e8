"""How a forger would change a ledger: behind the triggers' back, and with the schema as it was."""

import sqlite3
from contextlib import closing, contextmanager
from pathlib import Path


@contextmanager
def unguarded(con):
    """Take away the triggers that keep records as they are, and put them back."""
    triggers = con.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'records'")
    kept = triggers.fetchall()
    for name, _ in kept:
        con.execute(f"DROP TRIGGER {name}")
    yield con
    for _, statement in kept:
        con.execute(statement)


def edit(run, *statements):
    """Execute statements, each with its values, in a ledger's database."""
    if not isinstance(run, Path):
        edit_postgres(run, *statements)
        return
    con = sqlite3.connect(run / "cache.db")
    con.execute("PRAGMA synchronous = OFF")
    with unguarded(con):
        for statement, *values in statements:
            con.execute(statement, values)
    con.commit()
    con.close()


def edit_postgres(address, *statements):
    """Do the same as a superuser of the server, for whom triggers needn't fire."""
    from pbsdk.ledger.address import Address
    from pbsdk.ledger.postgres_connection import PostgresConnection

    with closing(PostgresConnection(Address.parse(str(address)))) as con:
        con.run("SET session_replication_role = replica")
        for statement, *values in statements:
            con.execute(statement, values)
