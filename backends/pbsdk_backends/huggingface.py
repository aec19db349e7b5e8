"""The adapter `huggingface`: fill-mask on the serverless API, an Inference Endpoint, or a server like it.

The API takes a text with the model's mask in it and shows the `top_k` most probable tokens, with their
numbers and words: training sees these, and the rest is censored. For prediction it can be asked for
chosen `targets`. It silently replaces a target that is not a single token with its first piece, and returns
targets in an order of its own; so answers are matched by the token's number, and an answer that lacks
one is refused, never filled in.

A request holds one text, and a batch goes out over several connections at once. Connecting asks once, outside
any budget, to learn early what would fail later. If the server says how long its model will be loading, the meter
waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Unpack

import numpy as np
from pydantic import AfterValidator, BaseModel, Field, RootModel, SecretStr

from pbsdk.backend import (
    Abilities,
    Checkup,
    Floats,
    MaskDistribution,
    MaskedLMBackend,
    MaskedQuery,
    ModelIdentity,
    OpenVocabulary,
    Part,
    Tokens,
    most_tokens_of,
)
from pbsdk.errors import BackendError, BackendUnavailable, BadAnswer, InputError, QueryRefused
from pbsdk_backends._remote.cutting import shortened
from pbsdk_backends._remote.keys import HUGGING_FACE, describe_keys
from pbsdk_backends._remote.parallel import Job
from pbsdk_backends._remote.transport import Network, NetworkOptions, Transport, read_json, setup_error, validated

__all__ = ["HuggingFaceBackend"]

SERVERLESS = "https://router.huggingface.co/hf-inference/models"
_PROBE = (Part("prompt", "The capital of France is "), Part("mask"), Part("prompt", "."))


def _encodable(word: str) -> str:
    word.encode()  # half a character raises a ValueError; no ledger could hold it
    return word


class _Item(BaseModel):
    score: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
    token: Annotated[int, Field(ge=0, lt=1 << 62)]
    token_str: Annotated[str, AfterValidator(_encodable)]


class _Items(RootModel[list[_Item]]):
    pass


class HuggingFaceBackend(MaskedLMBackend):
    """A masked model on Hugging Face's serverless API, an Inference Endpoint, or a server that speaks fill-mask.

    Args:
        model: the model's name on the hub; on a server of your own, any name for it.
        url: the address of an endpoint; None for the serverless API.
        revision: which revision the endpoint runs, if known: part of the identity.
        top_k: how many tokens an answer shows.
        mask_token: how the model writes its mask: `<mask>` for models like RoBERTa, `[MASK]` for models like BERT.
        targets: ask for chosen tokens in prediction; False uses the top k there too.
        max_characters: longer inputs are cut; 1,500 fit 512 tokens of most texts.
        api_key: or set HF_TOKEN (for Hugging Face's own hosts) or PBSDK_API_KEY (for others).
        network: workers, time-outs and limits; see `Network`.
    """

    @classmethod
    def checkup(cls) -> Checkup:
        """Say whether a key is in the environment."""
        return Checkup(describe_keys("HF_TOKEN"))

    def __init__(  # noqa: PLR0913 - settings that are independent, given by keyword
        self,
        model: str,
        *,
        url: str | None = None,
        revision: str | None = None,
        top_k: int = 100,
        mask_token: str = "<mask>",  # noqa: S107 - a marker in a text, not a secret
        targets: bool = True,
        max_characters: int = 1500,
        api_key: str | SecretStr | None = None,
        **network: Unpack[NetworkOptions],
    ) -> None:
        if top_k < 1 or max_characters < 1 or not mask_token:
            raise InputError("top_k and max_characters must be at least 1, and mask_token must not be empty")
        address = url or f"{SERVERLESS}/{model}"
        self._transport = Transport(address, Network.of(network), key=api_key, own=[HUGGING_FACE])
        self._top_k = top_k
        self._count: int | None = None
        self._lock = threading.Lock()
        self._max_characters = max_characters
        self.mask_token = mask_token
        self._words = self.vocabulary = OpenVocabulary()
        details = {"adapter": "huggingface/1", "mask": mask_token, "max_characters": str(max_characters)}
        self.identity = ModelIdentity(model, details | ({"revision": revision} if revision else {}))
        self.abilities = Abilities(whole=False, top=top_k, chosen=targets, batch_size=self._transport.batch_size)
        try:
            self._probe()
        except BaseException:
            self.close()
            raise

    def fill(self, queries: Sequence[MaskedQuery], tokens: Tokens | None = None) -> list[MaskDistribution]:
        """Ask for each query in a request of its own, several at once."""
        wanted = tokens if self.abilities.chosen else None
        return self._transport.fill([Job([at], partial(self._ask, query, wanted)) for at, query in enumerate(queries)])

    def count_tokens(self, query: MaskedQuery) -> int:
        """Return an estimate of how many tokens the model will read of the text as it is sent."""
        return 2 + len(self._text(query)[0].encode("utf-8", "surrogatepass")) // 3

    def most_tokens(self, query: MaskedQuery) -> int:
        """Return the most tokens that the text can have as it is sent."""
        return most_tokens_of(self._text(query)[0])

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def _probe(self) -> None:
        query = MaskedQuery(_PROBE, example="", prompt="")
        try:
            self._ask(query, None)
        except BackendError as error:
            if isinstance(error, BackendUnavailable) and error.retry_after is not None:
                return  # the meter waits for a model that is loading, or for a full queue
            cure = (
                f"model={self.identity.name!r} must be a masked model, served for fill-mask at {self._transport.url}, "
                f"with the mask that mask_token={self.mask_token!r} says"
            )
            raise setup_error(error, cure) from None

    def _ask(self, query: MaskedQuery, tokens: Tokens | None) -> list[MaskDistribution]:
        text, cut = self._text(query)
        if text.count(self.mask_token) != 1:
            raise QueryRefused(f"a text contains the model's own mask {self.mask_token!r}; remove it")
        if tokens is None:
            return [self._top(text, cut)]
        return [self._chosen(text, tokens, cut)]

    def _text(self, query: MaskedQuery) -> tuple[str, int]:
        """Return the text to send, and how many words of it were cut."""
        parts, cut = shortened(query.parts, self._max_characters)
        return "".join(self.mask_token if part.kind == "mask" else part.text for part in parts), cut

    def _top(self, text: str, cut: int) -> MaskDistribution:
        items = self._items({"inputs": text, "parameters": {"top_k": self._top_k}})
        with self._lock:
            # A server may show fewer than asked for, but always the same number.
            self._count = self._count or len(items)
            if not 1 <= len(items) <= self._top_k or len(items) != self._count:
                raise BadAnswer(f"the server showed {len(items)} tokens; {self._count} were expected")
        return MaskDistribution.from_logprobs(
            _logs([item.score for item in items]), [item.token for item in items], top=True, cut_tokens=cut
        )

    def _chosen(self, text: str, tokens: Tokens, cut: int) -> MaskDistribution:
        wanted = [int(token) for token in tokens]
        targets = sorted({spelling for token in wanted for spelling in self._spellings(token)})
        items = self._items({"inputs": text, "parameters": {"targets": targets, "top_k": len(targets)}})
        scores = {item.token: item.score for item in items}
        replaced = [self._words[token] for token in wanted if token not in scores]
        if replaced:
            raise QueryRefused(
                f"the server answered for tokens other than {', '.join(map(repr, replaced[:5]))}; "
                "connect with targets=False to predict from the top k",
                may_have_run=True,
            )
        return MaskDistribution.from_logprobs(_logs([scores[token] for token in wanted]), wanted, cut_tokens=cut)

    def _spellings(self, token: int) -> list[str]:
        word = self._words.known.get(token)
        if word is None:
            raise InputError(f"the word of token {token} is not known here; train, or load the saved classifier, first")
        # The API looks up a target as the model's file spells it, where a space has a symbol of its own.
        return [word, f"\u0120{word[1:]}"] if word.startswith(" ") else [word, f"\u2581{word}"]

    def _items(self, request: Mapping[str, object]) -> list[_Item]:
        said = read_json(self._transport.post("", request).body)
        if isinstance(said, list) and len(said) == 1 and isinstance(said[0], list):
            said = said[0]
        items = validated(_Items, [said] if isinstance(said, dict) else said).root
        if len({item.token for item in items}) != len(items):
            raise BadAnswer("a token appears in the answer twice")
        if items and not any(item.score for item in items):
            raise BadAnswer("all scores of the answer are 0, which says nothing")
        for item in items:
            if self._words.known.get(item.token, item.token_str) != item.token_str:
                raise BadAnswer(f"token {item.token} has changed its word; the server's model has changed")
        for item in items:
            self._words.learn(item.token, item.token_str)
        return items


def _logs(scores: Sequence[float]) -> Floats:
    with np.errstate(divide="ignore"):  # a score of 0 was rounded down: it becomes the grid's last step
        logs: Floats = np.log(np.asarray(scores, dtype=np.float64))
    return logs
