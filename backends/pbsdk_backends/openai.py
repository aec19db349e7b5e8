"""The adapter `openai`: any server that speaks OpenAI's API and shows log-probabilities.

The model continues the text up to the mask by one token, and the server shows the likeliest ones:
through `completions` (the text as it is) or `chat/completions` (a conversation; see `_remote.conversation`).
Which of both, how many tokens it shows (`_remote.limits`), and whether it goes on with a turn that was begun is found
out once, when connecting: a handful of requests outside any budget. Naming `api`, `top` and `prefill` spares them but
one.

The address is `url`, or OPENAI_BASE_URL, or OpenAI's own. Azure's may end with `?api-version=...`, and Azure gets its
key in a header of its own.

`temperature` is 1, where scaled and unscaled values are the same: some servers report what sampling
saw. The token drawn may then come as one more than asked for; the least probable of k + 1 is left out,
because it says nothing about tokens between it and the k-th.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, Unpack
from urllib.parse import urlsplit

from pydantic import BaseModel, SecretStr

from pbsdk.backend import (
    Abilities,
    Checkup,
    MaskDistribution,
    MaskedLMBackend,
    MaskedQuery,
    ModelIdentity,
    OpenVocabulary,
    Part,
    Tokens,
    most_tokens_of,
)
from pbsdk.errors import BackendError, BadAnswer, InputError, ModelUnusable, QueryRefused
from pbsdk_backends._remote.conversation import BLANK, PREFILLS, PROBE, Opening, conversation, goes_on
from pbsdk_backends._remote.cutting import shortened
from pbsdk_backends._remote.keys import ProviderKey, describe_keys, host_of
from pbsdk_backends._remote.limits import TooMany, most_shown
from pbsdk_backends._remote.logprobs import NoProbabilities, read_answer
from pbsdk_backends._remote.parallel import Job
from pbsdk_backends._remote.transport import Network, NetworkOptions, Transport, read_json, validated

__all__ = ["OpenAIBackend"]

PUBLIC = "https://api.openai.com/v1"
_PATHS = {"completions": "/completions", "chat": "/chat/completions"}
_PROBE = MaskedQuery((Part("prompt", "The capital of France is "), Part("mask")), example="", prompt="")
_ABOUT_THE_REQUEST = frozenset({400, 404, 405, 422})
"""Refusals that may be about this route, number or field; any other is about us."""
_NO_ROUTE = frozenset({404, 405})
_USUAL = 100
"""A number of tokens that no server breaks over."""
_WORKS = (
    "what works: completions of a base model, or chat of a model that doesn't reason, on OpenAI, vLLM, llama.cpp, "
    "SGLang or Ollama; text-embeddings-inference, Anthropic's API, Bedrock Converse and reasoning models "
    "show no probabilities"
)

Api = Literal["completions", "chat"]


class _Model(BaseModel):
    id: str


class _Models(BaseModel):
    data: list[_Model]


class OpenAIBackend(MaskedLMBackend):
    """A causal model behind OpenAI's API or a server like it: Azure, vLLM, llama.cpp, SGLang, Ollama.

    Args:
        model: the model's name, as the server knows it; on Azure, the deployment's.
        url: the server's address, up to and with `/v1`; None: OPENAI_BASE_URL, or else OpenAI's own.
        api: "completions", "chat", or "auto" to find out.
        top: how many tokens to ask for; None to find out.
        prefill: by chat, let the prompt's last words begin the assistant's answer; False: show a sentence with a
            blank; None to find out whether the server goes on with what was begun.
        instruction: what a chat model is told first; None: nothing, or to fill in the blank.
        max_characters: longer inputs are cut.
        api_key: or set OPENAI_API_KEY (for OpenAI, or the host of OPENAI_BASE_URL), AZURE_OPENAI_API_KEY or
            PBSDK_API_KEY (for others).
        network: workers, time-outs and limits; see `Network`.
    """

    @classmethod
    def checkup(cls) -> Checkup:
        """Tell where requests go if no address is given, and whether a key is in the environment."""
        keys = describe_keys("OPENAI_API_KEY", "AZURE_OPENAI_API_KEY")
        return Checkup({"host": host_of(os.environ.get("OPENAI_BASE_URL") or PUBLIC), **keys})

    def __init__(  # noqa: PLR0913 - settings that are independent, given by keyword
        self,
        model: str,
        *,
        url: str | None = None,
        api: Literal["auto", "completions", "chat"] = "auto",
        top: int | None = None,
        prefill: bool | None = None,
        instruction: str | None = None,
        max_characters: int = 6000,
        api_key: str | SecretStr | None = None,
        **network: Unpack[NetworkOptions],
    ) -> None:
        if api not in {"auto", "completions", "chat"}:
            raise InputError(f'api must be "auto", "completions" or "chat", not {api!r}')
        if (top is not None and top < 1) or max_characters < 1:
            raise InputError("top and max_characters must be 1 at least")
        self._transport, self._azure = _open(url, Network.of(network), api_key)
        self._model = model
        self._told = instruction
        self._max_characters = max_characters
        self._served = ""
        self._opening: Opening = "blank"
        self._words = self.vocabulary = OpenVocabulary()
        self._around = 0
        try:
            self._api, self._top = self._probe(("completions", "chat") if api == "auto" else (api,), top)
            if self._api == "chat" and prefill is not False:
                self._opening = self._probe_opening(required=bool(prefill))
        except BaseException:
            self.close()
            raise
        details = {
            "adapter": "openai/2",
            "served": self._served,
            "api": self._api,
            "top": str(self._top),
            "max_characters": str(max_characters),
        }
        if self._api == "chat":
            details |= {"opening": self._opening, "instruction": self._instruction}
        self.identity = ModelIdentity(model, details)
        self.abilities = Abilities(whole=False, top=self._top, mask="last", batch_size=self._transport.batch_size)

    def fill(self, queries: Sequence[MaskedQuery], tokens: Tokens | None = None) -> list[MaskDistribution]:
        """Ask for each query in a request of its own, several at once; `tokens` can't be chosen here."""
        del tokens
        return self._transport.fill([Job([at], partial(self._ask, query)) for at, query in enumerate(queries)])

    def count_tokens(self, query: MaskedQuery) -> int:
        """Return an estimate of how many tokens the model will read of the text as it is sent, and of what is put around it."""
        return self._around + len(self._text(query).encode("utf-8", "surrogatepass")) // 3

    def most_tokens(self, query: MaskedQuery) -> int:
        """Return the most tokens that the text can have as it is sent, and what was put around the probe when connecting."""
        return most_tokens_of(self._text(query), self._around)

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def _text(self, query: MaskedQuery) -> str:
        return "".join(part.text for part in shortened(query.before_mask(), self._max_characters)[0])

    def _measured(self, answer: MaskDistribution, probe: MaskedQuery, api: Api) -> int:
        """Return how many tokens there are besides a text: no more than the whole probe had, the text included."""
        asked = self._request(probe.before_mask(), api, 1)
        return answer.read_tokens or most_tokens_of(json.dumps(asked))

    @property
    def _instruction(self) -> str:
        return self._told if self._told is not None else BLANK if self._opening == "blank" else ""

    def _probe(self, apis: Sequence[Api], top: int | None) -> tuple[Api, int]:
        """Return the first route that shows log-probabilities, and how many."""
        refusals: dict[Api, BackendError] = {}
        for api in apis:
            try:
                return api, self._shown(api, top) if top is not None else most_shown(partial(self._shown, api))
            except (QueryRefused, NoProbabilities) as error:
                refusals[api] = error
        if top is not None:
            self._say_limits(refusals, top)
        raise self._unusable(refusals)

    def _shown(self, api: Api, count: int) -> int:
        """Ask for so many tokens, and return how many the server shows."""
        try:
            answer = self._answer(_PROBE, api, count)
        except BackendError as error:
            raise self._understood(error, count) from None
        self._around = self._measured(answer, _PROBE, api)
        # Tokens left out and words that coincide make it a few fewer; a server's own limit, many fewer.
        shown = len(answer.codes)
        return count if shown >= 0.9 * count else shown

    def _understood(self, error: BackendError, count: int) -> Exception:
        """Return what went wrong with a request for so many tokens: the number, perhaps, or a setting."""
        status = getattr(error, "status", 0)
        if count > _USUAL and error.may_have_run:  # it broke over the number, or said nothing that can be used
            return TooMany(str(error))
        if isinstance(error, BadAnswer) and not isinstance(error, NoProbabilities):
            where = f"is url={self._transport.url!r} the address of a server like OpenAI's, up to and with /v1?"
            return ModelUnusable(f"{error}; {where}")
        if not isinstance(error, QueryRefused) or status in _NO_ROUTE:
            return error
        return TooMany(str(error)) if status in _ABOUT_THE_REQUEST else ModelUnusable(str(error))

    def _say_limits(self, refusals: Mapping[Api, BackendError], top: int) -> None:
        """Raise what the server allows, if it shows fewer than `top`."""
        limits: dict[Api, int] = {}
        for api in (api for api, error in refusals.items() if isinstance(error, TooMany)):
            with contextlib.suppress(QueryRefused, NoProbabilities):
                limits[api] = most_shown(partial(self._shown, api))
        if limits:
            said = " and ".join(f"{most} tokens by {api}" for api, most in limits.items())
            raise ModelUnusable(
                f"top={top} is more than {self._model!r} shows here: at most {said} "
                f"({refusals[next(iter(limits))]}); connect with top={max(limits.values())}, or leave top out"
            )

    def _unusable(self, refusals: Mapping[Api, BackendError]) -> ModelUnusable:
        """Say which setting is wrong, as far as the server lets us know."""
        said = "; ".join(f"{api}: {error}" for api, error in refusals.items())
        models: list[str] | None = None
        if all(isinstance(error, QueryRefused) for error in refusals.values()):
            models = self._list_models()
        if models and self._model not in models:
            others = ", ".join(map(repr, models[:5])) + (", ..." if len(models) > 5 else "")
            return ModelUnusable(f"the server has no model={self._model!r}; it has {others} ({said})")
        if models is None and all(getattr(error, "status", 0) in _NO_ROUTE for error in refusals.values()):
            return ModelUnusable(
                f"url={self._transport.url!r} is not the address of a server like OpenAI's, up to and with /v1, "
                f"or it has no model={self._model!r} ({said}); {_WORKS}"
            )
        return ModelUnusable(f"{self._model!r} can't be used: it shows no log-probabilities here ({said}). {_WORKS}")

    def _list_models(self) -> list[str] | None:
        """Return the names of the server's models, or None if it lists none."""
        try:
            return [model.id for model in validated(_Models, read_json(self._transport.get("/models").body)).data]
        except BackendError:
            return None

    def _probe_opening(self, *, required: bool) -> Opening:
        """Return the first way in which the server goes on with a turn that was begun."""
        for self._opening in PREFILLS:
            try:
                answer = self._answer(PROBE, "chat", self._top)
            except QueryRefused as error:
                if getattr(error, "status", 0) not in _ABOUT_THE_REQUEST:
                    raise ModelUnusable(str(error)) from None
                continue
            best = -1 if answer.tokens is None else int(answer.tokens[answer.codes.argmin()])
            if required or goes_on(self._words[best]):
                self._around = self._measured(answer, PROBE, "chat")
                return self._opening
        if required:
            raise ModelUnusable(f"{self._model!r} takes no last message of the assistant's; leave prefill out")
        return "blank"

    def _ask(self, query: MaskedQuery) -> list[MaskDistribution]:
        return [self._answer(query, self._api, self._top)]

    def _answer(self, query: MaskedQuery, api: Api, top: int) -> MaskDistribution:
        parts, cut = shortened(query.before_mask(), self._max_characters)
        answer = read_answer(read_json(self._transport.post(_PATHS[api], self._request(parts, api, top)).body))
        self._check_model(answer.model)
        best = sorted(answer.words().items(), key=lambda item: -item[1])[:top]
        return MaskDistribution.from_logprobs(
            [min(0.0, value) for _, value in best],
            [self._words.token_of(word) for word, _ in best],
            top=True,
            read_tokens=answer.read_tokens,
            cut_tokens=cut,
        )

    def _request(self, parts: Sequence[Part], api: Api, top: int) -> dict[str, Any]:
        request: dict[str, Any] = {"model": self._model, "max_tokens": 1, "temperature": 1, "top_p": 1, "n": 1}
        if api == "completions":
            # The next token brings its own space; an empty text is refused by some servers.
            text = "".join(part.text for part in parts).rstrip(" ") or "\n"
            return request | {"prompt": text, "logprobs": top}
        said = conversation(parts, self._opening, self._instruction)
        return request | said | {"logprobs": True, "top_logprobs": top}

    def _check_model(self, served: str) -> None:
        """Take the model's own name from the first answer, and hold all others to it."""
        if not self._served:
            # A name may come back with its date or tag: "gpt-4o-mini" as "gpt-4o-mini-2024-07-18". On Azure a
            # deployment has any name, and the answer the model's.
            if not self._azure and not re.fullmatch(re.escape(self._model) + r"([-@:](\d[\d-]*|latest))?", served):
                raise ModelUnusable(
                    f"{self._model!r} was asked for and {served!r} answers; if that is the model you mean, "
                    f"connect with model={served!r}"
                )
            self._served = served
        if served != self._served:
            raise BadAnswer(f"{served!r} answered, but earlier it was {self._served!r}; the server changed its model")


def _open(url: str | None, network: Network, key: str | SecretStr | None) -> tuple[Transport, bool]:
    """Return the connections to an address, and whether it is Azure's."""
    named = os.environ.get("OPENAI_BASE_URL", "").strip()
    address, _, query = (url or named or PUBLIC).partition("?")
    if query and not re.fullmatch(r"api-version=[\w.-]+", query):
        raise InputError("the URL has a part after ?; only Azure's api-version may stand there")
    azure = bool(query or re.match(r"https://([\w-]+\.)*azure\.com(?=[:/]|$)", address))
    own: list[ProviderKey] = ["azure_openai_api_key", "openai_api_key"]
    header = "api-key" if azure else "Authorization"
    transport = Transport(address, network, key=key, own=own, header=header, query=query)
    if url is None and named:
        host = urlsplit(transport.url).netloc
        warnings.warn(
            f"OPENAI_BASE_URL is set: texts and key go to {host}; to say so yourself, give url=", stacklevel=5
        )
    return transport, azure
