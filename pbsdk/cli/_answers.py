"""Where predictions go: rows, written as they come, in the format that the file's name asks for."""

from __future__ import annotations

import csv
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from pbsdk.cli._common import room_for
from pbsdk.errors import InputError, MissingExtra
from pbsdk.visible import for_spreadsheet, visible, visible_json

__all__ = ["SUFFIXES", "cell_of", "parquet_schema", "refuse_unholdable", "refuse_unwritable", "writer"]

SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")


def refuse_unwritable(output: Path | None) -> None:
    """Refuse a file that could not be written, before anything is asked."""
    if output is None:
        return
    if output.suffix.lower() not in SUFFIXES:
        raise InputError(f"--output {output} can't be written: its name must end in one of {', '.join(SUFFIXES)}")
    if output.suffix.lower() == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise MissingExtra(f"writing {output} needs pyarrow; pip install pyarrow, or write a .csv")
    room_for(output)


def refuse_unholdable(output: Path | None, table: Mapping[str, Sequence[Any]]) -> None:
    """Refuse a table with a column that Parquet can't hold, before anything is asked."""
    if output is None or output.suffix.lower() != ".parquet":
        return
    arrow: Any = importlib.import_module("pyarrow")
    for name, values in table.items():
        try:
            arrow.array(list(values))
        except arrow.ArrowException as error:
            raise InputError(
                f"the column {name!r} can't stand in a Parquet file, where all of a column is of one kind ({error}); write a .jsonl or a .csv"
            ) from error


@contextmanager
def writer(
    output: Path | None, columns: Sequence[str], *, spreadsheet: bool, schema: Any = None
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Yield a function that writes a row at once; Parquet is written as a whole, at the end, or with a schema in groups of rows."""
    if output is None:
        yield lambda row: _write_json(sys.stdout, row)
        return
    suffix = output.suffix.lower()
    try:
        if suffix == ".parquet" and schema is not None:
            with _grouped(output, schema) as write_row:
                yield write_row
            return
        if suffix == ".parquet":
            rows: list[Mapping[str, Any]] = []
            yield rows.append
            _write_parquet(output, columns, rows)
            return
        with output.open("w", encoding="utf-8", newline="") as file:
            if suffix in {".jsonl", ".ndjson"}:
                yield lambda row: _write_json(file, row)
                return
            table = csv.writer(file, delimiter="\t" if suffix == ".tsv" else ",")

            def write(cells: Sequence[Any]) -> None:
                table.writerow([cell_of(cell, spreadsheet=spreadsheet) for cell in cells])
                file.flush()

            write(columns)
            yield lambda row: write([row[column] for column in columns])
    except OSError as error:
        raise InputError(f"{output} can't be written: {error.strerror}; choose another place") from error


def _write_json(file: TextIO, row: Mapping[str, Any]) -> None:
    file.write(visible_json(dict(row), default=str) + "\n")
    file.flush()


def _write_parquet(output: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    arrow: Any = importlib.import_module("pyarrow")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    try:
        table = arrow.table({column: [row[column] for row in rows] for column in columns})
        parquet.write_table(table, output)
    except arrow.ArrowException as error:
        raise InputError(f"{output} can't be written as Parquet: {error}; write a .jsonl") from error


GROUP = 10_000
"""How many rows of Parquet are written together."""


def parquet_schema(source: Path, added: Mapping[str, Sequence[Any]]) -> Any:
    """Return the schema of a Parquet file with more columns, each given by values that it may hold."""
    arrow: Any = importlib.import_module("pyarrow")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    return arrow.schema(
        [*parquet.read_schema(source), *((name, arrow.array(held).type) for name, held in added.items())]
    )


@contextmanager
def _grouped(output: Path, schema: Any) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Yield a function that writes rows of Parquet, a group at a time."""
    arrow: Any = importlib.import_module("pyarrow")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    rows: list[Mapping[str, Any]] = []

    def flush() -> None:
        file.write_table(arrow.Table.from_pylist(rows, schema=schema))
        rows.clear()

    def write(row: Mapping[str, Any]) -> None:
        rows.append(row)
        if len(rows) >= GROUP:
            flush()

    try:
        with parquet.ParquetWriter(output, schema) as file:
            yield write
            flush()
    except arrow.ArrowException as error:
        raise InputError(f"{output} can't be written as Parquet: {error}; use a .jsonl") from error


def cell_of(value: Any, *, spreadsheet: bool) -> Any:
    """Return a value as a cell: what would steer a terminal is shown, line breaks stay."""
    if not isinstance(value, str):
        return value
    text = for_spreadsheet(value) if spreadsheet else value
    return "\r\n".join(visible(part) for part in text.split("\r\n"))
