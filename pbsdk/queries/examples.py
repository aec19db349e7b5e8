"""Examples: what users hand in, read into one plain form before anything is sent.

Users hold texts in lists, numpy arrays, pandas columns, or pairs of texts in tuples and two-column
frames. `read_examples` turns any of them into a list of `Example`, or says which row can't be one.

>>> [example.text for example in read_examples(["good", "bad"])]
['good', 'bad']
>>> read_examples([("It rains.", "It is wet.")])[0].pair
'It is wet.'
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from pbsdk.backend import digest
from pbsdk.errors import InputError
from pbsdk.visible import has_half_character

__all__ = ["Example", "in_chunks", "read_examples", "read_labels", "text_rows"]


@dataclass(frozen=True)
class Example:
    """A text, or a pair of texts."""

    text: str
    pair: str | None = None

    @cached_property
    def id(self) -> str:
        """The name under which the ledger counts this example: a digest, not the text."""
        return digest(self.text) if self.pair is None else digest(self.text, self.pair)

    @property
    def texts(self) -> tuple[str, ...]:
        """The text, or both."""
        return (self.text,) if self.pair is None else (self.text, self.pair)


def read_examples(texts: Any, *, name: str = "texts", first: int = 0) -> list[Example]:
    """Read texts or pairs of texts from a list, an array, or a pandas column or frame; the number of the `first` is for errors."""
    rows = text_rows(texts, name=name)
    if all(type(row) is str for row in rows) and not has_half_character("".join(rows)):
        return [Example(row) for row in rows]
    examples = [_example(row, f"{name}[{at}]") for at, row in enumerate(rows, first)]
    if examples and len({example.pair is None for example in examples}) > 1:
        odd = next(at for at, example in enumerate(examples) if (example.pair is None) != (examples[0].pair is None))
        raise InputError(
            f"{name} mixes single texts and pairs: row {first} and row {first + odd} differ; give all of one kind"
        )
    return examples


def read_labels(labels: Any, count: int, *, name: str = "labels") -> np.ndarray[Any, Any]:
    """Read one label for each of `count` texts: strings, whole numbers or truth values, all of one kind."""
    if isinstance(labels, str | bytes) or not isinstance(labels, Iterable):
        raise InputError(f"{name} must be a list with one label per text")
    if isinstance(labels, np.ma.MaskedArray):
        labels = labels.tolist()  # None where it is masked: an array would show what lies beneath
    values = np.asarray(labels) if hasattr(labels, "dtype") else _objects(labels)
    known = values.dtype.kind in _KINDS
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise InputError(f"{name} must be one label per text; this is an array of shape {values.shape}")
    if len(values) != count:
        raise InputError(f"there are {count} texts and {len(values)} {name}; give one label per text")
    kinds = {_kind(value, f"{name}[{at}]") for at, value in enumerate(values.tolist())}
    if len(kinds) > 1:
        raise InputError(f"{name} mixes types ({', '.join(sorted(kinds))}); use strings or integers throughout")
    return values if known or not count else _typed(values.tolist(), name)


_KINDS = "Ubiuf"
"""The kinds of arrays whose values can be labels: strings, truth values and numbers."""


def _objects(labels: Iterable[Any]) -> np.ndarray[Any, Any]:
    """Return labels as they are: numpy would make strings of numbers that stand beside strings."""
    given = list(labels)
    values = np.empty(len(given), dtype=object)
    values[:] = [value[0] if isinstance(value, list | tuple) and len(value) == 1 else value for value in given]
    return values


def _kind(value: Any, name: str) -> str:
    """Return which kind of label a value is; refuse what no file could hold, before anything is paid for."""
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or type(value).__name__ in {"NAType", "NaTType"} or (isinstance(value, float) and np.isnan(value)):
        raise InputError(f"{name} is missing ({value}); drop or label that row")
    if isinstance(value, str):
        if has_half_character(value):
            raise InputError(f"{name} is {value!r}, half of a character, which no file can hold; repair the label")
        if value.endswith("\0"):
            raise InputError(f"{name} is {value!r}, whose end an array would drop; remove the null character")
        return "str"
    if isinstance(value, bool | int):
        if not -(2**63) <= value < 2**64:
            raise InputError(f"{name} is {value}, which is too large for a label; give a string")
        return type(value).__name__
    if isinstance(value, float):
        if not value.is_integer():
            raise InputError(
                f"{name} is {value}: continuous numbers, not classes (Unknown label type: continuous); give class names"
            )
        return "float"
    raise InputError(f"{name} is a {type(value).__name__}, which can't be a label; give strings or integers")


def _typed(values: list[Any], name: str) -> np.ndarray[Any, Any]:
    """Return values of one kind as an array of that kind."""
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    if type(plain[0]) is not int or max(plain) < 2**63:
        return np.asarray(plain)
    if min(plain) < 0:
        raise InputError(f"{name} hold numbers too far apart for one array; give strings")
    return np.asarray(plain, dtype=np.uint64)


def text_rows(texts: Any, *, name: str = "texts") -> Sequence[Any]:
    """Return what each row holds, unread: a text, or a tuple of two."""
    if isinstance(texts, str | bytes):
        raise InputError(f"{name} is one string; give a list of texts, such as [text]")
    if hasattr(texts, "columns") and hasattr(texts, "to_numpy"):
        columns = list(texts.columns)
        if len(columns) not in {1, 2}:
            raise InputError(
                f"{name} is a table of {len(columns)} columns ({', '.join(map(str, columns[:6]))}); "
                "choose one column of texts, or two for pairs, such as frame['text']"
            )
        rows = texts.to_numpy(dtype=object)
        return [row[0] if len(columns) == 1 else tuple(row) for row in rows]
    if hasattr(texts, "to_numpy"):
        return list(texts.to_numpy(dtype=object))
    if isinstance(texts, np.ndarray):
        if texts.ndim == 2 and texts.shape[1] == 1:
            return list(texts[:, 0])
        if texts.ndim == 2 and texts.shape[1] == 2:
            return [tuple(row) for row in texts]
        if texts.ndim != 1:
            raise InputError(f"{name} is an array of shape {texts.shape}; give one text, or one pair, per row")
        return list(texts)
    if isinstance(texts, dict) or not isinstance(texts, Iterable):
        raise InputError(f"{name} must be a list of texts; this is a {type(texts).__name__}")
    return list(texts)


def in_chunks(texts: Any, size: int) -> Iterator[Sequence[Any]]:
    """Yield rows, unread, so many at a time; an iterator, such as one over a long file, is read no further ahead.

    >>> [list(chunk) for chunk in in_chunks(iter(["a", "b", "c"]), 2)]
    [['a', 'b'], ['c']]
    """
    rows = texts if isinstance(texts, Iterator) else iter(text_rows(texts))
    while chunk := list(islice(rows, size)):
        yield chunk


def _example(row: Any, name: str) -> Example:
    if isinstance(row, str):
        return Example(_text(row, name))
    if isinstance(row, tuple | list) and len(row) == 2:
        return Example(*(_text(text, f"{name}[{at}]") for at, text in enumerate(row)))
    return Example(_text(row, name))


def _text(value: Any, name: str) -> str:
    if isinstance(value, str):
        if has_half_character(value):
            raise InputError(
                f"{name} holds half of a character (a lone surrogate), which no model can read; repair the text"
            )
        return str(value)
    if value is None or value != value:  # noqa: PLR0124 - NaN, or pandas' NA
        raise InputError(f"{name} is missing ({value}); drop that row, or put an empty text there")
    raise InputError(f"{name} is a {type(value).__name__}, not a text; convert it with str() if that is meant")
