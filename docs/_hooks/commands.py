"""The command line's page: where it says so, every command is described from the command line's own help.

The text comes from the same objects that parse a user's arguments, when the site is built, and so is never out of date.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from pbsdk.cli import app

MARKER = "<!-- every command -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the commands where the marker stands."""
    if MARKER not in markdown:
        return markdown
    return markdown.replace(MARKER, "\n".join(_described(get_command(app), "pbsdk", 2)))


def _described(command: Any, name: str, level: int) -> Iterator[str]:
    """Yield a command's section, and those of its own commands."""
    context = command.make_context(name, [], resilient_parsing=True)
    usage = " ".join(command.collect_usage_pieces(context))
    yield from (f"{'#' * level} {name}", "", inspect.cleandoc(command.help or ""), "", f"`{name} {usage}`", "")
    for title in ("argument", "option"):
        given = [one.get_help_record(context) for one in command.params if one.param_type_name == title]
        rows = [
            f"| `{names.replace('|', '/')}`{{ .names }} | {text.replace('|', '/')} |"
            for names, text in filter(None, given)
        ]
        if rows:
            yield from (f"| {title.capitalize()} | |", "|---|---|", *rows, "")
    for inner in sorted(getattr(command, "commands", {})):
        yield from _described(command.commands[inner], f"{name} {inner}", max(level, 3))
