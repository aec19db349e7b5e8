"""A model behind an API like OpenAI's: what it can be asked for is found out once, and then it is asked.

Two routes show log-probabilities: `completions`, which continue the text as it is, and `chat`. Completions are preferred unless chat shows
more tokens. Whatever carries a request to the server is an adapter's own (`_exchange`). What vLLM can do besides is used where it is
there (`exact`).
"""

from __future__ import annotations

import contextlib
import json
import re
import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Literal

from pbsdk.backend import (
    Abilities,
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
from pbsdk_backends._remote.exact import ALL, Numbers, is_vllm, vocabulary_of, whole_of
from pbsdk_backends._remote.limits import LARGEST, TooMany, most_shown
from pbsdk_backends._remote.logprobs import Answer, NoProbabilities, read_answer
from pbsdk_backends._remote.parallel import Job
from pbsdk_backends._remote.presets import Preset

__all__ = ["Api", "CompatibleBackend", "Route"]

Route = Literal["completions", "chat"]
Api = Literal["auto", "completions", "chat"]

_PROBE = MaskedQuery((Part("prompt", "The capital of France is "), Part("mask")), example="", prompt="")
_LOOKED_UP = 5
"""How many words that the server has shown are looked up in its tokenizer, of which one must be a token by itself."""
_ABOUT_THE_REQUEST = frozenset({400, 404, 405, 422})
"""Refusals that may be about this route, number or field; any other is about us."""
_NO_ROUTE = frozenset({404, 405})
_USUAL = 100
"""A number of tokens that no server breaks over."""
_ENOUGH = 20
"""As many as chat shows at most providers: where completions show fewer, chat is tried, too."""
_OTHER_FIELD = "max_completion_tokens"
_WORKS = (
    "what works: completions of a base model, or chat of a model that doesn't reason, on OpenAI, vLLM, llama.cpp, "
    "SGLang or Ollama; text-embeddings-inference, Anthropic's API, Bedrock Converse and reasoning models "
    "show no probabilities"
)


class CompatibleBackend(MaskedLMBackend):
    """A causal model that is asked in OpenAI's way.

    Attributes:
        chosen: By which route it is asked, how many tokens that shows, and why.
    """

    adapter: str
    """The adapter's name and the version of what it asks."""
    where: str
    """The server, for messages."""

    def __init__(  # noqa: PLR0913 - settings that are independent, given by keyword
        self,
        model: str,
        preset: Preset,
        *,
        api: Api,
        top: int | None,
        prefill: bool | None,
        instruction: str | None,
        max_characters: int,
        batch_size: int,
    ) -> None:
        if api not in {"auto", "completions", "chat"}:
            raise InputError(f'api must be "auto", "completions" or "chat", not {api!r}')
        if (top is not None and top < 1) or max_characters < 1:
            raise InputError("top and max_characters must be 1 at least")
        self._model = model
        self._preset = preset.to_model(model)
        self._told = instruction
        self._max_characters = max_characters
        self._served = ""
        self._opening: Opening = "blank"
        self._words = self.vocabulary = OpenVocabulary()
        self._around = 0
        self._fingerprint: str | None = None
        self._all = False
        self._numbers: Numbers | None = None
        asked = preset.api if api == "auto" else api
        try:
            self._api, self._top = self._probe(("completions", "chat") if asked == "auto" else (asked,), top)
            if self._api == "chat" and prefill is not False:
                self._opening = self._probe_opening(required=bool(prefill))
            if self._preset.chosen or (self._preset.chosen is None and is_vllm(self._fingerprint)):
                self._probe_exact(all_too=top is None and self._top >= LARGEST)
        except BaseException:
            self.close()
            raise
        details = {
            "adapter": self.adapter,
            "served": self._served,
            "api": self._api,
            "top": "all" if self._all else str(self._top),
            "max_characters": str(max_characters),
        }
        if self._api == "chat":
            details |= {"opening": self._opening, "instruction": self._instruction}
        if self._preset.body:
            details["body"] = json.dumps(self._preset.body, sort_keys=True)
        self.identity = ModelIdentity(model, details)
        self.abilities = Abilities(
            whole=self._all,
            top=None if self._all else self._top,
            chosen=self._numbers is not None,
            mask="last",
            batch_size=batch_size,
            turns=self._api == "chat",
        )

    @abstractmethod
    def _exchange(self, route: Route, request: Mapping[str, Any]) -> object:
        """Send a request by a route, and return what the answer's JSON says."""

    @abstractmethod
    def _run(self, jobs: Sequence[Job]) -> list[MaskDistribution]:
        """Run a batch's requests, several at once."""

    def _names(self) -> list[str] | None:
        """Return the names of the server's models, or None if it lists none."""
        return None

    def _beside(self, path: str, request: Mapping[str, Any]) -> object:
        """Send a request to a path of the server's own, beside the API, and return what the answer's JSON says."""
        del request
        raise QueryRefused(f"{self.where} has no {path}")

    def fill(self, queries: Sequence[MaskedQuery], tokens: Tokens | None = None) -> list[MaskDistribution]:
        """Ask for each query in a request of its own, several at once; for `tokens` alone where the server can do that."""
        ask = self._ask
        if tokens is not None and self._numbers is not None:
            words = [self.vocabulary[int(token)] for token in tokens]
            numbers = self._numbers.of(words)
            if numbers is not None:
                ask = partial(self._ask_for, tokens, words, numbers)
        return self._run([Job([at], partial(ask, query)) for at, query in enumerate(queries)])

    def count_tokens(self, query: MaskedQuery) -> int:
        """Return an estimate of how many tokens the model will read of the text as it is sent, and of what is put around it."""
        return self._around + len(self._text(query).encode("utf-8", "surrogatepass")) // 3

    def most_tokens(self, query: MaskedQuery) -> int:
        """Return the most tokens that the text can have as it is sent, and what was put around the probe when connecting."""
        turns = sum(part.kind == "turn" for part in query.parts)
        return most_tokens_of(self._text(query), self._around * (1 + turns))

    def _text(self, query: MaskedQuery) -> str:
        return "".join(part.text for part in shortened(query.before_mask(), self._max_characters)[0])

    def _measured(self, answer: MaskDistribution, probe: MaskedQuery, api: Route) -> int:
        """Return how many tokens there are besides a text: no more than the whole probe had, the text included."""
        asked = self._request(probe.before_mask(), api, 1)
        return answer.read_tokens or most_tokens_of(json.dumps(asked))

    @property
    def _instruction(self) -> str:
        return self._told if self._told is not None else BLANK if self._opening == "blank" else ""

    def _probe(self, routes: Sequence[Route], top: int | None) -> tuple[Route, int]:
        """Return the route that shows the most, the first of those that show as many, and how many."""
        refusals: dict[Route, BackendError] = {}
        shown: dict[Route, tuple[int, int]] = {}
        for route in routes:
            if shown and (top is not None or max(shown.values())[0] >= _ENOUGH):
                break
            try:
                most = self._most(route, top)
            except (QueryRefused, NoProbabilities) as error:
                refusals[route] = error
            else:
                shown[route] = most, self._around
        if not shown:
            if top is not None:
                self._say_limits(refusals, top)
            raise self._unusable(refusals)
        best = max(shown, key=lambda route: shown[route][0])
        most, self._around = shown[best]
        self.chosen = _reason(best, {route: count for route, (count, _) in shown.items()}, refusals)
        if best == "chat" and len(routes) > 1 and getattr(refusals.get("completions"), "status", 0) not in _NO_ROUTE:
            warnings.warn(f'{self._model!r} is asked by {self.chosen}; say api="chat" if that is right', stacklevel=5)
        return best, most

    def _most(self, route: Route, top: int | None) -> int:
        if top is not None:
            return self._shown(route, top)
        if self._preset.top is not None:
            with contextlib.suppress(TooMany):  # what is known of the provider is out of date
                return self._shown(route, self._preset.top)
        return most_shown(partial(self._shown, route))

    def _shown(self, route: Route, count: int) -> int:
        """Ask for so many tokens, and return how many the server shows."""
        try:
            answer = self._answer(_PROBE, route, count)
        except BackendError as error:
            if _OTHER_FIELD in str(error) and self._preset.most_tokens != _OTHER_FIELD:
                self._preset = self._preset.model_copy(update={"most_tokens": _OTHER_FIELD})
                return self._shown(route, count)
            raise self._understood(error, count) from None
        self._around = self._measured(answer, _PROBE, route)
        # Tokens left out and words that coincide make it a few fewer; a server's own limit, many fewer.
        shown = len(answer.codes)
        return count if shown >= 0.9 * count else shown

    def _understood(self, error: BackendError, count: int) -> Exception:
        """Return what went wrong with a request for so many tokens: the number, perhaps, or a setting."""
        status = getattr(error, "status", 0)
        if count > _USUAL and error.may_have_run:  # it broke over the number, or said nothing that can be used
            return TooMany(str(error))
        if isinstance(error, BadAnswer) and not isinstance(error, NoProbabilities):
            where = f"is url={self.where!r} the address of a server like OpenAI's, up to and with /v1?"
            return ModelUnusable(f"{error}; {where}")
        if not isinstance(error, QueryRefused) or status in _NO_ROUTE:
            return error
        return TooMany(str(error)) if status in _ABOUT_THE_REQUEST else ModelUnusable(str(error))

    def _say_limits(self, refusals: Mapping[Route, BackendError], top: int) -> None:
        """Raise what the server allows, if it shows fewer than `top`."""
        limits: dict[Route, int] = {}
        for route in (route for route, error in refusals.items() if isinstance(error, TooMany)):
            with contextlib.suppress(QueryRefused, NoProbabilities):
                limits[route] = most_shown(partial(self._shown, route))
        if limits:
            said = " and ".join(f"{most} tokens by {route}" for route, most in limits.items())
            raise ModelUnusable(
                f"top={top} is more than {self._model!r} shows here: at most {said} "
                f"({refusals[next(iter(limits))]}); connect with top={max(limits.values())}, or leave top out"
            )

    def _unusable(self, refusals: Mapping[Route, BackendError]) -> ModelUnusable:
        """Say which setting is wrong, as far as the server lets us know."""
        said = "; ".join(f"{route}: {error}" for route, error in refusals.items())
        models: list[str] | None = None
        if all(isinstance(error, QueryRefused) for error in refusals.values()):
            models = self._names()
        if models and self._model not in models:
            others = ", ".join(map(repr, models[:5])) + (", ..." if len(models) > 5 else "")
            return ModelUnusable(f"the server has no model={self._model!r}; it has {others} ({said})")
        if models is None and all(getattr(error, "status", 0) in _NO_ROUTE for error in refusals.values()):
            return ModelUnusable(
                f"url={self.where!r} is not the address of a server like OpenAI's, up to and with /v1, "
                f"or it has no model={self._model!r} ({said}); {_WORKS}"
            )
        return ModelUnusable(f"{self._model!r} can't be used: it shows no log-probabilities here ({said}). {_WORKS}")

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

    def _probe_exact(self, *, all_too: bool) -> None:
        """Find out whether the server answers for chosen tokens, and whether it shows all."""
        numbers = Numbers(self._model, self._beside)
        if any(numbers.of([word]) for word in islice(self._words.known.values(), _LOOKED_UP)):
            self._numbers = numbers
        if all_too:
            with contextlib.suppress(BackendError):
                said, _ = self._said(_PROBE, self._api, ALL)
                if len(said.words()) > LARGEST:
                    self.vocabulary, self._all = vocabulary_of(said.words()), True
                    self.chosen = f"{self._api} (all tokens)"

    def _ask(self, query: MaskedQuery) -> list[MaskDistribution]:
        if not self._all:
            return [self._answer(query, self._api, self._top)]
        said, cut = self._said(query, self._api, ALL)
        values = whole_of(said.words(), self.vocabulary)
        return [MaskDistribution.from_logprobs(values, read_tokens=said.read_tokens, cut_tokens=cut)]

    def _ask_for(
        self, tokens: Tokens, words: Sequence[str], numbers: Sequence[int], query: MaskedQuery
    ) -> list[MaskDistribution]:
        said, cut = self._said(query, self._api, 1, {"logprob_token_ids": numbers})
        shown = said.words()
        missing = [word for word in words if word not in shown]
        if missing:
            raise QueryRefused(
                f"the server left out {missing[0]!r}, which was asked for; connect with a provider that has "
                '"chosen": false, and predictions come from its top tokens',
                may_have_run=True,
            )
        values = [min(0.0, shown[word]) for word in words]
        return [MaskDistribution.from_logprobs(values, tokens, read_tokens=said.read_tokens, cut_tokens=cut)]

    def _answer(self, query: MaskedQuery, route: Route, top: int) -> MaskDistribution:
        said, cut = self._said(query, route, top)
        best = sorted(said.words().items(), key=lambda item: -item[1])[:top]
        return MaskDistribution.from_logprobs(
            [min(0.0, value) for _, value in best],
            [self._words.token_of(word) for word, _ in best],
            top=True,
            read_tokens=said.read_tokens,
            cut_tokens=cut,
        )

    def _said(
        self, query: MaskedQuery, route: Route, top: int, more: Mapping[str, Any] | None = None
    ) -> tuple[Answer, int]:
        """Ask, and return the answer and how many tokens of the text were cut."""
        parts, cut = shortened(query.before_mask(), self._max_characters)
        answer = read_answer(self._exchange(route, {**self._request(parts, route, top), **(more or {})}))
        self._check_model(answer.model)
        self._fingerprint = answer.system_fingerprint
        return answer, cut

    def _request(self, parts: Sequence[Part], route: Route, top: int) -> dict[str, Any]:
        request: dict[str, Any] = {"model": self._model, "temperature": 1, "top_p": 1, "n": 1}
        request |= self._preset.body
        if route == "completions":
            # The next token brings its own space; an empty text is refused by some servers.
            text = "".join(part.text for part in parts).rstrip(" ") or "\n"
            return request | {"max_tokens": 1, "prompt": text, "logprobs": top}
        said = conversation(parts, self._opening, self._told)
        shown = {"logprobs": True, "top_logprobs": top} if self._preset.count == "top_logprobs" else {"logprobs": top}
        return request | {self._preset.most_tokens: 1} | said | shown

    def _check_model(self, served: str) -> None:
        """Take the model's own name from the first answer, and hold all others to it."""
        if not self._served:
            # A name may come back with its date or tag: "gpt-4o-mini" as "gpt-4o-mini-2024-07-18".
            same = re.fullmatch(re.escape(self._model) + r"([-@:](\d[\d-]*|latest))?", served)
            if not (same or self._preset.renames):
                raise ModelUnusable(
                    f"{self._model!r} was asked for and {served!r} answers; if that is the model you mean, "
                    f"connect with model={served!r}"
                )
            self._served = served
        if served != self._served:
            raise BadAnswer(f"{served!r} answered, but earlier it was {self._served!r}; the server changed its model")


def _reason(best: Route, shown: Mapping[Route, int], refusals: Mapping[Route, BackendError]) -> str:
    """Say what was chosen, and why.

    >>> _reason("chat", {"completions": 5, "chat": 20}, {})
    'chat (top 20), since completions show only 5'
    """
    other: Route = "chat" if best == "completions" else "completions"
    if other in shown:
        why = f", since {other} show{'s' if other == 'chat' else ''} only {shown[other]}"
    elif other in refusals:
        why = f", since {other} can't be used ({refusals[other]})"
    else:
        why = ""
    return f"{best} (top {shown[best]}){why}"
