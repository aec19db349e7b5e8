"""Label sets: several labels per text, or none, in the forms that scikit-learn and people use.

An indicator matrix (N, C) of 0 and 1, sparse or a frame whose columns name the labels, or a set, list or tuple of labels for each text.

>>> read_sets([{"late", "rude"}, set(), ("late",)], 3)
(['late', 'rude'], [('late', 'rude'), (), ('late',)])
>>> read_sets(np.array([[1, 0], [0, 0]]), 2)
([0, 1], [(0,), ()])
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from pbsdk.errors import InputError
from pbsdk.queries.examples import read_labels
from pbsdk.queries.given import Given
from pbsdk.queries.problem import Problem
from pbsdk.queries.weights import in_proportion

__all__ = ["GivenSets", "problem_of_sets", "read_sets"]

Sets = list[tuple[Any, ...]]


def read_sets(
    labels: Any, count: int, *, known: Sequence[Any] | None = None, name: str = "labels"
) -> tuple[list[Any], Sets]:
    """Return the labels there are, sorted or in the matrix's order, and those of each of `count` texts."""
    if hasattr(labels, "toarray"):
        labels = labels.toarray()
    if isinstance(labels, str | bytes) or not isinstance(labels, Iterable):
        raise InputError(f"{name} must be an indicator matrix, or a set of labels for each text")
    if not hasattr(labels, "columns"):
        labels = labels if isinstance(labels, np.ndarray) else list(labels)
    size = len(labels)
    if size != count:
        raise InputError(f"there are {count} texts and {size} rows of {name}; give one for each text")
    matrix = _matrix(labels, name)
    if matrix is not None:
        columns = list(getattr(labels, "columns", known if known is not None else range(matrix.shape[1])))
        if len(columns) != matrix.shape[1]:
            raise InputError(f"{name} has {matrix.shape[1]} columns, and there are {len(columns)} labels")
        sets = [tuple(columns[at] for at in np.flatnonzero(row)) for row in matrix]
    else:
        sets = [_set(row, f"{name}[{at}]") for at, row in enumerate(labels)]
        flat = [label for row in sets for label in row]
        columns = np.unique(read_labels(flat, len(flat), name=name)).tolist() if flat else []
        sets = [tuple(sorted(set(row), key=columns.index)) for row in sets]
    if known is None:
        return columns, sets
    strange = sorted({str(label) for row in sets for label in row if label not in known})
    if strange:
        raise InputError(
            f"{name} has labels that aren't known: {', '.join(strange)}; it may have {', '.join(map(str, known))}"
        )
    return list(known), sets


def _matrix(labels: Any, name: str) -> npt.NDArray[Any] | None:
    """Return an indicator matrix, if it is one."""
    if hasattr(labels, "columns") and hasattr(labels, "to_numpy"):
        rows = labels.to_numpy()
    elif isinstance(labels, np.ndarray):
        rows = labels
    elif labels and all(isinstance(row, list | np.ndarray) and len(row) == len(labels[0]) > 0 for row in labels):
        rows = np.asarray(labels, dtype=object)
        if not all(type(value) in {int, bool} or isinstance(value, np.integer | np.bool_) for value in rows.ravel()):
            return None
    else:
        return None
    if rows.ndim == 1 and rows.dtype == object:
        return None
    if rows.ndim != 2 or not np.isin(rows, (0, 1)).all():
        raise InputError(
            f"{name} must be an indicator matrix of 0 and 1, one row per text and one column per label; for one label per text use PromptBoostingClassifier"
        )
    found: npt.NDArray[np.intp] = rows.astype(np.intp)
    return found


def _set(row: Any, name: str) -> tuple[Any, ...]:
    if isinstance(row, str | bytes) or not isinstance(row, set | frozenset | list | tuple | np.ndarray):
        raise InputError(f"{name} is {row!r}; give a set of labels, such as {{{row!r}}}, or set() for none")
    return tuple(row)


@dataclass(frozen=True)
class GivenSets(Given):
    """Examples with label sets: `labels` holds a tuple for each."""

    names: tuple[Any, ...] = ()
    """The labels there are."""

    def without_weightless(self) -> Self:
        """Return it without examples that count nothing."""
        kept = self.weighed > 0
        if kept.all():
            return self
        examples = [example for example, keep in zip(self.examples, kept, strict=True) if keep]
        return replace(self, examples=examples, labels=self.labels[kept], weights=self.weighed[kept])

    def _read(self, labels: list[Any]) -> npt.NDArray[Any]:
        return objects_of(labels)


def objects_of(values: Sequence[Any]) -> npt.NDArray[Any]:
    """Return an array of values as they are."""
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found


def problem_of_sets(given: GivenSets) -> Problem:
    """Make indicators of label sets."""
    if not given.names:
        raise InputError("no text has a label, so there is nothing to learn")
    names = list(given.names)
    tables = [
        np.array([[name in row for name in names] for row in labels.tolist()], dtype=np.intp).reshape(-1, len(names))
        for labels in (given.labels, given.validation_labels)
    ]
    weights = None
    if given.weights is not None:
        weights = in_proportion(np.concatenate([given.weighed, np.ones(len(given.validation))]))
    classes = read_labels(names, len(names), name="the names of labels")
    return Problem(classes, given.examples, tables[0], given.validation, tables[1], weights)
