"""The plan: what a fit and a prediction will cost, before the first query.

A plan isn't a formula beside the meter; it is the meter's own work, rehearsed. The estimator says which
queries it would ask, the meter says which of them the ledger knows, and the ledger reserves the rest
against the budget in a transaction that is then undone. That is why a plan and the run agree to the pass.

Passes, attempts, requests and bytes are exact for a backend that answers as it promises. Tokens are what
the backend counts, exactly or by an estimate; where they are limited or paid for, the most that they can be stands
beside it, because that is what a budget reserves. Time needs a measured rate: that of the same run folder, or of
another that is named. Before `fit` nobody knows which prompts the ensemble will use: a prediction is
then planned with all of them, and marked as an upper bound.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, PrivateAttr

from pbsdk.audit.text import aligned
from pbsdk.backend import MaskedLMBackend, MaskedQuery, Phase, Tokens
from pbsdk.errors import BudgetExceeded, InputError
from pbsdk.formatting import Cell, Table, duration, number, size_text
from pbsdk.ledger import inflight
from pbsdk.ledger.budget import QueryBudget, Totals
from pbsdk.ledger.inflight import Ask, Owner
from pbsdk.ledger.reader import LedgerReader
from pbsdk.ledger.store import Connection
from pbsdk.ledger.sums import Counter
from pbsdk.metering.meter import MeteredBackend
from pbsdk.metering.room import PlannedScreen, bytes_stored, screens_known
from pbsdk.metering.tally import COUNTED, Counted, Tally
from pbsdk.queries.grid import Grid
from pbsdk.stopping import exit_of

if TYPE_CHECKING:
    from pbsdk.classifier import PromptBoostingClassifier

__all__ = ["Plan", "Step", "StepPlan", "plan_classifier", "plan_steps"]

_NOBODY = Owner("rehearsal", 0)


@dataclass(frozen=True)
class Step:
    """One call to the meter: queries, the tokens they are asked for, whether that is certain, and which share is expected."""

    name: str
    queries: Sequence[MaskedQuery]
    tokens: Tokens | None = None
    exact: bool = True
    expected: float | None = None
    screen: PlannedScreen | None = None
    """How a fit screens the vocabulary, if it does."""


class StepPlan(BaseModel):
    """What one step will take."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    exact: bool
    """False if these are upper bounds."""
    queries: int
    recalled: int
    """Queries whose answer the ledger already holds."""
    repeated: int
    """Queries that repeat another of the plan, or that another process is asking."""
    passes: int
    expected_passes: int | None
    """How many of the passes an early exit is expected to leave; None if there is none, or if it can't be foretold."""
    attempts: int
    """Queries sent; with most providers, one request each."""
    requests: int
    """Calls to the backend, each with a batch of queries."""
    tokens: int
    tokens_at_most: int | None
    """What a budget reserves; None if it neither limits tokens nor prices them."""
    tokens_error: float = 0.0
    """By which share the tokens may be off, with 95% confidence, if they were counted on a sample; 0 if on all texts."""
    bytes_sent: int
    """The texts as rendered, without what a protocol wraps around them."""
    bytes_stored: int
    """What the answers will take in the run folder; of a fit that screens the vocabulary, about the most that they can."""
    in_full: int | None = None
    """How many queries are asked in full where a fit screens the vocabulary; None if it doesn't."""
    seconds: float | None
    """None if no rate is known yet."""
    money: float | None
    """None if no price is known."""
    money_at_most: float | None
    """What a budget reserves; None if no price is known."""
    allowed: bool
    reason: str
    """Why the budget doesn't allow it."""
    _refusal: BudgetExceeded | None = PrivateAttr(default=None)

    @property
    def refusal(self) -> BudgetExceeded | None:
        """The error that the step would end with, if the budget doesn't allow it."""
        return self._refusal


