"""Lots: the passes of a method that looks into the model, many to a record.

A white box trains in steps that each take all examples, or a batch of them, through the model, forward and perhaps backward; a
search by evolution does so hundreds of thousands of times. A record for each pass would drown the chain, so a
record is one *lot*: so many passes for each example of a group. The group is named by the digest of its examples' names, one a line, and
`names` keeps that list as it keeps the prompts' texts, so that whoever has the records can count each example's passes exactly.

A lot is charged in one transaction *before* it runs (state `ran`), against the limits of each of its examples and those on the
totals. Nothing is in flight and nothing is settled: a process that dies within a lot has spent it, and one that resumes
from its last checkpoint is charged again for what it repeats. In `passes` each example has a row of its own, whose `sent` is the sum
of its passes, and the totals count every pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from pbsdk.backend import digest
from pbsdk.errors import LedgerCorrupted
from pbsdk.ledger.budget import INSIDE, Need, QueryBudget, Totals
from pbsdk.ledger.chain import Event, append
from pbsdk.ledger.codec import storable
from pbsdk.ledger.inflight import totals
from pbsdk.ledger.reader import LedgerReader
from pbsdk.ledger.store import Connection

__all__ = ["RAN", "Lot", "LotSums", "charge", "charged_examples", "group_text"]

RAN = "ran"
"""The state of a lot's record."""

_MANY = 500
"""How many examples are looked up in one statement."""


@dataclass(frozen=True)
class Lot:
    """Passes that are about to run.

    Args:
        phase: `forward` or `backward`.
        method: what they are for, as the report's tables of prompts will call it.
        passes: how many each example has, by its name (a digest, never a text).
        tokens: how many tokens all of them read together.
    """

    phase: str
    method: str
    passes: Mapping[str, int]
    tokens: int = 0

    @property
    def total(self) -> int:
        """How many passes there are in all."""
        return sum(self.passes.values())

    def groups(self) -> Iterator[tuple[int, list[str]]]:
        """Yield numbers of passes, and the examples that have as many each."""
        for number in sorted(set(self.passes.values()) - {0}):
            yield number, sorted(example for example, many in self.passes.items() if many == number)


def group_text(examples: Collection[str]) -> str:
    r"""Return what `names` keeps of a group: its examples' names, one a line.

    >>> group_text({"b2", "a1"})
    'a1\nb2'
    """
    return "\n".join(sorted(examples))


def charged_examples(text: str) -> list[str]:
    """Return the examples of a group."""
    return text.split("\n")


def charge(con: Connection, session: str, lots: Collection[Lot], budget: QueryBudget) -> None:
    """Check the budget for all of these lots together, then record them; if it refuses, nothing is written."""
    needs = list(_needs(con, lots))
    now, fresh = totals(con), sum(lot.total for lot in lots)
    tokens = sum(lot.tokens for lot in lots)
    budget.check(needs, now, Totals(now.passes + fresh, now.sends + fresh, now.failed, now.tokens + tokens))
    con.execute("UPDATE totals SET passes = passes + ?, sent = sent + ?, tokens = tokens + ?", (fresh, fresh, tokens))
    events: list[Event] = []
    for lot in lots:
        method, tokens = digest(lot.method), lot.tokens
        names = {method: storable(lot.method)}
        con.executemany(
            "INSERT INTO passes VALUES (?, ?, ?, 0, ?, 0)"
            " ON CONFLICT (scope, example, prompt) DO UPDATE SET sent = passes.sent + excluded.sent",
            [(lot.phase, example, method, number) for example, number in lot.passes.items() if number],
        )
        for number, examples in lot.groups():
            text = group_text(examples)
            names[digest(text)] = text
            common = (session, RAN, "", lot.phase, digest(text), method)
            events.append(Event(*common, attempt=number, read=tokens, note=str(len(examples))))
            tokens = 0  # the first of them has it
        con.executemany("INSERT INTO names VALUES (?, ?) ON CONFLICT DO NOTHING", names.items())
    append(con, events)


