"""Counting a run folder: sums over its records, without holding them in memory.

Everything the report says comes from here. The records are first folded into *cells*, one for each
(phase, example, prompt), in a temporary table; phases, prompts and distributions are sums
over cells. Passes inside the model are counted beside them, from their lots. Times are counted separately: a batch of queries shares one latency, and a phase was at work
while at least one of its batches was at the model, however many processes asked side by side.
"""

from __future__ import annotations

from array import array
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pbsdk.ledger.budget import INSIDE, SCOPE_OF_PHASE, Totals
from pbsdk.ledger.lots import LotSums
from pbsdk.ledger.reader import LedgerReader

__all__ = ["Buckets", "Counter", "Times"]

Row = dict[str, int]
Spread = dict[int, int]
"""How many examples had how many passes."""

_CELLS = """SELECT phase, example, prompt, count(*) FILTER (WHERE state = 'sent') AS attempts,
        count(*) FILTER (WHERE state = 'hit') AS hits, count(*) FILTER (WHERE state = 'failed') AS failed,
        count(*) FILTER (WHERE state = 'unknown') AS unknown, count(*) FILTER (WHERE state = 'done') AS answers,
        coalesce(sum(read) FILTER (WHERE state = 'done'), 0) AS read,
        coalesce(sum(read) FILTER (WHERE state = 'unknown'), 0) AS guessed, count(*) FILTER (WHERE cut > 0) AS cut,
        coalesce(sum(mass) FILTER (WHERE state = 'done'), 0) AS mass,
        count(*) FILTER (WHERE mass > 0 AND state = 'done') AS showing
    FROM records WHERE phase <> '' AND state <> 'ran' GROUP BY phase, example, prompt"""

_CHARGES = f"""SELECT seq, session, scope, example, prompt, next = 'sent' AND last = 'failed' AS failed,
        CASE WHEN last IN ('done', 'unknown') THEN cost WHEN last = 'failed' THEN 0 ELSE read END AS tokens
    FROM (SELECT seq, session, {SCOPE_OF_PHASE} AS scope, example, prompt, state, read,
        coalesce(lead(state) OVER w, '') AS next, coalesce(lead(state, 2) OVER w, '') AS last, lead(read, 2) OVER w AS cost
        FROM records WHERE phase <> '' AND state NOT IN ('hit', 'ran') WINDOW w AS (PARTITION BY query ORDER BY seq)) AS steps
    WHERE state = 'reserved' AND next <> 'released'"""  # noqa: S608 - a constant
"""A row for each reservation that was not released: whose it was, and what became of it."""

_RUNNING = "count(*) OVER (PARTITION BY scope, example ORDER BY seq) AS n"
_FIRSTS = f"""SELECT session, scope, seq, {_RUNNING} FROM
    (SELECT scope, example, session, seq, row_number() OVER (PARTITION BY scope, example, prompt ORDER BY seq) AS place
        FROM charges WHERE NOT failed) AS sends
    WHERE place = 1"""  # noqa: S608 - a constant
"""The reservation that each pass was charged with."""

_SUMS = ("attempts", "hits", "failed", "unknown", "answers", "read", "guessed", "cut", "mass", "showing")
_STATES = ("done", "hit", "failed", "unknown")


@dataclass(frozen=True)
class Times:
    """When a phase's batches were at the model, and how long each answer took."""

    latencies: npt.NDArray[np.float64]
    """Microseconds for each answer of a batch, its share of the batch's, ascending."""
    reached: npt.NDArray[np.int64]
    """How many answers took at most so long."""
    busy: int
    """Microseconds in which at least one batch was out."""

    @property
    def answers(self) -> int:
        """How many answers there were."""
        return int(self.reached[-1]) if len(self.reached) else 0

    def percentile(self, share: float) -> float | None:
        """Return the latency of a query, in microseconds, that this share of the answers didn't exceed."""
        if not self.answers:
            return None
        place = min(self.answers - 1, int(share * self.answers))
        return float(self.latencies[np.searchsorted(self.reached, place, side="right")])


@dataclass
class Buckets:
    """Records by time: equal stretches from the first record to the last."""

    first: int
    width: int
    """Microseconds of each stretch."""
    counts: list[Row] = field(default_factory=list)


