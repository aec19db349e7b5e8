"""Excel files: the first sheet's rows, through openpyxl, a row of names first.

What a formula comes to is read as it was last saved. A workbook is an archive, and one that unpacks to more than `MOST` bytes is refused.
"""

from __future__ import annotations

import importlib
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from pbsdk.errors import InputError, MissingExtra

__all__ = ["MOST", "excel_rows"]

MOST = 2**30
"""How many bytes a workbook may unpack to."""


def excel_rows(path: Path) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Yield the rows of the first sheet that hold anything, each with the number that Excel shows beside it."""
    try:
        library = importlib.import_module("openpyxl")
    except ImportError as error:
        raise MissingExtra(
            f'reading {path.name} needs openpyxl; pip install "pbsdk[excel]", or save it as CSV'
        ) from error
    try:
        _refuse_large(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about styles and charts, which nobody reads here
            book = library.load_workbook(path, read_only=True, data_only=True)
    except InputError:
        raise
    except Exception as error:  # it raises whatever its parsers do
        raise InputError(f"the file {path.name} can't be read as an Excel file ({error}); save it as CSV") from error
    with closing(book):
        sheet = book.worksheets[0]
        if len(book.worksheets) > 1:
            warnings.warn(
                f"{path.name} has {len(book.worksheets)} sheets, and the first is read, {sheet.title!r}; save another as CSV to read that",
                stacklevel=2,
            )
        for number, row in enumerate(sheet.iter_rows(values_only=True), start=1):
            if any(cell is not None for cell in row):
                yield number, row


def _refuse_large(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
    if unpacked > MOST:
        raise InputError(f"the file {path.name} unpacks to {unpacked:,} bytes, more than {MOST:,}; save it as CSV")
