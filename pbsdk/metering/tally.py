"""The tally: what many texts under the same prompts will take, counted as they stream by.

A plan for a million texts can't render ten million queries. Where nothing is cached it needn't: each text is read once
for all prompts (`pbsdk.queries.grid`), repeated texts are found by fingerprints of eight bytes, which is all that
stays of a text, and whether a budget allows it depends on how many examples need how many passes. Only where the
ledger holds answers is each query looked up by its key.

Tokens are counted on all texts up to 1,000, and beyond that on 1,000 of them, drawn at random; the rest are estimated by their bytes, and
the plan says how far that may be off. Where a limit depends on tokens, they are counted on every text.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pbsdk.backend import MaskedLMBackend, MaskedQuery, Phase, Tokens, digest
from pbsdk.ledger.budget import Need, scope_of
from pbsdk.ledger.codec import WHOLE, query_key, set_digest
from pbsdk.ledger.reader import LedgerReader
from pbsdk.metering.meter import MeteredBackend
from pbsdk.queries.examples import Example
from pbsdk.queries.grid import Fingerprints, Grid, Shown

__all__ = ["COUNTED", "Counted", "Seen", "Tally", "TokenCount"]

COUNTED = 1000
"""On how many texts tokens are counted, where no limit depends on them."""


class Seen:
    """Which fingerprints have been seen, in eight bytes each: sorted runs, each more than half as long as all after it."""

    def __init__(self) -> None:
        self._runs: list[Fingerprints] = []

    def add(self, fingerprints: Fingerprints) -> npt.NDArray[np.bool_]:
        """Add fingerprints, and return which of them are seen for the first time."""
        distinct, first = np.unique(fingerprints, return_index=True)
        fresh = ~self.holds(distinct)
        run = distinct[fresh]
        while self._runs and len(self._runs[-1]) <= 2 * len(run):
            run = np.sort(np.concatenate([self._runs.pop(), run]))
        if len(run):
            self._runs.append(run)
        new = np.zeros(len(fingerprints), dtype=np.bool_)
        new[first[fresh]] = True
        return new

    def holds(self, fingerprints: Fingerprints) -> npt.NDArray[np.bool_]:
        """Return which of the fingerprints have been seen."""
        found = np.zeros(len(fingerprints), dtype=np.bool_)
        for run in self._runs:
            at = np.searchsorted(run, fingerprints)
            found |= run[np.minimum(at, len(run) - 1)] == fingerprints
        return found


class TokenTotal(NamedTuple):
    """How many tokens queries have."""

    expected: int
    most: int
    error: float = 0.0
    """By which share they may be off, with 95% confidence."""


@dataclass
class TokenCount:
    """How many tokens the queries of texts have: counted on all texts up to a number, on a sample of more, or always on all."""

    backend: MaskedLMBackend
    """What counts."""
    grid: Grid
    """What says how many bytes a query has."""
    bounded: bool = False
    """Count the most that queries can cost, too."""
    always: bool = False
    """Count on all texts, as a limit on tokens needs."""
    size: int = 0
    """The bytes of all queries."""
    largest: int = 0
    """The most tokens that one batch can cost; 0 unless all are counted."""
    _texts: int = 0
    _sample: list[Callable[[], list[MaskedQuery]]] = field(default_factory=list)
    """What returns the queries of each text of the sample."""
    _sum: tuple[int, int] = (0, 0)
    """The tokens counted so far, and the most of them."""
    _in_batch: tuple[int, int] = (0, 0)
    _generator: np.random.Generator = field(default_factory=lambda: np.random.default_rng(13))

    def add(self, sizes: npt.NDArray[np.int64], queries: Callable[[int], Callable[[], list[MaskedQuery]]]) -> None:
        """Add texts: the bytes of their queries, and a function that makes one of a text's number that returns its queries."""
        numbers = np.arange(self._texts, self._texts + len(sizes))
        places = np.where(numbers < COUNTED, numbers, (self._generator.random(len(sizes)) * (numbers + 1)).astype(int))
        for row in range(len(sizes)) if self.always else np.flatnonzero(places < COUNTED).tolist():
            if self.always:
                self._count(queries(row)())
            elif len(self._sample) < COUNTED:
                self._sample.append(queries(row))
            else:
                self._sample[places[row]] = queries(row)
        self._texts += len(sizes)
        self.size += int(sizes.sum())

    def _count(self, queries: Sequence[MaskedQuery]) -> None:
        tokens, most = self._sum
        for query in queries:
            expected, cost = self._tokens(query)
            queued, waiting = self._in_batch
            full = queued == self.backend.abilities.batch_size
            self._in_batch = (1, cost) if full else (queued + 1, waiting + cost)
            self.largest = max(self.largest, self._in_batch[1])
            tokens, most = tokens + expected, most + cost
        self._sum = tokens, most

    def _tokens(self, query: MaskedQuery) -> tuple[int, int]:
        return self.backend.count_tokens(query), self.backend.most_tokens(query) if self.bounded else 0

    @cached_property
    def total(self) -> TokenTotal:
        """How many tokens all texts have, once all are added."""
        if self.always:
            return TokenTotal(*self._sum)
        counts = np.array([self._counted(queries()) for queries in self._sample]).reshape(-1, 3)
        sizes, tokens, most = counts.T
        if self._texts <= COUNTED:
            return TokenTotal(int(tokens.sum()), int(most.sum()))
        share = self.size / sizes.sum()
        off = tokens - tokens.sum() / sizes.sum() * sizes
        error = 1.96 * off.std() * math.sqrt(len(off)) / max(1, tokens.sum())
        return TokenTotal(round(tokens.sum() * share), round(most.sum() * share), float(error))

    def _counted(self, queries: Sequence[MaskedQuery]) -> tuple[int, int, int]:
        expected, most = zip(*map(self._tokens, queries), strict=True)
        return sum(map(self.grid.size, queries)), sum(expected), sum(most)


