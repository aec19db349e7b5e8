"""Docstrings hold doctests as plain lines, which Markdown would take for quotations; here they become code."""

from __future__ import annotations

from typing import Any

import griffe


class Doctests(griffe.Extension):
    """Puts a fence around the doctests of every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of whatever was loaded."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """Return the text with each run of doctest lines, up to an empty line, in a fence."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if not inside and line.lstrip().startswith(">>> "):
            inside, indent = True, line[: len(line) - len(line.lstrip())]
            lines += ["", f"{indent}```pycon"]
        elif inside and not line.strip():
            inside = False
            lines.append(f"{indent}```")
        lines.append(line)
    return "\n".join([*lines, f"{indent}```"] if inside else lines)
