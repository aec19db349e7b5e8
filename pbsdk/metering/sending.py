"""Sending: a stream's queries on their way from the ledger's claim to the stored answer.

A `Stream` is what one call wants answered and how far it has come. The `Sender` moves it on: it recalls what
is known, claims a batch of the rest, asks the model, checks what came, has it stored, and records what
failed. After a retryable error it waits, for as long as the backend says or longer with each attempt,
until the attempts or the deadline are used up.
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
from pbsdk.ledger.inflight import Ask, Result
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

    def recallable(self, start: int) -> list[Ask]:
        """Return the next few queries whose answers are only in the ledger."""
        here = self.asks[start : start + _RECALL]
        return list(takewhile(lambda ask: ask.key in self.known and ask.key not in self.fresh, here))


@dataclass
class _Outcome:
    """What one call to the backend brought: answers by position, and why some are missing."""

    answers: Mapping[int, Answer] = field(default_factory=dict)
    error: BackendError | None = None
    interrupt: KeyboardInterrupt | None = None
    latency: int = 0
    """Microseconds."""
    results: list[Result] = field(default_factory=list)
    """Answers that were checked, ready to be stored."""
    wrong: list[Ask] = field(default_factory=list)
    """Queries whose answer can't be right; they ran."""


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
        left = batch

        def attempt() -> None:
            nonlocal left
            claim = self._ledger.claim(stream.number, left)
            stream.known.update(ask.key for ask in claim.known)
            left = claim.mine
            if left:
                outcome = self._call(stream, left)
                self._store(stream, outcome)
                left = [ask for ask in left if ask.key not in stream.fresh]
                self._raise(stream, outcome, left, again=retrying.statistics["attempt_number"] <= self.retries)

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

    def _call(self, stream: Stream, asks: list[Ask]) -> _Outcome:
        """Ask the model once, and check what came; whatever the adapter raises becomes part of the outcome."""
        outcome = _Outcome()
        began = time.monotonic_ns()
        try:
            filled = list(self.backend.fill([ask.query for ask in asks], stream.tokens))
        except BackendError as raised:
            outcome.error, outcome.answers = raised, raised.answered
        except PbsdkError as raised:  # an input that can't work: refused before it was sent
            self._fail(stream, [(ask, False) for ask in asks], raised, _since(began), again=False)
            raise
        except KeyboardInterrupt as raised:  # a remote adapter hands over the answers so far; the rest is unknown
            outcome.interrupt, outcome.answers = raised, getattr(raised, "answered", {})
        except Exception as raised:  # noqa: BLE001 - even an adapter's foreign error must be recorded
            said = f"the backend of {self.backend.identity.name} raised {type(raised).__name__}: see above"
            outcome.error = BackendError(said, may_have_run=True)
            outcome.error.__cause__ = raised
        else:
            if len(filled) == len(asks):
                outcome.answers = dict(enumerate(filled))
            else:
                outcome.error = BadAnswer(f"{len(asks)} queries were asked, but {len(filled)} answers came")
        outcome.latency = _since(began)
        self._check(stream, asks, outcome)
        return outcome

    def _check(self, stream: Stream, asks: list[Ask], outcome: _Outcome) -> None:
        """Sort the answers of an outcome into results and wrong ones."""
        for place, answer in outcome.answers.items():
            if not 0 <= place < len(asks):
                continue
            try:
                kept, mass = _checked(answer, stream.tokens, self._vocabulary)
                data = _encoded(kept, stream.tokens)
            except BadAnswer as bad:
                outcome.wrong.append(asks[place])
                outcome.error = outcome.error or bad
            else:
                outcome.results.append(Result(asks[place], data, kept, outcome.latency, mass))

    def _store(self, stream: Stream, outcome: _Outcome) -> None:
        """Have the ledger store what came; from then on it can be returned."""
        if outcome.results:
            words = self._new_words(outcome.results)
            stored = self._ledger.finish(stream.number, outcome.results, stream.tokens, words)
            self._words_kept.update(words)
            keys = [result.ask.key for result in outcome.results]
            stream.fresh.update(zip(keys, stored, strict=True))

    def _raise(self, stream: Stream, outcome: _Outcome, left: list[Ask], *, again: bool) -> None:
        """Record the queries without an answer, if there are any, and raise why."""
        if outcome.interrupt is not None:
            raise outcome.interrupt
        error = outcome.error
        if error is not None and left:
            failed = [(ask, error.may_have_run or ask in outcome.wrong) for ask in left]
            self._fail(stream, failed, error, outcome.latency, again=again and error.retryable)
            raise error

    def _fail(
        self, stream: Stream, failed: list[tuple[Ask, bool]], error: Exception, latency: int, *, again: bool
    ) -> None:
        try:
            self._ledger.fail(stream.number, failed, note=type(error).__name__, latency=latency, again=again)
        except BudgetExceeded as refusal:
            raise refusal from error

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


def _retryable(error: BaseException) -> bool:
    return isinstance(error, BackendError) and error.retryable


def _wait(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    after = getattr(error, "retry_after", None)
    return max(0.0, float(after)) if after is not None and math.isfinite(after) else _grow(state)


def _since(began: int) -> int:
    return (time.monotonic_ns() - began) // 1000
