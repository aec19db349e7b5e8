"""What `fit` is given: a training set and perhaps a validation set, checked before anything is asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pbsdk.errors import InputError
from pbsdk.queries.examples import Example, read_labels

__all__ = ["Problem", "read_problem"]

Read = Callable[[Any, str], list[Example]]
"""Makes examples of texts; the name is what errors call them."""


@dataclass(frozen=True)
class Problem:
    """Examples to learn from and to validate on; labels are places in `classes`."""

    classes: npt.NDArray[Any]
    train: list[Example]
    train_labels: npt.NDArray[np.intp]
    validation: list[Example]
    validation_labels: npt.NDArray[np.intp]

    @property
    def pairs(self) -> bool:
        """Whether the examples are pairs of texts."""
        return self.train[0].pair is not None


def read_problem(texts: Any, labels: Any, validation: tuple[Any, Any] | None, *, merge: bool, read: Read) -> Problem:
    """Check what `fit` was given; with `merge` the validation set is trained on too."""
    train = read(texts, "texts")
    if not train:
        raise InputError("there are no texts to train on")
    train_labels = read_labels(labels, len(train))
    if validation is None and merge:
        raise InputError("merge_validation=True needs fit(..., validation=(texts, labels))")
    held_out, held_out_labels = _read_validation(validation, train, read)
    classes = np.unique(train_labels)
    if len(classes) < 2:
        raise InputError(
            f"all {len(train)} texts are of one class, {classes.tolist()[0]!r}; training needs two classes or more"
        )
    strange = set(held_out_labels.tolist()) - set(classes.tolist())
    if strange:
        raise InputError(
            f"the validation set has labels that the training set lacks: {', '.join(sorted(map(repr, strange)))}"
        )
    places, held_out_places = np.searchsorted(classes, train_labels), np.searchsorted(classes, held_out_labels)
    if merge:
        return Problem(classes, train + held_out, np.concatenate([places, held_out_places]), [], held_out_places[:0])
    return Problem(classes, train, places, held_out, held_out_places)


def _read_validation(
    validation: tuple[Any, Any] | None, train: Sequence[Example], read: Read
) -> tuple[list[Example], npt.NDArray[Any]]:
    if validation is None:
        return [], np.asarray([])
    if not isinstance(validation, tuple | list) or len(validation) != 2:
        raise InputError("validation must be (texts, labels)")
    held_out = read(validation[0], "validation texts")
    if not held_out:
        raise InputError("the validation set is empty; leave it out, or give it texts")
    if (held_out[0].pair is None) != (train[0].pair is None):
        raise InputError("the training set and the validation set must both be single texts, or both pairs")
    return held_out, read_labels(validation[1], len(held_out), name="validation labels")
