"""The meter of passes inside a model: what a white box may run, charged first and then counted down.

A method that looks into a model (`pbsdk.backend.Inside`) runs it itself, so no backend can stand between them. Instead it
charges a lot to the ledger (`pbsdk.ledger.lots`), which refuses what the budget doesn't allow, and whatever runs the model then
spends what was charged, example by example. A pass that nobody charged raises an error, so the
record can't say less than what ran.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from pbsdk.errors import LedgerError
from pbsdk.ledger.budget import BACKWARD, FORWARD, INSIDE
from pbsdk.ledger.lots import Lot
from pbsdk.ledger.writer import QueryLedger

__all__ = ["PassMeter"]


class PassMeter:
    """Charges the passes of one method to a ledger, and sees that no other runs.

    Args:
        ledger: where they are recorded; None allows no pass.
        method: what they are for, as the report will call it.

    Attributes:
        method: its name.
        charged: how many passes were charged so far, by phase (`forward`, `backward`).
    """

    def __init__(self, ledger: QueryLedger | None, method: str) -> None:
        self._ledger = ledger
        self.method = method
        self._left: dict[str, Counter[str]] = {phase: Counter() for phase in INSIDE}
        self.charged: Counter[str] = Counter()

    def charge(self, forward: Mapping[str, int], backward: Mapping[str, int] | None = None, *, tokens: int = 0) -> None:
        """Charge passes that are about to run: how many each example has, by its name.

        `tokens` are what the forward passes read together. Raises `BudgetExceeded`, and then none of them may run.
        """
        passes = {FORWARD: Counter(forward), BACKWARD: Counter(backward or {})}
        lots = [
            Lot(phase, self.method, many, tokens if phase == FORWARD else 0)
            for phase, many in passes.items()
            if many.total()
        ]
        if not lots:
            return
        if self._ledger is None:
            raise LedgerError("this meter has no ledger, so nothing may run")
        self._ledger.charge(lots)
        for phase, many in passes.items():
            self._left[phase].update(many)
            self.charged[phase] += many.total()

    def spend(self, phase: str, examples: Iterable[str]) -> None:
        """Count a pass of each of these examples; one that was not charged is an error, and must not run."""
        left = self._left[phase]
        for example in examples:
            if left[example] < 1:
                raise LedgerError(f"a {phase} pass of example {example} was not charged; charge it before it runs")
            left[example] -= 1

    @property
    def unspent(self) -> int:
        """How many passes were charged and did not run."""
        return sum(left.total() for left in self._left.values())
