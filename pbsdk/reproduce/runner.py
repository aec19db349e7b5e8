"""Reproduction: the paper's tables on any model, every row that needs only the interface, and our own rows beside them.

A method (`pbsdk.reproduce.methods`) has a head learn from answers, and answers depend on texts and prompts alone. So all
methods share the same answers, and together they cost the passes of the largest. Whole answers are kept,
for the test rows too, so a method that is added later asks for nothing new. One row is no black box, for comparison: it reads
hidden states past the meter, and its cells say so.

A *cell* is one method on one draw of one data set under one set of prompts. Each is a line of
`results.jsonl` as soon as it is known, so an interrupted run resumes where it stopped: answers are in
the run folder, cells beside it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import numpy as np

from pbsdk.backend import Floats, HiddenStates, MaskedLMBackend, MaskedQuery, Phase, digest
from pbsdk.errors import InputError
from pbsdk.learning.calibration import expected_calibration_error
from pbsdk.learning.gaps import with_stand_ins
from pbsdk.learning.matrix import Matrices, collect
from pbsdk.ledger.budget import BACKWARD, FIT, FORWARD, PREDICT, QueryBudget, scope_of
from pbsdk.ledger.sums import Counter
from pbsdk.metering.meter import MeteredBackend
from pbsdk.metering.plan import Plan, Step, plan_steps
from pbsdk.progress import progress_bar
from pbsdk.prompting.causal_writer import CausalWriter
from pbsdk.prompting.generation import PromptWriter, generate_pool, write_pool
from pbsdk.prompting.refinement import RefinementMethod, passes_needed, refine
from pbsdk.queries.demonstrations import shown
from pbsdk.queries.examples import Example
from pbsdk.queries.pools import fit_templates, load_pool
from pbsdk.queries.rendering import asked, render_unshown
from pbsdk.queries.templates import Style, Template
from pbsdk.reproduce.answers import Answered, Answers, States, render_all
from pbsdk.reproduce.benchmarks import LABEL_WORDS
from pbsdk.reproduce.contests import Contests, Task
from pbsdk.reproduce.draws import DataSet, Draw, LabelledExamples
from pbsdk.reproduce.figures import rounds_without_validation
from pbsdk.reproduce.methods import Conditions, Method, manual_words
from pbsdk.reproduce.prompt_sets import pools_of, prompts_of
from pbsdk.reproduce.results import ResultCell, Results, ResultsFile
from pbsdk.reproduce.rivals import Rival
from pbsdk.reproduce.settings import Settings

__all__ = ["Reproduction"]

_REFINED_FROM = 100


class Reproduction:
    """Runs methods over data sets and draws, and remembers every cell.

    Args:
        backend: the model; it is metered here, and closed with this.
        folder: where answers, cells and generated pools are kept.
        settings: what to reproduce.
        budget: passes per example; None for exactly what these methods need.
        writer: writes the prompts of the set `generated`; None for the model itself, if it can.
        progress: show progress bars; None to show them in a terminal.
    """

    def __init__(  # noqa: PLR0913 - independent settings, all keywords
        self,
        backend: MaskedLMBackend,
        folder: str | Path,
        settings: Settings,
        *,
        budget: int | QueryBudget | None = None,
        writer: PromptWriter | None = None,
        progress: bool | None = None,
    ) -> None:
        self._abilities = backend.abilities
        self._folder = Path(folder)
        self._settings = settings
        self._progress = progress
        for rival in settings.rivals:
            rival.check(backend)
        self._data = {name: DataSet(name, backend.mask_token, settings.test_rows) for name in settings.datasets}
        self._file = ResultsFile(self._folder / "results.jsonl")
        self._tested: tuple[tuple[str, ...], Answers] | None = None
        self._check(backend)
        self._states = States(backend.hidden_states) if isinstance(backend, HiddenStates) else None
        self._contests = Contests(backend, self._folder, progress=progress)
        for rival, task in self._rivalries():
            self._contests.check(rival, task)
        self.inside = self._contests.needed(self._rivalries(), {cell.key for cell in self._file.read()})
        """The passes inside the model that rivals have left to make, by example, as far as the prompts are known."""
        steps = self._steps()
        limits = self._budget(steps) if budget is None else QueryBudget.of(budget)
        self.backend = MeteredBackend(backend, self._folder / "run", limits)
        self.plan: Plan = plan_steps(self.backend, steps)
        """What is left to ask, without generated prompts, which are not known before they are written."""
        self._writer = writer
        if "generated" in settings.prompts and writer is None:
            self._writer = CausalWriter(self.backend)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the model and the ledger; what was stored stays."""
        if self._tested is not None:
            self._tested[1].close()
            self._tested = None
        self.backend.close()

    def _check(self, backend: MaskedLMBackend) -> None:
        """Check everything that can be wrong before anything is sent."""
        settings, name = self._settings, backend.identity.name
        for method in settings.chosen:
            if method.states and not isinstance(backend, HiddenStates):
                raise InputError(
                    f"{name} doesn't show its hidden states; leave the method {method.name} out, or use a model that runs "
                    "here, such as smollm2 or local"
                )
            if method.top is not None and not backend.abilities.whole and (backend.abilities.top or 0) < method.top:
                raise InputError(
                    f"{name} shows only its top {backend.abilities.top}; leave the method {method.name} out"
                )
        for data in self._data.values():
            for method, seed in ((method, seed) for method in settings.chosen for seed in settings.seeds):
                data.draw(method.k, seed)
                if method.manual:
                    manual_words(data.name, data.classes, backend.vocabulary)
            for prompts in settings.prompts:
                if prompts != "generated" and settings.refines:
                    draw = data.draw(16, settings.seeds[0])
                    templates = self._fitted(data, prompts_of(data.name, prompts, self._abilities))
                    if any(template.names_classes for template in templates):
                        raise InputError(
                            f"prompts that show demonstrations can't be chosen by refinement; leave out {prompts!r}, or the "
                            "methods refinement and halving"
                        )
                    passes_needed(len(templates[:_REFINED_FROM]), draw.train.labels, draw.validation.labels)

    def _steps(self) -> list[Step]:
        """Return what all methods together ask, as far as the prompts are known."""
        settings = self._settings
        steps: dict[str, list[MaskedQuery]] = {"train": [], "refine": [], "test": []}
        for data in self._data.values():
            for prompts in settings.prompts:
                if prompts == "generated":
                    continue
                style = self._style(prompts)
                most = _REFINED_FROM if settings.refines else settings.most_prompts
                tested: dict[Template, None] = {}
                for method, seed in ((method, seed) for method in settings.chosen for seed in settings.seeds):
                    pool = self._templates(data, prompts, method.k, seed)
                    of, phase = (_REFINED_FROM, "refine") if method.refined else (method.prompts, "train")
                    part = data.draw(method.k, seed).both
                    steps[phase] += asked(render_unshown(part.examples, pool[:of], Phase(phase), style))
                    tested.update(dict.fromkeys(pool[:most]))
                steps["test"] += render_all(data.test.examples, list(tested), Phase.PREDICT, style)
        # Refinement by halving asks for less, and only the prompts that it chose are tested.
        return [
            Step(name, queries, exact=name == "train" or not settings.refines)
            for name, queries in steps.items()
            if queries
        ]

    def _budget(self, steps: Sequence[Step]) -> QueryBudget:
        """Return a budget of the passes per example that these steps need, and no more; data sets may share a text."""
        prompts: dict[tuple[str, str], set[str]] = {}
        for query in (query for step in steps for query in step.queries):
            prompts.setdefault((scope_of(query.phase), query.example), set()).add(query.prompt)
        most = {
            scope: max((len(p) for (s, _), p in prompts.items() if s == scope), default=0) for scope in (FIT, PREDICT)
        }
        written = 0
        if "generated" in self._settings.prompts:  # each draw has its own prompts, and a text may be in every draw
            written = self._count * len(self._settings.seeds) * len(self._data)
        inside = self._inside()
        return QueryBudget(
            passes=most[FIT] + written,
            predict=most[PREDICT] + written,
            forward=inside.get(FORWARD),
            backward=inside.get(BACKWARD),
        )

    def _inside(self) -> dict[str, int]:
        """Return the limits of passes inside the model; none where the prompts are not known yet."""
        if not self._settings.rivals or "generated" in self._settings.prompts:
            return {}
        return self._contests.limits(self.inside)

    def _rivalries(self) -> Iterator[tuple[Rival, Task]]:
        """Yield which rival competes in which draw, as far as the prompts are known before any is written."""
        if self._settings.rivals and "generated" not in self._settings.prompts:
            yield from ((rival, task) for task in self._tasks(16) for rival in self._settings.rivals)

    def _tasks(self, *sizes: int | None) -> Iterator[Task]:
        """Yield the draws of these sizes, under all sets of prompts."""
        for data in self._data.values():
            for prompts in self._settings.prompts:
                for seed, k in ((s, k) for s in self._settings.seeds for k in sizes):
                    templates = self._templates(data, prompts, k, seed)
                    yield Task(data, prompts, k, seed, self._style(prompts), templates)

    @property
    def _count(self) -> int:
        """How many prompts to write for a draw."""
        return _REFINED_FROM if self._settings.refines else self._settings.most_prompts

    def results(self) -> Results:
        """Run everything and return the results."""
        return Results(tuple(self.cells()), self.backend.identity.name)

    def cells(self) -> Iterator[ResultCell]:
        """Yield each cell as soon as it is known, old ones first; ask only for what is missing."""
        known = {cell.key: cell for cell in self._file.read()}
        for task in self._tasks(*self._settings.sizes):
            yield from self._of_draw(task, known)
        for task in self._tasks(16) if self._settings.rivals else ():
            for rival in self._settings.rivals:
                cell = known.get(self._contests.key(rival, task))
                if cell is None:
                    cell = self._contests.cell(rival, task, self.backend)
                    self._file.append(cell)
                yield cell

    def _of_draw(self, task: Task, known: Mapping[str, ResultCell]) -> Iterator[ResultCell]:
        """Yield the cells of one draw."""
        missing: list[tuple[Method, str]] = []
        for method in (method for method in self._settings.chosen if method.k == task.k):
            key = self._key(task, method)
            if key in known:
                yield known[key]
            else:
                missing.append((method, key))
        for refined in dict.fromkeys(method.refined for method, _ in missing):
            group = [(method, key) for method, key in missing if method.refined == refined]
            for cell in self._of_group(task, group):
                self._file.append(cell)
                yield cell

    def _of_group(self, task: Task, group: Sequence[tuple[Method, str]]) -> Iterator[ResultCell]:
        """Yield the cells of methods that learn from the same texts under prompts of the same pool."""
        first, _ = group[0]
        draw = task.data.draw(task.k, task.seed)
        if first.refined:
            chosen, passes = self._refined(task, draw, first.refined)
            tested = chosen
        else:
            chosen, passes = task.templates[: max(method.prompts for method, _ in group)], None
            tested = task.templates[: self._settings.most_prompts]
        with ExitStack() as stack:

            def answers(part: LabelledExamples, phase: Phase) -> Answers:
                what = f"{task.data.name} {task.seed}, {phase}"
                return stack.enter_context(self._answers(part, chosen, phase, task.style, what))

            answered = Answered(
                draw,
                chosen,
                train=answers(draw.train, Phase.TRAIN),
                validation=answers(draw.validation, Phase.VALIDATE),
                merged=answers(draw.both, Phase.TRAIN)
                if any(method.merged for method, _ in group)
                else Answers(Matrices()),
                test=self._test(task, tested),
                passes=passes,
                asking=self._asking(),
            )
            for method, key in group:
                yield self._cell(task, answered, method, key)

    def _cell(self, task: Task, answered: Answered, method: Method, key: str) -> ResultCell:
        """Train a method on the answers, test it, and say how it did."""
        data, draw = task.data, answered.draw
        used = task.templates[: method.states] if method.states else answered.templates[: method.prompts]
        passes = len(draw.both.examples) * len(used)
        if not method.states:
            passes -= int(shown(draw.both.examples, used).sum())
        conditions = self._conditions(task, method)
        trial = answered.trial(method, len(data.classes), task.seed)
        names = [digest(t.name(task.style)) for t in (task.templates[:_REFINED_FROM] if method.refined else used)]
        asking = sum(answered.asking.get((e.id, name), 0.0) for e in draw.both.examples for name in names)
        began = time.perf_counter()
        if method.states:
            conditions.states(draw.both.examples)
            asking = time.perf_counter() - began
            began += asking
        fitted = method.head(conditions).fit(trial)
        seconds = time.perf_counter() - began
        scores = fitted.scores_of(answered.test.seen(method.top), data.test.examples)
        return ResultCell(
            key=key,
            dataset=data.name,
            prompts=task.prompts,
            pool="generated" if task.prompts == "generated" else pools_of(data.name, task.prompts)[0],
            method=method.name,
            k=method.k,
            seed=task.seed,
            model=self.backend.identity.name,
            measure=data.measure,
            score=data.score(scores.argmax(axis=1)),
            calibration_error=expected_calibration_error(fitted.probabilities(scores), data.test.labels),
            learners=fitted.size,
            classes=len(data.classes),
            train=len(draw.train.examples),
            validation=len(draw.validation.examples),
            test=len(data.test.examples),
            n_prompts=len(used),
            passes=passes if answered.passes is None else answered.passes,
            metered=not method.states,
            asking_seconds=asking,
            training_seconds=seconds,
        )

    def _conditions(self, task: Task, method: Method) -> Conditions:
        data = task.data

        def states(examples: Sequence[Example]) -> Floats:
            assert self._states is not None  # noqa: S101 - checked at the start
            return self._states.of(examples, task.templates[: method.states], task.style)

        rounds = rounds_without_validation(data.name) if method.merged else self._settings.rounds
        return Conditions(data.name, data.classes, self.backend.vocabulary, rounds, self._settings.on_perfect, states)

    def _asking(self) -> dict[tuple[str, str], float]:
        with self.backend.ledger.reader() as reader:
            return Counter(reader).asking()

    def _refined(self, task: Task, draw: Draw, method: RefinementMethod) -> tuple[list[Template], int]:
        """Return the prompts that validation chooses, and the passes that takes."""
        train, validation = task.data.texts(draw.train), task.data.texts(draw.validation)
        found = refine(
            self.backend,
            [template.source for template in task.templates[:_REFINED_FROM]],
            (train.examples, train.labels),
            (validation.examples, validation.labels),
            method=method,
            seed=task.seed,
            style=task.style,
            progress=self._progress,
        )
        return found.pool.templates(self._abilities), found.needed.total

    def _test(self, task: Task, templates: list[Template]) -> Answers:
        """Return the test rows' answers; the last ones asked for are kept, and serve all draws that have these prompts."""
        data = task.data
        wanted = (data.name, *(template.name(task.style) for template in templates))
        if self._tested is None or self._tested[0] != wanted:
            if self._tested is not None:
                self._tested[1].close()
                self._tested = None
            answers = self._answers(data.test, templates, Phase.PREDICT, task.style, f"{data.name}, test")
            self._tested = (wanted, answers)
        return self._tested[1]

    def _answers(
        self, part: LabelledExamples, templates: Sequence[Template], phase: Phase, style: Style, what: str
    ) -> Answers:
        examples = part.examples
        if phase is Phase.PREDICT:
            queries = render_all(examples, templates, phase, style)
            silent = np.zeros(len(queries), dtype=np.bool_)
        else:
            queries = asked(render_unshown(examples, templates, phase, style))
            silent = shown(examples, templates).ravel()
        stream = progress_bar(self.backend.stream(queries), total=len(queries), what=what, show=self._progress)
        answers = with_stand_ins(stream, ~silent, len(templates))
        return Answers(collect(answers, len(examples), len(templates)))

    def _templates(self, data: DataSet, prompts: str, k: int | None, seed: int) -> list[Template]:
        """Return a set's prompts for one draw, as this model needs them."""
        if prompts != "generated":
            return data.filled(self._fitted(data, prompts_of(data.name, prompts, self._abilities)), k, seed)
        assert self._writer is not None  # noqa: S101 - made at the start
        path = self._folder / "pools" / f"{data.name}-{seed}-{self._count}-{self._settings.per_class or 'all'}.json"
        if not path.is_file():
            train = data.texts(data.draw(16, seed).train)
            pool = generate_pool(
                self._writer,
                train.examples,
                train.labels,
                label_words=LABEL_WORDS.get(data.name),
                count=self._count,
                per_class=self._settings.per_class,
                seed=seed,
                name=path.stem,
            )
            write_pool(pool, path)
        return self._fitted(data, load_pool(path).templates(self._abilities))

    def _fitted(self, data: DataSet, templates: Iterable[Template]) -> list[Template]:
        return fit_templates(list(templates), self._abilities, pairs=data.pairs)

    def _style(self, prompts: str) -> Style:
        if self._settings.style is not None:
            return self._settings.style
        return "paper" if prompts == "paper" and self._abilities.mask == "anywhere" else "plain"

    def _key(self, task: Task, method: Method) -> str:
        """Name a cell by everything that its score depends on."""
        draw = task.data.draw(task.k, task.seed)
        used = task.templates[: _REFINED_FROM if method.refined else method.most_prompts]
        settings = (method.name, task.prompts, task.seed, self._settings.rounds, self._settings.on_perfect)
        return digest(
            "cell 1",
            self.backend.identity.digest,
            *map(str, settings),
            *(part.id for part in (draw.train, draw.validation, task.data.test)),
            *(template.name(task.style) for template in used),
        )
