"""The adapter `openai`: any server that speaks OpenAI's API and shows log-probabilities.

The model continues the text up to the mask by one token, and the server shows the likeliest ones:
through `completions` (base models, the text as it is) or `chat/completions` (the text in a message,
after an instruction). Which of the two to use, and how many tokens it shows, is found out once, when connecting,
by asking for fewer and fewer: a handful of requests outside any budget. If `api` and `top` are given, one
request is enough.

`temperature` is 1, where scaled and unscaled values are the same: some servers report the values after
scaling. The sampled token may then be shown in addition to those asked for; the least probable of k + 1 is
left out, because it says nothing about tokens between it and the k-th.

Tokens come as words without numbers, so the word identifies the token. Tokens that are only part of a
character have no word of their own and are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, Unpack

from pydantic import BaseModel, Field, SecretStr

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
)
from pbsdk.errors import BadAnswer, InputError, ModelUnusable, QueryRefused
from pbsdk_backends._remote.cutting import shortened
from pbsdk_backends._remote.keys import describe_keys
from pbsdk_backends._remote.parallel import Job
from pbsdk_backends._remote.transport import Network, NetworkOptions, Transport, read_json, validated

__all__ = ["OpenAIBackend"]

INSTRUCTION = "Continue the text. Answer with its next word alone."
_TOPS = {"completions": (100, 20, 5), "chat": (20, 5)}
_PATHS = {"completions": "/completions", "chat": "/chat/completions"}
_PROBE = (Part("prompt", "The capital of France is "), Part("mask"))
_WORKS = (
    "what works: completions of a base model, or chat of a model that doesn't reason, on OpenAI, vLLM, llama.cpp, "
    "SGLang or Ollama; text-embeddings-inference, Anthropic's API, Bedrock Converse and reasoning models "
    "show no probabilities"
)

Api = Literal["completions", "chat"]
Logprob = Annotated[float, Field(le=0.01, allow_inf_nan=False)]


class _Choice(BaseModel):
    class Logprobs(BaseModel):
        top_logprobs: list[dict[str, Logprob]] | None = None

    logprobs: Logprobs | None = None


class _ChatChoice(BaseModel):
    class Logprobs(BaseModel):
        class Place(BaseModel):
            class Shown(BaseModel):
                token: str
                logprob: Logprob

            top_logprobs: list[Shown]

        content: list[Place] | None = None

    logprobs: Logprobs | None = None


class _Usage(BaseModel):
    prompt_tokens: Annotated[int, Field(ge=0)] = 0


class _Answer(BaseModel):
    model: str
    usage: _Usage | None = None


class _Completion(_Answer):
    choices: Annotated[list[_Choice], Field(min_length=1, max_length=1)]


class _ChatCompletion(_Answer):
    choices: Annotated[list[_ChatChoice], Field(min_length=1, max_length=1)]


class NoProbabilities(BadAnswer):
    """The server answered, but showed no probabilities."""


class OpenAIBackend(MaskedLMBackend):
    """A causal model behind OpenAI's API or a server like it: vLLM, llama.cpp, SGLang, Ollama.

    Args:
        model: the model's name, as the server knows it.
        url: the server's address, up to and including `/v1`.
        api: "completions", "chat", or "auto" to find out.
        top: how many tokens to ask for; None to find out.
        instruction: what a chat model is told before the text.
        max_characters: longer inputs are cut.
        api_key: or set OPENAI_API_KEY (for OpenAI itself) or PBSDK_API_KEY (for others).
        network: workers, time-outs and limits; see `Network`.
    """

    @classmethod
    def checkup(cls) -> Checkup:
        """Say whether a key is in the environment."""
        return Checkup(describe_keys("OPENAI_API_KEY"))

    def __init__(  # noqa: PLR0913 - settings that are independent, given by keyword
        self,
        model: str,
        *,
        url: str = "https://api.openai.com/v1",
        api: Literal["auto", "completions", "chat"] = "auto",
        top: int | None = None,
        instruction: str = INSTRUCTION,
        max_characters: int = 6000,
        api_key: str | SecretStr | None = None,
        **network: Unpack[NetworkOptions],
    ) -> None:
        if api not in {"auto", "completions", "chat"}:
            raise InputError(f'api must be "auto", "completions" or "chat", not {api!r}')
        if (top is not None and top < 1) or max_characters < 1:
            raise InputError("top and max_characters must be at least 1")
        self._transport = Transport(url, Network.of(network), key=api_key, own="openai_api_key")
        self._model = model
        self._instruction = instruction
        self._max_characters = max_characters
        self._served = ""
        self._words = self.vocabulary = OpenVocabulary()
        try:
            self._api, self._top = self._probe(("completions", "chat") if api == "auto" else (api,), top)
        except BaseException:
            self.close()
            raise
        details = {
            "adapter": "openai/1",
            "served": self._served,
            "api": self._api,
            "top": str(self._top),
            "max_characters": str(max_characters),
        }
        self.identity = ModelIdentity(model, details | ({"instruction": instruction} if self._api == "chat" else {}))
        self.abilities = Abilities(whole=False, top=self._top, mask="last", batch_size=self._transport.batch_size)

    def fill(self, queries: Sequence[MaskedQuery], tokens: Tokens | None = None) -> list[MaskDistribution]:
        """Ask for each query in a request of its own, several at once; `tokens` can't be chosen here."""
        del tokens
        return self._transport.fill([Job([at], partial(self._ask, query)) for at, query in enumerate(queries)])

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def _probe(self, apis: Iterable[Api], top: int | None) -> tuple[Api, int]:
        query = MaskedQuery(_PROBE, example="", prompt="")
        refusals: list[str] = []
        for api in apis:
            for count in (top,) if top is not None else _TOPS[api]:
                try:
                    answer = self._answer(query, api, count)
                except QueryRefused as error:
                    # 400, 404 and 422 may be about this route or number; anything else is about us.
                    if getattr(error, "status", 0) not in {400, 404, 422}:
                        raise ModelUnusable(str(error)) from None
                    refusals.append(f"{api} with {count}: {error}")
                except NoProbabilities as error:
                    refusals.append(f"{api} with {count}: {error}")
                    break
                else:
                    # Tokens left out and words that coincide make it a few fewer; a server's own limit, many fewer.
                    shown = len(answer.codes)
                    return api, count if shown >= 0.9 * count else shown
        raise ModelUnusable(
            f"{self._model!r} can't be used: it shows no log-probabilities here ({'; '.join(refusals)}). {_WORKS}"
        )

    def _ask(self, query: MaskedQuery) -> list[MaskDistribution]:
        return [self._answer(query, self._api, self._top)]

    def _answer(self, query: MaskedQuery, api: Api, top: int) -> MaskDistribution:
        parts, cut = shortened(query.before_mask(), self._max_characters)
        # The next token brings its own space; an empty text is refused by some servers.
        text = "".join(part.text for part in parts).rstrip(" ") or "\n"
        said = read_json(self._transport.post(_PATHS[api], self._request(text, api, top)).body)
        shown, answer = _shown_chat(said) if api == "chat" else _shown(said)
        self._check_model(answer.model)
        named = {word: value for word, value in shown.items() if "\ufffd" not in word}
        best = sorted(named.items(), key=lambda item: -item[1])[:top]
        if not best:
            raise NoProbabilities("no tokens were shown")
        return MaskDistribution.from_logprobs(
            [min(0.0, value) for _, value in best],
            [self._words.token_of(word) for word, _ in best],
            top=True,
            read_tokens=answer.usage.prompt_tokens if answer.usage else 0,
            cut_tokens=cut,
        )

    def _request(self, text: str, api: Api, top: int) -> dict[str, Any]:
        request: dict[str, Any] = {"model": self._model, "max_tokens": 1, "temperature": 1, "top_p": 1, "n": 1}
        if api == "completions":
            return request | {"prompt": text, "logprobs": top}
        messages = [{"role": "system", "content": self._instruction}] if self._instruction else []
        return request | {
            "messages": [*messages, {"role": "user", "content": text}],
            "logprobs": True,
            "top_logprobs": top,
        }

    def _check_model(self, served: str) -> None:
        """Take the model's own name from the first answer, and hold all others to it."""
        if not self._served:
            # A name may come back with its date or tag: "gpt-4o-mini" as "gpt-4o-mini-2024-07-18".
            if not re.fullmatch(re.escape(self._model) + r"([-@:](\d[\d-]*|latest))?", served):
                raise ModelUnusable(
                    f"{self._model!r} was asked for and {served!r} answers; if that is the model you mean, "
                    f"connect with model={served!r}"
                )
            self._served = served
        if served != self._served:
            raise BadAnswer(f"{served!r} answered, but earlier it was {self._served!r}; the server changed its model")


def _shown(said: object) -> tuple[Mapping[str, float], _Answer]:
    answer = validated(_Completion, said)
    logprobs = answer.choices[0].logprobs
    if logprobs is None or not logprobs.top_logprobs:
        raise NoProbabilities("the answer holds no log-probabilities")
    return logprobs.top_logprobs[0], answer


def _shown_chat(said: object) -> tuple[Mapping[str, float], _Answer]:
    answer = validated(_ChatCompletion, said)
    logprobs = answer.choices[0].logprobs
    if logprobs is None or not logprobs.content or not logprobs.content[0].top_logprobs:
        raise NoProbabilities("the answer holds no log-probabilities")
    shown: dict[str, float] = {}
    for entry in logprobs.content[0].top_logprobs:
        if entry.token in shown and "\ufffd" not in entry.token:
            raise BadAnswer(f"the token {entry.token!r} appears in the answer twice")
        shown[entry.token] = entry.logprob
    return shown, answer
