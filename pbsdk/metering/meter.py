"""The meter: a backend around a backend, which recalls, charges, asks and remembers.

`stream` takes any number of queries. What the ledger knows is recalled. The rest is charged to the
budget in one transaction before anything is sent, or refused as a whole. Then it is asked, a
batch at a time in the order given, and each batch is on disk before its answers are used. The
caller always gets what was stored, never what came over the wire, so a replay is the same bit for
bit.

What is retryable is asked again, after a wait that the backend names or that grows with each attempt.
A send that surely did not run gives its pass back; one that may have run stays spent.
"""

from __future__ import annotations

import math
import os
import struct
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import partial
from itertools import islice, takewhile
from typing import Any, Literal

import numpy as np
from tenacity import RetryCallState, Retrying, retry_if_exception, wait_exponential, wait_random

from pbsdk.audit.report import AuditReport
from pbsdk.backend import MaskDistribution, MaskedLMBackend, MaskedQuery, OpenVocabulary, Tokens
from pbsdk.errors import (
    Answer,
    BackendError,
    BackendUnavailable,
    BadAnswer,
    BudgetExceeded,
    InputError,
    LedgerError,
    LedgerMismatch,
    PbsdkError,
)
from pbsdk.ledger import canaries as birds
from pbsdk.ledger.budget import QueryBudget
from pbsdk.ledger.canaries import CanaryCheck
from pbsdk.ledger.codec import WHOLE, encode, query_key, set_digest
from pbsdk.ledger.inflight import Ask, Result
from pbsdk.ledger.writer import QueryLedger

__all__ = ["MeteredBackend"]

_RECALL = 32
"""How many recalled answers are read at once; a few megabytes."""
_POLL = 0.02
"""Seconds between looks at a query that another process is asking."""

_grow = wait_exponential(multiplier=0.5, max=30) + wait_random(0, 0.5)


