"""Sending: a stream's queries on their way from the ledger's claim to the stored answer.

A `Stream` is what one call wants answered and how far it has come. The `Sender` moves it on: it recalls what
is known, claims a batch of the rest, asks the model, checks what came, has it stored, and records what
failed, each query by its own fate. Those that may succeed later are asked again after a wait, as long as the backend
says or longer with each attempt, until the attempts or the deadline are used up.
"""

from __future__ import annotations

import math
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile

import numpy as np
from tenacity import RetryCallState, Retrying, retry_if_exception, wait_exponential, wait_random

from pbsdk.backend import MaskDistribution, MaskedLMBackend, OpenVocabulary, Tokens, Vocabulary
from pbsdk.errors import Answer, BackendError, BackendUnavailable, BadAnswer, BudgetExceeded, PbsdkError
from pbsdk.ledger.codec import encode
from pbsdk.ledger.inflight import Ask, Claim, Failed, Result
from pbsdk.ledger.writer import QueryLedger

__all__ = ["Sender", "Stream"]

_RECALL = 32
"""How many recalled answers are read at once: a few megabytes."""
_POLL = 0.02
"""Seconds between checks on a query that another process is asking."""

_grow = wait_exponential(multiplier=0.5, max=30) + wait_random(0, 0.5)


@dataclass
class Stream:
    """The queries that one call wants answered, and how far they are."""

    number: int
    """The ledger's number for it."""
    asks: list[Ask]
    """All queries, in the order in which they are answered."""
    known: set[str]
    """Keys whose answers are stored."""
    tokens: Tokens | None = None
    """What is asked for; None for all tokens."""
    unknown: list[Ask] = field(init=False)
    """What had to be asked when the stream began, each key once."""
    fresh: dict[str, MaskDistribution] = field(init=False, default_factory=dict)
    """Answers that came and have not been returned yet, by key."""
    failures: dict[str, BackendError] = field(init=False, default_factory=dict)
    """Why a query failed the last time it did, by key; it may be known by now."""
    sent: int = field(init=False, default=0)
    """How many queries were sent so far, retries included."""
    kept: int = field(init=False, default=0)
    """How many answers came and were stored."""

    def __post_init__(self) -> None:
        first: dict[str, Ask] = {}
        for ask in self.asks:
            if ask.key not in self.known:
                first.setdefault(ask.key, ask)
        self.unknown = list(first.values())

    @property
    def missing(self) -> int:
        """How many answers are still to come."""
        return sum(ask.key not in self.known for ask in self.unknown)

    @property
    def lost(self) -> dict[int, BackendError]:
        """Why queries failed that have no answer, by their place among all."""
        asks = ((at, ask.key) for at, ask in enumerate(self.asks) if ask.key not in self.known)
        return {at: self.failures[key] for at, key in asks if key in self.failures}

    def recallable(self, start: int) -> list[Ask]:
        """Return the next few queries whose answers are only in the ledger."""
        here = self.asks[start : start + _RECALL]
        return list(takewhile(lambda ask: ask.key in self.known and ask.key not in self.fresh, here))


@dataclass
class _Outcome:
    """What one call to the backend brought: answers by position, and why some are missing."""

    answers: Mapping[int, Answer] = field(default_factory=dict)
    error: PbsdkError | KeyboardInterrupt | None = None
    """Why not all came."""
    failures: dict[int, BackendError] = field(default_factory=dict)
    """Why single queries failed, where the error doesn't say it, by position."""
    latency: int = 0
    """Microseconds."""
    results: list[Result] = field(default_factory=list)
    """Answers that were checked, ready to be stored."""


