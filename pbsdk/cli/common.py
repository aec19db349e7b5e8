"""What several commands share: options, and printing as text or JSON."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from pbsdk.version import __version__

__all__ = ["AsJson", "main_options", "show"]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


def main_options(
    *,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options that stand before any command; `main` looks for --debug itself."""
    del debug, version


def show(text: object, data: Any, *, as_json: bool) -> None:
    """Print a result on standard output."""
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False) if as_json else str(text))
