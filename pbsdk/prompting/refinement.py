"""Refinement: from many prompts to the few that serve these texts best.

A prompt is scored by the validation accuracy of one weak learner: its best verbalizer on the unweighted
training set. The paper's method asks every example under every prompt, which is 100 passes per
example for 100 prompts. Successive halving tries all prompts on a few examples, the better half
on twice as many, and so on; only the last few prompts see every example. Both are one procedure, a
ladder of rungs; the paper's ladder has a single rung.

>>> labels = ["a"] * 16 + ["b"] * 16
>>> print(passes_needed(100, labels, labels))
paper: 6400 passes, 100 per example; at most 100 for one
>>> print(passes_needed(100, labels, labels, method="halving"))
halving: 2016 passes, 31.5 per example; at most 100 for one

Before anything is sent, a metered backend's budget is asked for the whole ladder, since half a
refinement is money wasted. Later rungs are rehearsed with as many prompts as will be left. Training
with the chosen prompts then needs no further pass: the last rung has asked for all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pbsdk.backend import MaskedLMBackend, MaskedQuery, ModelIdentity, Phase
from pbsdk.errors import InputError
from pbsdk.learning.matrix import collect
from pbsdk.learning.voting import one_per_prompt
from pbsdk.metering.meter import MeteredBackend
from pbsdk.metering.plan import Step, plan_steps
from pbsdk.progress import progress_bar
from pbsdk.queries.examples import Example, read_examples, read_labels
from pbsdk.queries.markers import escape_markers, refuse_markers
from pbsdk.queries.pools import PromptPool, Provenance, Refinement, fit_templates, load_pool, read_pool
from pbsdk.queries.rendering import render
from pbsdk.queries.templates import Style, Template
from pbsdk.version import __version__

__all__ = [
    "REFINEMENT_METHODS",
    "Passes",
    "PromptScore",
    "Refined",
    "RefinementMethod",
    "Rung",
    "passes_needed",
    "refine",
]

RefinementMethod = Literal["paper", "halving"]
"""How prompts are chosen: all of them on all examples, or by successive halving."""
REFINEMENT_METHODS: tuple[RefinementMethod, ...] = ("paper", "halving")
"""The ways to refine, the most expensive first."""
Rows = npt.NDArray[np.intp]

_LEAST = 2
"""The least number of examples per class on the first rung."""


@dataclass(frozen=True)
class Rung:
    """A step of the ladder: how many prompts on how many examples, including those of earlier rungs."""

    prompts: int
    train: int
    validation: int


@dataclass(frozen=True)
class Passes:
    """The passes that a refinement needs; exact if no two texts are the same, otherwise an upper bound."""

    method: str
    rungs: tuple[Rung, ...]

    @property
    def total(self) -> int:
        """Passes in all: each rung asks its prompts for the examples that are new to it."""
        new = [rung.train + rung.validation for rung in self.rungs]
        added = [new[0], *(later - former for former, later in pairwise(new))]
        return sum(rung.prompts * count for rung, count in zip(self.rungs, added, strict=True))

    @property
    def most(self) -> int:
        """Passes that one example has at most, which a budget must allow."""
        return self.rungs[0].prompts

    @property
    def per_example(self) -> float:
        """Passes per example on average."""
        return self.total / (self.rungs[-1].train + self.rungs[-1].validation)

    def __str__(self) -> str:
        return f"{self.method}: {self.total} passes, {self.per_example:g} per example; at most {self.most} for one"


@dataclass(frozen=True)
class PromptScore:
    """How one prompt did when it was last tried."""

    prompt: str
    validation_accuracy: float
    train_accuracy: float
    rung: int
    """The rung, counted from 1, on which it was last tried."""


@dataclass(frozen=True)
class Refined:
    """The chosen prompts as a pool for `prompts=`, and how all of them did, the best first."""

    pool: PromptPool
    scores: tuple[PromptScore, ...]
    needed: Passes


@dataclass(frozen=True)
class _LadderSet:
    """Examples, their classes, and which of them each rung has."""

    examples: list[Example]
    labels: npt.NDArray[np.intp]
    rungs: list[Rows]


def passes_needed(
    n_prompts: int, train_labels: Any, validation_labels: Any, *, keep: int = 10, method: RefinementMethod = "paper"
) -> Passes:
    """Return the passes that a refinement needs, before anything is sent."""
    train, validation = np.asarray(train_labels), np.asarray(validation_labels)
    sizes = _sizes(n_prompts, keep, method)
    ladders = (_ladder(labels, len(sizes), 0) for labels in (train, validation))
    return Passes(
        method, tuple(Rung(size, len(one), len(other)) for size, one, other in zip(sizes, *ladders, strict=True))
    )


def refine(  # noqa: PLR0913 - independent settings, all keywords
    backend: MaskedLMBackend,
    prompts: Any,
    train: tuple[Any, Any],
    validation: tuple[Any, Any],
    *,
    keep: int = 10,
    method: RefinementMethod = "paper",
    m: int | None = None,
    seed: int = 0,
    style: Style = "plain",
    markers: Literal["refuse", "escape"] = "refuse",
    progress: bool | None = None,
) -> Refined:
    """Choose the `keep` best of a pool's prompts.

    Args:
        backend: the model, from `pbsdk.connect(...)`; one without a meter is asked again at each rung.
        prompts: a list of prompts, the name of a pool, a pool, or its file.
        train: (texts, labels) that the weak learners are trained on.
        validation: (texts, labels) that choose; the pool remembers them.
        keep: how many prompts to keep.
        method: "paper" asks all prompts for all examples, "halving" a fraction of that.
        m: how many candidate words per class.
        seed: draws the examples of halving's first rungs.
        style: how texts and prompts are joined.
        markers: what to do with texts that contain a mask.
        progress: show progress bars; None to show them in a terminal or notebook.

    Equal prompts are ranked by their accuracy on training, then by their place in the pool.
    """
    examples, labels = _read(backend, *train, markers, "train")
    others, other_labels = _read(backend, *validation, markers, "validation")
    classes = np.unique(labels)
    if len(classes) < 2:
        raise InputError("choosing prompts needs a training set with at least two classes")
    if not np.isin(other_labels, classes).all():
        raise InputError("the validation set has labels that the training set lacks")
    source = load_pool(prompts) if isinstance(prompts, str | Path) else prompts
    pairs = examples[0].pair is not None
    templates = fit_templates(read_pool(source, backend.abilities), backend.abilities, pairs=pairs)
    needed = passes_needed(len(templates), labels, other_labels, keep=keep, method=method)
    n_rungs = len(needed.rungs)
    ladder = _Ladder(
        backend,
        _LadderSet(examples, np.searchsorted(classes, labels), _ladder(labels, n_rungs, seed)),
        _LadderSet(others, np.searchsorted(classes, other_labels), _ladder(other_labels, n_rungs, seed + 1)),
        needed,
        n_classes=len(classes),
        m=m,
        style=style,
        progress=progress,
    )
    ranked = ladder.climb(templates)
    before = source if isinstance(source, PromptPool) else PromptPool(name="prompts")
    refined = _refinement(backend, ranked[:keep], needed, seed, {example.id for example in others})
    pool = _pool(before, ranked[:keep], refined, len(others), mask_last=backend.abilities.mask == "last")
    return Refined(pool, tuple(ranked), needed)


@dataclass(frozen=True)
class _Ladder:
    """The rungs of one refinement, and the model they ask."""

    backend: MaskedLMBackend
    train: _LadderSet
    validation: _LadderSet
    needed: Passes
    n_classes: int
    m: int | None
    style: Style
    progress: bool | None

    def climb(self, templates: Sequence[Template]) -> list[PromptScore]:
        """Return how the prompts did, the best first: those of the last rung, then those that fell off before."""
        alive = list(templates)
        ranked: list[PromptScore] = []
        for at, rung in enumerate(self.needed.rungs):
            alive = alive[: rung.prompts]
            self.afford(at, alive)
            found = self.scores(at, alive)
            alive.sort(key=lambda t: (-found[t].validation_accuracy, -found[t].train_accuracy, templates.index(t)))
            ranked[: len(alive)] = [found[template] for template in alive]
        return ranked

    def afford(self, rung: int, alive: Sequence[Template]) -> None:
        """Refuse what the budget doesn't allow: this rung and all later ones, before this one is sent."""
        if not isinstance(self.backend, MeteredBackend):
            return
        now = self._queries(rung, alive)
        if not plan_steps(self.backend, [Step("refine", now)]).steps[-1].attempts:
            return  # a replay; a later rung that asks for something will check
        rest = [
            query
            for later in range(rung + 1, len(self.needed.rungs))
            for query in self._queries(later, alive[: self.needed.rungs[later].prompts])
        ]
        plan = plan_steps(self.backend, [Step("refine", [*now, *rest])])
        for step in plan.steps:
            if step.refusal is not None:
                raise step.refusal.during(f"refinement exceeds the budget ({self.needed})")

    def scores(self, rung: int, alive: Sequence[Template]) -> dict[Template, PromptScore]:
        """Ask, train one learner per prompt, and return how each does."""
        queries = self._queries(rung, alive)
        answers = progress_bar(
            self.backend.stream(queries), total=len(queries), what=f"refining {rung + 1}", show=self.progress
        )
        train, validation = self.train, self.validation
        here, there = train.rungs[rung], validation.rungs[rung]
        with (
            collect(islice(answers, len(here) * len(alive)), len(here), len(alive)) as known,
            collect(answers, len(there), len(alive)) as unseen,
        ):
            learners = one_per_prompt(known, train.labels[here], self.n_classes, m=self.m)
            return {
                template: PromptScore(
                    template.source,
                    float((learner.says(unseen) == validation.labels[there]).mean()),
                    float((learner.says(known) == train.labels[here]).mean()),
                    rung + 1,
                )
                for template, learner in zip(alive, learners, strict=True)
            }

    def _queries(self, rung: int, alive: Sequence[Template]) -> list[MaskedQuery]:
        examples = (part.examples[row] for part in (self.train, self.validation) for row in part.rungs[rung])
        return render(examples, alive, Phase.REFINE, self.style)


