"""Reproduction: the paper's tables on any model, each row that needs only the interface.

A method (`pbsdk.reproduce.methods`) makes an ensemble of answers, and answers depend on texts and prompts alone. So all
methods look at the same ones, and together they cost the passes of the largest. Whole answers are kept,
for the test rows too, and a method that is added later asks for nothing new.

A *cell* is one method on one draw of one data set under one set of prompts. Each is a line of
`results.jsonl` as soon as it is known, so a run that was stopped goes on where it was: answers lie in
the run folder, cells beside it.

The sets of prompts are `paper` (its last table; for causal models, and where the paper prints none,
pbsdk's own), `own` (pbsdk's pool for that kind of text), `generated` (written anew for each draw), and any
other pool by its name or file.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal, Self

import numpy as np
import numpy.typing as npt
from sklearn.metrics import accuracy_score, f1_score

from pbsdk.backend import Abilities, MaskedLMBackend, MaskedQuery, Phase, Vocabulary, digest
from pbsdk.data.loading import LabelledTexts
from pbsdk.data.sampling import SEEDS, held_out
from pbsdk.errors import InputError
from pbsdk.learning.matrix import Matrices, collect
from pbsdk.ledger.budget import FIT, PREDICT, QueryBudget, scope_of
from pbsdk.ledger.sums import Counter
from pbsdk.metering.meter import MeteredBackend
from pbsdk.metering.plan import Plan, Step, plan_steps
from pbsdk.progress import progress_bar
from pbsdk.prompting.causal_writer import CausalWriter
from pbsdk.prompting.generation import PromptWriter, generate_pool, write_pool
from pbsdk.prompting.refinement import Method as Refining
from pbsdk.prompting.refinement import passes_needed, refine
from pbsdk.queries.examples import Example, read_examples
from pbsdk.queries.templates import Style, Template, escape_markers, fit_templates, load_pool, pool_names
from pbsdk.reproduce.benchmarks import LABEL_WORDS, few_shot_of, named, published_prompts
from pbsdk.reproduce.figures import OWN_POOLS, rounds_without_validation
from pbsdk.reproduce.methods import DEFAULT_METHODS, METHODS, Method, Trial, manual_words
from pbsdk.reproduce.results import Cell, Results

__all__ = ["PROMPT_SETS", "Reproduction", "Settings"]

PROMPT_SETS = ("paper", "own", "generated")
"""The sets of prompts that have names; any pool is one too."""

_TEST_SEED = 13
"""What draws the test rows: the same for all draws, so that they share the answers."""
_REFINED_FROM = 100
_LABELS = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Settings:
    """What to reproduce.

    Args:
        datasets: benchmark names, see `pbsdk.reproduce.benchmarks`.
        methods: names from `METHODS`.
        seeds: the draws.
        prompts: sets of prompts, or pools.
        test_rows: how many test rows, drawn once for all; None for all of them.
        rounds: how many rounds of boosting at most, where validation chooses.
        on_perfect: what boosting does with a learner that makes no error: "best" is the paper's way.
        style: how texts and prompts are joined; None: the authors' way for their prompts, else "plain".
        per_class: how many texts a class write the prompts of the set `generated`; None for all.
    """

    datasets: tuple[str, ...]
    methods: tuple[str, ...] = DEFAULT_METHODS
    seeds: tuple[int, ...] = SEEDS
    prompts: tuple[str, ...] = ("paper",)
    test_rows: int | None = None
    rounds: int = 200
    on_perfect: Literal["vote", "best"] = "best"
    style: Style | None = None
    per_class: int | None = None

    def __post_init__(self) -> None:
        for name in ("datasets", "methods", "seeds", "prompts"):
            given = getattr(self, name)
            if not given:
                raise InputError(f"there are no {name}; give at least one")
            if len(set(given)) < len(given):
                raise InputError(f"{name} names {next(one for one in given if given.count(one) > 1)} twice")
        for method in self.methods:
            if method not in METHODS:
                close = difflib.get_close_matches(method, METHODS, n=1)
                hint = f" (did you mean {close[0]!r}?)" if close else ""
                raise InputError(f"no method is called {method!r}{hint}; there are {', '.join(METHODS)}")
        for number, least in (("test_rows", 1), ("rounds", 1), ("per_class", 1)):
            value = getattr(self, number)
            if value is not None and value < least:
                raise InputError(f"{number} is {value}; it must be at least {least}")
        for prompts in self.prompts:
            if prompts not in PROMPT_SETS:
                load_pool(prompts)

    @property
    def chosen(self) -> tuple[Method, ...]:
        """The methods themselves, in the order of the tables."""
        return tuple(method for name, method in METHODS.items() if name in self.methods)

    @property
    def most_prompts(self) -> int:
        """How many prompts the largest method uses, those that refine left aside."""
        return max((method.prompts for method in self.chosen if not method.refined), default=0)

    @property
    def refines(self) -> bool:
        """Whether some method chooses its prompts."""
        return any(method.refined for method in self.chosen)


def _pools(dataset: str, prompts: str) -> list[str]:
    """Return the pools of a set in the order in which their prompts are used."""
    if prompts not in PROMPT_SETS:
        return [prompts]
    if dataset not in OWN_POOLS:
        raise InputError(f"pbsdk has no pool for {dataset}; name one with prompts=, such as 'topic', or a file")
    known = [dataset] if dataset in pool_names() else []
    return [*known, OWN_POOLS[dataset]] if prompts == "paper" else [OWN_POOLS[dataset], *known]


@lru_cache(maxsize=64)
def _pool(dataset: str, prompts: str, abilities: Abilities) -> tuple[Template, ...]:
    """Return a set's prompts: its ten, then more, for the methods that use more."""
    templates: list[Template] = []
    for name in _pools(dataset, prompts):
        templates += load_pool(name).templates(abilities)
        if prompts == "paper" and name == dataset and abilities.mask == "anywhere":
            templates += map(Template, published_prompts(dataset))
    return tuple(dict.fromkeys(templates))


