"""`pbsdk.toml`: what a project's commands have in common, written once by `pbsdk init` and read by the others.

`fit`, `predict`, `plan` and `audit` take from the file in the folder that they are run in what isn't typed. Options win, so do variables
such as PBSDK_BACKEND where an option reads one. A key that isn't known is an error, since a limit with a slip of the pen would be no limit. Keys and
passwords don't belong in it, and are refused.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr, ValidationError

from pbsdk.cli._opening import SECRET
from pbsdk.errors import InputError
from pbsdk.foreign import bounded_file

__all__ = ["FILE", "Settings", "read_settings"]

FILE = Path("pbsdk.toml")

LARGEST = 1 << 20
"""How many bytes the file may have."""

Value = StrictBool | StrictInt | StrictFloat | StrictStr

COMMENTS = {
    "data": "The labelled texts, and how they are read. `predict` finds new texts in the same columns.",
    "model": "Which language model answers; `pbsdk backends` lists them. Keys stay in the environment.",
    "model.options": "What `-o name=value` says.",
    "fit": "How the classifier is made; `pbsdk prompts list` shows the pools.",
    "run": "The folder that records every query. With the same folder nothing is paid for twice.",
    "budget": "Passes are per text. The others hold for the whole run folder; leave out what isn't limited.",
}


def _kebab(name: str) -> str:
    return name.replace("_", "-")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=_kebab, populate_by_name=True)


class _Data(_Part):
    file: StrictStr | None = None
    validation: StrictStr | None = None
    text_column: StrictStr | None = None
    pair_column: StrictStr | None = None
    label_column: StrictStr | None = None
    missing: Literal["refuse", "drop"] | None = None
    encoding: StrictStr | None = None
    delimiter: StrictStr | None = None


class _Model(_Part):
    backend: StrictStr | None = None
    options: dict[str, Value] = Field(default_factory=dict)


class _Fit(_Part):
    prompts: StrictStr | None = None
    head: StrictStr | None = None
    seed: StrictInt | None = None
    output: StrictStr | None = None


class _Run(_Part):
    folder: StrictStr | None = None


class _Budget(_Part):
    passes: StrictInt | None = None
    total: StrictInt | None = None
    tokens: StrictInt | None = None
    money: StrictFloat | StrictInt | None = None
    price_per_pass: StrictFloat | StrictInt | None = None
    price_per_1k_tokens: StrictFloat | StrictInt | None = None


class Settings(_Part):
    """Everything that the file may hold."""

    data: _Data = Field(default_factory=_Data)
    model: _Model = Field(default_factory=_Model)
    fit: _Fit = Field(default_factory=_Fit)
    run: _Run = Field(default_factory=_Run)
    budget: _Budget = Field(default_factory=_Budget)

    def for_commands(self) -> dict[str, Any]:
        """Return, by command, what stands where an option or an argument isn't typed."""
        columns = self.data.model_dump(include={"text_column", "pair_column"})
        # Of this file alone: decoded in its way, another would be read wrong without a word.
        form = self.data.model_dump(include={"label_column", "missing", "encoding", "delimiter"})
        limits = self.budget.model_dump()
        options = [
            f"{name}={value if isinstance(value, str) else json.dumps(value)}"
            for name, value in self.model.options.items()
        ]
        common = {
            "backend": self.model.backend,
            "option": options or None,
            "run": self.run.folder,
            "budget": limits.pop("passes"),
            **limits,
            **columns,
        }
        labelled = {
            **common,
            **form,
            "prompts": self.fit.prompts,
            "seed": self.fit.seed,
        }
        of_run = {"run": self.run.folder}
        found = {
            "fit": {
                **labelled,
                "data": self.data.file,
                "validation": self.data.validation,
                "head": self.fit.head,
                "output": self.fit.output,
            },
            "plan": {**labelled, "train": self.data.file, "validation": self.data.validation},
            "predict": {**common, "model": self.fit.output},
            "explain": {"model": self.fit.output},
            "card": {"model": self.fit.output, **of_run},
        }
        audit = {"audit": {name: _known(of_run) for name in ("show", "verify", "certify")}}
        return {name: _known(values) for name, values in found.items()} | audit

    def to_toml(self) -> str:
        """Return the file, with a comment above each part."""
        lines = [
            "# What `pbsdk fit`, `pbsdk predict`, `pbsdk plan` and `pbsdk audit` read in this folder; options win over it."
        ]
        for name, part in self.model_dump(by_alias=True, exclude_none=True).items():
            options = part.pop("options", {})
            lines += _section(name, part) + (_section(f"{name}.options", options) if options else [])
        return "\n".join(lines) + "\n"


def _known(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _section(name: str, values: dict[str, Any]) -> list[str]:
    if not values:
        return []
    return ["", f"# {COMMENTS[name]}", f"[{name}]", *(f"{_key(key)} = {_toml(value)}" for key, value in values.items())]


def _key(name: str) -> str:
    return name if name.replace("-", "").replace("_", "").isalnum() and name.isascii() else _toml(name)


def _toml(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def read_settings(path: Path = FILE) -> Settings | None:
    """Read the file; None if there is none."""
    if not path.is_file():
        return None
    try:
        found = Settings.model_validate(tomllib.loads(bounded_file(path, LARGEST).decode()))
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror}") from error
    except ValidationError as error:
        raise InputError(f"{path}: {_problem(error)}") from error
    except ValueError as error:
        raise InputError(f"{path} is not TOML that can be read: {error}") from error
    secret = next((name for name in found.model.options if SECRET.search(name)), None)
    if secret is not None:
        raise InputError(
            f"{path} holds a secret, {secret}; delete it there, and set PBSDK_API_KEY, or the provider's own variable, in the environment"
        )
    return found


def _problem(error: ValidationError) -> str:
    """Return what is wrong first, with the key that may be meant."""
    first = error.errors()[0]
    place = [str(piece) for piece in first["loc"] if not str(piece).startswith(("float", "int", "str", "bool"))]
    if first["type"] != "extra_forbidden":
        return f"{'.'.join(place)}: {first['msg']}"
    part: Any = Settings if len(place) == 1 else Settings.model_fields[place[0]].annotation
    names = [_kebab(name) for name in part.model_fields]
    close = difflib.get_close_matches(place[-1], names, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    return f"{'.'.join(place)} is unknown{hint}; it may have {', '.join(names)}"
