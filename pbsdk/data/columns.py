"""Columns: which of a table's columns hold texts, second texts and labels.

They are named, or found by their usual names where there is no doubt. Otherwise the error names the column that it is likely to be, where
the cells leave one: labels repeat, and texts don't.

>>> Roles.choose("the table", ["review", "stars"])
Roles(text='review', pair=None, label='stars')
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pbsdk.data.files import Table
from pbsdk.errors import InputError

__all__ = ["Roles", "did_you_mean", "with_likely_column"]

_PAIRS = (
    ("text", "text_pair"),
    ("text1", "text2"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("premise", "hypothesis"),
    ("question", "sentence"),
)
_TEXTS = ("text", "sentence", "review", "question", "message", "content", "comment", "tweet", "body", "utterance")
_LABELS = ("label", "labels", "category", "class", "target", "intent", "sentiment", "topic", "label_text")


@dataclass(frozen=True)
class Roles:
    """Which columns of a table hold texts, second texts and labels."""

    text: str
    pair: str | None = None
    label: str | None = None

    @classmethod
    def choose(  # noqa: PLR0913 - independent settings, all keywords
        cls,
        name: str,
        columns: Sequence[str],
        *,
        text: str | None = None,
        label: str | None = None,
        pair: str | None = None,
        labelled: bool = True,
        familiar: Sequence[str] = (),
    ) -> Roles:
        """Take the columns that are named, or else those that are familiar, and find the others by their usual names."""
        if text is None and pair is None and familiar and set(familiar) <= set(columns) - {label}:
            text, pair = [*familiar, None][:2]
        target = _choose_label(columns, label, {text, pair}, name) if labelled else None
        return cls(*_choose_texts(columns, text, pair, target, name), target)


def _choose_label(names: Sequence[str], given: str | None, taken: set[str | None], table: str) -> str:
    if given is None:
        return _guess(names, _LABELS, taken.union(name for name in names if name.lower() in _TEXTS), "label", table)
    return _existing(given, names, table)


def _choose_texts(
    names: Sequence[str], text: str | None, pair: str | None, target: str | None, table: str
) -> tuple[str, str | None]:
    second = None if pair is None else _existing(pair, names, table)
    if text is not None:
        return _existing(text, names, table), second
    free = {name.lower(): name for name in names if name not in {target, pair}}
    both = [(free[one], free[other]) for one, other in _PAIRS if one in free and other in free]
    if pair is None and len(both) == 1:
        return both[0]
    return _guess(names, _TEXTS, {target, pair}, "text", table), second


def _existing(name: str, names: Sequence[str], table: str) -> str:
    if name in names:
        return name
    only = names[0] if len(names) == 1 else ""
    mark = next((mark for mark in (";", "\t", ",", "|") if mark in only), None)
    problem = f"{table} has no column {name!r}{did_you_mean(name, names)}; it has {', '.join(names) or 'none'}"
    if mark is None:
        raise InputError(problem)
    raise InputError(f"{problem}; if {mark!r} separates its fields, say", setting="delimiter", value=repr(mark))


def _guess(names: Sequence[str], usual: Sequence[str], taken: set[str | None], what: str, table: str) -> str:
    free = [name for name in names if name not in taken]
    found = [name for name in free if name.lower() in usual]
    if len(found) == 1:
        return found[0]
    if not found and len(free) == 1 and len(names) <= 2:
        return free[0]
    problem = f"{table} has the columns {', '.join(names)}" if names else f"{table} has no columns"
    if found:
        problem += f", of which {' and '.join(found)} could each be the {what}"
    else:
        problem += f", and none has a usual name for the {what}"
    raise InputError(f"{problem}; name it with", setting=what)


def with_likely_column(error: InputError, table: Table, taken: set[str | None]) -> InputError:
    """Return the error with the column that it probably asks for, where the cells leave no doubt: labels repeat, and texts don't."""
    cells = {
        name: [str(cell) for cell in values] for name, values in table.items() if name not in taken and len(values)
    }
    if error.value or error.setting not in {"text", "label"}:
        return error
    repeat = {name: len(values) >= _REPEATS * len(set(values)) for name, values in cells.items()}
    if error.setting == "label":
        likely = [name for name in cells if repeat[name] and len(set(cells[name])) > 1]
    else:
        wordy = [
            name for name, values in cells.items() if sum(" " in cell.strip() for cell in values) > len(values) / 2
        ]
        likely = [name for name in wordy if not repeat[name]]
    if len(likely) != 1:
        return error
    return InputError(error.problem, setting=error.setting, value=repr(likely[0]))


_REPEATS = 2
"""How many rows a label has on average, at least, where a column looks like labels."""


def did_you_mean(name: Any, names: Iterable[Any]) -> str:
    """Return the known name that one is likely meant for, as a remark, or nothing."""
    close = difflib.get_close_matches(str(name), [str(known) for known in names], n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
