"""Help that teaches: commands in groups, and examples as they are typed.

A command's docstring may end with the sections `Examples:` and `Exit codes:`. They are shown as written, line by
line, after everything else. In a terminal the rest is typer's panels in colour; in a pipe, a file, or with
NO_COLOR it is plain text without a frame, and FORCE_COLOR brings the colours back.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

__all__ = ["Command", "Group", "fancy", "new_app"]

_SECTIONS = ("Examples:", "Exit codes:")


def fancy() -> bool:
    """Return whether colours and frames are wanted: in a terminal, unless the environment says otherwise."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return sys.stdout.isatty() and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def _split(text: str | None) -> tuple[str | None, dict[str, list[str]]]:
    """Split a docstring from the sections at its end."""
    sections: dict[str, list[str]] = {}
    front: list[str] = []
    into = front
    for line in (text or "").splitlines():
        if line in _SECTIONS:
            into = sections.setdefault(line, [])
        else:
            into.append(line if into is front else line[4:])
    return "\n".join(front).strip() or None, sections


def _write(formatter: Any, sections: dict[str, list[str]]) -> None:
    for name, lines in sections.items():
        said = "\n".join(f"  {line}".rstrip() for line in lines).rstrip()
        formatter.write(f"\n{name}\n{said}\n")


class _Taught:
    """Help with sections at its end."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        attributes["help"], self.sections = _split(attributes.get("help"))
        super().__init__(*args, **attributes)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the usual help, then the sections."""
        super().format_help(ctx, formatter)  # type: ignore[misc] # typer's, in both that follow
        _write(formatter, self.sections)


class Command(_Taught, TyperCommand):
    """A command with examples."""


class Group(_Taught, TyperGroup):
    """A group of commands, in panels, with examples."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Show the help if no command is given, on standard output like any other result."""
        return super().parse_args(ctx, args or ([] if ctx.resilient_parsing else ["--help"]))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands under their panels' names; typer does so in a terminal only."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            panel = command.rich_help_panel if isinstance(command.rich_help_panel, str) else "Commands"
            panels.setdefault(panel, []).append((name, command.help.partition("\n")[0]))
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)


def new_app(**settings: Any) -> typer.Typer:
    """Return an application, or a group of commands, whose help has examples."""
    return typer.Typer(
        **{"cls": Group, **settings},
        pretty_exceptions_enable=False,
        pretty_exceptions_show_locals=False,  # a key may be among them
        rich_markup_mode="markdown" if fancy() else None,
    )
