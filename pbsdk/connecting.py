"""`connect`: from a backend's name to a metered model, ready to train on."""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pbsdk.backend import MaskedLMBackend
from pbsdk.errors import InputError, PbsdkError, SetupError
from pbsdk.ledger.budget import QueryBudget
from pbsdk.metering.meter import MeteredBackend
from pbsdk.plugins import BACKENDS, OUTLINES

__all__ = ["AvailableBackend", "available", "connect", "connect_to_plan", "default_name", "find", "open_backend"]

EMBEDDED = "smollm2"


@dataclass(frozen=True)
class AvailableBackend:
    """A registered adapter, and whether it can be imported here."""

    name: str
    about: str
    problem: str = ""


def available() -> list[AvailableBackend]:
    """Return every registered adapter, and what keeps it from working, if anything does."""
    found = []
    for name in BACKENDS.names():
        try:
            adapter = find(name)
        except SetupError as error:
            found.append(AvailableBackend(name, "", str(error)))
        else:
            found.append(AvailableBackend(name, (inspect.getdoc(adapter) or "").partition("\n")[0]))
    return found


def connect(
    name: str | None = None,
    *,
    run: str | os.PathLike[str] | None = None,
    budget: int | QueryBudget | None = 10,
    canaries: bool | Literal["warn"] = False,
    **options: Any,
) -> MeteredBackend:
    """Connect to a model by its backend's name, and meter it.

    Args:
        name: a backend from `available()`. None for the one that the environment variable
            PBSDK_BACKEND names, or else the embedded model.
        run: the folder that records every query, or the address of a database that several machines share
            (`postgresql://...`); using the same again asks only for what is missing. None for a folder under `runs/`
            named after the model.
        budget: passes that an example may have, as a number or a `QueryBudget`; None for no limit.
        canaries: ask a few fixed texts first, and refuse (or, with "warn", report) a provider whose
            answers to them have changed since the run began; they are passes of the phase `probe`.
        options: the backend's options, such as `model="roberta-large"`.
    """
    limits = QueryBudget.of(budget)
    chosen = name or default_name()
    return _metered(chosen, open_backend(chosen, **options), run, limits, canaries=canaries)


def connect_to_plan(
    name: str | None = None,
    *,
    run: str | os.PathLike[str] | None = None,
    budget: int | QueryBudget | None = 10,
    **options: Any,
) -> MeteredBackend:
    """Connect to a model that will not be asked: as `connect` does, but without the weights of a model whose outline is at hand."""
    limits = QueryBudget.of(budget)
    chosen = name or default_name()
    backend = _outline(chosen, options) or open_backend(chosen, **options)
    return _metered(chosen, backend, run, limits)


def _outline(name: str, options: dict[str, Any]) -> MaskedLMBackend | None:
    if name not in OUTLINES.names():
        return None
    try:
        outline: MaskedLMBackend | None = OUTLINES.load(name)(**options)
    except (PbsdkError, TypeError):  # opening the model itself says what is wrong
        return None
    return outline


def _metered(
    chosen: str,
    backend: MaskedLMBackend,
    run: str | os.PathLike[str] | None,
    limits: QueryBudget,
    *,
    canaries: bool | Literal["warn"] = False,
) -> MeteredBackend:
    try:
        place = run if run is not None else Path("runs") / f"{chosen}-{backend.identity.digest[:8]}"
        return MeteredBackend(backend, place, limits, canaries=canaries)
    except BaseException:
        backend.close()
        raise


def default_name() -> str:
    """Return the backend to use when none is named: PBSDK_BACKEND, or the embedded model."""
    return os.environ.get("PBSDK_BACKEND") or EMBEDDED


def open_backend(name: str, **options: Any) -> MaskedLMBackend:
    """Open a backend by its name without a meter: nothing is counted, limited or remembered."""
    adapter = find(name)
    try:
        inspect.signature(adapter).bind(**options)
    except TypeError as error:
        known = ", ".join(inspect.signature(adapter).parameters) or "none"
        raise InputError(f"the backend {name!r} doesn't take these options: {error}; it takes {known}") from error
    return adapter(**options)


def find(name: str) -> type[MaskedLMBackend]:
    """Import and return the adapter with this name."""
    adapter = BACKENDS.load(name)
    if not (isinstance(adapter, type) and issubclass(adapter, MaskedLMBackend)):
        raise SetupError(f"the entry point {name!r} is not a MaskedLMBackend: {adapter!r}")
    return adapter
