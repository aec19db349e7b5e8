"""Going on from a file of predictions: rows that are well stay, and the others are asked about again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pbsdk.cli._answers import cell_of
from pbsdk.cli._verdicts import ERROR
from pbsdk.errors import InputError

if TYPE_CHECKING:
    from pbsdk.data.files import Table

__all__ = ["beside", "earlier_rows", "merged"]

_DELIMITERS = {".csv": ",", ".tsv": "\t"}


def earlier_rows(
    output: Path | None, columns: Sequence[str], table: Table, *, spreadsheet: bool
) -> dict[int, dict[str, Any]]:
    """Return the rows of an earlier prediction that are well, by their place; refuse a file about something else."""
    from pbsdk.data.files import TextFormat, read_columns

    if output is None:
        raise InputError("--retry-failed goes on from a file; name it with --output")
    if not output.is_file():
        raise InputError(f"there is no {output} to go on from; leave --retry-failed out")
    earlier = read_columns(output, TextFormat(delimiter=_DELIMITERS.get(output.suffix.lower())))
    if ERROR not in earlier:
        raise InputError(
            f"{output} has no column {ERROR!r}, which --on-error record writes; leave --retry-failed out: what is "
            "answered is in the run folder, and isn't asked again"
        )
    if list(earlier) != list(columns):
        raise InputError(
            f"{output} has the columns {', '.join(earlier)}, and this command writes {', '.join(columns)}; give the options "
            "that it was written with"
        )
    as_text = output.suffix.lower() in _DELIMITERS
    for name, values in table.items():
        for at, (then, now) in enumerate(zip(earlier[name], values, strict=False)):
            here = _as_read(now, spreadsheet=spreadsheet) if as_text else now
            if here != then and here == here:  # noqa: PLR0124 - NaN
                raise InputError(
                    f"{earlier.place(at)} of {output} is about another text (its {name!r} differs); --retry-failed needs the "
                    "same texts in the same order"
                )
    if len(earlier[ERROR]) > len(next(iter(table.values()))):
        raise InputError(f"{output} has more rows than there are texts; --retry-failed needs the same texts")
    return {at: {name: earlier[name][at] for name in columns} for at, error in enumerate(earlier[ERROR]) if error == ""}


def merged(kept: Mapping[int, dict[str, Any]], asked: Iterator[dict[str, Any]], count: int) -> Iterator[dict[str, Any]]:
    """Yield all rows in order: those that were kept, and those that are asked about."""
    for at in range(count):
        yield kept[at] if at in kept else next(asked)


@contextmanager
def beside(output: Path) -> Iterator[Path]:
    """Yield a file to write that takes the place of `output` at the end, or never."""
    target = output.with_name(f".{output.stem}.again{output.suffix}")
    try:
        yield target
        target.replace(output)
    finally:
        target.unlink(missing_ok=True)


def _as_read(value: Any, *, spreadsheet: bool) -> str:
    """Return what reading a value's cell gives."""
    cell = cell_of(value, spreadsheet=spreadsheet)
    return "" if cell is None else str(cell)
