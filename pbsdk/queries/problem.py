"""The problem that a head learns: classes, and examples by their places in them, checked before anything is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pbsdk.backend import Floats, digest
from pbsdk.errors import InputError
from pbsdk.queries.examples import Example
from pbsdk.queries.given import Given
from pbsdk.queries.weights import class_weights, in_proportion

__all__ = ["Problem", "problem_of"]


@dataclass(frozen=True)
class Problem:
    """Examples to learn from and to validate on; labels are places in `classes`, or indicators (N, C) of several."""

    classes: npt.NDArray[Any]
    train: list[Example]
    train_labels: npt.NDArray[np.intp]
    validation: list[Example]
    validation_labels: npt.NDArray[np.intp]
    weights: Floats | None = None
    """How much each example counts, those of the validation set last; 1 on average. None: all alike."""

    @property
    def texts_per_class(self) -> tuple[int, ...]:
        """How many examples each class has."""
        labels = np.concatenate([self.train_labels, self.validation_labels]).astype(np.intp)
        if labels.ndim > 1:
            return tuple(labels.sum(axis=0).tolist())
        return tuple(np.bincount(labels, minlength=len(self.classes)).tolist())

    @property
    def digest(self) -> str:
        """A digest of all examples and their labels, in whatever order they came."""
        names = self.classes.tolist()
        every = zip([*self.train, *self.validation], [*self.train_labels, *self.validation_labels], strict=True)
        said = (
            (one, [names[at] for at in np.flatnonzero(label)] if np.ndim(label) else names[label])
            for one, label in every
        )
        return digest(*sorted(f"{example.id} {label!r}" for example, label in said))

    @property
    def pairs(self) -> bool:
        """Whether the examples are pairs of texts."""
        return self.train[0].pair is not None


def problem_of(given: Given, *, merge: bool, class_weight: Any = None) -> Problem:
    """Find the classes; with `merge` the validation set is trained on too.

    Texts of a validation set weigh 1 each, times what their class does.
    """
    if not given.validation and merge:
        raise InputError("merge_validation=True needs fit(..., validation=(texts, labels))")
    train, held_out = given.examples, given.validation
    classes = np.unique(given.labels)
    if len(classes) < 2:
        raise InputError(
            f"all {len(train)} texts are of one class, {classes.tolist()[0]!r}; training needs two classes or more"
        )
    strange = set(given.validation_labels.tolist()) - set(classes.tolist())
    if strange:
        raise InputError(
            f"the validation set has labels that the training set lacks: {', '.join(sorted(map(repr, strange)))}"
        )
    places, held_out_places = (np.searchsorted(classes, labels) for labels in (given.labels, given.validation_labels))
    every = np.concatenate([places, held_out_places])
    weights = None
    of_class = class_weights(class_weight, given.labels, classes)
    if given.weights is not None or of_class is not None:
        weights = np.concatenate([given.weighed, np.ones(len(held_out))])
        weights = in_proportion(weights if of_class is None else weights * of_class[every])
    if merge:
        return Problem(classes, train + held_out, every, [], held_out_places[:0], weights)
    return Problem(classes, train, places, held_out, held_out_places, weights)
