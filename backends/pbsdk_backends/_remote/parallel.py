"""A batch of queries over a few threads, and one error for everything that went wrong.

`fill` of a remote adapter is a list of jobs, each for some places of the batch. They run on at most
`workers` daemon threads, so that a stalled server never keeps Python from exiting; one that hangs past its
deadline is replaced, but only so often. Answers that arrived are kept whatever happens to the rest: the one error
raised at the end carries them in `answered`, and in `failures` what became of each other query, so that one lost
request doesn't make those that were refused look lost too.

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
from pbsdk.errors import BackendError, BackendTimeout, BackendUnavailable, BadAnswer, BudgetExceeded, PbsdkError

__all__ = ["Job", "Pace", "run_jobs"]

GRACE = 2.0
"""Seconds past its deadline after which a request is given up; also how long Ctrl-C waits for those under way."""
MOST_LOST = 64
"""How many threads of given-up requests this process puts up with before it starts no more."""

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


_lost: set[threading.Thread] = set()
"""Threads whose request was given up, in this process; one that comes back ends."""


def _count_lost() -> int:
    return sum(thread.is_alive() for thread in tuple(_lost))  # after a fork none is


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
        self._workers: dict[int, threading.Thread] = {}
        self._crew = 0
        self._answered: dict[int, MaskDistribution] = {}
        self._errors: list[BackendError] = []
        self._failures: dict[int, BackendError] = {}

    def run(self, workers: int) -> list[MaskDistribution]:
        for _ in range(min(workers, len(self._jobs))):
            self._start()
        open_jobs = set(range(len(self._jobs)))
        self._fail_unsent(open_jobs)
        try:
            while open_jobs:
                with contextlib.suppress(queue.Empty):
                    number, outcome = self._done.get(timeout=self._patience(open_jobs))
                    if number in open_jobs:
                        open_jobs.discard(number)
                        self._keep(number, outcome)
                for number in self._overdue(open_jobs):
                    # Its thread is stuck where no connection can be cut, such as looking up a name; another takes its place.
                    open_jobs.discard(number)
                    self._fail(number, BackendTimeout(f"no answer within {self._deadline:g} s"))
                    _lost.add(self._workers[number])
                    self._crew -= 1
                    self._start()
                self._fail_unsent(open_jobs)
        # Ctrl-C, or an input that a job refuses: the other jobs have fates of their own.
        except BaseException as stopped:
            with self._lock:  # from here on, what has not begun never will
                self._stop.set()
            self._await_running(open_jobs)
            self._give_up(open_jobs)
            stopped.answered, stopped.failures = self._answered, self._failures  # type: ignore[attr-defined]
            raise
        finally:
            self._stop.set()
        if self._errors:
            raise self._summary()
        return [self._answered[place] for place in sorted(self._answered)]

    def _start(self) -> None:
        if _count_lost() < MOST_LOST:
            self._crew += 1
            threading.Thread(target=self._work, daemon=True, name="pbsdk-request").start()

    def _fail_unsent(self, open_jobs: set[int]) -> None:
        """Fail what nobody is left to send, once too many threads are lost."""
        if self._crew:
            return
        with self._lock:
            unsent = [number for number, _ in self._todo]
        for number in unsent:
            open_jobs.discard(number)
            said = (
                f"{_count_lost()} requests of this process never came back, and no more are sent while they hang; "
                "is looking up names slow here, or a proxy?"
            )
            self._fail(number, BackendUnavailable(said))

    def _work(self) -> None:
        while True:
            with self._lock:
                number, job = next(self._todo, (-1, None))
            if job is None or not self._pace.wait(self._stop):
                return
            with self._lock:
                if self._stop.is_set():
                    return
                self._workers[number] = threading.current_thread()
                self._started[number] = time.monotonic()
            try:
                outcome: Sequence[MaskDistribution] | BaseException = job.ask()
            except BaseException as error:  # noqa: BLE001 - handed to the caller's thread
                outcome = error
            self._done.put((number, outcome))
            if threading.current_thread() in _lost:  # another took its place
                _lost.discard(threading.current_thread())
                return

    def _keep(self, number: int, outcome: Sequence[MaskDistribution] | BaseException) -> None:
        places = self._jobs[number].places
        if isinstance(outcome, BackendError):
            self._answered.update({places[at]: answer for at, answer in answered_part(outcome).items()})
            self._fail(number, outcome)
        elif isinstance(outcome, BaseException):
            self._note(number, outcome)
            raise outcome
        else:
            self._answered.update(zip(places, outcome, strict=True))

    def _note(self, number: int, stopped: BaseException) -> None:
        """Remember that a job may have run which raised something that isn't about the model."""
        if not isinstance(stopped, PbsdkError) or (isinstance(stopped, BudgetExceeded) and stopped.sent):
            self._fail(number, BackendError(f"{type(stopped).__name__}", may_have_run=True))

    def _fail(self, number: int, error: BackendError) -> None:
        """Remember why a job failed, for each of its places that has no answer."""
        self._errors.append(error)
        self._failures.update(
            {
                place: error.failures.get(at, error)
                for at, place in enumerate(self._jobs[number].places)
                if place not in self._answered
            }
        )

    def _give_up(self, open_jobs: set[int]) -> None:
        """Tell the jobs that are still under way from those that never began."""
        for number in open_jobs:
            begun = number in self._started
            self._fail(number, BackendTimeout("given up") if begun else BackendUnavailable("never sent"))

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
                if number not in open_jobs:
                    continue
                open_jobs.discard(number)
                if not isinstance(outcome, BaseException) or isinstance(outcome, BackendError):
                    self._keep(number, outcome)
                else:
                    self._note(number, outcome)

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
            failures=self._failures,
        )
