"""`pbsdk keys`: key pairs that sign certificates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pbsdk.cli._help import Command, Group, new_app

__all__ = ["keys"]

keys = new_app(name="keys", cls=Group)


@keys.callback()
def _about() -> None:
    """Make keys that sign certificates (`pbsdk audit certify --sign`).

    Examples:
        pbsdk keys new alice.key --name example.com/alice
        pbsdk audit certify runs/tickets signed.json --sign alice.key
    """


@keys.command(cls=Command)
def new(
    file: Annotated[
        Path,
        typer.Argument(help="Where to write the private key; the public one gets the suffix .pub.", show_default=False),
    ],
    *,
    name: Annotated[
        str | None,
        typer.Option(
            help="Whose key it is, such as example.com/alice; the file's name by default.", show_default=False
        ),
    ] = None,
) -> None:
    """Make a key pair (Ed25519) and print the public key, to be given to those who will check.

    The private key is for its owner's eyes alone: mode 0600, and never in a run folder.

    Examples:
        pbsdk keys new alice.key --name example.com/alice
    """
    from pbsdk.audit.signing import PrivateKey

    key = PrivateKey.new(name or file.stem)
    key.save(file)
    typer.echo(str(key.public))
