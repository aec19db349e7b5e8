"""Loading: labelled texts from where people keep them.

`load_table` takes a file (CSV, TSV, JSON lines, Parquet, Excel) or "-" for standard input, a pandas frame, a Hugging Face data set or
the name of one, and returns texts and labels. Columns are found by their usual names when that is
unambiguous, and must be named otherwise. Whatever is wrong with a table is reported at once, with the row
and the remedy: half a data set is worse than none.

>>> data = load_table({"review": ["Lovely.", "Dull."], "stars": [5, 1]}, label="stars")
>>> data.examples, data.labels
(['Lovely.', 'Dull.'], [5, 1])
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pbsdk.data.columns import Roles, did_you_mean, with_likely_column
from pbsdk.data.files import SUFFIXES, Table, TextFormat, read_columns
from pbsdk.data.standard_input import STANDARD_INPUT, standard_input
from pbsdk.errors import InputError, MissingExtra

__all__ = ["LabelledTexts", "existing_file", "load_hub", "load_table", "texts_of"]

Label = str | int | float | bool
Missing = Literal["refuse", "drop", "keep"]


@dataclass(frozen=True)
class LabelledTexts:
    """Texts, or pairs of texts, and their labels; `labels` is empty if there are none."""

    examples: list[str] | list[tuple[str, str]]
    labels: list[Any]
    table: Table = field(default_factory=lambda: Table({}), compare=False, repr=False)
    """The columns that they came from."""
    rows: Sequence[int] = field(default=(), compare=False, repr=False)
    """Which row of the table each of them is, from 0."""
    roles: Roles | None = field(default=None, compare=False, repr=False)
    """Which columns they stand in."""

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def pairs(self) -> bool:
        """Whether the examples are pairs of texts."""
        return bool(self.examples) and isinstance(self.examples[0], tuple)

    @property
    def classes(self) -> list[Any]:
        """The labels that occur, in order of first appearance."""
        return list(dict.fromkeys(self.labels))

    def take(self, rows: Iterable[int]) -> LabelledTexts:
        """Return the rows asked for, in that order."""
        chosen = list(rows)
        labels = [self.labels[row] for row in chosen] if self.labels else []
        rows = [self.rows[row] for row in chosen] if self.rows else ()
        examples: Any = [self.examples[row] for row in chosen]
        return replace(self, examples=examples, labels=labels, rows=rows)

    @property
    def left_out(self) -> list[str]:
        """Where the table's rows are that were not taken."""
        taken = set(self.rows)
        count = len(next(iter(self.table.values()), ()))
        return [self.table.place(row) for row in range(count) if row not in taken]

    def place(self, at: int) -> str:
        """Say where one of them is in its table."""
        return self.table.place(self.rows[at] if self.rows else at)


def load_table(  # noqa: PLR0913 - independent settings, all keywords
    source: Any,
    *,
    text: str | None = None,
    label: str | None = None,
    pair: str | None = None,
    labels: Iterable[Any] | None = None,
    labelled: bool = True,
    missing: Missing = "refuse",
    split: str | None = None,
    encoding: str = "utf-8",
    delimiter: str | None = None,
    quotes: bool = True,
    columns: Sequence[str] | None = None,
    familiar: Sequence[str] = (),
) -> LabelledTexts:
    """Load labelled texts.

    Args:
        source: a file, "-" for standard input, a pandas frame, a mapping of columns, a Hugging Face data set, or its name.
        text: the column of texts; None finds it by its name.
        label: the column of labels; None finds it by its name.
        pair: the column of second texts, for pairs; None finds it if `text` is None too.
        labels: the labels that may occur; another one is an error.
        labelled: False for texts without labels.
        missing: what to do with a row whose text or label is missing. "keep" keeps it, and whatever else stands where a text should be,
            for `predict(..., on_error="record")`.
        split: which part of a Hugging Face data set, such as "train".
        encoding: how a text file is encoded; a mark at its beginning that says UTF-16 goes before "utf-8".
        delimiter: what separates a text file's fields; None finds it in the first line.
        quotes: False if quotation marks in a CSV or TSV file are plain characters.
        columns: the columns' names, for a CSV or TSV file without a header.
        familiar: the column of texts, or both for pairs, to take if they are there and no other is named.
    """
    name, table = _read(source, split, TextFormat(encoding, delimiter, quotes, columns))
    try:
        found = Roles.choose(name, list(table), text=text, label=label, pair=pair, labelled=labelled, familiar=familiar)
    except InputError as error:
        raise with_likely_column(error, table, taken={text, pair, label}) from error
    if not len(table[found.text]):
        raise InputError(f"{name} has no rows; there must be at least one text")
    known = None if labels is None else list(labels)
    loaded = texts_of(name, table, found, labels=known, missing=missing)
    if not len(loaded):
        raise InputError(f"{name} has no complete row")
    return loaded