def _needs(con: Connection, lots: Collection[Lot]) -> Iterator[Need]:
    """Yield what each example would be charged in each phase, by all lots together."""
    added: dict[str, Counter[str]] = {phase: Counter() for phase in INSIDE}
    for lot in lots:
        added[lot.phase].update(lot.passes)
    for phase, passes in added.items():
        examples = [example for example, number in passes.items() if number]
        for at in range(0, len(examples), _MANY):
            part = examples[at : at + _MANY]
            marks = ", ".join("?" * len(part))
            statement = (
                f"SELECT example, sum(sent) FROM passes WHERE scope = ? AND example IN ({marks}) GROUP BY example"  # noqa: S608 - question marks
            )
            used = {str(example): int(sent) for example, sent in con.execute(statement, (phase, *part)).fetchall()}
            for example in part:
                yield Need(phase, example, used.get(example, 0), passes[example])


@dataclass
class _Sum:
    """What the lots of one phase, or of one method, add up to."""

    passes: Counter[str] = field(default_factory=Counter)
    """By example."""
    others: set[str] = field(default_factory=set)
    tokens: int = 0

    def row(self, other: str) -> dict[str, int]:
        """Return it in the form of the report's other sums."""
        none = dict.fromkeys(("hits", "failed", "unknown", "answers", "guessed", "cut", "mass", "showing"), 0)
        total = self.passes.total()
        return {
            "examples": len(self.passes),
            f"{other}s": len(self.others),
            "passes": total,
            "attempts": total,
            "read": self.tokens,
            **none,
        }


class LotSums:
    """What a ledger's lots add up to, each example's passes counted exactly.

    Args:
        reader: the ledger.
        last: the number of the last record that counts; None for all.
        method: the name of the method whose lots count; None for all.
    """

    def __init__(self, reader: LedgerReader, last: int | None = None, *, method: str | None = None) -> None:
        self._reader = reader
        self._upto = "" if last is None else f" AND seq <= {int(last)}"
        if method is not None:
            self._upto += f" AND prompt = '{digest(method)}'"
        self._groups: dict[str, list[str]] = {}

    def phases(self) -> dict[str, dict[str, int]]:
        """Return what each phase's lots add up to."""
        return {name: found.row("prompt") for name, found in self._sums[0].items()}

    def methods(self) -> dict[str, dict[str, int]]:
        """Return what each method's lots add up to, by the digest of its name."""
        return {name: found.row("phase") for name, found in self._sums[1].items()}

    def spreads(self) -> dict[str, dict[int, int]]:
        """Return for each phase how many of its examples had how many passes."""
        return {name: dict(sorted(Counter(found.passes.values()).items())) for name, found in self._sums[0].items()}

    def passes_of(self, phase: str) -> Counter[str]:
        """Return how many passes each example had."""
        return self._sums[0].get(phase, _Sum()).passes

    @property
    def total(self) -> int:
        """How many passes there are in all."""
        return sum(found.passes.total() for found in self._sums[0].values())

    @property
    def tokens(self) -> int:
        """How many tokens they read."""
        return sum(found.tokens for found in self._sums[0].values())

    def most(self, sessions: Collection[str]) -> dict[str, int]:
        """Return for each phase the most passes that an example had when one of these sessions charged it."""
        used: dict[str, Counter[str]] = {phase: Counter() for phase in INSIDE}
        most: dict[str, int] = {}
        for session, phase, group, number in self._reader.select(
            f"SELECT session, phase, example, attempt FROM records WHERE state = 'ran'{self._upto} ORDER BY seq"  # noqa: S608 - a number
        ):
            for example in self._examples(group):
                used[phase][example] += number
                if session in sessions:
                    most[phase] = max(most.get(phase, 0), used[phase][example])
        return most

    @cached_property
    def _sums(self) -> tuple[dict[str, _Sum], dict[str, _Sum]]:
        phases: dict[str, _Sum] = {}
        methods: dict[str, _Sum] = {}
        for phase, method, group, number, tokens in self._reader.select(
            "SELECT phase, prompt, example, sum(attempt), sum(read) FROM records"  # noqa: S608 - a number
            f" WHERE state = 'ran'{self._upto} GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"
        ):
            for found, other in (
                (phases.setdefault(phase, _Sum()), method),
                (methods.setdefault(method, _Sum()), phase),
            ):
                found.passes.update(dict.fromkeys(self._examples(group), int(number)))
                found.others.add(other)
                found.tokens += int(tokens)
        return phases, methods

    def _examples(self, group: str) -> list[str]:
        if group not in self._groups:
            rows = list(self._reader.select("SELECT text FROM names WHERE digest = ?", group))
            if not rows:
                raise LedgerCorrupted(f"{self._reader.folder}: the list of examples {group} is missing")
            self._groups[group] = charged_examples(str(rows[0][0]))
        return self._groups[group]
