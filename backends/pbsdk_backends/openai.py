"""The adapter `openai`: any server that speaks OpenAI's API and shows log-probabilities.

The model continues the text up to the mask by one token, and the server shows the likeliest ones:
through `completions` (the text as it is) or `chat/completions` (a conversation; see `_remote.conversation`).
Which of both, how many tokens it shows (`_remote.limits`), and whether it goes on with a turn that was begun is found
out once, when connecting (`_remote.compatible`): a handful of requests outside any budget. Naming `api`, `top` and `prefill` spares
them but one.

The address is `url`, or the provider's (`_remote.presets`), or OPENAI_BASE_URL, or OpenAI's own. Azure's may end with
`?api-version=...`, and Azure gets its key in a header of its own.

`temperature` is 1, where scaled and unscaled values are the same: some servers report what sampling
saw. The token drawn may then come as one more than asked for; the least probable of k + 1 is left out,
because it says nothing about tokens between it and the k-th.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack
from urllib.parse import urlsplit

from pydantic import BaseModel, SecretStr

from pbsdk.backend import Checkup, MaskDistribution
from pbsdk.errors import BackendError, InputError
from pbsdk_backends._remote.compatible import Api, CompatibleBackend, Route
from pbsdk_backends._remote.keys import describe_keys, host_of
from pbsdk_backends._remote.parallel import Job
from pbsdk_backends._remote.presets import Preset, find_preset, known_presets
from pbsdk_backends._remote.transport import Network, NetworkOptions, Transport, read_json, validated

__all__ = ["OpenAIBackend"]

_PATHS: Mapping[Route, str] = {"completions": "/completions", "chat": "/chat/completions"}


class _Model(BaseModel):
    id: str


class _Models(BaseModel):
    data: list[_Model]


class OpenAIBackend(CompatibleBackend):
    """A causal model behind OpenAI's API or one like it: Azure, Together, xAI, OpenRouter, vLLM, llama.cpp, Ollama.

    Args:
        model: the model's name, as the server knows it; on Azure, the deployment's.
        url: the server's address, up to and with `/v1`; None: the provider's, or OPENAI_BASE_URL, or else OpenAI's own.
        provider: whose dialect it speaks: a preset's name, a dictionary, or a JSON file; None: what the address says.
        api: "completions", "chat", or "auto" to find out.
        top: how many tokens to ask for; None to find out.
        prefill: by chat, let the prompt's last words begin the assistant's answer; False: show a sentence with a
            blank; None to find out whether the server goes on with what was begun.
        instruction: what a chat model is told first; None: nothing, or to fill in the blank.
        body: more fields for every request, beside the provider's.
        headers: more headers for every request; no secrets, since a saved connection shows them.
        max_characters: longer inputs are cut.
        api_key: or set the provider's variable, such as OPENAI_API_KEY (for OpenAI, or the host of OPENAI_BASE_URL) or
            AZURE_OPENAI_API_KEY; for other servers PBSDK_API_KEY.
        network: workers, time-outs and limits; see `Network`.
    """

    adapter = "openai/3"

    @classmethod
    def checkup(cls) -> Checkup:
        """Tell where requests go if no address is given, and which keys are in the environment."""
        variables = dict.fromkeys(name for preset in known_presets().values() for name in preset.keys)
        held = [name for name in variables if os.environ.get(name)]
        keys = describe_keys(*dict.fromkeys(["OPENAI_API_KEY", "AZURE_OPENAI_API_KEY", *held]))
        return Checkup({"host": host_of(os.environ.get("OPENAI_BASE_URL") or known_presets()["openai"].url), **keys})

    def __init__(  # noqa: PLR0913 - settings that are independent, given by keyword
        self,
        model: str,
        *,
        url: str | None = None,
        provider: str | Path | Mapping[str, Any] | None = None,
        api: Api = "auto",
        top: int | None = None,
        prefill: bool | None = None,
        instruction: str | None = None,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        max_characters: int = 6000,
        api_key: str | SecretStr | None = None,
        **network: Unpack[NetworkOptions],
    ) -> None:
        named = os.environ.get("OPENAI_BASE_URL", "").strip() if url is None and provider in (None, "openai") else ""
        address, preset = _dialect(url or named, provider)
        if body or headers:
            preset = preset.but(body=body, headers=headers)
        self._transport = _open(address, preset, Network.of(network), api_key)
        self.where = self._transport.url
        if named:
            host = urlsplit(self.where).netloc
            warnings.warn(
                f"OPENAI_BASE_URL is set: texts and key go to {host}; to say so yourself, give url=", stacklevel=4
            )
        super().__init__(
            model,
            preset,
            api=api,
            top=top,
            prefill=prefill,
            instruction=instruction,
            max_characters=max_characters,
            batch_size=self._transport.batch_size,
        )

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def _exchange(self, route: Route, request: Mapping[str, Any]) -> object:
        return read_json(self._transport.post(_PATHS[route], request, **self._preset.headers).body)

    def _beside(self, path: str, request: Mapping[str, Any]) -> object:
        # vLLM has its tokenizer beside /v1, not below it.
        return read_json(self._transport.post(f"/..{path}", request, **self._preset.headers).body)

    def _run(self, jobs: Sequence[Job]) -> list[MaskDistribution]:
        return self._transport.fill(jobs)

    def _names(self) -> list[str] | None:
        try:
            listed = self._transport.get("/models", **self._preset.headers)
            return [model.id for model in validated(_Models, read_json(listed.body)).data]
        except BackendError:
            return None


def _dialect(url: str, provider: str | Path | Mapping[str, Any] | None) -> tuple[str, Preset]:
    """Return the address, and whose dialect is spoken there."""
    # Only Azure's addresses end with a question mark and more.
    preset = find_preset("azure" if provider is None and "?" in url else provider, url)
    address = url or preset.url
    if not address:
        raise InputError(f"the provider {provider!r} has no address that is everybody's; give url=")
    return address, preset


def _open(url: str, preset: Preset, network: Network, key: str | SecretStr | None) -> Transport:
    """Return the connections to an address."""
    address, _, query = url.partition("?")
    if query and not re.fullmatch(r"api-version=[\w.-]+", query):
        raise InputError("the URL has a part after ?; only Azure's api-version may stand there")
    return Transport(address, network, key=key, own=preset.provider_keys(), header=preset.header, query=query)
