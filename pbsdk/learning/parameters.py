"""Checks of parameters: each problem is one error that says what would do."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

from pbsdk.errors import InputError

__all__ = ["check_choice", "check_count"]


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