class MeteredBackend(MaskedLMBackend):
    """A backend whose every query is recorded, charged to a budget, and asked only once.

    Args:
        backend: the model to ask.
        run: the folder of the ledger; made if it isn't there.
        budget: passes an example, a `QueryBudget`, or None for no limit.
        retries: how often a batch that failed is asked again, if the error is retryable.
        deadline: seconds that the attempts at one batch may take, waits included.
        sleep: how to wait between attempts.
        canaries: ask a few fixed texts before anything else is sent, and refuse to go on if the model
            answers otherwise than when the folder was begun; "warn" goes on. Off unless told: nothing is
            sent that nobody asked for, and a local model's weights are in its identity anyway.
    """

    def __init__(
        self,
        backend: MaskedLMBackend,
        run: str | os.PathLike[str],
        budget: QueryBudget | int | None = 10,
        *,
        retries: int = 5,
        deadline: float = 300.0,
        sleep: Callable[[float], None] = time.sleep,
        canaries: bool | Literal["warn"] = False,
    ) -> None:
        if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
            raise InputError(f"retries is a whole number from 0 on; not {retries!r}")
        if isinstance(deadline, bool) or not isinstance(deadline, int | float) or not deadline > 0:
            raise InputError(f"deadline is a number of seconds above 0; not {deadline!r}")
        if canaries not in (True, False, "warn"):
            raise InputError(f'canaries is True, False or "warn"; not {canaries!r}')
        self.backend = backend
        self.budget = QueryBudget.of(budget)
        self.canaries = canaries
        self.retries = retries
        self.deadline = deadline
        self._sleep = sleep
        self._last_check: CanaryCheck | None = None
        self.identity = backend.identity
        self.vocabulary = backend.vocabulary
        self.abilities = backend.abilities
        self.mask_token = backend.mask_token
        self.ledger = QueryLedger(run, backend.identity, self.budget)
        self._words_kept: set[int] = set()
        if isinstance(self.vocabulary, OpenVocabulary):
            for token, word in self.ledger.words().items():
                self.vocabulary.learn(token, word)
                self._words_kept.add(token)

    def __repr__(self) -> str:
        return f"MeteredBackend({self.identity.name!r}, run={str(self.ledger.folder)!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> MeteredBackend:
        return self  # a clone of a classifier shares the ledger, and so never pays twice

    def __reduce__(self) -> tuple[Any, ...]:
        again = partial(MeteredBackend, retries=self.retries, deadline=self.deadline, canaries=self.canaries)
        return again, (self.backend, self.ledger.folder, self.budget)

    def count_tokens(self, query: MaskedQuery) -> int:
        """Return how many tokens the model will read."""
        return self.backend.count_tokens(query)

    def audit(self) -> AuditReport:
        """Return what was asked so far, against the budget."""
        return AuditReport.read(self.ledger.folder, budget=self.budget)

    def check_canaries(self) -> CanaryCheck:
        """Ask a few fixed texts, and say whether the model answers as when the folder was begun."""
        asks = self.canary_asks()
        stream = self.ledger.open_stream()
        try:
            self.ledger.reserve(stream, asks)
            for _ in self._answer(stream, asks, set(), asks, None):
                pass
        finally:
            with suppress(LedgerError):
                self.ledger.close_stream(stream)
        with self.ledger.reader() as reader:
            self._last_check = birds.checks(reader)[-1]
        return self._last_check

    def canary_asks(self) -> list[Ask]:
        """Return the queries that the next check of the canaries will ask."""
        with self.ledger.reader() as reader:
            return birds.asks(self.identity, birds.count_checks(reader), self._estimate())

    @property
    def canaries_due(self) -> bool:
        """Whether the canaries will be asked before the next query is sent."""
        return bool(self.canaries) and self._last_check is None

    def _refuse_another_model(self) -> None:
        """Check the canaries, once; stop, or warn, if the model is not the one the folder was begun with."""
        check = self.check_canaries() if self._last_check is None else self._last_check
        if check.changed and self.canaries == "warn":
            warnings.warn(f"{self.ledger.folder}: {check.describe()}", stacklevel=3)
        elif check.changed:
            raise LedgerMismatch(
                f"{self.ledger.folder}: {check.describe()}. Nothing more was sent; give the changed model a run folder of "
                'its own, or mix the answers with connect(..., canaries="warn")'
            )

    def close(self) -> None:
        """Close the model and the ledger; what was stored stays."""
        try:
            self.backend.close()
        finally:
            self.ledger.close()

    def fill(self, queries: Sequence[MaskedQuery], tokens: Tokens | None = None) -> list[MaskDistribution]:
        """Answer the queries in order, any number of them."""
        return list(self.stream(queries, tokens))

    def stream(self, queries: Sequence[MaskedQuery], tokens: Tokens | None = None) -> Iterator[MaskDistribution]:
        """Answer the queries in order, while later ones are still to be asked."""
        wanted = None if tokens is None else self._checked_tokens(tokens)
        stream = self.ledger.open_stream()
        try:
            asks, known = self.resolve(queries, wanted)
            first: dict[str, Ask] = {}
            for ask in asks:
                if ask.key not in known:
                    first.setdefault(ask.key, ask)
            unknown = list(first.values())
            if unknown:
                self.ledger.reserve(stream, unknown)
                if self.canaries:
                    self._refuse_another_model()
            given = 0
            try:
                for answer in self._answer(stream, asks, known, unknown, wanted):
                    yield answer if wanted is None else answer.narrowed(wanted)
                    given += 1
            except BackendError as error:
                missing = sum(ask.key not in known for ask in unknown)
                error.add_note(
                    f"{given} answers were given; of {len(unknown)} to ask for, {missing} are missing, the rest is kept"
                )
                raise
        finally:
            with suppress(LedgerError):  # a full disk: the next stream or session settles it
                self.ledger.close_stream(stream)

    def _checked_tokens(self, tokens: Tokens) -> Tokens:
        ids = np.asarray(tokens)
        size = len(self.vocabulary)
        if ids.ndim != 1 or not ids.size or ids.dtype.kind not in "iu" or (np.diff(ids.astype(np.int64)) <= 0).any():
            raise InputError("tokens must be a list of token ids in ascending order, none twice, not empty")
        if ids[0] < 0 or (ids[-1] >= size and not isinstance(self.vocabulary, OpenVocabulary)):
            raise InputError(f"token {int(ids[0] if ids[0] < 0 else ids[-1])} is not in the vocabulary of {size}")
        return ids.astype(np.int64)

    def resolve(
        self, queries: Sequence[MaskedQuery], tokens: Tokens | None = None, promised: AbstractSet[str] = frozenset()
    ) -> tuple[list[Ask], set[str]]:
        """Give each query the key of an answer that serves it, and say which keys are known; nothing is sent.

        An answer to all tokens serves any; so does one to a set that holds those asked for. Keys in
        `promised` count as known.
        """
        model, own = self.identity.digest, set_digest(tokens)
        places = [WHOLE] if tokens is None else list(dict.fromkeys([WHOLE, own, *self.ledger.supersets(tokens)]))
        estimate = self._estimate()
        asks: list[Ask] = []
        known: set[str] = set()
        for query in queries:
            for place in places:
                key = query_key(model, query.content, place)
                if key in known or key in promised or self.ledger.known([key]):
                    known.add(key)
                    asks.append(Ask.of(key, query))
                    break
            else:
                asks.append(Ask.of(query_key(model, query.content, own), query, estimate(query), own))
        return asks, known

    def _estimate(self) -> Callable[[MaskedQuery], int]:
        return self.backend.count_tokens if self.budget.counts_tokens else lambda _: 0

    def _answer(
        self, stream: int, asks: list[Ask], known: set[str], unknown: list[Ask], tokens: Tokens | None
    ) -> Iterator[MaskDistribution]:
        """Yield answers in order: recalled ones in small lots, the others a batch at a time."""
        fresh: dict[str, MaskDistribution] = {}
        queue = deque(unknown)
        at = 0
        while at < len(asks):
            key = asks[at].key
            if key in fresh:
                at += 1
                yield fresh.pop(key)
            elif key in known:
                lot = list(takewhile(lambda ask: ask.key in known and ask.key not in fresh, asks[at : at + _RECALL]))
                at += len(lot)
                yield from self.ledger.recall(lot)
            else:
                while queue[0].key in known:
                    queue.popleft()
                batch = list(islice((ask for ask in queue if ask.key not in known), self.abilities.batch_size))
                self._ask(stream, batch, tokens, fresh, known)

    def _ask(
        self, stream: int, batch: list[Ask], tokens: Tokens | None, fresh: dict[str, MaskDistribution], known: set[str]
    ) -> None:
        """Get answers to a batch, to its first query at least: others may be asking the rest."""
        limit = time.monotonic() + self.deadline
        wanted = batch
        while True:
            self._send(stream, wanted, tokens, fresh, known)
            if batch[0].key in known:
                return
            if time.monotonic() > limit:
                raise BackendUnavailable(
                    f"another process has been asking the same query for {self.deadline:g} s; end it, or try later"
                )
            time.sleep(_POLL)
            wanted = batch[:1]

    def _send(
        self, stream: int, batch: list[Ask], tokens: Tokens | None, fresh: dict[str, MaskDistribution], known: set[str]
    ) -> None:
        """Send what nobody else is asking, again while that may help, until the deadline."""
        left = list(batch)

        def attempt() -> None:
            claim = self.ledger.claim(stream, left)
            known.update(ask.key for ask in claim.known)
            left[:] = claim.mine
            if left:
                self._send_once(
                    stream, left, tokens, fresh, again=retrying.statistics["attempt_number"] <= self.retries
                )

        def stop(state: RetryCallState) -> bool:
            spent = max(state.seconds_since_start or 0.0, state.idle_for)
            return state.attempt_number > self.retries or spent + state.upcoming_sleep > self.deadline

        retrying = Retrying(
            sleep=self._sleep, stop=stop, wait=_wait, retry=retry_if_exception(_retryable), reraise=True
        )
        try:
            retrying(attempt)
        finally:
            known.update(key for key in fresh if key not in known)

    def _send_once(
        self, stream: int, left: list[Ask], tokens: Tokens | None, fresh: dict[str, MaskDistribution], *, again: bool
    ) -> None:
        """Ask the model once; store what came, strike it off `left`, record the rest, and raise why."""
        error: BackendError | None = None
        interrupt: KeyboardInterrupt | None = None
        answers: Mapping[int, Answer] = {}
        began = time.monotonic_ns()
        try:
            filled = list(self.backend.fill([ask.query for ask in left], tokens))
        except BackendError as raised:
            error, answers = raised, raised.answered
        except PbsdkError as raised:  # an input that can't work: refused before it was sent
            self._fail(stream, [(ask, False) for ask in left], raised, _since(began), again=False)
            raise
        except KeyboardInterrupt as raised:  # a remote adapter hands over what had come; the rest is unknown
            interrupt, answers = raised, getattr(raised, "answered", {})
        except Exception as raised:  # noqa: BLE001 - an adapter that leaks is still answered for
            name = type(raised).__name__
            error = BackendError(f"the backend of {self.identity.name} raised {name}: see above", may_have_run=True)
            error.__cause__ = raised
        else:
            if len(filled) == len(left):
                answers = dict(enumerate(filled))
            else:
                error = BadAnswer(f"{len(left)} queries were asked and {len(filled)} answers came")
        latency = _since(began)
        results, wrong = [], []
        for index, answer in answers.items():
            if not 0 <= index < len(left):
                continue
            try:
                results.append(self._result(left[index], answer, tokens, latency))
            except BadAnswer as bad:
                wrong.append(left[index])
                error = error or bad
        if results:
            words = self._new_words(results)
            stored = self.ledger.finish(stream, results, tokens, words)
            self._words_kept.update(words)
            fresh.update((result.ask.key, answer) for result, answer in zip(results, stored, strict=True))
        if interrupt is not None:
            raise interrupt
        if error is None:
            return
        left[:] = [ask for ask in left if ask.key not in fresh]
        if left:
            failed = [(ask, error.may_have_run or ask in wrong) for ask in left]
            self._fail(stream, failed, error, latency, again=again and error.retryable)
            raise error

    def _fail(
        self, stream: int, failed: list[tuple[Ask, bool]], error: Exception, latency: int, *, again: bool
    ) -> None:
        try:
            self.ledger.fail(stream, failed, note=type(error).__name__, latency=latency, again=again)
        except BudgetExceeded as refusal:
            raise refusal from error

    def _new_words(self, results: Sequence[Result]) -> dict[int, str]:
        """Return what tokens say that an open vocabulary has just learned, for the ledger to keep."""
        if not isinstance(self.vocabulary, OpenVocabulary):
            return {}
        shown = {
            token for result in results if result.answer.tokens is not None for token in result.answer.tokens.tolist()
        }
        return {token: self.vocabulary[token] for token in shown - self._words_kept}

    def _result(self, ask: Ask, answer: Answer, tokens: Tokens | None, latency: int) -> Result:
        """Check an answer and make it ready to be stored."""
        size = len(self.vocabulary)
        if not isinstance(answer, MaskDistribution):
            raise BadAnswer(f"an answer is a {type(answer).__name__}, not a MaskDistribution")
        if answer.codes.dtype != np.uint16 or answer.codes.ndim != 1:
            raise BadAnswer("an answer's codes are not a list of 16-bit integers")
        shown, open_ended = answer.tokens, isinstance(self.vocabulary, OpenVocabulary)
        if shown is None and len(answer.codes) != size:
            raise BadAnswer(f"an answer is for {len(answer.codes)} tokens; the vocabulary has {size}")
        if shown is not None and (
            shown.shape != answer.codes.shape
            or (np.diff(shown) <= 0).any()
            or (shown.size and not 0 <= shown[0] <= shown[-1] < (2**63 if open_ended else size))
        ):
            raise BadAnswer("an answer's tokens don't ascend, don't fit its codes, or are not in the vocabulary")
        if not answer.covers(tokens):
            raise BadAnswer("an answer doesn't show the tokens that were asked for")
        mass = 1_000_000 if shown is None else 0 if answer.rest is None else round(answer.mass * 1_000_000)
        kept = answer if tokens is None else answer.narrowed(tokens)
        try:
            data = encode(kept, tokens)
        except struct.error as error:
            raise BadAnswer("an answer's counts of tokens don't fit 32 bits") from error
        return Result(ask, data, kept, latency, mass)


def _retryable(error: BaseException) -> bool:
    return isinstance(error, BackendError) and error.retryable


def _wait(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    after = getattr(error, "retry_after", None)
    return max(0.0, float(after)) if after is not None and math.isfinite(after) else _grow(state)


def _since(began: int) -> int:
    return (time.monotonic_ns() - began) // 1000