@dataclass(frozen=True)
class _Part:
    """Examples and their classes."""

    examples: list[Example]
    labels: _LABELS

    def __add__(self, other: _Part) -> _Part:
        return _Part(self.examples + other.examples, np.concatenate([self.labels, other.labels]))

    @cached_property
    def id(self) -> str:
        return digest(*(f"{example.id} {label}" for example, label in zip(self.examples, self.labels, strict=True)))


@dataclass(frozen=True)
class _Draw:
    """What a method learns from, before it is answered."""

    train: _Part
    validation: _Part

    @property
    def both(self) -> _Part:
        return self.train + self.validation


class _Data:
    """A data set: its classes, the test rows, and its draws."""

    def __init__(self, name: str, mask_token: str, test_rows: int | None) -> None:
        self.name = name
        self._mask_token = mask_token
        self._train = named(name)
        self.classes = tuple(sorted(set(self._train.labels)))
        self.pairs = self._train.pairs
        test = named(name, "test")
        if test_rows is not None and test_rows < len(test):
            test = test.take(sorted(np.random.default_rng(_TEST_SEED).permutation(len(test))[:test_rows].tolist()))
        self.test = self._part(test)
        self._draws: dict[tuple[int | None, int], _Draw] = {}

    def draw(self, k: int | None, seed: int) -> _Draw:
        """Return k texts a class, or all of them but a tenth, and the validation set."""
        if (k, seed) not in self._draws:
            drawn = held_out(self._train, seed=seed) if k is None else few_shot_of(self.name, k=k, seed=seed)
            self._draws[k, seed] = _Draw(self._part(drawn.train), self._part(drawn.validation))
        return self._draws[k, seed]

    def texts(self, part: _Part) -> LabelledTexts:
        """Return a part as users hand it in."""
        texts = [example.texts if self.pairs else example.text for example in part.examples]
        return LabelledTexts(texts, [self.classes[label] for label in part.labels])  # type: ignore[arg-type] # one kind

    def _part(self, rows: LabelledTexts) -> _Part:
        strange = set(rows.labels) - set(self.classes)
        if strange:
            raise InputError(f"{self.name} has labels that its training rows lack: {', '.join(sorted(strange))}")
        # A benchmark's texts are what they are, a mask written out in one of them too.
        examples = [escape_markers(example, self._mask_token) for example in read_examples(rows.examples)]
        return _Part(examples, np.searchsorted(self.classes, rows.labels))


