"""The one thread that uses the model, and the queue in front of it.

A request whose client hung up leaves the queue; one that the model has already begun is left after the batch at hand.
When the server stops waiting, every request is answered truthfully: one that still waited did not run, and one that the
model had may have.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from fastapi import HTTPException

from pbsdk.backend import MaskDistribution, MaskedLMBackend, MaskedQuery, Tokens, answered_part, has_half_character
from pbsdk.errors import BackendError, BackendTimeout, BackendUnavailable, InputError
from pbsdk_backends._server.gate import GUEST
from pbsdk_backends._server.guard import Metrics
from pbsdk_backends._server.stopping import Stop

__all__ = ["BUSY_SECONDS", "Desk"]

BUSY_SECONDS = 1
"""How long a request is told to wait when the queue is full, or the server is stopping."""


@dataclass(eq=False)
class _Errand:
    """What one request wants from the model, and how far it has come."""

    queries: Sequence[MaskedQuery]
    tokens: Tokens | None
    ask: Callable[[Sequence[MaskedQuery], Tokens | None], Iterator[MaskDistribution]]
    """The model's `stream`, or that of the guest who asks."""
    outcome: asyncio.Future[list[MaskDistribution]]
    begun: bool = False
    dropped: bool = False
    answers: list[MaskDistribution] = field(default_factory=list)


class Desk:
    """Takes requests to the model, one at a time.

    Args:
        backend: the model.
        queue: how many requests may wait or be with the model.
        max_batch: how many queries one request may hold.
        metrics: counts queries, failures and who waits.
        stop: when nothing is waited for any more.
    """

    def __init__(self, backend: MaskedLMBackend, *, queue: int, max_batch: int, metrics: Metrics, stop: Stop) -> None:
        self.backend = backend
        self.max_batch = max_batch
        self._queue = queue
        self._metrics = metrics
        self._stop = stop
        self._inside: set[_Errand] = set()
        self._waiting: deque[_Errand] = deque()
        self._change = threading.Condition()
        self._closed = False
        # A daemon, unlike an executor's threads, so that a model that hangs never keeps the process from ending.
        self._thread = threading.Thread(target=self._work, name="pbsdk-model", daemon=True)

    async def fill(self, queries: Sequence[MaskedQuery], tokens: Tokens | None = None) -> list[MaskDistribution]:
        """Have the model answer queries when it is their turn."""
        if len(queries) > self.max_batch:
            raise HTTPException(413, f"{len(queries)} queries in one request; at most {self.max_batch} are allowed")
        if any(has_half_character(part.text) for query in queries for part in query.parts):
            raise InputError("a text holds half of a character (a lone surrogate), which no model can read")
        if len(self._inside) >= self._queue:
            raise HTTPException(429, "the queue is full", {"Retry-After": str(BUSY_SECONDS)})
        if self._closed:
            raise _unheard()
        asker = GUEST.get() or self.backend
        errand = _Errand(queries, tokens, asker.stream, asyncio.get_running_loop().create_future())
        self._inside.add(errand)
        self._metrics.waiting.set(len(self._inside))
        try:
            with self._change:
                self._waiting.append(errand)
                self._change.notify()
                if not self._thread.is_alive():
                    self._thread.start()
            with self._stop.telling(lambda: self._give_up(errand)):
                return await errand.outcome
        finally:
            with self._change:
                errand.dropped = True
                with contextlib.suppress(ValueError):
                    self._waiting.remove(errand)
            self._inside.discard(errand)
            self._metrics.waiting.set(len(self._inside))

    def close(self, until: float) -> None:
        """Let the thread end, and wait for it until a moment of the monotonic clock."""
        with self._change:
            self._closed = True
            self._change.notify()
        if self._thread.is_alive():
            self._thread.join(max(0.0, until - time.monotonic()))

    def _give_up(self, errand: _Errand) -> None:
        with self._change:
            errand.dropped = True
        if errand.outcome.done():
            return
        if errand.begun:
            late = BackendTimeout("the server stopped while the model had this request: it may have run")
            late.answered = dict(enumerate(errand.answers))
            errand.outcome.set_exception(late)
        else:
            errand.outcome.set_exception(_unheard())

    def _work(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                errand = self._waiting.popleft()
                errand.begun = not errand.dropped
            if errand.begun:
                self._run(errand)

    def _run(self, errand: _Errand) -> None:
        error: BaseException | None = None
        try:
            self._answer(errand)
        except BaseException as raised:  # noqa: BLE001 - handed to whoever waits
            error = raised

        def hand_over() -> None:
            if errand.outcome.done():
                return
            if error is None:
                errand.outcome.set_result(errand.answers)
            else:
                errand.outcome.set_exception(error)

        with contextlib.suppress(RuntimeError):  # the server has stopped without it
            errand.outcome.get_loop().call_soon_threadsafe(hand_over)

    def _answer(self, errand: _Errand) -> None:
        answers, tokens = errand.answers, errand.tokens
        try:
            with contextlib.closing(errand.ask(errand.queries, tokens)) as stream:  # type: ignore[type-var]  # a generator
                for answer in stream:
                    answers.append(_narrowed(answer, tokens))
                    self._metrics.queries.inc()
                    if errand.dropped:
                        return
        except BackendError as error:
            late = {len(answers) + at: _narrowed(answer, tokens) for at, answer in answered_part(error).items()}
            error.answered = {**dict(enumerate(answers)), **late}
            error.failures = {len(answers) + at: own for at, own in error.failures.items()}
            self._metrics.queries.inc(len(late))
            self._metrics.failures.labels(type(error).__name__).inc()
            raise


def _unheard() -> BackendUnavailable:
    return BackendUnavailable("the server is stopping, and this request did not run", retry_after=BUSY_SECONDS)


def _narrowed(answer: MaskDistribution, tokens: Tokens | None) -> MaskDistribution:
    return answer if tokens is None else answer.narrowed(tokens)
