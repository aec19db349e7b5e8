"""Standard input: a table that another program hands on, kept in a temporary file while it is read.

What it is, is seen by its beginning: Parquet and Excel have their marks, JSON its brackets, and everything else is a text table.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pbsdk.errors import InputError

__all__ = ["STANDARD_INPUT", "standard_input"]

STANDARD_INPUT = "-"
"""What stands for it where a file's name is asked for."""

_MARKS = ((b"PAR1", ".parquet"), (b"PK\x03\x04", ".xlsx"), (b"{", ".jsonl"), (b"[", ".jsonl"))


@contextmanager
def standard_input() -> Iterator[Path]:
    """Yield a file with everything that standard input holds."""
    with tempfile.TemporaryDirectory(prefix="pbsdk-") as folder:
        kept = Path(folder) / "kept"
        with kept.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        with kept.open("rb") as file:
            start = file.read(64).removeprefix(b"\xef\xbb\xbf").lstrip()
        if not start:
            raise InputError("standard input is empty; pipe a table into it, or give a file")
        suffix = next((suffix for mark, suffix in _MARKS if start.startswith(mark)), ".csv")
        yield kept.rename(kept.with_name(f"standard input{suffix}"))
