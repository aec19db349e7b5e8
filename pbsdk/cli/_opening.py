"""Opening: which backend a command asks, by what is typed or by what a model file remembers of its training.

A model file also remembers in which columns its texts stood, by which new ones are found.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pbsdk.errors import BackendError, InputError, SetupError
from pbsdk.foreign import bounded_json

if TYPE_CHECKING:
    from pbsdk.data.loading import LabelledTexts
    from pbsdk.ledger.budget import QueryBudget
    from pbsdk.metering.meter import MeteredBackend

__all__ = ["SECRET", "column_facts", "connected", "familiar", "read_options", "remembered"]

SECRET = re.compile(r"(^|[_-])(key|token|secret|password)$", re.IGNORECASE)
"""Names of options that hold what nobody else should see."""


def read_options(options: list[str] | None) -> dict[str, Any]:
    """Read `name=value`; a value that is JSON (a number, true, null) is read as such."""
    read: dict[str, Any] = {}
    for option in options or []:
        name, equals, value = option.partition("=")
        if not equals or not name:
            raise InputError(f"an option must be name=value, such as model=roberta-large; not {option!r}")
        if SECRET.search(name):
            raise InputError(
                f"-o {name}=... would show a secret to everyone who lists this machine's processes; set PBSDK_API_KEY, or the provider's "
                "own variable such as OPENAI_API_KEY, in the environment"
            )
        try:
            read[name.replace("-", "_")] = bounded_json(value)
        except ValueError:
            read[name.replace("-", "_")] = value
    return read


def remembered(backend: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """Return what a model file keeps of how its backend was opened: plain values, and no address that holds a secret."""
    from pbsdk.connecting import default_name

    def plain(value: Any) -> bool:
        address = urlsplit(value) if isinstance(value, str) and "://" in value else None
        secret = address is not None and ("@" in address.netloc or bool(address.query))
        return isinstance(value, str | int | float | bool | None) and not secret

    return {"name": backend or default_name(), "options": {key: kept for key, kept in options.items() if plain(kept)}}


def connected(  # noqa: PLR0913 - a command's options
    model: Path | None,
    backend: str | None,
    options: dict[str, Any],
    *,
    run: str | None,
    budget: QueryBudget,
    engine: str | None = None,
    asks: bool = True,
) -> MeteredBackend:
    """Connect to the backend that is named, or else to the one that a classifier was trained on, inside an engine's if one is named.

    Options that are given go before those that the model file remembers. An address elsewhere has to be typed: a file from
    a stranger must not choose who reads the texts. A remembered backend that can't be opened, or
    that is another model by now, is an error that says what to type. A model that nobody `asks` needs no weights.
    """
    from pbsdk.connecting import connect, connect_to_plan, default_name
    from pbsdk.learning.model_file import SavedClassifier

    opened = connect if asks else connect_to_plan
    if model is None or backend is not None:
        outer, told = _within(engine, backend or default_name(), options)
        return opened(outer, run=run, budget=budget, **told)
    saved = SavedClassifier.load(model)
    name = saved.backend.name if saved.backend else None
    kept: dict[str, Any] = {**saved.backend.options} if saved.backend else {}
    elsewhere = next((value for key, value in kept.items() if key not in options and _leaves(key, value)), None)
    if elsewhere is not None:
        raise SetupError(
            f"{model} says to send the texts, and the key for it, to {elsewhere}; if you trust that, type {_typed(name, kept)}"
        )
    kept |= options
    try:
        outer, told = _within(engine, name or default_name(), kept)
        lm = opened(outer, run=run, budget=budget, **told)
    except (SetupError, InputError, BackendError) as error:
        if saved.backend is None:
            raise
        raise SetupError(
            f"{error}. {model} was trained with `{_typed(name, kept)}`; if that is elsewhere now, say so with --backend and -o"
        ) from error
    difference = "" if options else lm.identity.differences(saved.identity)
    if difference:
        lm.close()
        raise SetupError(
            f"{model} was trained on another model than the one that answers now ({difference}); name the right one with "
            f"--backend and -o, or use this one with `{_typed(name or default_name(), kept)}`"
        )
    return lm


def _within(engine: str | None, name: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the backend that runs another inside an engine; it has the engine's name."""
    return (name, options) if engine in {None, name} else (str(engine), {"inner": name, **options})


_BARE_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[\w.-]+):\d+")


def _leaves(name: str, value: Any) -> bool:
    """Return whether an option chooses another machine, as an address or by a provider's name, which no file alone may do."""
    if name == "provider" and value is not None:
        return True
    if not isinstance(value, str):
        return False
    bare = _BARE_ADDRESS.fullmatch(value)
    address = urlsplit(value if "://" in value else f"//{value}") if bare or "://" in value else None
    return address is not None and address.hostname not in {"127.0.0.1", "::1", "localhost"}


def _typed(name: str | None, options: dict[str, Any]) -> str:
    """Return what somebody types to open a backend."""
    said = [
        f"-o {shlex.quote(f'{key}={value if isinstance(value, str) else json.dumps(value)}')}"
        for key, value in options.items()
    ]
    return " ".join(["--backend", shlex.quote(name or "NAME"), *said])


_COLUMNS = ("text_column", "pair_column")
"""The facts of a model file that say where its texts stood."""


def column_facts(texts: LabelledTexts) -> dict[str, str]:
    """Return what a model file remembers of a table: the columns of its texts, by which new ones are found."""
    found = (None, None) if texts.roles is None else (texts.roles.text, texts.roles.pair)
    return {name: column for name, column in zip(_COLUMNS, found, strict=True) if column is not None}


def familiar(model: Path) -> list[str]:
    """Return the columns that a model file remembers of its texts."""
    from pbsdk.learning.model_file import SavedClassifier

    facts = SavedClassifier.load(model).facts
    return [getattr(facts, name) for name in _COLUMNS if hasattr(facts, name)]
