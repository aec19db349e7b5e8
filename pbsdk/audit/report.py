"""The report: what the ledger shows was asked, against the budget that it was asked under.

It needs a run folder and nothing else, no model and no network, and can be made while the run is
in progress. The same numbers come as a table in a terminal, as Markdown, as JSON with a published schema
(`docs/audit.schema.json`), and as one HTML file with charts. The last line is the verdict.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict

from pbsdk.audit import page as report_page
from pbsdk.audit import text as report_text
from pbsdk.audit.limits import LimitsHeld, Period, Use, iso, judged, periods, verdict, widest
from pbsdk.audit.team import MemberReport, Remaining, exceeded, remaining, team
from pbsdk.backend import Phase
from pbsdk.ledger import canaries
from pbsdk.ledger.budget import FIT, INSIDE, PREDICT, QueryBudget, Totals, scope_of
from pbsdk.ledger.canaries import CanaryCheck
from pbsdk.ledger.reader import LedgerReader
from pbsdk.ledger.sums import Counter, Row, Times

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType

    from pbsdk.learning.estimates import Estimate

__all__ = [
    "Accuracy",
    "AuditReport",
    "Latency",
    "LimitReport",
    "LimitsHeld",
    "MemberReport",
    "PassCount",
    "PhaseReport",
    "PromptReport",
    "Remaining",
    "ScopeReport",
    "Stretch",
    "Timeline",
]

_STRETCHES = 48
"""How many stretches the timeline has at most."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PassCount(_Part):
    """How many examples had this many passes."""

    passes: int
    examples: int


class Latency(_Part):
    """Milliseconds that a query took, its share of the time from sending its batch to the batch's answers, over all answers."""

    p50: float
    p90: float
    p99: float
    most: float


class Accuracy(_Part):
    """How often a classifier is right on texts that it didn't learn from, as its file says."""

    kind: str
    """`cross-validated`, or `validation`."""
    accuracy: float
    low: float
    """The lower end of the 95% interval."""
    high: float
    texts: int
    """On how many it was measured."""


class PhaseReport(_Part):
    """What was asked in one phase."""

    phase: str
    examples: int
    prompts: int
    passes: int
    """Distinct (example, prompt) pairs that ran or may have run."""
    passes_an_example: int
    """The most passes that one example had."""
    distribution: list[PassCount]
    """How many examples had how many passes."""
    limit: int | None
    """Passes that an example may have in this phase's scope."""
    hits: int
    attempts: int
    """Sends, retries included."""
    failed: int
    """Sends that certainly did not run."""
    unknown: int
    """Sends that may have run but brought no answer; they count as spent."""
    tokens_read: int
    texts_cut: int
    mass_seen: float | None
    """The mean probability that whole and top-k answers showed; None if there were none."""
    latency: Latency | None
    seconds: float
    """Time in which at least one batch was at the model."""
    throughput: float | None
    """Answers per second of that time."""
    money: float | None


class PromptReport(_Part):
    """What was asked under one prompt, over all phases."""

    prompt: str
    digest: str
    examples: int
    passes: int
    hits: int
    attempts: int
    failed: int
    unknown: int
    tokens_read: int
    texts_cut: int
    mass_seen: float | None
    money: float | None


class ScopeReport(_Part):
    """One scope: how many passes an example may have, and the most that one has used."""

    scope: str
    examples: int
    passes: int
    most: int
    distribution: list[PassCount]
    limit: int | None
    """The widest of the limits under which it was asked."""
    left: int | None
    """Passes that every example still has left."""


class LimitReport(_Part):
    """One limit on the whole run folder."""

    name: str
    used: float
    limit: float | None
    """The widest that held."""
    left: float | None


class Stretch(_Part):
    """What happened in one stretch of the timeline."""

    answers: int
    hits: int
    failed: int
    unknown: int


class Timeline(_Part):
    """The run from its first record to its last, in equal stretches."""

    start: str
    end: str
    seconds_a_stretch: float
    stretches: list[Stretch]