def texts_of(name: str, table: Table, roles: Roles, *, labels: Sequence[Any] | None, missing: Missing) -> LabelledTexts:
    """Return a table's texts and labels; none of its rows may be complete."""
    if missing == "keep":
        found = _every_row(table, roles.text, roles.pair, roles.label, labels)
    else:
        found = _whole_rows(table, roles, labels, missing, name)
    return replace(found, roles=roles)


def _whole_rows(table: Table, roles: Roles, labels: Sequence[Any] | None, missing: Missing, name: str) -> LabelledTexts:
    """Return the rows that lack nothing."""
    first, second, target = roles.text, roles.pair, roles.label
    rows = _complete_rows(table, [column for column in (first, second, target) if column], target, missing, name)
    places = [f"{table.place(row)} of {name}" for row in rows]
    texts = [_text(table[first][row], place) for row, place in zip(rows, places, strict=True)]
    examples: Any = texts
    if second is not None:
        examples = [
            (one, _text(table[second][row], place)) for one, row, place in zip(texts, rows, places, strict=True)
        ]
    found = (
        [] if target is None else [_label(table[target][row], place) for row, place in zip(rows, places, strict=True)]
    )
    if labels is not None:
        _refuse_unknown(found, places, labels)
    _warn_of_doubt(examples, found, [table.place(row) for row in rows], name)
    return LabelledTexts(examples, found, table, rows)


def _every_row(
    table: Table, first: str, second: str | None, target: str | None, labels: Iterable[Any] | None
) -> LabelledTexts:
    """Return all rows as they are; a label that is missing is None."""
    rows = range(len(table[first]))
    places = list(map(table.place, rows))
    found = [] if target is None else list(table[target])
    for row, value in enumerate(found):
        lacking = _is_missing(value) or _says_nothing(value)
        found[row] = None if lacking else _label(value, places[row])
    if labels is not None:
        _refuse_unknown(found, places, [*labels, None])
    examples = table[first] if second is None else zip(table[first], table[second], strict=True)
    return LabelledTexts(list(examples), found, table, rows)


def _read(source: Any, split: str | None, form: TextFormat) -> tuple[str, Table]:
    if isinstance(source, str | Path):
        return _read_named(source, split, form)
    if isinstance(source, Mapping) and source and all(hasattr(part, "column_names") for part in source.values()):
        if split not in source:
            raise InputError(
                f"the data set has the splits {', '.join(map(str, source))}; choose one with", setting="split"
            )
        return _read(source[split], None, form)
    if isinstance(source, Mapping):
        table = {str(column): list(values) for column, values in source.items()}
        if len({len(values) for values in table.values()}) > 1:
            raise InputError("the columns of the mapping differ in length; give each one value per row")
        return "the table", Table(table)
    if hasattr(source, "column_names") and hasattr(source, "__getitem__"):
        return "the data set", Table({str(column): _values(source, column) for column in source.column_names})
    if hasattr(source, "columns") and hasattr(source, "to_numpy"):
        return "the frame", Table({str(column): source[column].tolist() for column in source.columns})
    raise InputError(
        f"texts can't be loaded from a {type(source).__name__}; give a file ({', '.join(SUFFIXES)}), a pandas frame, "
        "or a Hugging Face data set or its name"
    )


def _read_named(source: str | Path, split: str | None, form: TextFormat) -> tuple[str, Table]:
    path = Path(source)
    if str(source) == STANDARD_INPUT:
        with standard_input() as kept:
            return "standard input", read_columns(kept, form)
    if not path.exists() and _looks_like_a_hub_name(str(source)):
        return _read(load_hub(str(source), split=split), split, form)
    return f"the file {path.name}", read_columns(existing_file(path), form)


