"""Tables: files of rows, read into columns, whole or a chunk at a time.

CSV, TSV and JSON lines are read by the standard library, Parquet by whichever library is there, Excel files by `excel`. What
separates a file's fields is found by looking at it, and so is UTF-16, by its mark.
Nothing is repaired silently: a row with too many fields, a line that is not an object or a byte that
can't be decoded is an error that says where, and what to do about it. In chunks, memory holds one of them however long the
file is, unless it is one JSON list.
"""

from __future__ import annotations

import codecs
import csv
import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

from pbsdk.data.excel import excel_rows
from pbsdk.errors import InputError, MissingExtra
from pbsdk.foreign import bounded_json

__all__ = ["SUFFIXES", "Columns", "Table", "TextFormat", "read_chunks", "read_columns"]

T = TypeVar("T")
Columns = Mapping[str, Sequence[Any]]
_LONGEST_NUMBER = 4000  # a column that nobody asked for may hold any number
SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet", ".xlsx")
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
    (table,) = read_chunks(path, form, None)
    return table


def read_chunks(path: Path, form: TextFormat, rows: int | None) -> Iterator[Table]:
    """Yield a file's rows, at most `rows` of them at a time, or all at once; the first chunk comes even if it is empty.

    A chunk has every column that was seen until then, and knows where its rows stand in the file.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES and form.delimiter is None:
        raise InputError(
            f"the file {path.name} ends in {suffix or 'no suffix'}; give one of {', '.join(SUFFIXES)}, "
            "or say what separates its fields with",
            setting="delimiter",
        )
    if suffix == ".parquet":
        return _numbered(_parquet(path, rows))
    if suffix == ".xlsx":
        return _sheet(path, form, rows)
    if form.delimiter is None and suffix in {".jsonl", ".ndjson", ".json"}:
        return _json_rows(_lines(path, form.encoding, ends="\n"), path.name, rows)
    return _delimited(_lines(path, form.encoding, ends=""), path.name, form, rows)


def _sheet(path: Path, form: TextFormat, size: int | None) -> Iterator[Table]:
    rows = excel_rows(path)
    header = list(form.columns or ())
    if not header:
        _, names = next(rows, (0, ()))
        header = [f"column {at}" if name is None else str(name) for at, name in enumerate(names, start=1)]
    _refuse_twice(header, path.name)
    for chunk in _chunked(rows, size):
        padded = [(*row, *[None] * len(header))[: len(header)] for _, row in chunk]
        columns = {column: [row[place] for row in padded] for place, column in enumerate(header)}
        yield Table(columns, [number for number, _ in chunk])


def _refuse_twice(header: Sequence[str], name: str) -> None:
    """Refuse two columns of one name."""
    if len(set(header)) < len(header):
        twice = next(column for column in header if header.count(column) > 1)
        raise InputError(f"the file {name} has two columns called {twice!r}; rename one")


def _numbered(chunks: Iterable[Columns]) -> Iterator[Table]:
    """Number rows through all chunks."""
    done = 0
    for columns in chunks:
        count = len(next(iter(columns.values()), ()))
        yield Table(columns, range(done + 1, done + count + 1))
        done += count


def _chunked(rows: Iterable[T], size: int | None) -> Iterator[list[T]]:
    """Yield rows in lists of at most `size`, and one list even if there are no rows."""
    stream = iter(rows)
    yield list(islice(stream, size))
    while chunk := list(islice(stream, size)):
        yield chunk


def _separator(line: str, path_suffix: str, form: TextFormat) -> str:
    """Return what separates the fields of a table's first line: what is in it most often outside of quotation marks."""
    if form.delimiter is not None:
        return form.delimiter
    if path_suffix == ".tsv":
        return "\t"
    if form.columns is not None:
        return ","
    plain = re.sub(r'"[^"]*"', "", line)
    return max(_DELIMITERS, key=plain.count)


def _lines(path: Path, encoding: str, *, ends: str) -> Iterator[str]:
    """Yield a text file's lines with what ends them: `ends` alone, or, if it is empty, whatever ends lines anywhere."""
    codec = encoding
    try:
        if encoding.lower().replace("_", "-") in {"utf-8", "utf8"}:  # a mark says which Unicode it is
            with path.open("rb") as file:
                codec = "utf-16" if file.read(2) in {codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE} else "utf-8-sig"
        with path.open(encoding=codec, newline=ends) as text:
            blank = True
            for line in text:
                blank = blank and not line.strip()
                yield line
    except OSError as error:
        raise InputError(f"the file {path} can't be read: {error.strerror}") from error
    except LookupError as error:
        raise InputError(
            f"no encoding is called {encoding!r}; common ones are utf-8, utf-16, cp1252, latin-1"
        ) from error
    except UnicodeError as error:
        at, byte = _undecodable(path, "utf-8" if codec == "utf-8-sig" else codec)
        guess = "latin-1" if codec == "cp1252" else "cp1252"
        raise InputError(
            f"the file {path.name} is not {codec.removesuffix('-sig')} text: byte {at} ({byte or 'none'}) can't be read; "
            "name its encoding, such as",
            setting="encoding",
            value=repr(guess),
        ) from error
    if blank:
        raise InputError(f"the file {path.name} is empty")