class AuditReport(_Part):
    """What a run folder's ledger shows was asked, against the budget."""

    format: Literal[1] = 1
    run: str
    model: str
    model_details: dict[str, str]
    records: int
    head: str
    """The hash of the last record, which covers all of them."""
    requests: int
    """Calls to the backend, each with a batch of queries."""
    reserved: int
    """Queries that are reserved at this moment but not yet sent."""
    under_way: int
    """Queries that are at the model at this moment."""
    bytes_on_disk: int
    budget: str
    """The limits that applied last, their unit and their scope in one sentence."""
    held: list[LimitsHeld]
    """All limits under which something was asked, in the order of time."""
    priced: bool
    phases: list[PhaseReport]
    prompts: list[PromptReport]
    scopes: list[ScopeReport]
    totals: list[LimitReport]
    members: list[MemberReport]
    """By name, where a team shares the run folder."""
    remaining: Remaining | None
    """What a server in front of the model said last; None if none ever did."""
    timeline: Timeline
    canaries: list[CanaryCheck]
    within_budget: bool
    verdict: str
    accuracy: Accuracy | None = None
    """Of the classifier that the run made, if the report was told: no ledger knows it."""

    @classmethod
    def read(
        cls, run: str | os.PathLike[str], budget: QueryBudget | None = None, *, now: QueryBudget | None = None
    ) -> Self:
        """Read a run folder, and judge what each session asked by the limits that it had.

        Args:
            run: the run folder.
            budget: judge everything by these limits instead, as if they had held from the start.
            now: the limits that apply from here on, for the prices and for what nobody asked yet; by default those of the
                session that asked last.
        """
        with LedgerReader(run) as reader:
            counter = Counter(reader)
            records, head = reader.head()
            asked = periods(reader, counter)
            held = [judged(period, reader, counter, alone=len(asked) == 1) for period in asked]
            latest = max(asked, key=lambda period: period.last).budget if asked else None
            last = budget or now or latest or next(reversed(reader.budgets().values()), QueryBudget())
            under = [] if budget else asked
            scopes, totals = _scopes(counter, last, under), _totals(reader.totals(), last, under)
            members = team(reader)
            within, said = verdict(_uses(scopes, totals), [] if budget else held, exceeded(members))
            model, flying = reader.model(), counter.in_flight()
            return cls(
                run=str(reader.folder),
                model=model.name,
                model_details=dict(model.details),
                records=records,
                head=head,
                requests=counter.requests(),
                reserved=flying.get("reserved", 0),
                under_way=flying.get("sent", 0),
                bytes_on_disk=reader.size(),
                budget=last.describe(),
                held=held,
                priced=last.priced,
                phases=_phases(counter, last, {scope.scope: scope.limit for scope in scopes}),
                prompts=_prompts(counter, last, reader.names()),
                scopes=scopes,
                totals=totals,
                members=members,
                remaining=remaining(reader),
                timeline=_timeline(counter),
                canaries=canaries.checks(reader),
                within_budget=within,
                verdict=said,
            )

    def with_accuracy(self, estimate: Estimate) -> Self:
        """Return the report with the accuracy of a classifier that the run made, such as `clf.estimate_`."""
        told = {name: value for name, value in estimate.to_dict().items() if name in Accuracy.model_fields}
        return self.model_copy(update={"accuracy": Accuracy(**told)})

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return self.model_dump(mode="json")

    def to_json(self) -> str:
        """Return the report as JSON; `docs/audit.schema.json` describes it."""
        return self.model_dump_json(indent=2)

    def to_markdown(self) -> str:
        """Return the report as Markdown."""
        return report_text.markdown(self)

    def to_html(self) -> str:
        """Return the report as one HTML page that needs nothing else."""
        return report_page.page(self)

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write the HTML page."""
        Path(path).write_text(self.to_html(), encoding="utf-8")

    def plot(self) -> Figure:
        """Draw how much of each limit is used, the queries of each phase, and how many passes examples had.

        Needs matplotlib: `pip install "pbsdk[plot]"`.
        """
        from pbsdk.audit.pictures import draw_report  # noqa: PLC0415 - matplotlib is an extra

        return draw_report(self)

    def __str__(self) -> str:
        return report_text.plain(self)

    def __rich__(self) -> RenderableType:
        return report_text.rich(self)

    def _repr_html_(self) -> str:
        return report_page.fragment(self)


def _phases(counter: Counter, budget: QueryBudget, limits: Mapping[str, int | None]) -> list[PhaseReport]:
    counted, spreads, times = counter.phases(), counter.spreads(), counter.times()
    known = [str(phase) for phase in Phase if phase in counted]
    reports = []
    for phase in [*known, *sorted(set(counted) - set(known))]:
        row, spread = counted[phase], spreads.get(phase, {})
        time = times.get(phase)
        seconds = time.busy / 1e6 if time else 0.0
        reports.append(
            PhaseReport(
                phase=phase,
                prompts=row["prompts"],
                passes_an_example=max(spread, default=0),
                distribution=_pairs(spread),
                limit=limits.get(scope_of(phase)),
                latency=_latency(time),
                seconds=seconds,
                throughput=row["answers"] / seconds if seconds else None,
                **_common(row, budget),
            )
        )
    return reports


def _prompts(counter: Counter, budget: QueryBudget, names: dict[str, str]) -> list[PromptReport]:
    reports = [
        PromptReport(prompt=names.get(digest, digest), digest=digest, **_common(row, budget))
        for digest, row in counter.prompts().items()
    ]
    return sorted(reports, key=lambda report: (-report.passes, report.prompt))


def _common(row: Row, budget: QueryBudget) -> dict[str, Any]:
    spent = Totals(sends=row["attempts"], failed=row["failed"], tokens=row["read"] + row["guessed"])
    return {
        **{name: row[name] for name in ("examples", "passes", "hits", "attempts", "failed", "unknown")},
        "tokens_read": row["read"],
        "texts_cut": row["cut"],
        "mass_seen": row["mass"] / row["showing"] / 1e6 if row["showing"] else None,
        "money": budget.cost(spent) if budget.priced else None,
    }


def _latency(times: Times | None) -> Latency | None:
    shares = [] if times is None else [times.percentile(share) for share in (0.5, 0.9, 0.99, 1.0)]
    found = [share / 1000 for share in shares if share is not None]
    return Latency(p50=found[0], p90=found[1], p99=found[2], most=found[3]) if found else None


def _pairs(spread: dict[int, int]) -> list[PassCount]:
    return [PassCount(passes=passes, examples=spread[passes]) for passes in sorted(spread)]


def _timeline(counter: Counter) -> Timeline:
    cut = counter.timeline(_STRETCHES)
    return Timeline(
        start=iso(cut.first),
        end=iso(cut.first + cut.width * len(cut.counts)),
        seconds_a_stretch=cut.width / 1e6,
        stretches=[
            Stretch(answers=row["done"], hits=row["hit"], failed=row["failed"], unknown=row["unknown"])
            for row in cut.counts
        ],
    )


def _scopes(counter: Counter, now: QueryBudget, asked: Sequence[Period]) -> list[ScopeReport]:
    spreads = counter.scopes(strict=now.strict)
    reports = []
    for scope in (FIT, PREDICT, *(scope for scope in INSIDE if scope in spreads)):
        spread = spreads.get(scope, {})
        limits = [period.budget.limit(scope) for period in asked if scope in period.scopes]
        limit = widest(limits or [now.limit(scope)])
        most = max(spread, default=0)
        reports.append(
            ScopeReport(
                scope=scope,
                examples=sum(spread.values()),
                passes=sum(passes * examples for passes, examples in spread.items()),
                most=most,
                distribution=_pairs(spread),
                limit=limit,
                left=None if limit is None else max(0, limit - most),
            )
        )
    return reports


def _totals(spent: Totals, now: QueryBudget, asked: Sequence[Period]) -> list[LimitReport]:
    budgets = [period.budget for period in asked] or [now]
    amounts: list[tuple[str, float, float | None]] = [
        ("passes", now.counted(spent), widest(budget.total for budget in budgets)),
        ("attempts", spent.sends, widest(budget.attempts for budget in budgets)),
        ("tokens", spent.tokens, widest(budget.tokens for budget in budgets)),
    ]
    if now.priced:
        amounts.append(("money", now.cost(spent), widest(budget.money for budget in budgets)))
    return [
        LimitReport(name=name, used=used, limit=limit, left=None if limit is None else max(0.0, limit - used))
        for name, used, limit in amounts
    ]


def _uses(scopes: Sequence[ScopeReport], totals: Sequence[LimitReport]) -> list[Use]:
    return [
        *((f"passes per example ({scope.scope})", scope.most, scope.limit) for scope in scopes),
        *((f"{total.name} in all", total.used, total.limit) for total in totals),
    ]
