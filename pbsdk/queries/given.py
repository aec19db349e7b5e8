"""What `fit` is given: labelled texts, how much each counts, and perhaps a validation set; read, and kept so that more can be added.

>>> given = Given([Example("late"), Example("won")], np.array(["post", "sport"]))
>>> more = given.with_more([Example("lost"), Example("late")], np.array(["sport", "delay"]))
>>> [one.text for one in more.examples], more.labels.tolist()
(['late', 'won', 'lost'], ['delay', 'sport', 'sport'])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from pbsdk.backend import Floats
from pbsdk.errors import InputError
from pbsdk.queries.examples import Example, read_labels
from pbsdk.queries.weights import read_sample_weight

__all__ = ["Given", "Read", "ReadLabels", "read_given"]

Read = Callable[[Any, str], list[Example]]
"""Makes examples of texts; the name is what errors call them."""


class ReadLabels(Protocol):
    """Reads the labels of so many texts; the name is what errors call them."""

    def __call__(self, labels: Any, count: int, *, name: str = ...) -> npt.NDArray[Any]:
        """Return them."""


@dataclass(frozen=True)
class Given:
    """Examples and their labels, as they came."""

    examples: list[Example]
    labels: npt.NDArray[Any]
    weights: Floats | None = None
    """How much each counts (N,); None: 1 each."""
    validation: list[Example] = field(default_factory=list)
    validation_labels: npt.NDArray[Any] = field(default_factory=lambda: np.asarray([]))

    @property
    def weighed(self) -> Floats:
        """How much each counts (N,)."""
        return np.ones(len(self.examples)) if self.weights is None else self.weights

    def with_more(self, examples: Sequence[Example], labels: npt.NDArray[Any], weights: Floats | None = None) -> Self:
        """Return it with further examples; one that it has already takes the new label and weight."""
        every, said, weighed = list(self.examples), self.labels.tolist(), self.weighed.tolist()
        more = np.ones(len(examples)) if weights is None else weights
        places = {example: at for at, example in enumerate(every)}
        for example, label, weight in zip(examples, labels.tolist(), more.tolist(), strict=True):
            at = places.setdefault(example, len(every))
            if at == len(every):
                every.append(example)
                said.append(label)
                weighed.append(weight)
            else:
                said[at], weighed[at] = label, weight
        alike = self.weights is None and weights is None
        return replace(
            self,
            examples=every,
            labels=self._read(said),
            weights=None if alike else np.array(weighed),
        )

    def _read(self, labels: list[Any]) -> npt.NDArray[Any]:
        return read_labels(labels, len(labels))

    def relabelled(self, examples: Sequence[Example], labels: npt.NDArray[Any]) -> list[Example]:
        """Return those of some examples that it has under another label."""
        known = dict(zip(self.examples, self.labels.tolist(), strict=True))
        return [one for one, label in zip(examples, labels.tolist(), strict=True) if known.get(one, label) != label]

    def without_weightless(self) -> Self:
        """Return it without examples that count nothing; no class may vanish with them."""
        kept = self.weighed > 0
        if kept.all():
            return self
        lost = set(self.labels.tolist()) - set(self.labels[kept].tolist())
        if lost:
            raise InputError(
                f"sample_weight is 0 for every text of the class {', '.join(sorted(map(repr, lost)))}; leave that class out, or "
                "give one of its texts a weight"
            )
        examples = [example for example, keep in zip(self.examples, kept, strict=True) if keep]
        return replace(self, examples=examples, labels=self.labels[kept], weights=self.weighed[kept])


def read_given(  # noqa: PLR0913 - what `fit` was given, and how it is read
    texts: Any,
    labels: Any,
    validation: tuple[Any, Any] | None,
    *,
    read: Read,
    sample_weight: Any = None,
    read_labels: ReadLabels = read_labels,
) -> Given:
    """Read what `fit` was given."""
    train = read(texts, "texts")
    if not train:
        raise InputError("there are no texts to train on")
    train_labels = read_labels(labels, len(train), name="labels")
    weights = read_sample_weight(sample_weight, len(train))
    if validation is None:
        return Given(train, train_labels, weights)
    if not isinstance(validation, tuple | list) or len(validation) != 2:
        raise InputError("validation must be (texts, labels)")
    held_out = read(validation[0], "validation texts")
    if not held_out:
        raise InputError("the validation set is empty; leave it out, or give it texts")
    if (held_out[0].pair is None) != (train[0].pair is None):
        raise InputError("the training set and the validation set must both be single texts, or both pairs")
    held_out_labels = read_labels(validation[1], len(held_out), name="validation labels")
    return Given(train, train_labels, weights, held_out, held_out_labels)