class Sender:
    """Asks a backend on behalf of streams, and keeps the ledger in step."""

    def __init__(
        self,
        backend: MaskedLMBackend,
        ledger: QueryLedger,
        *,
        retries: int,
        deadline: float,
        sleep: Callable[[float], None],
    ) -> None:
        self.backend = backend
        self.retries = retries
        self.deadline = deadline
        self._ledger = ledger
        self._sleep = sleep
        self._vocabulary = backend.vocabulary
        self._words_kept: set[int] = set()
        if isinstance(self._vocabulary, OpenVocabulary):
            for token, word in ledger.words().items():
                self._vocabulary.learn(token, word)
                self._words_kept.add(token)

    def answers(self, stream: Stream) -> Iterator[MaskDistribution]:
        """Yield answers in order: recalled ones a few at a time, the others a batch at a time."""
        queue = deque(stream.unknown)
        at = 0
        while at < len(stream.asks):
            key = stream.asks[at].key
            if key in stream.fresh:
                at += 1
                yield stream.fresh.pop(key)
            elif key in stream.known:
                lot = stream.recallable(at)
                at += len(lot)
                yield from self._ledger.recall(lot)
            else:
                while queue[0].key in stream.known:
                    queue.popleft()
                open_asks = (ask for ask in queue if ask.key not in stream.known)
                self._ask(stream, list(islice(open_asks, self.backend.abilities.batch_size)))

    def _ask(self, stream: Stream, batch: list[Ask]) -> None:
        """Get answers to a batch, or at least to its first query: other processes may be asking the rest."""
        limit = time.monotonic() + self.deadline
        wanted = batch
        while True:
            self._send(stream, wanted)
            if batch[0].key in stream.known:
                return
            if time.monotonic() > limit:
                raise BackendUnavailable(
                    f"another process has been asking the same query for {self.deadline:g} s; stop that process, or try again later"
                )
            time.sleep(_POLL)
            wanted = batch[:1]

    def _send(self, stream: Stream, batch: list[Ask]) -> None:
        """Send what nobody else is asking, retrying while that may help, until the deadline."""
        left, final = batch, list[BackendError]()

        def attempt() -> None:
            nonlocal left
            claim = self._claim(stream, left)
            stream.known.update(ask.key for ask in claim.known)
            left = claim.mine
            if left:
                outcome = self._call(stream, left)
                self._store(stream, outcome)
                again = retrying.statistics["attempt_number"] <= self.retries
                left, why = self._settle(stream, outcome, left, final, again=again)
                if why is not None:
                    raise why

        def stop(state: RetryCallState) -> bool:
            spent = max(state.seconds_since_start or 0.0, state.idle_for)
            return state.attempt_number > self.retries or spent + state.upcoming_sleep > self.deadline

        retrying = Retrying(
            sleep=self._sleep, stop=stop, wait=_wait, retry=retry_if_exception(_retryable), reraise=True
        )
        try:
            retrying(attempt)
        finally:
            stream.known.update(stream.fresh)
        if final:
            raise final[0]

    def _claim(self, stream: Stream, asks: list[Ask]) -> Claim:
        try:
            claim = self._ledger.claim(stream.number, asks)
        except BudgetExceeded as refusal:
            raise refusal.after(stream.sent, stream.kept) from None
        stream.sent += len(claim.mine)
        return claim

    def _call(self, stream: Stream, asks: list[Ask]) -> _Outcome:
        """Ask the model once, and check what came; whatever the adapter raises becomes part of the outcome."""
        outcome = _Outcome()
        began = time.monotonic_ns()
        try:
            filled = list(self.backend.fill([ask.query for ask in asks], stream.tokens))
        except (PbsdkError, KeyboardInterrupt) as raised:
            outcome.error = raised
            outcome.answers, outcome.failures = _parts(raised)
        except Exception as raised:  # noqa: BLE001 - even an adapter's foreign error must be recorded
            said = f"the backend of {self.backend.identity.name} raised {type(raised).__name__}: see above"
            outcome.error = BackendError(said, may_have_run=True)
            outcome.error.__cause__ = raised
            outcome.answers, outcome.failures = _parts(raised)
        else:
            if len(filled) == len(asks):
                outcome.answers = dict(enumerate(filled))
            else:
                outcome.error = BadAnswer(f"{len(asks)} queries were asked, but {len(filled)} answers came")
        outcome.latency = _since(began)
        self._check(stream, asks, outcome)
        return outcome

    def _check(self, stream: Stream, asks: list[Ask], outcome: _Outcome) -> None:
        """Turn the answers of an outcome into results; a wrong one is a failure of its query's own."""
        for place, answer in outcome.answers.items():
            if not 0 <= place < len(asks):
                continue
            try:
                kept, mass = _checked(answer, stream.tokens, self._vocabulary)
                data = _encoded(kept, stream.tokens)
            except BadAnswer as bad:
                outcome.failures[place] = bad
                outcome.error = outcome.error or bad
            else:
                outcome.results.append(Result(asks[place], data, kept, outcome.latency, mass))

    def _store(self, stream: Stream, outcome: _Outcome) -> None:
        """Have the ledger store what came; from then on it can be returned."""
        if outcome.results:
            words = self._new_words(outcome.results)
            stored = self._ledger.finish(stream.number, outcome.results, stream.tokens, words)
            self._words_kept.update(words)
            stream.kept += len(stored)
            keys = [result.ask.key for result in outcome.results]
            stream.fresh.update(zip(keys, stored, strict=True))

    def _settle(
        self, stream: Stream, outcome: _Outcome, asks: list[Ask], final: list[BackendError], *, again: bool
    ) -> tuple[list[Ask], BackendError | None]:
        """Record each query without an answer by its own fate; return those to ask again, and why they failed.

        Errors after which a query isn't asked again are added to `final`: they are raised when the others are answered.
        """
        error = outcome.error
        lost = [
            (ask, outcome.failures.get(place, error)) for place, ask in enumerate(asks) if ask.key not in stream.fresh
        ]
        stream.failures.update({ask.key: why for ask, why in lost if isinstance(why, BackendError)})
        retry = [ask for ask, why in lost if isinstance(error, BackendError) and _retryable(why)]
        failed = [
            Failed(ask, isinstance(why, BackendError) and why.may_have_run, type(why).__name__)
            for ask, why in lost
            if isinstance(why, PbsdkError)  # what Ctrl-C left at the model is unknown, and settled with the stream
        ]
        try:
            self._ledger.fail(stream.number, failed, latency=outcome.latency, again=retry if again else [])
        except BudgetExceeded as refusal:
            raise refusal.after(stream.sent, stream.kept) from error
        if error is None or not (lost or isinstance(error, KeyboardInterrupt)):
            return [], None
        if not isinstance(error, BackendError):  # Ctrl-C, or an input that can't work
            raise error
        errors = [error, *(why for _, why in lost if isinstance(why, BackendError))]
        if len(retry) < len(lost):
            final.append(next(why for why in errors if not why.retryable))
        return retry, next(why for why in errors if why.retryable) if retry else None

    def _new_words(self, results: Sequence[Result]) -> dict[int, str]:
        """Return the words of tokens that an open vocabulary has just learned, for the ledger to keep."""
        if not isinstance(self._vocabulary, OpenVocabulary):
            return {}
        shown = {
            token for result in results if result.answer.tokens is not None for token in result.answer.tokens.tolist()
        }
        return {token: self._vocabulary[token] for token in shown - self._words_kept}


