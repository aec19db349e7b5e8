"""Keys: where they come from, and where they may go.

A key is an argument (`api_key=`) or stands in the environment, and is held as a `SecretStr`, which
prints as stars. A key of the environment goes only to the hosts it belongs to (`ProviderKey`): `HF_TOKEN` to Hugging
Face, `AZURE_OPENAI_API_KEY` to Azure, `OPENAI_API_KEY` to OpenAI, or, if `OPENAI_BASE_URL` is set, to that host
alone, since then it is that host's. A server of one's own gets `api_key=` or `PBSDK_API_KEY`. So a changed
address never carries a provider's key somewhere else.
"""

from __future__ import annotations

import os
from typing import NamedTuple
from urllib.parse import urlsplit

from pydantic import SecretStr

from pbsdk.errors import SetupError

__all__ = ["HUGGING_FACE", "ProviderKey", "describe_keys", "find_key", "host_of"]


class ProviderKey(NamedTuple):
    """A provider's key in the environment."""

    variable: str
    homes: tuple[str, ...]
    """The hosts, and all below them, that it may go to."""

    def lives_at(self, host: str) -> bool:
        """Say whether it may go to a host."""
        gateway = host_of(os.environ.get("OPENAI_BASE_URL", "")) if self.variable == "OPENAI_API_KEY" else ""
        return host == gateway if gateway else self.is_home(host)

    def is_home(self, host: str) -> bool:
        """Say whether a host is one of its homes."""
        return any(host == home or host.endswith(f".{home}") for home in self.homes)


HUGGING_FACE = ProviderKey("HF_TOKEN", ("huggingface.co", "huggingface.cloud"))


def find_key(given: str | SecretStr | None, url: str, *own: ProviderKey) -> SecretStr | None:
    """Return the key for `url`: the given one, a provider's own at its home, or PBSDK_API_KEY elsewhere."""
    if given is not None:
        return _checked(given, "api_key")
    host = host_of(url)
    for key in own:
        if os.environ.get(key.variable) and key.lives_at(host):
            return _checked(os.environ[key.variable], key.variable)
    if any(key.is_home(host) for key in own):
        return None
    general = os.environ.get("PBSDK_API_KEY")
    return _checked(general, "PBSDK_API_KEY") if general else None


def host_of(url: str) -> str:
    """Return an address's host, or nothing if it is no address."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


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
