"""Keys: where they come from, and where they may go.

A key is an argument (`api_key=`) or stands in the environment, and is held as a `SecretStr`, which
prints as stars. A key of the environment goes only to the host it belongs to: `HF_TOKEN` to Hugging
Face, `AZURE_OPENAI_API_KEY` to Azure, `OPENAI_API_KEY` to OpenAI, or, if `OPENAI_BASE_URL` is set, to that host
alone, since then it is that host's. A server of one's own gets `api_key=` or `PBSDK_API_KEY`. So a changed
address never carries a provider's key somewhere else.
"""

from __future__ import annotations

import os
from typing import Literal
from urllib.parse import urlsplit

from pydantic import SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from pbsdk.errors import SetupError

__all__ = ["ProviderKey", "describe_keys", "find_key", "host_of"]

ProviderKey = Literal["azure_openai_api_key", "hf_token", "openai_api_key"]

_HOMES = {
    "azure_openai_api_key": ("azure.com",),
    "hf_token": ("huggingface.co", "huggingface.cloud"),
    "openai_api_key": ("openai.com",),
}


class _Environment(BaseSettings):
    model_config = SettingsConfigDict(extra="ignore", env_ignore_empty=True)

    azure_openai_api_key: SecretStr | None = None
    hf_token: SecretStr | None = None
    openai_api_key: SecretStr | None = None
    openai_base_url: str = ""
    pbsdk_api_key: SecretStr | None = None


def find_key(given: str | SecretStr | None, url: str, *own: ProviderKey) -> SecretStr | None:
    """Return the key for `url`: the given one, a provider's own at its home, or PBSDK_API_KEY elsewhere."""
    if given is not None:
        return _checked(given, "api_key")
    environment = _Environment()
    host, gateway = host_of(url), host_of(environment.openai_base_url)
    for name in own:
        moved = bool(gateway) and name == "openai_api_key"
        found: SecretStr | None = getattr(environment, name)
        if found and (host == gateway if moved else _lives(host, name)):
            return _checked(found, name.upper())
    if any(_lives(host, name) for name in own):
        return None
    return environment.pbsdk_api_key and _checked(environment.pbsdk_api_key, "PBSDK_API_KEY")


def host_of(url: str) -> str:
    """Return an address's host, or nothing if it is no address."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _lives(host: str, name: ProviderKey) -> bool:
    return any(host == home or host.endswith(f".{home}") for home in _HOMES[name])


def describe_keys(*names: str) -> dict[str, str]:
    """Say whether keys are in the environment, for `pbsdk doctor`; never what they are."""
    said = (f"{name} is {'set' if os.environ.get(name) else 'not set'}" for name in (*names, "PBSDK_API_KEY"))
    return {"key": ", ".join(said)}


def _checked(key: str | SecretStr, name: str) -> SecretStr:
    text = key.get_secret_value() if isinstance(key, SecretStr) else key
    # Checked here because the HTTP library would quote the whole header in its own error.
    if not isinstance(text, str) or not text.strip() or not text.strip().isascii() or not text.strip().isprintable():
        raise SetupError(f"{name} is not a key that can be sent: it must be one line of plain ASCII")
    return SecretStr(text.strip())
