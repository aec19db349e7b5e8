"""The adapter `http`: a model behind `pbsdk serve`.

The server's model is this backend's model: same identity, same vocabulary, same numbers on the same
grid, so that local and remote answers share a ledger and give the same classifier bit for bit. To
that end a request holds as many queries as the model behind the server takes at once, and the server
asks it for just those: batches are cut as they would be locally.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Unpack

from pydantic import SecretStr

from pbsdk.backend import (
    Checkup,
    MaskDistribution,
    MaskedLMBackend,
    MaskedQuery,
    ModelIdentity,
    OpenVocabulary,
    Tokens,
    Vocabulary,
)
from pbsdk.errors import BackendError, BadAnswer, BudgetExceeded, ModelUnusable
from pbsdk_backends._protocol import wire as _wire
from pbsdk_backends._remote.keys import describe_keys
from pbsdk_backends._remote.parallel import Job
from pbsdk_backends._remote.transport import (
    HttpRefusal,
    Network,
    NetworkOptions,
    Transport,
    read_json,
    setup_error,
    validated,
)

__all__ = ["HttpBackend"]

# A server uses its model for one request at a time: more requests at once would only wait there, and a large batch
# on a large model takes minutes.
_PATIENT: NetworkOptions = {"workers": 2, "read_timeout": 300.0, "deadline": 600.0}


class HttpBackend(MaskedLMBackend):
    """A model behind `pbsdk serve`, on this machine or another.

    Args:
        url: the server's address.
        api_key: the server's token; or set PBSDK_API_KEY.
        network: workers, time-outs and limits; see `Network`. The defaults here are 2 workers, 300 s of silence and
            600 s in total.
    """

    @classmethod
    def checkup(cls) -> Checkup:
        """Say whether a key is in the environment."""
        return Checkup(describe_keys())

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        api_key: str | SecretStr | None = None,
        **network: Unpack[NetworkOptions],
    ) -> None:
        self._transport = Transport(url, Network.of({**_PATIENT, **network}), key=api_key)
        try:
            self._card, self.identity = self._read_card()
            self.vocabulary = self._read_vocabulary()
        except BackendError as error:
            self.close()
            raise setup_error(error, f"is url={url!r} the address of a `pbsdk serve` server?") from None
        except BaseException:
            self.close()
            raise
        self._remaining: dict[str, float] = {}
        self.mask_token = self._card.mask_token
        self._model = self.identity.digest
        self.abilities = self._card.abilities(self._card.max_batch * self._transport.network.workers)

    def fill(self, queries: Sequence[MaskedQuery], tokens: Tokens | None = None) -> list[MaskDistribution]:
        """Ask the server, several requests at once."""
        size = self._card.max_batch
        return self._transport.fill(
            [
                Job(
                    range(start, min(start + size, len(queries))),
                    partial(self._ask, queries[start : start + size], tokens),
                )
                for start in range(0, len(queries), size)
            ]
        )

    def count_tokens(self, query: MaskedQuery) -> int:
        """Return an estimate of how many tokens the server's model will read."""
        return self._cut(super().count_tokens(query))

    def most_tokens(self, query: MaskedQuery) -> int:
        """Return the most tokens that the server's model can read: no more than it has places for."""
        return self._cut(super().most_tokens(query))

    def remaining(self) -> dict[str, float]:
        """Return what the server last said is left of an allowance there."""
        return self._remaining

    def _cut(self, tokens: int) -> int:
        length = self.identity.details.get("max_length", "")  # a model of which texts are cut by tokens names it
        return min(tokens, int(length)) if length.isdecimal() and len(length) <= 20 else tokens

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def _ask(self, queries: Sequence[MaskedQuery], tokens: Tokens | None) -> list[MaskDistribution]:
        asked = tokens if self.abilities.chosen else None
        known = self.vocabulary.known if isinstance(self.vocabulary, OpenVocabulary) else {}
        words = {int(token): known[int(token)] for token in asked if int(token) in known} if asked is not None else {}
        try:
            reply = self._transport.post("/v1/fill", _wire.encode_request(self._model, queries, asked, words))
        except HttpRefusal as refusal:
            if refusal.status == 402:
                raise BudgetExceeded(str(refusal), sent=refusal.sent) from None
            raise
        if told := reply.headers.get(_wire.REMAINING):
            self._remaining = _wire.read_remaining(told)
        outcome = _wire.decode_answers(reply.body, self._model, queries, asked=asked)
        for answer in outcome.answered.values():
            self._check(answer)
        if isinstance(self.vocabulary, OpenVocabulary):
            for token, word in outcome.words.items():
                self.vocabulary.learn(token, word)
        if outcome.failure is not None:
            raise outcome.failure.error(outcome.answered)
        return [outcome.answered[place] for place in range(len(queries))]

    def _check(self, answer: MaskDistribution) -> None:
        closed = not self._card.open_vocabulary
        size = len(self.vocabulary)
        if closed and answer.tokens is not None and int(answer.tokens[-1]) >= size:
            raise BadAnswer("an answer names a token that the vocabulary doesn't have")
        if answer.tokens is None and (not self.abilities.whole or len(answer.codes) != size):
            raise BadAnswer(f"an answer holds {len(answer.codes)} tokens; the vocabulary has {size}")

    def _read_card(self) -> tuple[_wire.ModelCard, ModelIdentity]:
        card = validated(_wire.ModelCard, read_json(self._transport.get("/v1/model").body))
        if card.protocol != _wire.PROTOCOL:
            raise ModelUnusable(
                f"the server speaks protocol {card.protocol} and this pbsdk {_wire.PROTOCOL}; use the same version on both"
            )
        try:
            return card, ModelIdentity.from_json(card.identity)
        except ValueError as error:
            raise BadAnswer(f"the server doesn't say which model it serves: {error}") from None

    def _read_vocabulary(self) -> Vocabulary:
        if self._card.open_vocabulary:
            return OpenVocabulary()
        words = read_json(self._transport.get("/v1/vocabulary").body)
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise BadAnswer("the server's vocabulary is not a list of words")
        vocabulary = Vocabulary(words)
        if _wire.vocabulary_digest(vocabulary) != self._card.vocabulary_digest:
            raise BadAnswer("the server's vocabulary doesn't match its digest")
        return vocabulary
