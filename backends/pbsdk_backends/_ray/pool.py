"""The pool: actors that hold the same model, and pieces of a batch that go to whichever is free.

An actor has one piece at a time, so a slow one holds up no piece but its own, and no more is under way than there are actors. One
that dies is replaced, on whatever machine Ray finds room; its piece is not asked again here, but is an error that says it may have
run: whoever asks decides, and counts.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from pbsdk.backend import MaskDistribution, MaskedQuery, ModelIdentity, Tokens
from pbsdk.errors import BackendError, BackendTimeout, BackendUnavailable, ModelUnusable, PbsdkError
from pbsdk_backends._ray.worker import Facts

__all__ = ["Outcome", "Pool"]

Outcome = list[MaskDistribution] | PbsdkError
MOST_STILLBORN = 3
"""After so many actors in a row that died or failed before their model was open, no more are started for a call."""
_LOOK = 1.0
"""Seconds between looks at whether patience is used up."""


@dataclass
class _Seat:
    """An actor, and what it is doing."""

    actor: Any
    task: Any
    """What it will return; None while it is idle."""
    opening: bool = True
    piece: int | None = None
    """Which piece of the batch it has; None if nobody waits for it any more."""


class Pool:
    """Actors with one model.

    Args:
        make: starts an actor.
        actors: how many there are.
        patience: seconds to wait while no actor has its model open.
    """

    def __init__(self, make: Callable[[], Any], actors: int, *, patience: float) -> None:
        self._make = make
        self._patience = patience
        self._stillborn, self._why = 0, ""
        self._identity: ModelIdentity | None = None
        self._seats = [_Seat(actor, actor.open.remote()) for actor in (make() for _ in range(actors))]

    def facts(self) -> Facts:
        """Wait for the first actor, and return what its model is."""
        since = self._begin()
        while True:
            done = self._next(since)
            if done is None:
                raise self._nobody()
            result = done[1]
            if isinstance(result, Facts):
                return result
            about_us = isinstance(result, PbsdkError) and not isinstance(result, BackendError)
            if about_us:  # another actor would say the same
                raise result

    def ask(self, pieces: Sequence[Sequence[MaskedQuery]], tokens: Tokens | None) -> dict[int, Outcome]:
        """Ask about each piece, and return what became of it, by its place."""
        waiting, outcomes = deque(enumerate(pieces)), dict[int, Outcome]()
        since = self._begin()
        try:
            while len(outcomes) < len(pieces):
                for seat in self._seats:
                    if waiting and seat.task is None and not seat.opening:
                        seat.piece, piece = waiting.popleft()
                        seat.task = seat.actor.fill.remote(list(piece), tokens)
                done = self._next(since)
                if done is None:
                    why = self._nobody()
                    outcomes |= {place: why for place in range(len(pieces)) if place not in outcomes}
                    break
                seat, result = done
                since = time.monotonic()
                if seat.piece is not None:
                    outcomes[seat.piece], seat.piece = result, None
        finally:
            for seat in self._seats:
                seat.piece = None  # after Ctrl-C: what comes later is nobody's
        return outcomes

    def count(self, query: MaskedQuery) -> tuple[int, int]:
        """Have an actor count the tokens of a query."""
        for seat in [seat for seat in self._seats if not seat.opening]:
            with suppress(RayError):
                found: tuple[int, int] = ray.get(seat.actor.count.remote(query))
                return found
        raise BackendUnavailable("no actor is there to count tokens")

    def close(self) -> None:
        """End all actors."""
        for seat in self._seats:
            ray.kill(seat.actor)
        self._seats = []

    def _next(self, since: float) -> tuple[_Seat, Any] | None:
        """Wait for an actor to do something, and return what; None if there is none to wait for any longer."""
        while True:
            tasks = {seat.task: seat for seat in self._seats if seat.task is not None}
            if not tasks:
                return None
            ready, _ = ray.wait(list(tasks), num_returns=1, timeout=_LOOK)
            if ready:
                return tasks[ready[0]], self._result(tasks[ready[0]])
            if all(seat.opening for seat in self._seats) and time.monotonic() - since > self._patience:
                return None

    def _begin(self) -> float:
        """Fill seats that stayed empty, and return the time."""
        self._stillborn = 0
        for seat in self._seats:
            if seat.opening and seat.task is None:
                self._replace(seat)
        return time.monotonic()

    def _result(self, seat: _Seat) -> Any:
        """Take what an actor returned; if it is dead, or has no model to ask, put another in its place."""
        task, seat.task, dead = seat.task, None, False
        try:
            result = ray.get(task)
        except RayTaskError as error:
            result = BackendError(f"the backend in an actor raised {error.cause!r}", may_have_run=True)
        except RayError as error:
            result = BackendTimeout(
                f"an actor died with its queries, and another takes its place ({_first_line(error)})"
            )
            dead = True
        if isinstance(result, Facts):
            result = self._checked(seat, result)
        if seat.opening and not isinstance(result, Facts):
            self._stillborn, self._why = self._stillborn + 1, f"; the last said: {result}"
        if dead or seat.opening:
            self._replace(seat)
        return result

    def _replace(self, seat: _Seat) -> None:
        """Start an actor in a seat, unless so many came to nothing that it stays empty for this call."""
        with suppress(RayError):
            ray.kill(seat.actor)
        seat.opening = True
        if self._stillborn < MOST_STILLBORN:
            seat.actor = self._make()
            seat.task = seat.actor.open.remote()

    def _checked(self, seat: _Seat, facts: Facts) -> Facts | PbsdkError:
        """Admit an actor that has its model open, if it is the model of the others."""
        self._identity = self._identity or facts.identity
        if difference := facts.identity.differences(self._identity):
            return ModelUnusable(f"an actor has opened another model ({difference}); all machines need the same files")
        seat.opening, self._stillborn = False, 0
        return facts

    def _nobody(self) -> BackendUnavailable:
        if self._stillborn >= MOST_STILLBORN:
            return BackendUnavailable(f"{self._stillborn} actors in a row came to nothing{self._why}", retryable=False)
        return BackendUnavailable(
            f"no actor had its model open after {self._patience:g} s; is there room in the cluster?"
        )


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