def _undecodable(path: Path, encoding: str) -> tuple[int, str]:
    """Return where the first byte is that can't be decoded, and the byte in hexadecimal."""
    decoder, done = codecs.getincrementaldecoder(encoding)(), 0
    with path.open("rb") as file:
        while True:
            block = file.read(2**16)
            waiting = len(decoder.getstate()[0])
            try:
                decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                return done - waiting + error.start, error.object[error.start : error.start + 1].hex()
            except UnicodeError:
                return 0, ""
            done += len(block)


def _delimited(lines: Iterator[str], name: str, form: TextFormat, size: int | None) -> Iterator[Table]:
    above = list(_until(lines, lambda line: bool(line.strip("\r\n"))))
    delimiter = _separator(above[-1], Path(name).suffix.lower(), form)
    reader = csv.reader(
        chain(above, lines),
        delimiter=delimiter,
        quoting=csv.QUOTE_MINIMAL if form.quotes else csv.QUOTE_NONE,
        strict=True,
    )
    rows = _csv_rows(reader, name)
    header = list(form.columns) if form.columns is not None else next(rows)[1]
    _refuse_twice(header, name)
    for chunk in _chunked(rows, size):
        for line, row in chunk:
            if len(row) != len(header):
                raise InputError(
                    f"line {line} of {name} has {len(row)} fields, but the header has {len(header)}; quote fields that "
                    f"contain {delimiter!r} or a line break, or name what separates them with",
                    setting="delimiter",
                )
        columns = {column: [row[place] for _, row in chunk] for place, column in enumerate(header)}
        yield Table(columns, [line for line, _ in chunk], "line")


def _until(lines: Iterator[str], found: Callable[[str], bool]) -> Iterator[str]:
    """Yield lines up to and with the first that is meant."""
    for line in lines:
        yield line
        if found(line):
            return


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


def _json_rows(lines: Iterator[str], name: str, size: int | None) -> Iterator[Table]:
    above = list(_until(lines, lambda line: bool(line.strip())))
    rows: Iterable[tuple[int, Any]]
    if above[-1].lstrip().startswith("["):
        rows, where = enumerate(_parsed("".join(chain(above, lines)), f"the file {name}"), start=1), "row"
    else:
        numbered = ((number, line) for number, line in enumerate(chain(above, lines), start=1) if line.strip())
        rows, where = ((number, _parsed(line, f"line {number} of {name}")) for number, line in numbered), "line"
    keys: dict[str, None] = {}
    for chunk in _chunked(rows, size):
        for number, row in chunk:
            if not isinstance(row, dict):
                raise InputError(
                    f'{where} {number} of {name} is not an object; each must be one, such as {{"text": "...", "label": "..."}}'
                )
            keys |= dict.fromkeys(row)
        columns = {key: [row.get(key) for _, row in chunk] for key in keys}
        yield Table(columns, [number for number, _ in chunk], where)


def _parsed(text: str, name: str) -> Any:
    try:
        return bounded_json(text, digits=_LONGEST_NUMBER)
    except ValueError as error:
        raise InputError(f"{name} is not JSON that can be read: {error}") from error


def _parquet(path: Path, size: int | None) -> Iterator[Columns]:
    for module, read in (("pyarrow.parquet", _by_pyarrow), ("pandas", _by_pandas)):
        try:
            library = importlib.import_module(module)
            yield from read(library, path, size)
        except ImportError:
            continue
        except (OSError, ValueError) as error:
            raise InputError(f"the file {path.name} can't be read as Parquet: {error}") from error
        return
    raise MissingExtra(f"reading {path.name} needs a Parquet library; pip install pyarrow")


def _by_pyarrow(library: Any, path: Path, size: int | None) -> Iterator[Columns]:
    if size is None:
        yield library.read_table(path).to_pydict()
        return
    with library.ParquetFile(path) as file:
        empty: Columns = {name: [] for name in file.schema_arrow.names}
        batches = (batch.to_pydict() for batch in file.iter_batches(batch_size=size))
        yield next(batches, empty)
        yield from batches


def _by_pandas(library: Any, path: Path, size: int | None) -> Iterator[Columns]:
    frame = library.read_parquet(path)
    for start in range(0, max(1, len(frame)), size or max(1, len(frame))):
        part = frame.iloc[start : start + (size or len(frame))]
        yield {str(column): part[column].tolist() for column in part.columns}