def _checked(answer: Answer, tokens: Tokens | None, vocabulary: Vocabulary) -> tuple[MaskDistribution, int]:
    """Return an answer narrowed to the tokens asked for, and the mass it showed in millionths; refuse a wrong one."""
    if not isinstance(answer, MaskDistribution):
        raise BadAnswer(f"an answer is a {type(answer).__name__}, not a MaskDistribution")
    if answer.codes.dtype != np.uint16 or answer.codes.ndim != 1:
        raise BadAnswer("an answer's codes are not a list of 16-bit integers")
    size, shown = len(vocabulary), answer.tokens
    if shown is None and len(answer.codes) != size:
        raise BadAnswer(f"an answer is for {len(answer.codes)} tokens; the vocabulary has {size}")
    end = 2**63 if isinstance(vocabulary, OpenVocabulary) else size
    if shown is not None and (
        shown.shape != answer.codes.shape
        or (np.diff(shown) <= 0).any()
        or (shown.size and not 0 <= shown[0] <= shown[-1] < end)
    ):
        raise BadAnswer("an answer's tokens don't ascend, don't match its codes, or are not in the vocabulary")
    if not answer.covers(tokens):
        raise BadAnswer("an answer doesn't show the tokens that were asked for")
    mass = 1_000_000 if shown is None else 0 if answer.rest is None else round(answer.mass * 1_000_000)
    return answer if tokens is None else answer.narrowed(tokens), mass


def _encoded(answer: MaskDistribution, tokens: Tokens | None) -> bytes:
    try:
        return encode(answer, tokens)
    except struct.error as error:
        raise BadAnswer("an answer's counts of tokens don't fit 32 bits") from error


def _parts(error: BaseException) -> tuple[dict[int, Answer], dict[int, BackendError]]:
    """Return what came of a batch and why single queries failed, from whatever an adapter raised."""
    answered, failures = (getattr(error, name, None) for name in ("answered", "failures"))
    return (
        dict(answered) if isinstance(answered, Mapping) else {},
        {place: why for place, why in failures.items() if isinstance(why, BackendError)}
        if isinstance(failures, Mapping)
        else {},
    )


def _retryable(error: BaseException | None) -> bool:
    return isinstance(error, BackendError) and error.retryable


def _wait(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    after = getattr(error, "retry_after", None)
    return max(0.0, float(after)) if after is not None and math.isfinite(after) else _grow(state)


def _since(began: int) -> int:
    return (time.monotonic_ns() - began) // 1000