class Counter:
    """Sums over a run folder's records."""

    def __init__(self, reader: LedgerReader) -> None:
        self._reader = reader
        self._lots = LotSums(reader)
        reader.derive("cells", _CELLS)

    def phases(self) -> dict[str, Row]:
        """Return what each phase's records add up to."""
        return self._sums("phase", "prompt") | self._lots.phases()

    def prompts(self) -> dict[str, Row]:
        """Return what each prompt's records add up to, by the prompt's digest."""
        return self._sums("prompt", "phase") | self._lots.methods()

    def _sums(self, one: str, other: str) -> dict[str, Row]:
        names = ("examples", f"{other}s", "passes", *_SUMS)
        sums = ", ".join(f"sum({name})" for name in _SUMS)
        rows = self._reader.select(
            f"SELECT {one}, count(DISTINCT example), count(DISTINCT {other}),"  # noqa: S608 - our own names
            f" count(*) FILTER (WHERE attempts > failed), {sums}"
            f" FROM cells GROUP BY {one} ORDER BY {one}"
        )
        return {str(name): dict(zip(names, map(int, numbers), strict=True)) for name, *numbers in rows}

    def spreads(self) -> dict[str, Spread]:
        """Return for each phase how many of its examples had how many passes; those with none are left out."""
        asked = self._spread(
            "SELECT phase, n, count(*) FROM (SELECT phase, count(*) FILTER (WHERE attempts > failed) AS n FROM cells"
            " GROUP BY phase, example) AS examples WHERE n > 0 GROUP BY phase, n ORDER BY phase, n"
        )
        return asked | self._lots.spreads()

    def scopes(self, *, strict: bool) -> dict[str, Spread]:
        """Return for each scope how many examples have used how much of it, in the budget's unit."""
        unit = "sum(held + sent)" if strict else "count(*) FILTER (WHERE held + sent > failed)"
        asked = self._spread(
            "SELECT scope, n, count(*) FROM"  # noqa: S608 - constants
            f" (SELECT scope, {unit} AS n FROM passes WHERE scope NOT IN {INSIDE} GROUP BY scope, example) AS examples"
            " WHERE n > 0 GROUP BY scope, n ORDER BY scope, n"
        )
        return asked | self._lots.spreads()

    def askers(self) -> list[tuple[str, str, int, int, int, int]]:
        """Return session, scope, first and last time, sends and last reservation of whoever reserved or sent something."""
        return [
            (str(session), str(scope), int(first), int(last), int(sends), int(reserved))
            for session, scope, first, last, sends, reserved in self._reader.select(
                f"SELECT session, {SCOPE_OF_PHASE}, min(time), max(time), count(*) FILTER (WHERE state = 'sent')"  # noqa: S608 - constants only
                " + coalesce(sum(CASE WHEN state = 'ran' THEN attempt * CAST(note AS bigint) ELSE 0 END), 0),"
                " coalesce(max(seq) FILTER (WHERE state IN ('reserved', 'ran')), 0)"
                " FROM records WHERE state IN ('reserved', 'sent', 'ran') GROUP BY 1, 2 ORDER BY 1, 2"
            )
        ]

    def most(self, sessions: AbstractSet[str], *, strict: bool) -> dict[str, int]:
        """Return for each scope the most passes that an example had when one of these sessions charged it."""
        self._charge()
        counted = f"(SELECT session, scope, {_RUNNING} FROM charges) AS sends" if strict else "firsts"  # noqa: S608 - a constant
        rows = self._reader.select(f"SELECT session, scope, max(n) FROM {counted} GROUP BY 1, 2 ORDER BY 1, 2")  # noqa: S608 - likewise
        most: dict[str, int] = {}
        for session, scope, passes in rows:
            if session in sessions:
                most[str(scope)] = max(most.get(str(scope), 0), int(passes))
        return most | self._lots.most(sessions)

    def spent(self, last: int) -> Totals:
        """Return what everything cost that was reserved up to the record numbered `last`."""
        self._charge()
        ((passes, sends, failed, tokens),) = self._reader.select(
            "SELECT (SELECT count(*) FROM firsts WHERE seq <= ?), count(*), count(*) FILTER (WHERE failed),"
            " coalesce(sum(tokens), 0) FROM charges WHERE seq <= ?",
            last,
            last,
        )
        inside = LotSums(self._reader, last)
        ran = inside.total
        return Totals(int(passes) + ran, int(sends) + ran, int(failed), int(tokens) + inside.tokens)

    def _charge(self) -> None:
        self._reader.derive("charges", _CHARGES)
        self._reader.derive("firsts", _FIRSTS)

    def _spread(self, statement: str) -> dict[str, Spread]:
        spreads: dict[str, Spread] = {}
        for name, passes, examples in self._reader.select(statement):
            spreads.setdefault(str(name), {})[int(passes)] = int(examples)
        return spreads

    def requests(self) -> int:
        """Return how often the backend was called: the queries of a batch are all sent at the same moment."""
        ((count,),) = self._reader.select(
            "SELECT count(*) FROM (SELECT DISTINCT session, time FROM records WHERE state = 'sent') AS batches"
        )
        return int(count)

    def in_flight(self) -> Row:
        """Return how many queries are reserved and sent at this moment."""
        return {
            str(state): int(n)
            for state, n in self._reader.select("SELECT state, count(*) FROM inflight GROUP BY 1 ORDER BY 1")
        }

    def times(self) -> dict[str, Times]:
        """Return each phase's latencies and its time at the model, and under '' those of all phases together."""
        ends, spans, whole, answers, arrived = (_Columns() for _ in range(5))
        for phase, state, moment, latency, count in self._reader.select(
            "SELECT phase, state, time, latency, count(*) FROM records WHERE latency > 0 AND state IN ('done', 'failed', 'unknown')"
            " GROUP BY 1, 2, 3, 4 ORDER BY 3, 1, 2, 4"
        ):
            ends.add(phase, moment)
            spans.add(phase, latency)
            if state == "done":
                whole.add(phase, latency)
                answers.add(phase, count)
                arrived.add(phase, moment)
        batches, places = np.unique(arrived.all(), return_inverse=True)  # the answers of a batch arrive at one moment
        sizes = np.bincount(places, answers.all(), len(batches))

        def times(phase: str | None) -> Times:
            latencies, counts, moments, stops, lengths = (
                columns.all() if phase is None else columns[phase] for columns in (whole, answers, arrived, ends, spans)
            )
            shares = latencies / sizes[np.searchsorted(batches, moments)]
            order = np.argsort(shares, kind="stable")
            return Times(shares[order], np.cumsum(counts[order]), _union(stops, lengths))

        return {phase: times(phase) for phase in ends.names()} | {"": times(None)}

    def asking(self) -> dict[tuple[str, str], float]:
        """Return the seconds that each (example, prompt digest) was at the model: its share of its batches."""
        return {
            (str(example), str(prompt)): float(share) / 1e6
            for example, prompt, share in self._reader.select(
                "SELECT example, prompt, sum(share) FROM (SELECT example, prompt, latency * 1.0 / count(*) OVER (PARTITION BY session,"
                " time) AS share FROM records WHERE state = 'done' AND phase <> '') AS answers GROUP BY 1, 2 ORDER BY 1, 2"
            )
        }

    def timeline(self, most: int) -> Buckets:
        """Return answers, hits, failures and unknown outcomes over time, in at most `most` stretches."""
        ((first, last),) = self._reader.select("SELECT coalesce(min(time), 0), coalesce(max(time), 0) FROM records")
        width = max(1, -(-(int(last) - int(first) + 1) // most))
        counts = [dict.fromkeys(_STATES, 0) for _ in range((int(last) - int(first)) // width + 1)]
        for bucket, state, n in self._reader.select(
            "SELECT (time - ?) / ?, state, count(*) FROM records WHERE state IN ('done', 'hit', 'failed', 'unknown')"
            " GROUP BY 1, 2 ORDER BY 1, 2",
            int(first),
            width,
        ):
            counts[int(bucket)][str(state)] = int(n)
        return Buckets(int(first), width, counts)


class _Columns:
    """Lists of numbers by name, eight bytes each."""

    def __init__(self) -> None:
        self._columns: dict[str, array[int]] = {}

    def add(self, name: str, value: Any) -> None:
        self._columns.setdefault(name, array("q")).append(value)

    def names(self) -> list[str]:
        return list(self._columns)

    def __getitem__(self, name: str) -> npt.NDArray[np.int64]:
        return np.array(self._columns.get(name, array("q")), dtype=np.int64)

    def all(self) -> npt.NDArray[np.int64]:
        """Return the columns one after the other."""
        return np.concatenate([np.empty(0, np.int64), *(self[name] for name in self._columns)])


def _union(ends: npt.NDArray[np.int64], spans: npt.NDArray[np.int64]) -> int:
    """Return the length of the union of stretches that end at `ends` and are `spans` long.

    >>> _union(np.array([10, 12, 30]), np.array([10, 5, 4]))
    16
    """
    if not len(ends):
        return 0
    order = np.argsort(ends - spans, kind="stable")
    starts, stops = (ends - spans)[order], ends[order]
    reached = np.maximum.accumulate(stops)
    begins = np.concatenate([starts[:1], np.maximum(starts[1:], reached[:-1])])
    return int(np.maximum(0, stops - begins).sum())
