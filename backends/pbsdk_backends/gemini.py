"""The adapter `gemini`: Google's models, through the Gemini API or Vertex AI, with their top 20 tokens.

A query is a conversation (`_remote.conversation`), and the first token of the answer is scored. Thinking is switched off: a model that
thinks first has no probabilities for its answer's first token. Some models and regions show none at all; that is found out when connecting.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Unpack

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
    most_tokens_of,
)
from pbsdk.errors import BackendError, BadAnswer, InputError
from pbsdk_backends._remote.conversation import BLANK, conversation
from pbsdk_backends._remote.cutting import shortened
from pbsdk_backends._remote.keys import ProviderKey, describe_keys, host_of
from pbsdk_backends._remote.logprobs import Logprob, real, together
from pbsdk_backends._remote.parallel import Job
from pbsdk_backends._remote.transport import Network, NetworkOptions, Transport, read_json, setup_error, validated

__all__ = ["GeminiBackend"]

PUBLIC = "https://generativelanguage.googleapis.com/v1beta"
MOST = 20
"""As many tokens as the API shows at most."""
_KEYS = [ProviderKey(name, (host_of(PUBLIC),)) for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY")]
_VERTEX = re.compile(r"(^|[.-])aiplatform\.googleapis\.com$")
_PROBE = MaskedQuery((Part("prompt", "The capital of France is "), Part("mask")), example="", prompt="")
_CURE = (
    "not every model shows log-probabilities, and none while it thinks: try another one, or Vertex AI "
    "(url=https://LOCATION-aiplatform.googleapis.com/v1/projects/PROJECT/locations/LOCATION/publishers/google)"
)


class _Token(BaseModel):
    token: str = ""
    logProbability: Logprob = 0.0  # noqa: N815 - the field's name; left out where it is 0


class _Candidates(BaseModel):
    candidates: list[_Token] = []


class _Logprobs(BaseModel):
    topCandidates: list[_Candidates] = []  # noqa: N815


class _Candidate(BaseModel):
    logprobsResult: _Logprobs | None = None  # noqa: N815


class _Usage(BaseModel):
    promptTokenCount: Annotated[int, Field(ge=0, lt=1 << 32)] = 0  # noqa: N815


class _Answer(BaseModel):
    candidates: list[_Candidate] = []
    modelVersion: str = ""  # noqa: N815
    usageMetadata: _Usage | None = None  # noqa: N815

    def words(self) -> Mapping[str, float]:
        """Return the words shown at the first place, with their log-probabilities."""
        logprobs = self.candidates[0].logprobsResult if self.candidates else None
        places = logprobs.topCandidates if logprobs else []
        found: dict[str, float] = {}
        for entry in places[0].candidates if places else ():
            if entry.token:
                known = found.get(entry.token)
                found[entry.token] = entry.logProbability if known is None else together(known, entry.logProbability)
        return real(found)


class GeminiBackend(MaskedLMBackend):
    """A Gemini model, through the Gemini API or Vertex AI: its top 20 tokens.

    Args:
        model: the model's name, such as "gemini-2.5-flash".
        url: the address up to `/models`; None: the Gemini API's own. Vertex AI's ends with `/publishers/google`.
        top: how many tokens to ask for, 20 at most.
        thinking_budget: how many tokens the model may think; 0, the default, for none. None says nothing of it, for models that don't think.
        instruction: what the model is told first; None: nothing, or to fill in the blank.
        max_characters: longer inputs are cut.
        api_key: or set GEMINI_API_KEY or GOOGLE_API_KEY; for Vertex AI an access token, or PBSDK_API_KEY.
        network: workers, time-outs and limits; see `Network`.
    """

    @classmethod
    def checkup(cls) -> Checkup:
        """Tell where requests go if no address is given, and which keys are in the environment."""
        return Checkup({"host": host_of(PUBLIC), **describe_keys(*(key.variable for key in _KEYS))})

    def __init__(  # noqa: PLR0913 - settings that are independent, given by keyword
        self,
        model: str,
        *,
        url: str | None = None,
        top: int = MOST,
        thinking_budget: int | None = 0,
        instruction: str | None = None,
        max_characters: int = 6000,
        api_key: str | SecretStr | None = None,
        **network: Unpack[NetworkOptions],
    ) -> None:
        if not 1 <= top <= MOST or max_characters < 1:
            raise InputError(f"top must be between 1 and {MOST}, and max_characters 1 at least")
        if not re.fullmatch(r"[\w.@-]+", model):
            raise InputError(f"model={model!r} is not a model's name, such as 'gemini-2.5-flash'")
        address = url or PUBLIC
        header = "Authorization" if _VERTEX.search(host_of(address)) else "x-goog-api-key"
        self._transport = Transport(address, Network.of(network), key=api_key, own=_KEYS, header=header)
        self._model, self._top = model, top
        self._told = instruction
        self._max_characters = max_characters
        thinking = {} if thinking_budget is None else {"thinkingConfig": {"thinkingBudget": thinking_budget}}
        self._settings = {"maxOutputTokens": 1, "temperature": 1, "topP": 1, "candidateCount": 1, **thinking}
        self._words = self.vocabulary = OpenVocabulary()
        self._served = ""
        try:
            probed = self._answer(_PROBE)
        except BackendError as error:
            self.close()
            raise setup_error(error, _CURE) from None
        except BaseException:
            self.close()
            raise
        self._around = probed.read_tokens or most_tokens_of(str(self._request(_PROBE.before_mask())))
        self.identity = ModelIdentity(
            model,
            {
                "adapter": "gemini/1",
                "served": self._served,
                "top": str(top),
                "thinking_budget": str(thinking_budget),
                "max_characters": str(max_characters),
                "instruction": BLANK if instruction is None else instruction,
            },
        )
        size = self._transport.batch_size
        self.abilities = Abilities(whole=False, top=top, mask="last", batch_size=size, turns=True)

    def fill(self, queries: Sequence[MaskedQuery], tokens: Tokens | None = None) -> list[MaskDistribution]:
        """Ask for each query in a request of its own, several at once; `tokens` can't be chosen here."""
        del tokens
        return self._transport.fill([Job([at], partial(self._ask, query)) for at, query in enumerate(queries)])

    def count_tokens(self, query: MaskedQuery) -> int:
        """Return an estimate of how many tokens the model will read of the text as it is sent, and of what is put around it."""
        return self._around + len(self._text(query).encode("utf-8", "surrogatepass")) // 3

    def most_tokens(self, query: MaskedQuery) -> int:
        """Return the most tokens that the text can have as it is sent, and what was put around the probe when connecting."""
        turns = sum(part.kind == "turn" for part in query.parts)
        return most_tokens_of(self._text(query), self._around * (1 + turns))

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def _text(self, query: MaskedQuery) -> str:
        return "".join(part.text for part in shortened(query.before_mask(), self._max_characters)[0])

    def _ask(self, query: MaskedQuery) -> list[MaskDistribution]:
        return [self._answer(query)]

    def _answer(self, query: MaskedQuery) -> MaskDistribution:
        parts, cut = shortened(query.before_mask(), self._max_characters)
        reply = self._transport.post(f"/models/{self._model}:generateContent", self._request(parts))
        answer = validated(_Answer, read_json(reply.body))
        best = sorted(answer.words().items(), key=lambda item: -item[1])[: self._top]
        self._served = self._served or answer.modelVersion
        if answer.modelVersion != self._served:
            raise BadAnswer(
                f"{answer.modelVersion!r} answered, but earlier it was {self._served!r}; the provider changed its model"
            )
        return MaskDistribution.from_logprobs(
            [min(0.0, value) for _, value in best],
            [self._words.token_of(word) for word, _ in best],
            top=True,
            read_tokens=answer.usageMetadata.promptTokenCount if answer.usageMetadata else 0,
            cut_tokens=cut,
        )

    def _request(self, parts: Sequence[Part]) -> dict[str, Any]:
        said = conversation(parts, "blank", self._told)["messages"]
        told = [message["content"] for message in said if message["role"] == "system"]
        roles = {"user": "user", "assistant": "model"}
        request: dict[str, Any] = {
            "contents": [
                {"role": roles[message["role"]], "parts": [{"text": message["content"]}]}
                for message in said
                if message["role"] in roles
            ],
            "generationConfig": {**self._settings, "responseLogprobs": True, "logprobs": self._top},
        }
        return request | ({"systemInstruction": {"parts": [{"text": told[0]}]}} if told else {})
