"""Tables: files of rows, read into columns.

CSV, TSV and JSON lines are read by the standard library, Parquet by whichever library is there.
Nothing is repaired silently: a row with too many fields, a line that is not an object or a byte that
can't be decoded is an error that says where, and what to do about it.
"""

from __future__ import annotations

import csv
import importlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pbsdk.errors import InputError, MissingExtra

__all__ = ["SUFFIXES", "Columns", "TextFormat", "read_columns"]

Columns = Mapping[str, Sequence[Any]]
SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")


@dataclass(frozen=True)
class TextFormat:
    """How a text file is formatted, where its suffix doesn't say."""

    encoding: str = "utf-8"
    delimiter: str | None = None
    """What separates fields; None to infer it from the suffix."""
    quotes: bool = True
    """False if quotation marks are plain characters."""
    columns: Sequence[str] | None = None
    """The columns' names, for a file without a header."""


def read_columns(path: Path, form: TextFormat) -> Columns:
    """Read a file's columns by their names."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES and form.delimiter is None:
        raise InputError(
            f"the file {path.name} ends in {suffix or 'no suffix'}; give one of {', '.join(SUFFIXES)}, "
            "or say what separates its fields with delimiter="
        )
    if suffix == ".parquet":
        return _parquet(path)
    content = _decoded(path, form.encoding)
    if not content.strip():
        raise InputError(f"the file {path.name} is empty")
    if form.delimiter is None and suffix in {".jsonl", ".ndjson", ".json"}:
        return _json_rows(content, path.name)
    return _delimited(content, path.name, form.delimiter or ("\t" if suffix == ".tsv" else ","), form)


def _decoded(path: Path, encoding: str) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"the file {path} can't be read: {error.strerror}") from error
    try:
        return data.decode("utf-8-sig" if encoding.lower().replace("_", "-") in {"utf-8", "utf8"} else encoding)
    except LookupError as error:
        raise InputError(
            f"no encoding is called {encoding!r}; common ones are utf-8, utf-16, cp1252, latin-1"
        ) from error
    except UnicodeError as error:
        at = error.start if isinstance(error, UnicodeDecodeError) else 0
        guess = "utf-16" if data[:2] in {b"\xff\xfe", b"\xfe\xff"} else "cp1252"
        raise InputError(
            f"the file {path.name} is not {encoding} text: byte {at} ({data[at : at + 1].hex() or 'none'}) can't be read; "
            f"name its encoding, such as encoding={guess!r}"
        ) from error


def _delimited(content: str, name: str, delimiter: str, form: TextFormat) -> Columns:
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
    for line, row in rows:
        if len(row) != len(header):
            raise InputError(
                f"line {line} of {name} has {len(row)} fields, but the header has {len(header)}; quote fields that "
                f"contain {delimiter!r} or a line break, or name another delimiter="
            )
        for column, value in zip(header, row, strict=True):
            table[column].append(value)
    return table


def _csv_rows(reader: Any, name: str) -> Iterator[tuple[int, list[str]]]:
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise InputError(
                f"the file {name} can't be read near line {reader.line_num}: {error}; if quotation marks are plain "
                "characters in it, set quotes=False"
            ) from error
        if row:
            yield reader.line_num, row


def _json_rows(content: str, name: str) -> Columns:
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
    return {key: [row.get(key) for _, row in rows] for key in keys}


def _parsed(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{name} is not JSON: {error}") from error


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