def existing_file(source: str | Path) -> Path:
    """Return the file's path, or say what is there instead."""
    path = Path(source)
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "doesn't exist"
        near = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise InputError(f"the file {source} {what}{did_you_mean(path.name, near)}; check the path")
    return path


def _looks_like_a_hub_name(name: str) -> bool:
    pieces = name.split("/")
    return len(pieces) <= 2 and all(pieces) and not name.startswith(".") and Path(name).suffix.lower() not in SUFFIXES


def load_hub(name: str, *, split: str | None = None, config: str | None = None) -> Any:
    """Load a data set from the Hugging Face hub by its name, through the `datasets` library."""
    try:
        library = importlib.import_module("datasets")
    except ImportError as error:
        raise MissingExtra(
            f"there is no file {name}, and loading a Hugging Face data set of that name needs the datasets library, "
            "which is missing; pip install datasets, or check the path"
        ) from error
    try:
        return library.load_dataset(name, config, split=split)
    except Exception as error:
        raise InputError(
            f"there is no file {name}, and the data set of that name can't be loaded: {error}; check the name, "
            "or the network"
        ) from error


def _values(dataset: Any, column: str) -> list[Any]:
    """Return a Hugging Face data set's column, with classes by name; it marks a missing label with -1."""
    names = getattr((getattr(dataset, "features", None) or {}).get(column), "names", None)
    values = list(dataset[column])
    if not names:
        return values
    return [value if isinstance(value, str) else names[value] if value >= 0 else None for value in values]


def _complete_rows(table: Table, chosen: Sequence[str], target: str | None, missing: str, name: str) -> list[int]:
    rows = []
    for row in range(len(table[chosen[0]])):
        lacking = [
            column
            for column in chosen
            # An empty text is a text; an empty label is none.
            if _is_missing(table[column][row]) or (column == target and _says_nothing(table[column][row]))
        ]
        if not lacking:
            rows.append(row)
        elif missing == "refuse":
            raise InputError(
                f"{table.place(row)} of {name} has {_written(table[lacking[0]][row])} in the column {lacking[0]!r}; "
                "fill it in, or leave such rows out with",
                setting="missing",
                value='"drop"',
            )
    return rows


def _says_nothing(label: Any) -> bool:
    """Return whether a label's cell is empty, or holds what programs write for a number that is missing."""
    return isinstance(label, str) and label.strip().lower() in {"", "nan"}


def _written(value: Any) -> str:
    return f"{value!r}, which is no label," if isinstance(value, str) and value else "no value"


def _warn_of_doubt(examples: Sequence[Any], labels: Sequence[Any], places: Sequence[str], name: str) -> None:
    """Warn of texts that stand under two labels: whatever is learned of them is half wrong."""
    first: dict[Any, int] = {}
    doubtful = [
        (at, one)
        for one, (example, label) in enumerate(zip(examples, labels, strict=False))
        if labels[at := first.setdefault(example, one)] != label
    ]
    if doubtful:
        said = ", ".join(
            f"{places[at]} ({labels[at]!r}) and {places[one]} ({labels[one]!r})" for at, one in doubtful[:_SHOWN]
        )
        more = f", and {len(doubtful) - _SHOWN} more" if len(doubtful) > _SHOWN else ""
        warnings.warn(f"{name} has the same text under two labels: {said}{more}; keep the right one", stacklevel=3)


_SHOWN = 5
"""How many contradictions a warning names."""


def _is_missing(value: Any) -> bool:
    # pandas' NA can't be compared, and NaN is not equal to itself.
    return value is None or type(value).__name__ in {"NAType", "NaTType"} or bool(value != value)  # noqa: PLR0124


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{place} has a {type(value).__name__} where its text should be: {value!r}")
    return str(value)


def _label(value: Any, place: str) -> Label:
    plain = value.item() if hasattr(value, "item") else value
    if not isinstance(plain, Label):
        raise InputError(f"{place} has a {type(plain).__name__} as its label; use a word or a number")
    return plain


def _refuse_unknown(found: Sequence[Any], places: Sequence[str], known: Sequence[Any]) -> None:
    for place, value in zip(places, found, strict=False):
        if value not in known:
            raise InputError(
                f"{place} has the unknown label {value!r}{did_you_mean(value, known)}; "
                f"the labels are {', '.join(map(repr, known))}"
            )