@dataclass
class Counted:
    """What a step will take."""

    tokens: TokenCount
    queries: int = 0
    recalled: int = 0
    """Queries whose answer the ledger holds."""
    new: int = 0
    """Queries that would be sent."""
    fresh: int = 0
    """Passes that nobody has paid for."""
    _needs: Counter[tuple[str, int, int]] = field(default_factory=Counter)

    def need(self, scope: str, used: int, added: int, fresh: int, examples: int = 1) -> None:
        """Note examples that have used as much of a scope's limit, and that need as much in addition."""
        self._needs[scope, used, added] += examples
        self.fresh += fresh * examples

    @property
    def needs(self) -> list[Need]:
        """What a budget has to allow; examples that need the same are one need."""
        return [Need(scope, "", used, added, many) for (scope, used, added), many in self._needs.items()]


class Tally:
    """Counts what texts under a grid's templates will take, step after step.

    Args:
        backend: the model that would be asked, with its budget.
        ledger: a view of its run folder, whose answers are recalled.
        grid: the templates.
        tokens: the tokens they are asked for.
        screens: further token sets, answers for which serve a fit that screens the vocabulary.
    """

    def __init__(
        self,
        backend: MeteredBackend,
        ledger: LedgerReader,
        grid: Grid,
        tokens: Tokens | None = None,
        screens: Sequence[Tokens] = (),
    ) -> None:
        self._backend, self._budget, self._ledger, self._grid = backend, backend.budget, ledger, grid
        self._seen = [Seen() for _ in range(grid.ways)]
        self._rendered = Seen()
        self._exceptions: dict[int, set[int]] = {}
        self._prompts = [digest(name) for name in grid.names()]
        self._own = set_digest(tokens)
        larger = [] if tokens is None else backend.ledger.supersets(tokens)
        self._sets = list(dict.fromkeys([self._own, WHOLE, *larger, *map(set_digest, screens)]))
        """The sets whose answers serve, its own first."""
        self._recalls = self._any("answers") or self._any("inflight")
        self._paid = self._any("passes")

    def count(self, parts: Iterable[tuple[Phase, Iterable[Sequence[Example]]]], *, needed: bool) -> Counted:
        """Count a step: chunks of examples for each phase; if `needed`, what all templates show is asked about too."""
        budget = self._budget
        limited = budget.tokens is not None or (budget.money is not None and budget.price_per_1k_tokens > 0)
        counted = Counted(TokenCount(self._backend, self._grid, bounded=budget.counts_tokens, always=limited))
        for phase, chunks in parts:
            for chunk in chunks:
                shown = self._grid.read(chunk)
                for is_exception, run in groupby(range(len(chunk)), shown.exceptions.__getitem__):
                    rows = list(run)
                    if is_exception:
                        for row in rows:
                            self._count_exception(counted, chunk[row], phase, needed=needed)
                    else:
                        self._count_ordinary(
                            counted, chunk[rows[0] : rows[-1] + 1], shown, slice(rows[0], rows[-1] + 1), phase
                        )
        return counted

    def _count_ordinary(
        self, counted: Counted, examples: Sequence[Example], shown: Shown, rows: slice, phase: Phase
    ) -> None:
        grid = self._grid
        fingerprints, sizes = shown.fingerprints[:, rows], shown.sizes[:, rows]
        new = np.array([seen.add(row) for seen, row in zip(self._seen, fingerprints, strict=True)])[grid.way].T
        counted.queries += new.size
        for fingerprint, templates in self._exceptions.items():
            for at in templates:
                new[fingerprints[grid.way[at]] == fingerprint, at] = False
        if self._recalls:
            every = range(len(grid.templates))
            queries = [query for example in examples for query in grid.queries(example, every, phase)]
            answered, busy = self._looked_up(queries)
            counted.recalled += int(answered.sum())
            new &= ~(answered | busy).reshape(new.shape)
        counted.new += int(new.sum())
        asked = np.flatnonzero(new.any(axis=1)).tolist()
        self._charge(counted, [examples[row] for row in asked], new[asked], phase)
        each = sizes[grid.way].T + grid.sizes
        counted.tokens.add(
            (each * new)[asked].sum(axis=1),
            lambda row: partial(grid.queries, examples[asked[row]], np.flatnonzero(new[asked[row]]).tolist(), phase),
        )

    def _count_exception(self, counted: Counted, example: Example, phase: Phase, *, needed: bool) -> None:
        queries = self._grid.render(example, phase, needed=needed)
        answered, busy = self._looked_up(queries) if self._recalls else np.zeros((2, len(queries)), dtype=np.bool_)
        new = [
            query for query, known in zip(queries, answered | busy, strict=True) if not known and self._is_first(query)
        ]
        counted.queries += len(queries)
        counted.recalled += int(answered.sum())
        counted.new += len(new)
        if new:
            self._charge_one(counted, scope_of(phase), example, [digest(query.prompt) for query in new])
            counted.tokens.add(np.array([sum(map(self._grid.size, new))]), lambda _: lambda: new)

    def _is_first(self, query: MaskedQuery) -> bool:
        """Return whether no query before showed the same, and remember this one."""
        place = self._grid.place(query)
        if place is None:
            return bool(self._rendered.add(np.array([int(query.content[:16], 16)], dtype=np.uint64))[0])
        template, fingerprint = place
        same = np.array([fingerprint], dtype=np.uint64)
        known = self._exceptions.setdefault(fingerprint, set())
        if template in known or self._seen[self._grid.way[template]].holds(same)[0]:
            return False
        known.add(template)
        return True

    def _looked_up(self, queries: Sequence[MaskedQuery]) -> npt.NDArray[np.bool_]:
        """Return which queries have an answer that serves them, and which are being asked."""
        model = self._backend.identity.digest
        keys = [[query_key(model, query.content, name) for name in self._sets] for query in queries]
        answered = self._ledger.among("answers", [key for group in keys for key in group])
        busy = self._ledger.among("inflight", [group[0] for group in keys])
        return np.array(
            [[not answered.isdisjoint(group) for group in keys], [group[0] in busy for group in keys]], dtype=np.bool_
        )

    def _any(self, table: str) -> bool:
        return bool(list(self._ledger.select(f"SELECT 1 FROM {table} LIMIT 1")))  # noqa: S608 - our own names

    def _charge(self, counted: Counted, examples: Sequence[Example], new: npt.NDArray[np.bool_], phase: Phase) -> None:
        scope = scope_of(phase)
        if self._paid:
            for example, row in zip(examples, new, strict=True):
                self._charge_one(counted, scope, example, [self._prompts[at] for at in np.flatnonzero(row).tolist()])
            return
        for added, many in zip(*np.unique(new.sum(axis=1), return_counts=True), strict=True):
            counted.need(scope, 0, int(added), int(added), int(many))

    def _charge_one(self, counted: Counted, scope: str, example: Example, prompts: Sequence[str]) -> None:
        rows = list(
            self._ledger.select(
                "SELECT prompt, held + sent, held + sent - failed FROM passes WHERE scope = ? AND example = ?",
                scope,
                example.id,
            )
        )
        paid = {prompt for prompt, _, ran in rows if ran > 0}
        fresh = len(set(prompts) - paid)
        if self._budget.strict:
            counted.need(scope, sum(tries for _, tries, _ in rows), len(prompts), fresh)
        else:
            counted.need(scope, len(paid), fresh, fresh)