def _sizes(n_prompts: int, keep: int, method: str) -> list[int]:
    """Return how many prompts each rung tries."""
    if method not in REFINEMENT_METHODS:
        raise InputError(f"method must be paper or halving; not {method!r}")
    if keep < 1 or n_prompts <= keep:
        raise InputError(f"{n_prompts} prompts can't be refined to {keep}; keep fewer than there are, and at least 1")
    sizes = [n_prompts]
    while method == "halving" and -(-sizes[-1] // 2) > keep:
        sizes.append(-(-sizes[-1] // 2))
    return sizes


def _ladder(labels: npt.NDArray[Any], n_rungs: int, seed: int) -> list[Rows]:
    """Return the rows of each rung: some of every class, twice as many on each rung, and all on the last."""
    groups = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    generator = np.random.default_rng(seed)
    shuffled = [generator.permutation(group) for group in groups]
    shares = [2 ** (rung + 1 - n_rungs) for rung in range(n_rungs)]
    return [
        np.sort(np.concatenate([group[: max(_LEAST, int(np.ceil(share * len(group))))] for group in shuffled]))
        for share in shares
    ]


def _read(
    backend: MaskedLMBackend, texts: Any, labels: Any, markers: str, name: str
) -> tuple[list[Example], npt.NDArray[Any]]:
    examples = read_examples(texts, name=f"{name} texts")
    if not examples:
        raise InputError(f"there are no {name} texts to choose prompts by")
    if markers == "escape":
        examples = [escape_markers(example, backend.mask_token) for example in examples]
    else:
        refuse_markers(examples, backend.mask_token, name=f"{name} texts")
    return examples, read_labels(labels, len(examples), name=f"{name} labels")


def _refinement(
    backend: MaskedLMBackend, kept: Sequence[PromptScore], needed: Passes, seed: int, chosen_by: set[str]
) -> Refinement:
    return Refinement(
        method=needed.method,
        model=ModelIdentity(backend.identity.name, backend.identity.details).to_json(),
        pbsdk=__version__,
        seed=seed,
        of=needed.most,
        passes=needed.total,
        scores=[round(score.validation_accuracy, 6) for score in kept],
        chosen_by=sorted(chosen_by),
    )


def _pool(
    before: PromptPool, kept: Sequence[PromptScore], refined: Refinement, n_texts: int, *, mask_last: bool
) -> PromptPool:
    chosen = {"prompts_mask_last" if mask_last else "prompts": [score.prompt for score in kept]}
    name = f"{before.name or 'prompts'}, refined"
    about = f"{before.about} The {len(kept)} of {refined.of} that did best on {n_texts} texts.".strip()
    return PromptPool(name=name, about=about, made=_made(before, kept), refined=refined, **chosen)


def _made(before: PromptPool, kept: Sequence[PromptScore]) -> Provenance | None:
    """Return how the prompts were written, with the likelihoods of those that were kept."""
    if before.made is None:
        return None
    written = before.prompts or before.prompts_mask_last
    likelihoods = dict(zip(written, before.made.scores, strict=False))
    return before.made.model_copy(
        update={"scores": [likelihoods[score.prompt] for score in kept if score.prompt in likelihoods]}
    )
