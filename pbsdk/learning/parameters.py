"""Parameters read and checked: each problem is one error that says what would do."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from numbers import Integral
from typing import Any

from sklearn.utils import check_random_state

from pbsdk.errors import InputError

__all__ = ["check_choice", "check_count", "read_seed"]


def check_count(name: str, value: Any, *, optional: bool = False) -> None:
    """Refuse what is no whole number of at least 1; None is fine where `optional`."""
    if value is None and optional:
        return
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise InputError(f"{name} must be a whole number of at least 1, not {value!r}")


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Refuse what is none of the choices."""
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(choices)}; not {value!r}")


def read_seed(random_state: Any, *, ahead: bool = False) -> int:
    """Return the seed that scikit-learn's `random_state` gives; `ahead` leaves a generator as it is, to give it again."""
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(check_random_state(copy.deepcopy(random_state) if ahead else random_state).randint(2**31))
