"""Contests: rivals run on the tables' draws, under a budget that their schedules give, with the ledger as the judge of what they took.

A rival's cell is made like any other: remembered by a digest of all that it depends on, and written as soon as it is known. What it took is not what it says of itself but
what the ledger holds: the passes of each training and validation example under this contest's name.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np

from pbsdk.backend import MaskedLMBackend, digest
from pbsdk.learning.calibration import expected_calibration_error
from pbsdk.ledger.budget import BACKWARD, FORWARD, INSIDE
from pbsdk.ledger.lots import LotSums
from pbsdk.ledger.reader import LedgerReader
from pbsdk.metering.meter import MeteredBackend
from pbsdk.metering.passes import PassMeter
from pbsdk.queries.templates import Style, Template
from pbsdk.reproduce.benchmarks import LABEL_WORDS
from pbsdk.reproduce.draws import DataSet
from pbsdk.reproduce.prompt_sets import pools_of
from pbsdk.reproduce.results import CurvePoint, ResultCell
from pbsdk.reproduce.rivals import Contest, Passes, Point, Rival, chosen_point

__all__ = ["Contests", "Task"]


@dataclass(frozen=True)
class Task:
    """One draw of one data set under one set of prompts: what a group of cells has in common."""

    data: DataSet
    prompts: str
    k: int | None
    seed: int
    style: Style
    templates: list[Template]


class Contests:
    """Rivals on a model, in a folder.

    Args:
        backend: the model.
        folder: where the ledger is, in `run`, and checkpoints are kept.
        progress: show progress bars; None to show them in a terminal.
    """

    def __init__(self, backend: MaskedLMBackend, folder: Path, *, progress: bool | None) -> None:
        self._backend, self._folder, self._progress = backend, folder, progress

    def key(self, rival: Rival, task: Task) -> str:
        """Name a cell by everything that its score depends on."""
        draw = task.data.draw(task.k, task.seed)
        return digest(
            "rival 1",
            rival.name,
            json.dumps(rival.settings(), sort_keys=True),
            self._backend.identity.digest,
            task.prompts,
            str(task.seed),
            *(part.id for part in (draw.train, draw.validation, task.data.test)),
            *(template.name(task.style) for template in task.templates),
        )

    def check(self, rival: Rival, task: Task) -> None:
        """Refuse what can't work, before anything runs."""
        rival.check(self._backend)
        rival.check_contest(self._contest(rival, task))

    def needed(self, contests: Iterable[tuple[Rival, Task]], known: Collection[str]) -> Passes:
        """Return the passes of each example in contests whose cells aren't known."""
        needed = Passes(Counter(), Counter())
        for rival, task in contests:
            if self.key(rival, task) not in known:
                for passes in rival.schedule(self._contest(rival, task)):
                    needed.forward.update(passes.forward)
                    needed.backward.update(passes.backward)
        return needed

    def limits(self, needed: Passes) -> dict[str, int]:
        """Return the passes per example that a budget must allow for these, beside those that were made."""
        made = self._made()
        made[FORWARD].update(needed.forward)
        made[BACKWARD].update(needed.backward)
        return {phase: max(passes.values(), default=0) for phase, passes in made.items()}

    def _made(self) -> dict[str, Counter[str]]:
        """Return the passes that each example had so far."""
        run = self._folder / "run"
        if not (run / "cache.db").is_file():
            return {phase: Counter() for phase in INSIDE}
        with LedgerReader(run) as reader:
            sums = LotSums(reader)
            return {phase: Counter(sums.passes_of(phase)) for phase in INSIDE}

    def _contest(self, rival: Rival, task: Task) -> Contest:
        """Return a contest in which nothing may run yet."""
        draw, data = task.data.draw(task.k, task.seed), task.data
        known = LABEL_WORDS.get(data.name, {})
        key = self.key(rival, task)
        return Contest(
            dataset=data.name,
            classes=data.classes,
            words=tuple(known.get(label, label) for label in data.classes),
            train=draw.train,
            validation=draw.validation,
            test=tuple(data.test.examples),
            templates=task.templates,
            style=task.style,
            seed=task.seed,
            backend=self._backend,
            meter=PassMeter(None, f"{rival.title}: {data.name}, draw {task.seed}, {task.prompts} prompts ({key[:8]})"),
            checkpoint=self._folder / "rivals" / f"{key}.pt",
            progress=self._progress,
        )

    def cell(self, rival: Rival, task: Task, backend: MeteredBackend) -> ResultCell:
        """Run a rival to its end, or from where it stopped, and say how it did."""
        data, contest = task.data, self._contest(rival, task)
        name = contest.meter.method
        contest = replace(contest, meter=PassMeter(backend.ledger, name))
        began = time.perf_counter()
        points = list(rival.compete(contest))
        seconds = points[-1].seconds or time.perf_counter() - began
        best = chosen_point(points)
        with backend.ledger.reader() as reader:
            sums = LotSums(reader, method=name)
            took = {phase: sums.passes_of(phase) for phase in INSIDE}
        learned = [example.id for example in contest.train.examples]
        both = {*learned, *(example.id for example in contest.validation.examples)}
        forward, backward = (fmean(took[phase][name] for name in learned) for phase in INSIDE)
        contest.checkpoint.unlink(missing_ok=True)
        return ResultCell(
            key=self.key(rival, task),
            dataset=data.name,
            prompts=task.prompts,
            pool="generated" if task.prompts == "generated" else pools_of(data.name, task.prompts)[0],
            method=rival.name,
            k=task.k,
            seed=task.seed,
            model=self._backend.identity.name,
            measure=data.measure,
            score=data.score(best.scores.argmax(axis=1)),
            calibration_error=expected_calibration_error(np.exp(best.scores), data.test.labels),
            learners=1,
            classes=len(data.classes),
            train=len(contest.train.examples),
            validation=len(contest.validation.examples),
            test=len(contest.test),
            n_prompts=1,
            passes=sum(took[FORWARD][name] for name in both),
            metered=True,
            asking_seconds=0.0,
            training_seconds=seconds,
            access=str(rival.access),
            title=rival.title,
            parameters=rival.parameters(contest),
            forward=forward,
            backward=backward,
            settings=rival.settings(),
            curve=tuple(self._on_curve(point, data) for point in points),
        )

    @staticmethod
    def _on_curve(point: Point, data: DataSet) -> CurvePoint:
        score = data.score(point.scores.argmax(axis=1))
        return CurvePoint(
            forward=point.forward,
            backward=point.backward,
            seconds=point.seconds,
            validation=point.accuracy,
            score=score,
        )