class Plan(BaseModel):
    """What several steps will take, one after the other, and whether the budget allows them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str
    model: str
    budget: str
    steps: list[StepPlan]
    overrun: str
    """By how much a limit on tokens or money can be exceeded at most; empty if there is no such limit."""
    allowed: bool
    verdict: str

    def total(self, name: str) -> float:
        """Return the sum of a field such as `passes` over all steps; None counts as 0."""
        return sum(getattr(step, name) or 0 for step in self.steps)

    def check(self) -> None:
        """Raise the `BudgetExceeded` of the first step that the budget doesn't allow, if there is one."""
        for step in self.steps:
            if step.refusal is not None:
                raise step.refusal.during(f"the budget doesn't allow the step {step.name!r}")

    def worded(self, say: Callable[[BudgetExceeded], str]) -> Plan:
        """Return the same plan with each refusal as the caller says it."""
        steps = [
            step if step.refusal is None else step.model_copy(update={"reason": say(step.refusal)})
            for step in self.steps
        ]
        return self.model_copy(update={"steps": steps, "verdict": _verdict(steps)})

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain values."""
        return self.model_dump(mode="json")

    def __str__(self) -> str:
        rows = [
            ("queries", "queries", number),
            ("already in the ledger", "recalled", number),
            ("repeated", "repeated", number),
            ("passes", "passes", number),
            ("attempts (queries sent)", "attempts", number),
            ("requests (batches)", "requests", number),
            ("tokens", "tokens", number),
            ("tokens, at most", "tokens_at_most", number),
            ("data sent", "bytes_sent", size_text),
            ("data stored", "bytes_stored", size_text),
            ("time", "seconds", duration),
            ("money", "money", number),
            ("money, at most", "money_at_most", number),
        ]
        several = len(self.steps) > 1
        table = Table(
            "Plan",
            [
                "",
                *(step.name if step.exact else f"{step.name}, at most" for step in self.steps),
                *(["all"] if several else []),
            ],
            [
                [
                    Cell(label),
                    *(Cell(write(getattr(step, path))) for step in self.steps),
                    *([Cell(write(self._sum(path)))] if several else []),
                ]
                for label, path, write in rows
                if not path.endswith("_at_most") or self._says_more(path)
            ],
        )
        lines = [f"{self.model} in {self.run}", f"budget: {self.budget}", "", *aligned(table), ""]
        if self._sum("seconds") is None:
            lines.append(
                "No rate is known yet, so there is no estimate of time: name a run folder of the same model to take the rate from."
            )
        lines += [
            f"With the early exit, about {number(step.expected_passes)} of the {number(step.passes)} passes of {step.name} are expected."
            for step in self.steps
            if step.expected_passes is not None
        ]
        lines += [
            f"Of {step.name}, {number(step.in_full)} queries are asked in full, and of the others only likely tokens are kept: "
            "bytes stored are about the most that they can be."
            for step in self.steps
            if step.in_full is not None
        ]
        lines += [
            f"The tokens of {step.name} were counted on {number(COUNTED)} texts and estimated for all, to within {step.tokens_error:.1%}."
            for step in self.steps
            if step.tokens_error
        ]
        return "\n".join([*lines, *([self.overrun] if self.overrun else []), self.verdict])

    def _says_more(self, path: str) -> bool:
        """Return whether an upper bound differs from the figure that it bounds."""
        pairs = [(getattr(step, path), getattr(step, path.removesuffix("_at_most"))) for step in self.steps]
        return any(most is not None and not math.isclose(most, expected) for most, expected in pairs)

    def _sum(self, name: str) -> float | None:
        values = [getattr(step, name) for step in self.steps]
        return None if not values or None in values else sum(values)


def plan_classifier(  # noqa: PLR0913 - a step each, and how it is asked
    classifier: PromptBoostingClassifier,
    fit: tuple[Any, Any] | None = None,
    *,
    validation: tuple[Any, Any] | None = None,
    predict: Any = None,
    early_exit: bool = False,
    max_changed: float | None = None,
    like: str | os.PathLike[str] | None = None,
) -> Plan:
    """Plan `classifier.fit(*fit, validation=...)` and then `classifier.predict(predict, ...)`; nothing is sent.

    With `early_exit` or `max_changed`, the passes are what prediction takes at most; how many cross-validation expects stands
    beside them, if the head knows. `like` names a run folder whose rate stands in where this run has none yet.
    """
    if fit is None and predict is None:
        raise InputError("give texts and labels to fit, or texts to predict, or both")
    backend, known = _metered(classifier.backend), fit is None and hasattr(classifier, "fitted_")
    early = early_exit or max_changed is not None
    if early and not known:
        raise InputError("an early exit can be planned for a fitted classifier alone; fit it first, or load it")
    passes = exit_of(classifier.fitted_, max_changed).expected if early else None
    share = None if passes is None else passes / len(classifier.fitted_.prompts)
    seen = classifier.foresee(fit, validation=validation, predict=predict)
    grid = Grid(seen.templates, seen.style, backend.mask_token)
    steps: list[tuple[Step, Counted]] = []
    screens = screens_known(backend) if seen.pilot else []
    screen = PlannedScreen.of(seen, screens, len(backend.vocabulary)) if seen.pilot else None
    with backend.ledger.reader() as ledger:
        tally = Tally(backend, ledger, grid, seen.tokens, screens)
        if fit is not None:
            parts = [(Phase.TRAIN, [seen.train]), (Phase.VALIDATE, [seen.validation])]
            steps.append((Step("fit", (), screen=screen), tally.count(parts, needed=False)))
        if predict is not None:
            step = Step("predict", (), seen.tokens, exact=known and not early, expected=share)
            steps.append((step, tally.count([(Phase.PREDICT, seen.predict)], needed=True)))
    return _planned(backend, [(step, _of_texts(counted)) for step, counted in steps], like)


def plan_steps(backend: MaskedLMBackend, steps: Sequence[Step], *, like: str | os.PathLike[str] | None = None) -> Plan:
    """Plan calls to a metered backend, one after the other; nothing is sent and nothing is kept."""
    meter = _metered(backend)
    promised: set[str] = set()
    return _planned(meter, [(step, _of_queries(meter, step, promised)) for step in steps], like)


@dataclass(frozen=True)
class _Taking:
    """What a step will take: what is known before the budget is asked, and how to reserve it."""

    queries: int
    recalled: int
    new: int
    tokens: int
    error: float
    size: int
    largest: int
    reserve: Callable[[Connection, QueryBudget], None]


def _metered(backend: MaskedLMBackend) -> MeteredBackend:
    if not isinstance(backend, MeteredBackend):
        raise InputError("only a metered backend knows its budget and its ledger; use pbsdk.connect()")
    return backend


def _of_texts(counted: Counted) -> Callable[[Connection], _Taking]:
    """Return what texts take, as a tally counted it."""
    tokens = counted.tokens

    def reserve(con: Connection, budget: QueryBudget) -> None:
        most = tokens.total.most
        inflight.afford(con, counted.needs, budget, fresh=counted.fresh, sends=counted.new, tokens=most)

    taking = _Taking(
        counted.queries,
        counted.recalled,
        counted.new,
        tokens.total.expected,
        tokens.total.error,
        tokens.size,
        tokens.largest,
        reserve,
    )
    return lambda _: taking


def _of_queries(backend: MeteredBackend, step: Step, promised: set[str]) -> Callable[[Connection], _Taking]:
    """Return what queries take, when asked after those that are `promised`."""

    def taken(con: Connection) -> _Taking:
        asks, known = backend.resolve(step.queries, step.tokens, promised)
        # Of the queries that share a key, only the first is charged.
        unknown: dict[str, Ask] = {}
        for ask in asks:
            if ask.key not in known:
                unknown.setdefault(ask.key, ask)
        new = inflight.missing(con, list(unknown.values()))
        recalled = sum(ask.key in known and ask.key not in promised for ask in asks)
        promised.update(ask.key for ask in new)
        return replace(_of_asks(backend, new), queries=len(asks), recalled=recalled)

    return taken


def _of_asks(backend: MeteredBackend, new: list[Ask]) -> _Taking:
    return _Taking(
        queries=len(new),
        recalled=0,
        new=len(new),
        tokens=sum(backend.count_tokens(ask.query) for ask in new),
        error=0.0,
        size=sum(len(ask.query.text(backend.mask_token).encode("utf-8", "replace")) for ask in new),
        largest=_largest_batch(backend, new),
        reserve=lambda con, budget: inflight.reserve(con, _NOBODY, new, budget),
    )


def _planned(
    backend: MeteredBackend,
    steps: Sequence[tuple[Step, Callable[[Connection], _Taking]]],
    like: str | os.PathLike[str] | None,
) -> Plan:
    """Rehearse reserving what the steps take, one after the other."""
    rate = _rate(backend.ledger.folder) or (_rate(like) if like is not None else None)
    planned: list[StepPlan] = []
    largest, due = 0, backend.canaries_due
    with backend.ledger.rehearsal() as con:
        for step, take in steps:
            taking = take(con)
            if taking.new and due:
                due = False
                birds = _of_asks(backend, backend.canary_asks())
                planned.append(_rehearsed(backend, con, Step("canaries", ()), birds, rate))
            planned.append(_rehearsed(backend, con, step, taking, rate))
            largest = max(largest, taking.largest)
    return Plan(
        run=str(backend.ledger.folder),
        model=backend.identity.name,
        budget=backend.budget.describe(),
        steps=planned,
        overrun=_overrun(backend, planned, largest),
        allowed=all(step.allowed for step in planned),
        verdict=_verdict(planned),
    )


def _verdict(steps: Sequence[StepPlan]) -> str:
    refused = [f"the budget doesn't allow the step {step.name!r}: {step.reason}" for step in steps if not step.allowed]
    return "; ".join(refused) or f"the budget allows it: {number(sum(step.passes for step in steps))} passes"


def _rehearsed(backend: MeteredBackend, con: Connection, step: Step, taking: _Taking, rate: float | None) -> StepPlan:
    budget, refusal = backend.budget, None
    before = inflight.totals(con)
    try:
        taking.reserve(con, budget)
    except BudgetExceeded as error:
        refusal = error
        taking.reserve(con, _without_limits(budget))
    after = inflight.totals(con)
    expected = Totals(sends=taking.new, tokens=taking.tokens)
    planned = StepPlan(
        name=step.name,
        exact=step.exact,
        queries=taking.queries,
        recalled=taking.recalled,
        repeated=taking.queries - taking.recalled - taking.new,
        passes=(passes := budget.counted(after) - budget.counted(before)),
        expected_passes=None if step.expected is None else round(step.expected * passes),
        attempts=taking.new,
        requests=-(-taking.new // backend.abilities.batch_size),
        tokens=taking.tokens,
        tokens_at_most=after.tokens - before.tokens if budget.counts_tokens else None,
        tokens_error=taking.error,
        bytes_sent=taking.size,
        bytes_stored=bytes_stored(backend, con, taking.new, step.tokens, step.screen),
        in_full=None if step.screen is None else step.screen.in_full,
        seconds=None if rate is None else taking.new / rate,
        money=budget.cost(expected) if budget.priced else None,
        money_at_most=budget.cost(after) - budget.cost(before) if budget.priced else None,
        allowed=refusal is None,
        reason="" if refusal is None else str(refusal),
    )
    planned._refusal = refusal  # noqa: SLF001 - its own module's
    return planned


def _largest_batch(backend: MeteredBackend, new: Sequence[Ask]) -> int:
    """Return the most tokens that are reserved for one batch."""
    size = backend.abilities.batch_size
    return max((sum(ask.tokens for ask in new[at : at + size]) for at in range(0, len(new), size)), default=0)


def _overrun(backend: MeteredBackend, planned: Sequence[StepPlan], batch: int) -> str:
    budget = backend.budget
    if budget.tokens is None and (budget.money is None or not budget.price_per_1k_tokens):
        return ""
    if all(step.tokens == step.tokens_at_most for step in planned):
        return "Tokens are counted before they are sent, so the limit on them can't be exceeded."
    return (
        "Of tokens the most that the texts can have is reserved, and what was read is settled. Should the model count more, "
        f"sending stops before the next batch: only what one batch of {backend.abilities.batch_size} queries costs beyond "
        f"the {number(batch)} tokens reserved for it can exceed the limit."
    )


def _without_limits(budget: QueryBudget) -> QueryBudget:
    return replace(budget, passes=None, predict=None, total=None, attempts=None, tokens=None, money=None)


def _rate(run: str | os.PathLike[str]) -> float | None:
    """Return the answers per second that a run had while its model was at work."""
    with LedgerReader(run) as reader:
        times = Counter(reader).times()[""]
    return times.answers / times.busy * 1e6 if times.busy and times.answers else None
