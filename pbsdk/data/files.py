"""Tables: files of rows, read into columns.

CSV, TSV and JSON lines are read by the standard library, Parquet by whichever library is there. What
separates a file's fields is found by looking at it, and so is UTF-16, by its mark.
Nothing is repaired silently: a row with too many fields, a line that is not an object or a byte that
can't be decoded is an error that says where, and what to do about it.
"""

from __future__ import annotations

import codecs
import csv
import importlib
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pbsdk.errors import InputError, MissingExtra
from pbsdk.foreign import bounded_json

__all__ = ["SUFFIXES", "Columns", "Table", "TextFormat", "read_columns"]

Columns = Mapping[str, Sequence[Any]]
_LONGEST_NUMBER = 4000  # a column that nobody asked for may hold any number
SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")
_DELIMITERS = (",", ";", "\t", "|")


class Table(dict[str, Sequence[Any]]):
    """Columns by their names, and where each row is: the number that an editor or a spreadsheet shows beside it."""

    def __init__(self, columns: Columns, numbers: Sequence[int] = (), unit: str = "row") -> None:
        super().__init__(columns)
        self._numbers = numbers
        self._unit = unit

    def place(self, row: int) -> str:
        """Say where a row is, which is counted from 0 here."""
        return f"{self._unit} {self._numbers[row] if self._numbers else row + 1}"


@dataclass(frozen=True)
class TextFormat:
    """How a text file is formatted, where its suffix doesn't say."""

    encoding: str = "utf-8"
    delimiter: str | None = None
    """What separates fields; None to find it in the first line."""
    quotes: bool = True
    """False if quotation marks are plain characters."""
    columns: Sequence[str] | None = None
    """The columns' names, for a file without a header."""


def read_columns(path: Path, form: TextFormat) -> Table:
    """Read a file's columns by their names."""
    suffix = path.suffix.lower()
    if suffix not in (*SUFFIXES, ".xlsx") and form.delimiter is None:
        raise InputError(
            f"the file {path.name} ends in {suffix or 'no suffix'}; give one of {', '.join(SUFFIXES)}, "
            "or say what separates its fields with",
            setting="delimiter",
        )
    if suffix == ".parquet":
        return Table(_parquet(path))
    if suffix == ".xlsx":
        raise InputError(
            f"the file {path.name} is an Excel file, which can't be read here; save it as CSV, or read it with pandas and openpyxl "
            "and give load_table the frame"
        )
    content = _decoded(path, form.encoding)
    if not content.strip():
        raise InputError(f"the file {path.name} is empty")
    if form.delimiter is None and suffix in {".jsonl", ".ndjson", ".json"}:
        return _json_rows(content, path.name)
    return _delimited(
        content, path.name, form.delimiter or ("\t" if suffix == ".tsv" else _separator(content, form)), form
    )


def _separator(content: str, form: TextFormat) -> str:
    """Return what separates the fields of a table's first line: what is in it most often outside of quotation marks."""
    if form.columns is not None:
        return ","
    plain = re.sub(r'"[^"]*"', "", content.lstrip("\r\n").partition("\n")[0])
    return max(_DELIMITERS, key=plain.count)


def _decoded(path: Path, encoding: str) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"the file {path} can't be read: {error.strerror}") from error
    if encoding.lower().replace("_", "-") in {"utf-8", "utf8"}:  # a mark says which Unicode it is
        encoding = "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8"
    try:
        return data.decode("utf-8-sig" if encoding == "utf-8" else encoding)
    except LookupError as error:
        raise InputError(
            f"no encoding is called {encoding!r}; common ones are utf-8, utf-16, cp1252, latin-1"
        ) from error
    except UnicodeError as error:
        at = error.start if isinstance(error, UnicodeDecodeError) else 0
        guess = "latin-1" if encoding == "cp1252" else "cp1252"
        raise InputError(
            f"the file {path.name} is not {encoding} text: byte {at} ({data[at : at + 1].hex() or 'none'}) can't be read; "
            "name its encoding, such as",
            setting="encoding",
            value=repr(guess),
        ) from error


def _delimited(content: str, name: str, delimiter: str, form: TextFormat) -> Table:
    reader = csv.reader(
        io.StringIO(content, newline=""),
        delimiter=delimiter,
        quoting=csv.QUOTE_MINIMAL if form.quotes else csv.QUOTE_NONE,
        strict=True,
    )
    rows = _csv_rows(reader, name)
    header = list(form.columns) if form.columns is not None else next(rows)[1]
    if len(set(header)) < len(header):
        twice = next(column for column in header if header.count(column) > 1)
        raise InputError(f"the file {name} has two columns called {twice!r}; rename one")
    table: dict[str, list[str]] = {column: [] for column in header}
    lines = []
    for line, row in rows:
        lines.append(line)
        if len(row) != len(header):
            raise InputError(
                f"line {line} of {name} has {len(row)} fields, but the header has {len(header)}; quote fields that "
                f"contain {delimiter!r} or a line break, or name what separates them with",
                setting="delimiter",
            )
        for column, value in zip(header, row, strict=True):
            table[column].append(value)
    return Table(table, lines, "line")


def _csv_rows(reader: Any, name: str) -> Iterator[tuple[int, list[str]]]:
    """Yield each row that isn't empty, and the line on which it begins."""
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise InputError(
                f"the file {name} can't be read near line {reader.line_num}: {error}; double the quotation marks within "
                "a field, or, in Python, set quotes=False if they are plain characters"
            ) from error
        if row:
            yield line, row


def _json_rows(content: str, name: str) -> Table:
    if content.lstrip().startswith("["):
        rows = list(enumerate(_parsed(content, f"the file {name}"), start=1))
        where = "row"
    else:
        # Not splitlines: it also breaks at characters that JSON strings may hold.
        lines = [(number, line) for number, line in enumerate(content.split("\n"), start=1) if line.strip()]
        rows = [(number, _parsed(line, f"line {number} of {name}")) for number, line in lines]
        where = "line"
    for number, row in rows:
        if not isinstance(row, dict):
            raise InputError(
                f'{where} {number} of {name} is not an object; each must be one, such as {{"text": "...", "label": "..."}}'
            )
    keys = dict.fromkeys(key for _, row in rows for key in row)
    return Table({key: [row.get(key) for _, row in rows] for key in keys}, [number for number, _ in rows], where)


def _parsed(text: str, name: str) -> Any:
    try:
        return bounded_json(text, digits=_LONGEST_NUMBER)
    except ValueError as error:
        raise InputError(f"{name} is not JSON that can be read: {error}") from error


def _parquet(path: Path) -> Columns:
    for module, read in (("pyarrow.parquet", _by_pyarrow), ("pandas", _by_pandas)):
        try:
            library = importlib.import_module(module)
            return read(library, path)
        except ImportError:
            continue
        except (OSError, ValueError) as error:
            raise InputError(f"the file {path.name} can't be read as Parquet: {error}") from error
    raise MissingExtra(f"reading {path.name} needs a Parquet library; pip install pyarrow")


def _by_pyarrow(library: Any, path: Path) -> Columns:
    table: dict[str, list[Any]] = library.read_table(path).to_pydict()
    return table


def _by_pandas(library: Any, path: Path) -> Columns:
    frame = library.read_parquet(path)
    return {str(column): frame[column].tolist() for column in frame.columns}
