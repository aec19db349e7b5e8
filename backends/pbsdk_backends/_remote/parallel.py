"""A batch of queries over a few threads, and one error for everything that went wrong.

`fill` of a remote adapter is a list of jobs, each for some places of the batch. They run on at most
`workers` daemon threads, so that a stalled server never keeps Python from exiting. Answers that arrived are
kept whatever happens to the rest: the one `BackendError` raised at the end carries them in `answered`.

Nothing is retried here, and nothing waits except for the limit of requests per second; retrying is up to
the meter.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pbsdk.backend import MaskDistribution, answered_part
from pbsdk.errors import BackendError, BackendTimeout, BackendUnavailable, BadAnswer

__all__ = ["Job", "Pace", "run_jobs"]

GRACE = 2.0
"""Seconds past its deadline after which a request is given up; also how long Ctrl-C waits for those under way."""

_GRAVEST_FIRST: tuple[type[BackendError], ...] = (BadAnswer, BackendTimeout, BackendUnavailable, BackendError)


@dataclass(frozen=True)
class Job:
    """One request: the places of the batch that it answers, and the call that sends it."""

    places: Sequence[int]
    ask: Callable[[], Sequence[MaskDistribution]]


class Pace:
    """A limit on requests per second, evenly spaced, over all threads.

    >>> Pace(None).wait(threading.Event())
    True
    """

    def __init__(self, per_second: float | None) -> None:
        self._gap = 1 / per_second if per_second else 0.0
        self._next = 0.0
        self._lock = threading.Lock()

    def wait(self, stop: threading.Event) -> bool:
        """Wait for the next turn; False if `stop` came first."""
        with self._lock:
            now = time.monotonic()
            turn = max(now, self._next)
            self._next = turn + self._gap
        return not stop.wait(turn - now) if turn > now else not stop.is_set()


def run_jobs(jobs: Sequence[Job], *, workers: int, deadline: float, pace: Pace) -> list[MaskDistribution]:
    """Run all jobs and return the answers in the batch's order, or raise one error for all that failed."""
    return _Batch(jobs, deadline, pace).run(workers)


class _Batch:
    def __init__(self, jobs: Sequence[Job], deadline: float, pace: Pace) -> None:
        self._jobs = jobs
        self._deadline = deadline
        self._pace = pace
        self._todo = iter(enumerate(jobs))
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._done: queue.SimpleQueue[tuple[int, Sequence[MaskDistribution] | BaseException]] = queue.SimpleQueue()
        self._started: dict[int, float] = {}
        self._answered: dict[int, MaskDistribution] = {}
        self._errors: list[BackendError] = []

    def run(self, workers: int) -> list[MaskDistribution]:
        for _ in range(min(workers, len(self._jobs))):
            self._start()
        open_jobs = set(range(len(self._jobs)))
        try:
            while open_jobs:
                with contextlib.suppress(queue.Empty):
                    number, outcome = self._done.get(timeout=self._patience(open_jobs))
                    if number in open_jobs:
                        open_jobs.discard(number)
                        self._keep(number, outcome)
                for number in self._overdue(open_jobs):
                    # Its thread is stuck with a server that only trickles bytes; another takes its place.
                    open_jobs.discard(number)
                    self._errors.append(BackendTimeout(f"no answer within {self._deadline:g} s"))
                    self._start()
        except KeyboardInterrupt as interrupt:
            self._stop.set()
            self._await_running(open_jobs)
            # Whoever catches the interrupt can keep what was paid for.
            interrupt.answered = self._answered  # type: ignore[attr-defined]
            raise
        finally:
            self._stop.set()
        if self._errors:
            raise self._summary()
        return [self._answered[place] for place in sorted(self._answered)]

    def _start(self) -> None:
        threading.Thread(target=self._work, daemon=True, name="pbsdk-request").start()

    def _work(self) -> None:
        while True:
            with self._lock:
                number, job = next(self._todo, (-1, None))
            if job is None or not self._pace.wait(self._stop):
                return
            self._started[number] = time.monotonic()
            try:
                outcome: Sequence[MaskDistribution] | BaseException = job.ask()
            except BaseException as error:  # noqa: BLE001 - handed to the caller's thread
                outcome = error
            self._done.put((number, outcome))

    def _keep(self, number: int, outcome: Sequence[MaskDistribution] | BaseException) -> None:
        places = self._jobs[number].places
        if isinstance(outcome, BackendError):
            self._errors.append(outcome)
            self._answered.update({places[at]: answer for at, answer in answered_part(outcome).items()})
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            self._answered.update(zip(places, outcome, strict=True))

    def _patience(self, open_jobs: set[int]) -> float:
        running = [self._started[number] for number in open_jobs if number in self._started]
        return max(0.01, min(running, default=time.monotonic()) + self._deadline + GRACE - time.monotonic())

    def _overdue(self, open_jobs: set[int]) -> list[int]:
        late = time.monotonic() - self._deadline - GRACE
        return [number for number in open_jobs if self._started.get(number, late + 1) <= late]

    def _await_running(self, open_jobs: set[int]) -> None:
        until = time.monotonic() + GRACE
        while (open_jobs & self._started.keys()) and (left := until - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                number, outcome = self._done.get(timeout=left)
                open_jobs.discard(number)
                if not isinstance(outcome, BaseException) or isinstance(outcome, BackendError):
                    self._keep(number, outcome)

    def _summary(self) -> BackendError:
        candidates = [error for error in self._errors if error.retryable] or self._errors
        kind = next(kind for kind in _GRAVEST_FIRST if any(isinstance(error, kind) for error in candidates))
        worst = next(error for error in candidates if isinstance(error, kind))
        more = f" ({len(self._errors)} of {len(self._jobs)} requests failed)" if len(self._jobs) > 1 else ""
        return type(worst)(
            f"{worst}{more}",
            retryable=worst.retryable,
            may_have_run=any(error.may_have_run for error in self._errors),
            retry_after=max((e.retry_after for e in self._errors if e.retry_after is not None), default=None),
            answered=self._answered,
        )
