"""Presets: how a provider's dialect of OpenAI's API differs, as data.

The ones that ship stand in `presets.json`. `provider=` takes one of their names, a dictionary of the same form, or a JSON file
that holds one. Without it, the address says which one it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError, field_validator

from pbsdk.backend import bounded_json
from pbsdk.errors import InputError
from pbsdk_backends._remote.keys import ProviderKey, host_of

__all__ = ["Preset", "find_preset", "known_presets"]

_MOST_BYTES = 1 << 20
_RESERVED = frozenset({"messages", "model", "n", "prompt", "stream", "temperature", "top_p"})
"""Fields of a request that are ours: another value would change what an answer means."""


class ModelRule(BaseModel):
    """What some models of a provider want besides."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pattern: str
    """A regular expression; it is looked for in the model's name."""
    most_tokens: str = ""
    body: dict[str, JsonValue] = Field(default_factory=dict)

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"it is no regular expression: {error}") from None
        return pattern


class Preset(BaseModel):
    """One provider's dialect."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    about: str = ""
    url: str = ""
    """The address, up to and with `/v1`; empty if everybody has their own."""
    keys: tuple[str, ...] = ()
    """Variables of the environment that may hold the key."""
    hosts: tuple[str, ...] = ()
    """Where those keys may go; also the hosts by which the provider is known."""
    header: str = "Authorization"
    """Which header carries the key."""
    api: Literal["auto", "completions", "chat"] = "auto"
    top: int | None = Field(default=None, ge=1)
    """How many tokens it is known to show: that number is tried first."""
    most_tokens: str = "max_tokens"
    """What the field is called that says how many tokens to write."""
    count: Literal["top_logprobs", "logprobs"] = "top_logprobs"
    """Which field of a chat request says how many tokens to show."""
    chosen: bool | None = None
    """Whether it answers for chosen tokens and shows all, as vLLM can; None: what its answers say."""
    renames: bool = False
    """Models answer under another name than they are asked by."""
    body: dict[str, JsonValue] = Field(default_factory=dict)
    """More fields for every request."""
    headers: dict[str, str] = Field(default_factory=dict)
    """More headers for every request; no secrets."""
    models: tuple[ModelRule, ...] = ()
    """What some of its models want besides."""

    @field_validator("body")
    @classmethod
    def _leaves_ours(cls, body: dict[str, JsonValue]) -> dict[str, JsonValue]:
        ours = sorted(_RESERVED.intersection(body))
        if ours:
            raise ValueError(f"{ours[0]!r} is set by the adapter")
        return body

    def provider_keys(self) -> list[ProviderKey]:
        """Return the keys of the environment that belong to it; no preset sends another provider's key to hosts of its own."""
        homes = {variable: one.hosts for one in known_presets().values() for variable in one.keys}
        own = self.hosts or ((host_of(self.url),) if self.url else ())
        return [ProviderKey(variable, homes.get(variable, own)) for variable in self.keys]

    def to_model(self, model: str) -> Preset:
        """Return the preset with what this model wants."""
        most, body = self.most_tokens, dict(self.body)
        for rule in self.models:
            if re.search(rule.pattern, model):
                most = rule.most_tokens or most
                body |= rule.body
        return self.model_copy(update={"most_tokens": most, "body": body, "models": ()})

    def but(self, *, body: Mapping[str, Any] | None, headers: Mapping[str, str] | None) -> Preset:
        """Return the preset with more fields and headers."""
        said = self.model_dump()
        return _checked(
            {**said, "body": {**self.body, **(body or {})}, "headers": {**self.headers, **(headers or {})}},
            "body and headers",
        )


@cache
def known_presets() -> Mapping[str, Preset]:
    """Return the presets that ship, by their names."""
    text = resources.files("pbsdk_backends").joinpath("_remote/presets.json").read_bytes()
    return TypeAdapter(dict[str, Preset]).validate_json(text)


def find_preset(provider: str | Path | Mapping[str, Any] | None, url: str) -> Preset:
    """Return what is asked for, or what the address says; a server that nobody knows speaks OpenAI's own dialect."""
    if isinstance(provider, Mapping):
        return _checked(provider, "provider")
    if provider is None:
        return _at(url) if url else known_presets()["openai"]
    if str(provider) in known_presets():
        return known_presets()[str(provider)]
    path = Path(provider)
    if not path.is_file():
        names = ", ".join(known_presets())
        raise InputError(f"provider={str(provider)!r} is neither a preset nor a JSON file; the presets are {names}")
    if path.stat().st_size > _MOST_BYTES:
        raise InputError(f"the preset {path} is larger than a preset")
    try:
        return _checked(bounded_json(path.read_bytes()), str(path))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the preset {path} is not JSON that can be read ({error})") from None


def _at(url: str) -> Preset:
    host = host_of(url)
    for preset in known_presets().values():
        if any(host == home or host.endswith(f".{home}") for home in preset.hosts):
            return preset
    plain = known_presets()["openai"]
    return Preset(keys=plain.keys, hosts=plain.hosts)


def _checked(said: object, where: str) -> Preset:
    try:
        return Preset.model_validate(said)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the whole"
        known = ", ".join(Preset.model_fields)
        raise InputError(f"{where}: {field}: {first['msg']}; a preset may have {known}") from None
