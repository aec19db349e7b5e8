"""Weights: how much each labelled text counts, as scikit-learn has it.

`sample_weight` is a number per text and `class_weight` one per class; a text's weight is their product. Only their
proportions matter. A text of weight 0 is left out, so that nothing is paid for it.

>>> class_weights("balanced", np.array(["a", "a", "a", "b"]), np.array(["a", "b"])).round(3).tolist()
[0.667, 2.0]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pbsdk.backend import Floats
from pbsdk.errors import InputError

__all__ = ["class_weights", "in_proportion", "read_sample_weight"]


def read_sample_weight(given: Any, count: int) -> Floats | None:
    """Read a weight for each of `count` texts; a single number is the same for all."""
    if given is None or isinstance(given, int | float | np.number):
        return None
    try:
        weights = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"sample_weight must be numbers, one per text: {error}") from error
    if weights.shape != (count,):
        raise InputError(
            f"sample_weight has the shape {weights.shape}, and there are {count} texts; give one number per text"
        )
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        at = int(np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))[0])
        raise InputError(f"sample_weight[{at}] is {weights[at]}; weights must be finite and at least 0")
    if not weights.any():
        raise InputError("every sample_weight is zero; give some text a weight")
    return weights


def class_weights(given: Any, labels: npt.NDArray[Any], classes: npt.NDArray[Any]) -> Floats | None:
    """Return the weight (C,) of each class: "balanced" gives all classes the same in all, a mapping names them."""
    if given is None:
        return None
    if isinstance(given, str) and given == "balanced":
        counts = (labels[:, None] == classes).sum(axis=0)
        balanced: Floats = len(labels) / (len(classes) * counts)
        return balanced
    if not isinstance(given, Mapping):
        raise InputError(f'class_weight must be "balanced" or a mapping of labels to numbers, not {given!r}')
    names = classes.tolist()
    strange = [name for name in given if name not in names]
    if strange:
        raise InputError(
            f"class_weight names {', '.join(map(repr, strange))}; the classes are {', '.join(map(repr, names))}"
        )
    weights = read_sample_weight([given.get(name, 1.0) for name in names], len(names))
    assert weights is not None  # noqa: S101 - for the type checker
    if (weights == 0).any():
        raise InputError(f"class_weight gives {names[int(weights.argmin())]!r} nothing; leave its texts out instead")
    return weights


def in_proportion(weights: Floats | None) -> Floats | None:
    """Return weights with a mean of 1; None where all are equal."""
    if weights is None or (weights == weights[0]).all():
        return None
    scaled = weights / weights.max()  # else the sum of huge ones would overflow
    found: Floats = scaled / scaled.mean()
    return found
