"""The pages of the documentation, taken apart into what a test can run.

A `python` block is run, and so is a line of a `bash` block that begins with `pbsdk`. A `text` block right after is what they
print. Comments that readers don't see say what differs:

    <!-- snippets: embedded -->              the page's snippets run on the embedded model, not on the fake
    <!-- snippet: not run, REASON -->        the next block is compiled, or parsed by the command line, and no more
    <!-- snippet: exit 3 -->                 the next command ends so, and what it says stands on standard error
    <!-- output: measured -->                figures and found words may differ from the next output
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_INCLUDE = re.compile(r'^--8<-- "([^":]*)"$', re.MULTILINE)  # whole files; a part has no snippets
_PIECE = re.compile(
    r"^(?P<indent> *)```(?P<kind>\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)```|<!-- (?P<comment>.*?) -->",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    kind: str
    code: str
    note: str
    """What the comment before it says."""


def read(page: str) -> str:
    """Return a page with what it includes."""
    return _INCLUDE.sub(lambda match: (ROOT / match[1]).read_text("utf-8"), (DOCS / page).read_text("utf-8"))


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page in order."""
    found, note = [], ""
    for piece in _PIECE.finditer(read(page)):
        if piece["comment"] is not None:
            note = piece["comment"]
            continue
        found.append(Block(piece["kind"], textwrap.dedent(piece["code"]), note))
        note = ""
    return found


def runs_on(page: str) -> str:
    """Return what a page's snippets run on, unless they name it."""
    said = re.search(r"<!-- snippets: (\w+) -->", read(page))
    return said[1] if said else "fake"


def all_pages() -> list[str]:
    """Return the names of all pages."""
    return sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))