class Reproduction:
    """Runs methods over data sets and draws, and remembers every cell.

    Args:
        backend: the model; it is metered here, and closed with this.
        folder: where answers, cells and generated pools are kept.
        settings: what to reproduce.
        budget: passes that an example may have; None: just what these methods need.
        writer: what writes the prompts of the set `generated`; None: the model itself, if it can.
        progress: show progress bars; None: in a terminal.
    """

    def __init__(
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
        self._data = {name: _Data(name, backend.mask_token, settings.test_rows) for name in settings.datasets}
        self._tested: tuple[tuple[str, ...], Matrices] | None = None
        self._check(backend.vocabulary)
        steps = self._steps()
        limits = self._budget(steps) if budget is None else QueryBudget.of(budget)
        self.backend = MeteredBackend(backend, self._folder / "run", limits)
        self.plan: Plan = plan_steps(self.backend, steps)
        """What is left to ask; generated prompts are not known before they are written, and left out."""
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

    def _check(self, vocabulary: Vocabulary) -> None:
        """Look at everything that can be wrong before anything is sent."""
        settings = self._settings
        for data in self._data.values():
            for method, seed in ((method, seed) for method in settings.chosen for seed in settings.seeds):
                data.draw(method.k, seed)
                if method.manual:
                    manual_words(data.name, data.classes, vocabulary)
            for prompts in settings.prompts:
                if prompts != "generated" and settings.refines:
                    draw = data.draw(16, settings.seeds[0])
                    templates = self._fitted(data, _pool(data.name, prompts, self._abilities))
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
                pool = self._fitted(data, _pool(data.name, prompts, self._abilities))
                for method in settings.chosen:
                    for part in (data.draw(method.k, seed).both for seed in settings.seeds):
                        of, phase = (_REFINED_FROM, "refine") if method.refined else (method.prompts, "train")
                        steps[phase] += _queries(part.examples, pool[:of], Phase(phase), style)
                most = _REFINED_FROM if settings.refines else settings.most_prompts
                steps["test"] += _queries(data.test.examples, pool[:most], Phase.PREDICT, style)
        # Refinement by halving asks for less, and only the prompts that it chose are tested.
        return [
            Step(name, asked, exact=name == "train" or not settings.refines) for name, asked in steps.items() if asked
        ]

    def _budget(self, steps: Sequence[Step]) -> QueryBudget:
        """Return the passes per example that these steps need, and no more; data sets may share a text."""
        prompts: dict[tuple[str, str], set[str]] = {}
        for query in (query for step in steps for query in step.queries):
            prompts.setdefault((scope_of(query.phase), query.example), set()).add(query.prompt)
        most = {
            scope: max((len(p) for (s, _), p in prompts.items() if s == scope), default=0) for scope in (FIT, PREDICT)
        }
        written = 0
        if "generated" in self._settings.prompts:  # other prompts for each draw, and a text may be in every one
            written = self._count * len(self._settings.seeds) * len(self._data)
        return QueryBudget(passes=most[FIT] + written, predict=most[PREDICT] + written)

    @property
    def _count(self) -> int:
        """How many prompts are written for a draw."""
        return _REFINED_FROM if self._settings.refines else self._settings.most_prompts

    def results(self) -> Results:
        """Run everything and return the results."""
        return Results(tuple(self.cells()), self.backend.identity.name)

    def cells(self) -> Iterator[Cell]:
        """Yield each cell as it is known, old ones first; asks only for what is missing."""
        known = {cell.key: cell for cell in _read_cells(self._file)}
        for data in self._data.values():
            for prompts in self._settings.prompts:
                for seed in self._settings.seeds:
                    yield from self._of_draw(data, prompts, seed, known)

    @property
    def _file(self) -> Path:
        return self._folder / "results.jsonl"

    def _of_draw(self, data: _Data, prompts: str, seed: int, known: Mapping[str, Cell]) -> Iterator[Cell]:
        """Yield the cells of one draw."""
        templates = self._templates(data, prompts, seed)
        missing: list[tuple[Method, str]] = []
        for method in self._settings.chosen:
            key = self._key(data, prompts, seed, method, templates)
            if key in known:
                yield known[key]
            else:
                missing.append((method, key))
        for k, refined in dict.fromkeys((method.k, method.refined) for method, _ in missing):
            group = [(method, key) for method, key in missing if (method.k, method.refined) == (k, refined)]
            for cell in self._of_group(data, prompts, seed, group, templates):
                self._remember(cell)
                yield cell

    def _of_group(
        self, data: _Data, prompts: str, seed: int, group: Sequence[tuple[Method, str]], templates: list[Template]
    ) -> Iterator[Cell]:
        """Yield the cells of methods that learn from the same texts under prompts of the same pool."""
        style = self._style(prompts)
        (first, _), draw = group[0], data.draw(group[0][0].k, seed)
        passes: int | None = None
        if first.refined:
            chosen, passes = self._refined(data, draw, templates[:_REFINED_FROM], first.refined, seed=seed, style=style)
            tested = chosen
        else:
            chosen = templates[: max(method.prompts for method, _ in group)]
            tested = templates[: self._settings.most_prompts]
        with ExitStack() as stack:

            def answers(part: _Part, phase: Phase) -> Matrices:
                return stack.enter_context(self._answers(part, chosen, phase, style, f"{data.name} {seed}, {phase}"))

            train, validation = answers(draw.train, Phase.TRAIN), answers(draw.validation, Phase.VALIDATE)
            merged = answers(draw.both, Phase.TRAIN) if any(method.merged for method, _ in group) else Matrices()
            test = self._test(data, tested, style)
            with self.backend.ledger.reader() as reader:
                asking = Counter(reader).asking()
            for method, key in group:
                used = chosen[: method.prompts]
                began = time.perf_counter()
                ensemble = method.fit(
                    Trial(
                        data.name,
                        data.classes,
                        (merged if method.merged else train)[: method.prompts],
                        draw.both.labels if method.merged else draw.train.labels,
                        None if method.merged else (validation[: method.prompts], draw.validation.labels),
                        rounds_without_validation(data.name) if method.merged else self._settings.rounds,
                        self._settings.on_perfect,
                        seed,
                        self.backend.vocabulary,
                    )
                )
                seconds = time.perf_counter() - began
                *_, votes = ensemble.staged_votes_of(test)
                asked = templates[:_REFINED_FROM] if method.refined else used
                names = [digest(template.name(style)) for template in asked]
                yield Cell(
                    key=key,
                    dataset=data.name,
                    prompts=prompts,
                    pool=_pools(data.name, prompts)[0] if prompts != "generated" else "generated",
                    method=method.name,
                    k=method.k,
                    seed=seed,
                    model=self.backend.identity.name,
                    measure=_measure(data.name),
                    score=_score(data, votes.argmax(axis=1)),
                    learners=len(ensemble.learners),
                    classes=len(data.classes),
                    train=len(draw.train.examples),
                    validation=len(draw.validation.examples),
                    test=len(data.test.examples),
                    n_prompts=len(used),
                    passes=len(draw.both.examples) * len(used) if passes is None else passes,
                    asking_seconds=sum(asking.get((e.id, name), 0.0) for e in draw.both.examples for name in names),
                    training_seconds=seconds,
                )

    def _refined(
        self, data: _Data, draw: _Draw, templates: list[Template], method: Refining, *, seed: int, style: Style
    ) -> tuple[list[Template], int]:
        """Return the prompts that validation chooses, and what that needs."""
        train, validation = data.texts(draw.train), data.texts(draw.validation)
        found = refine(
            self.backend,
            [template.source for template in templates],
            (train.examples, train.labels),
            (validation.examples, validation.labels),
            method=method,
            seed=seed,
            style=style,
            progress=self._progress,
        )
        return found.pool.templates(self._abilities), found.needed.total

    def _test(self, data: _Data, templates: list[Template], style: Style) -> Matrices:
        """Return the test rows' answers; those asked for last are still there, and serve all draws."""
        wanted = (data.name, style, *(template.source for template in templates))
        if self._tested is None or self._tested[0] != wanted:
            if self._tested is not None:
                self._tested[1].close()
                self._tested = None
            matrices = self._answers(data.test, templates, Phase.PREDICT, style, f"{data.name}, test")
            self._tested = (wanted, matrices)
        return self._tested[1]

    def _answers(self, part: _Part, templates: Sequence[Template], phase: Phase, style: Style, what: str) -> Matrices:
        queries = _queries(part.examples, templates, phase, style)
        answers = progress_bar(self.backend.stream(queries), total=len(queries), what=what, show=self._progress)
        return collect(answers, len(part.examples), len(templates))

    def _templates(self, data: _Data, prompts: str, seed: int) -> list[Template]:
        """Return a set's prompts for one draw, as this model needs them."""
        if prompts != "generated":
            return self._fitted(data, _pool(data.name, prompts, self._abilities))
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

    def _fitted(self, data: _Data, templates: Iterable[Template]) -> list[Template]:
        return fit_templates(list(templates), self._abilities, pairs=data.pairs)

    def _style(self, prompts: str) -> Style:
        if self._settings.style is not None:
            return self._settings.style
        return "paper" if prompts == "paper" and self._abilities.mask == "anywhere" else "plain"

    def _key(self, data: _Data, prompts: str, seed: int, method: Method, templates: Sequence[Template]) -> str:
        """Name a cell by everything that its score depends on."""
        draw, style = data.draw(method.k, seed), self._style(prompts)
        used = templates[: _REFINED_FROM if method.refined else method.prompts]
        settings = (method.name, prompts, seed, self._settings.rounds, self._settings.on_perfect)
        return digest(
            "cell 1",
            self.backend.identity.digest,
            *map(str, settings),
            *(part.id for part in (draw.train, draw.validation, data.test)),
            *(template.name(style) for template in used),
        )

    def _remember(self, cell: Cell) -> None:
        try:
            with self._file.open("a+", encoding="utf-8") as file:
                file.seek(max(0, file.tell() - 1))
                unfinished = file.read() not in {"", "\n"}  # what a stopped run left there
                file.write(("\n" if unfinished else "") + cell.model_dump_json() + "\n")
        except OSError as error:
            raise InputError(f"{self._file} can't be written: {error.strerror}; choose another folder") from error


def _queries(
    examples: Sequence[Example], templates: Sequence[Template], phase: Phase, style: Style
) -> list[MaskedQuery]:
    # Example-major: a causal model reads the text once for all prompts.
    return [template.query(example, phase, style) for example in examples for template in templates]


def _measure(dataset: str) -> Literal["accuracy", "F1"]:
    return "F1" if dataset == "mrpc" else "accuracy"


def _score(data: _Data, predicted: _LABELS) -> float:
    if _measure(data.name) == "F1":
        return float(f1_score(data.test.labels, predicted, pos_label=data.classes.index("equivalent")))
    return float(accuracy_score(data.test.labels, predicted))


def _read_cells(path: Path) -> Iterator[Cell]:
    """Yield the cells of a file; a line that a stopped run left unfinished is passed over, and made anew."""
    if not path.is_file():
        return
    for line in path.read_text("utf-8").splitlines():
        try:
            yield Cell.model_validate_json(line)
        except ValueError:
            continue
