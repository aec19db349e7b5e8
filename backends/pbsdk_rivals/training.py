"""The frame that all rivals stand on: steps that are charged before they run, tests on the way, and checkpoints.

A `Learner` is a rival at work. Its steps are numbered, the passes of each follow from its number alone (`Stepped.step_passes`), and its state can be
written down, so a run that was interrupted goes on from its last checkpoint as if nothing had happened. It is tested on the validation set and the
test rows after the last step, half-way, a quarter of the way, and so on, which is what a picture with a logarithmic axis needs.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from pbsdk.progress import progress_steps
from pbsdk.queries.examples import Example
from pbsdk.reproduce.rivals import Contest, Passes, Point, Rival
from pbsdk_rivals.box import Row

__all__ = ["Learner", "Stepped", "batches_of_epoch", "halvings"]

SAVE_EVERY = 120.0
"""Seconds between checkpoints."""


class Learner(Protocol):
    """A rival at work on a contest."""

    def step(self, number: int) -> None:
        """Do one step, of the passes that were charged for it."""

    def lengths(self, examples: Sequence[Example]) -> Sequence[Row]:
        """Return the rows that passes of these examples read, for their tokens."""

    def scores(self, examples: Sequence[Example]) -> Tensor:
        """Return the log-probabilities (N, C) of examples, with the passes that the rival's `predict_passes` says."""

    def state(self) -> dict[str, Any]:
        """Return all that the next step depends on: tensors and plain values."""

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a state."""


@dataclass(frozen=True)
class Stepped(Rival):
    """A rival that learns in steps."""

    points: int = 8
    """How often it is tested, at most: at the end, half-way, and so on."""

    @abstractmethod
    def steps(self, contest: Contest) -> int:
        """Return how many steps it takes."""

    @abstractmethod
    def step_passes(self, contest: Contest, number: int) -> Passes:
        """Return the passes of a step."""

    @abstractmethod
    def learner(self, contest: Contest) -> Learner:
        """Return the learner, ready for its first step."""

    @property
    def predict_passes(self) -> int:
        """How many forward passes an example takes to be classified."""
        return 1

    @property
    def preparation(self) -> int:
        """How many steps come before it has learned anything, and are no reason for a test."""
        return 0

    def checks(self, contest: Contest) -> set[int]:
        """Return after how many steps it is tested."""
        first = self.preparation
        return {first + steps for steps in halvings(self.steps(contest) - first)[: self.points]}

    def check_passes(self, contest: Contest) -> Passes:
        """Return the passes of a test."""
        return Passes.of([*contest.validation.examples, *contest.test], self.predict_passes)

    def schedule(self, contest: Contest) -> Iterator[Passes]:
        """Yield the passes of each step and each test."""
        checks = self.checks(contest)
        for number in range(self.steps(contest)):
            yield self.step_passes(contest, number)
            if number + 1 in checks:
                yield self.check_passes(contest)

    def compete(self, contest: Contest) -> Iterator[Point]:
        """Learn step by step, and yield a point after each test."""
        torch.manual_seed(contest.seed)
        learner, run = self.learner(contest), _Run(contest.checkpoint, str(self))
        run.load(learner)
        yield from run.points
        checks, total = self.checks(contest), self.steps(contest)
        with progress_steps(
            total, what=f"{self.name}, {contest.dataset} {contest.seed}", unit="step", show=contest.progress
        ) as report:
            for _ in range(run.done):
                report()
            while run.done < total:
                began = time.perf_counter()
                passes = self.step_passes(contest, run.done)
                _charge(contest, learner, passes)
                learner.step(run.done)
                run.add(passes, contest, time.perf_counter() - began)
                report()
                if run.done in checks:
                    run.points.append(self._tested(contest, learner, run))
                    run.save(learner)
                    yield run.points[-1]
                elif run.is_due:
                    run.save(learner)

    def _tested(self, contest: Contest, learner: Learner, run: _Run) -> Point:
        """Classify the validation set and the test rows."""
        _charge(contest, learner, self.check_passes(contest))
        found = learner.scores([*contest.validation.examples, *contest.test]).double().cpu().numpy()
        held_out, scores = np.split(found, [len(contest.validation.examples)])
        labels = contest.validation.labels
        return Point(
            forward=run.forward,
            backward=run.backward,
            seconds=run.seconds,
            accuracy=float((held_out.argmax(axis=1) == labels).mean()),
            loss=float(-held_out[np.arange(len(labels)), labels].mean()),
            scores=scores,
        )


def _charge(contest: Contest, learner: Learner, passes: Passes) -> None:
    """Charge passes with the tokens that the forward ones read."""
    known = {example.id: example for part in (contest.train, contest.validation) for example in part.examples}
    known |= {example.id: example for example in contest.test}
    asked = [known[name] for name in passes.forward if name in known]
    length = {row.example: len(row.ids) for row in learner.lengths(asked)}
    tokens = sum(many * length.get(name, 0) for name, many in passes.forward.items())
    contest.meter.charge(passes.forward, passes.backward, tokens=tokens)


@dataclass
class _Run:
    """How far a learner has come, and the checkpoint that says so."""

    path: Path
    settings: str
    """What a checkpoint must have been made with."""
    done: int = 0
    forward: float = 0.0
    backward: float = 0.0
    seconds: float = 0.0
    points: list[Point] = field(default_factory=list)
    saved: float = field(default_factory=time.monotonic)

    def add(self, passes: Passes, contest: Contest, seconds: float) -> None:
        """Count a step."""
        examples = contest.train.examples
        self.done += 1
        self.forward += sum(passes.forward[example.id] for example in examples) / len(examples)
        self.backward += sum(passes.backward[example.id] for example in examples) / len(examples)
        self.seconds += seconds

    @property
    def is_due(self) -> bool:
        """Whether a checkpoint should be written."""
        return time.monotonic() - self.saved > SAVE_EVERY

    def save(self, learner: Learner) -> None:
        """Write a checkpoint, whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        points = [{**asdict(point), "scores": torch.from_numpy(point.scores)} for point in self.points]
        counts = {name: getattr(self, name) for name in ("settings", "done", "forward", "backward", "seconds")}
        partial = self.path.with_suffix(".partial")
        torch.save({**counts, "points": points, "learner": learner.state(), "random": torch.get_rng_state()}, partial)
        partial.replace(self.path)
        self.saved = time.monotonic()

    def load(self, learner: Learner) -> None:
        """Go on from the checkpoint, if there is one of the same settings."""
        if not self.path.is_file():
            return
        found = torch.load(self.path, weights_only=True)
        if found["settings"] != self.settings:
            return
        self.done, self.forward, self.backward, self.seconds = (
            found[name] for name in ("done", "forward", "backward", "seconds")
        )
        self.points = [Point(**{**point, "scores": point["scores"].numpy()}) for point in found["points"]]
        learner.restore(found["learner"])
        torch.set_rng_state(found["random"])


def halvings(steps: int) -> list[int]:
    """Return a number, half of it, half of that, down to 1.

    >>> halvings(100)
    [100, 50, 25, 12, 6, 3, 1]
    """
    found = []
    while steps >= 1:
        found.append(steps)
        steps //= 2
    return found


def batches_of_epoch(count: int, size: int, seed: int, epoch: int) -> list[list[int]]:
    """Return the places of an epoch's examples in random batches; they depend on nothing but these numbers.

    >>> sorted(sum(batches_of_epoch(5, 2, 13, 0), []))
    [0, 1, 2, 3, 4]
    """
    order = np.random.default_rng([seed, epoch]).permutation(count).tolist()
    return [order[at : at + size] for at in range(0, count, size)]
