"""The adapter `litellm`: whatever the library LiteLLM reaches, where log-probabilities really come back.

    connect("litellm", provider="fireworks_ai", model="accounts/fireworks/models/llama-v3p1-8b-instruct")

Queries are conversations (`_remote.conversation`), asked through the library's `completion`. The library forgets log-probabilities on the
way back from some providers, so one request when connecting finds out whether they come (`_remote.compatible`). A field that a provider
doesn't take is an error and never left out silently (`drop_params`), and nothing is asked again behind the meter's back.

The provider is named apart from the model, so that a file that remembers a model can't choose who reads the texts. Keys are the ones that the
library finds in the environment.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, Unpack

from pbsdk.backend import Checkup, MaskDistribution, ModelIdentity
from pbsdk.errors import BackendError, BackendTimeout, BackendUnavailable, InputError, MissingExtra, QueryRefused
from pbsdk_backends._protocol.address import checked_address
from pbsdk_backends._remote.compatible import CompatibleBackend, Route
from pbsdk_backends._remote.parallel import Job, Pace, run_jobs
from pbsdk_backends._remote.presets import Preset
from pbsdk_backends._remote.transport import ROUNDS_A_BATCH, HttpRefusal, Network, NetworkOptions, waiting_time

if find_spec("litellm") is None:
    raise MissingExtra('the adapter `litellm` needs litellm; install it: pip install "pbsdk[litellm]"')

__all__ = ["LiteLLMBackend"]

_QUIET = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION"}
"""While it is imported: fetch no list of prices, and read no `.env` of the folder we happen to be in."""
_NOT_ENFORCED = {"max_bytes", "connect_timeout", "read_timeout"}
"""What the library, which has connections of its own, gives no hold on."""
_SECRET = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD)$")
_SHORTEST_SECRET = 8
_DID_NOT_RUN = frozenset({409, 425, 429})


class LiteLLMBackend(CompatibleBackend):
    """A chat model that LiteLLM reaches.

    Args:
        model: the model's name, as its provider knows it, without the provider's.
        provider: the provider, as LiteLLM calls it: "openai", "fireworks_ai", "hosted_vllm", "litellm_proxy", ...
        url: the server's address; None: the one that LiteLLM knows.
        top: how many tokens to ask for; None to find out.
        instruction: what the model is told first; None: nothing, or to fill in the blank.
        body: more fields for every request, as LiteLLM's `completion` takes them.
        max_characters: longer inputs are cut.
        network: workers, requests_per_second, deadline and allow_plain_http; see `Network`.
    """

    adapter = "litellm/1"

    @classmethod
    def checkup(cls) -> Checkup:
        """Say which version is installed; the library itself takes seconds to import."""
        return Checkup({"library": f"litellm {version('litellm')}"})

    def __init__(  # noqa: PLR0913 - settings that are independent, given by keyword
        self,
        model: str,
        *,
        provider: str,
        url: str | None = None,
        top: int | None = None,
        instruction: str | None = None,
        body: Mapping[str, Any] | None = None,
        max_characters: int = 6000,
        **network: Unpack[NetworkOptions],
    ) -> None:
        beyond = sorted(_NOT_ENFORCED.intersection(network))
        if beyond:
            raise InputError(f"{beyond[0]} can't be enforced through LiteLLM; deadline can")
        self._provider = provider
        self._calls = _Calls(Network.of(network), url)
        self.where = self._calls.url or provider
        preset = Preset(api="chat", top=20, renames=True).but(body=body, headers=None)
        super().__init__(
            model,
            preset,
            api="chat",
            top=top,
            prefill=False,
            instruction=instruction,
            max_characters=max_characters,
            batch_size=self._calls.network.workers * ROUNDS_A_BATCH,
        )
        self.identity = ModelIdentity(model, {**self.identity.details, "provider": provider})

    def _exchange(self, route: Route, request: Mapping[str, Any]) -> object:
        del route  # always chat
        return self._calls.complete(self._provider, request)

    def _run(self, jobs: Sequence[Job]) -> list[MaskDistribution]:
        return self._calls.run(jobs)


class _Calls:
    """Calls of the library, some at once; another process makes its own."""

    def __init__(self, network: Network, url: str | None) -> None:
        self.network = network
        self.url = url and checked_address(url, network.allow_plain_http)
        self._pace = Pace(network.requests_per_second)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Calls, (self.network, self.url)

    def run(self, jobs: Sequence[Job]) -> list[MaskDistribution]:
        network = self.network
        return run_jobs(jobs, workers=network.workers, deadline=network.deadline, pace=self._pace)

    def complete(self, provider: str, request: Mapping[str, Any]) -> object:
        library = _library()
        if getattr(library, "drop_params", False):  # it goes before what a call says
            raise QueryRefused(
                "litellm.drop_params is on, which leaves fields out without a word; switch it off (LITELLM_DROP_PARAMS)"
            )
        try:
            answer = library.completion(
                **request,
                custom_llm_provider=provider,
                api_base=self.url,
                timeout=self.network.deadline,
                num_retries=0,
                max_retries=0,
                drop_params=False,
            )
        except Exception as error:  # noqa: BLE001 - it raises its own, its client's, and plain ones
            problem = _problem(error, timed_out=isinstance(error, library.exceptions.Timeout))
        else:
            return answer.model_dump()
        # Raised here and not above: the library's error holds the request, and with it the key.
        raise problem


@cache
def _library() -> Any:
    with _environment(_QUIET):
        library: Any = importlib.import_module("litellm")
    library.telemetry = False
    library.suppress_debug_info = True
    return library


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _problem(error: Exception, *, timed_out: bool) -> BackendError:
    """Return one of our errors for one of the library's."""
    message = f"LiteLLM: {_without_secrets(' '.join(str(error).split())[:500])}"
    status = getattr(error, "status_code", 0)
    if timed_out:
        return BackendTimeout(message)
    wait = waiting_time(getattr(getattr(error, "response", None), "headers", None) or {})
    if status in _DID_NOT_RUN or (status == 503 and wait is not None):
        return BackendUnavailable(message, retry_after=wait)
    if not isinstance(status, int) or not 400 <= status < 500:
        # It says 500 for a connection that broke as well, whenever that was.
        return BackendUnavailable(message, may_have_run=True, retry_after=wait)
    refusal = HttpRefusal(message)
    refusal.status = status
    return refusal


def _without_secrets(text: str) -> str:
    for name, value in os.environ.items():
        if _SECRET.search(name) and len(value) >= _SHORTEST_SECRET:
            text = text.replace(value, "***")
    return text
