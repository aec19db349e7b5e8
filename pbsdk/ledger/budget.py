"""What may be spent, and what counts as spending.

The unit is one forward pass: one example under one prompt. Asking for the same pass again (a retry,
or the same prompt for different tokens) is another *attempt*, not another pass, unless the budget is
`strict`. Each example has a limit per *scope*: training, validation and refinement share the scope
`fit`, and prediction has its own. Generating prompts and probing a model have no limit per example, and
count in the totals. Totals, attempts, tokens and money can be limited too, over the whole run folder.

A method that looks into a model (`pbsdk.ledger.lots`) has passes of two kinds, forward and backward, each a scope of its own. There
every pass counts, whatever it repeats.

A budget holds limits only. What was spent is in the ledger, which calls `check` inside the
transaction that reserves, so that two processes can't both take the last pass. Passes and attempts are
whole numbers known beforehand. Tokens are reserved at the most that a query can cost and settled at what was
read; should a model report more than that, `check_next` stops it before the next batch.

>>> print(QueryBudget.of(10).describe())
at most 10 passes per example over training, validation and refinement, and 10 for prediction; a pass is one example under one prompt, and repeating it doesn't count again
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Self

from pbsdk.backend import Phase
from pbsdk.errors import BudgetExceeded, InputError

__all__ = [
    "BACKWARD",
    "FIT",
    "FORWARD",
    "INSIDE",
    "PREDICT",
    "SCOPES",
    "SCOPE_OF_PHASE",
    "Need",
    "QueryBudget",
    "Totals",
    "scope_of",
]

FIT = "fit"
PREDICT = "predict"
FORWARD = "forward"
BACKWARD = "backward"
INSIDE = (FORWARD, BACKWARD)
"""The scopes of passes through a model that is looked into."""
SCOPES = (FIT, PREDICT, *INSIDE)
"""The scopes with a limit per example."""

_FIT_PHASES = (Phase.TRAIN, Phase.VALIDATE, Phase.REFINE)
_QUOTED = ", ".join(f"'{phase}'" for phase in _FIT_PHASES)
SCOPE_OF_PHASE = f"CASE WHEN phase IN ({_QUOTED}) THEN '{FIT}' ELSE phase END"
"""`scope_of` in SQL, over a column `phase`."""
_WHERE = {
    FIT: "over training, validation and refinement",
    PREDICT: "for prediction",
    FORWARD: "forward, inside the model",
    BACKWARD: "backward, inside the model",
}
_FIELD = {FIT: "passes", PREDICT: "predict", FORWARD: "forward", BACKWARD: "backward"}


def scope_of(phase: str) -> str:
    """Return the scope that a phase is charged to.

    >>> scope_of("validate"), scope_of("predict"), scope_of("probe")
    ('fit', 'predict', 'probe')
    """
    return FIT if phase in _FIT_PHASES else str(phase)


@dataclass(frozen=True, slots=True)
class Need:
    """What one example has used of its scope's limit, and what is asked in addition."""

    scope: str
    example: str
    used: int
    added: int
    examples: int = 1
    """How many examples are alike in this."""


@dataclass(frozen=True, slots=True)
class Totals:
    """What a run folder has spent or reserved in all."""

    passes: int = 0
    """Distinct (example, prompt) pairs that ran, may have run, or are reserved."""
    sends: int = 0
    """Sends so far and reserved sends, retries included."""
    failed: int = 0
    """Sends that certainly did not run."""
    tokens: int = 0
    """Tokens read, plus the most that what is reserved or unknown can cost."""


@dataclass(frozen=True)
class QueryBudget:
    """How many forward passes an example may have, and what counts as one.

    None sets no limit. `passes` and `predict` apply to each example; the others apply to the whole
    run folder. `money` needs a price: `price_per_pass` is paid for each send that may have run,
    `price_per_1k_tokens` for what is read.
    """

    passes: int | None = 10
    """Passes an example may have in training, validation and refinement together."""
    predict: int | None = 10
    """Passes an example may have in prediction."""
    total: int | None = None
    """Passes in all."""
    attempts: int | None = None
    """Sends in all, retries included."""
    tokens: int | None = None
    """Tokens read in all."""
    money: float | None = None
    """Money in all, in the currency of the prices."""
    price_per_pass: float = 0.0
    price_per_1k_tokens: float = 0.0
    strict: bool = False
    """Count every send as a pass, even one that repeats another."""
    forward: int | None = None
    """Forward passes an example may have inside a model that is looked into."""
    backward: int | None = None
    """Backward passes likewise."""

    def __post_init__(self) -> None:
        for name in ("passes", "predict", "total", "attempts", "tokens", "forward", "backward"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise InputError(
                    f"a budget's {name} must be a whole number of at least 0, or None for no limit; not {value!r}"
                )
        for name in ("money", "price_per_pass", "price_per_1k_tokens"):
            value = getattr(self, name)
            if value is None and name == "money":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
                raise InputError(f"a budget's {name} must be an amount of at least 0; not {value!r}")
        if not isinstance(self.strict, bool):
            raise InputError(f"a budget's strict must be True or False; not {self.strict!r}")
        if self.money is not None and not self.priced:
            raise InputError(
                "a budget of money needs a price, of a pass or of what is read; set", setting="price_per_1k_tokens"
            )

    @classmethod
    def of(cls, budget: QueryBudget | int | None) -> QueryBudget:
        """Read the short forms: a number is passes per example, None is no limit.

        >>> QueryBudget.of(3) == QueryBudget(passes=3, predict=3)
        True
        """
        if isinstance(budget, QueryBudget):
            return budget
        if budget is not None and not isinstance(budget, int):
            raise InputError(f"a budget must be a number of passes per example, a QueryBudget, or None; not {budget!r}")
        return cls(passes=budget, predict=budget)

    @property
    def priced(self) -> bool:
        """Whether spending can be expressed in money."""
        return self.price_per_pass > 0 or self.price_per_1k_tokens > 0

    @property
    def counts_tokens(self) -> bool:
        """Whether tokens must be counted before sending."""
        return self.tokens is not None or self.price_per_1k_tokens > 0

    def limit(self, scope: str) -> int | None:
        """Return the passes an example may have in a scope."""
        name = _FIELD.get(scope)
        limit: int | None = None if name is None else getattr(self, name)
        return limit

    def cost(self, totals: Totals) -> float:
        """Return what the totals cost in money."""
        return self.price_per_pass * (totals.sends - totals.failed) + self.price_per_1k_tokens * totals.tokens / 1000

    def counted(self, totals: Totals) -> int:
        """Return the passes in all, in this budget's unit."""
        return totals.sends if self.strict else totals.passes

    def describe(self) -> str:
        """Describe the limits, their unit and their scope in one sentence."""

        def many(limit: int | None) -> str:
            return "any number of" if limit is None else f"at most {limit}"

        def each(limit: int | None) -> str:
            return "any number" if limit is None else str(limit)

        limits = [f"{many(self.passes)} passes per example {_WHERE[FIT]}, and {each(self.predict)} {_WHERE[PREDICT]}"]
        limits += [
            f"at most {limit} passes per example {_WHERE[scope]}"
            for scope in INSIDE
            if (limit := self.limit(scope)) is not None
        ]
        limits += [
            f"{amount} {unit} in all"
            for amount, unit in (
                (self.total, "passes"),
                (self.attempts, "attempts"),
                (self.tokens, "tokens"),
                (self.money, "units of currency"),
            )
            if amount is not None
        ]
        again = "repeating it counts again" if self.strict else "repeating it doesn't count again"
        return f"{'; '.join(limits)}; a pass is one example under one prompt, and {again}"

    def check(self, needs: Sequence[Need], before: Totals, after: Totals) -> None:
        """Raise `BudgetExceeded` if going from `before` to `after` exceeds a limit.

        `needs` are the examples that would be charged; those that add nothing may be left out.
        """
        for scope in SCOPES:
            self._check_scope(scope, [need for need in needs if need.scope == scope and need.added > 0])
        self._check_total("total", "passes", self.counted(before), self.counted(after))
        self._check_total("attempts", "attempts", before.sends, after.sends)
        self._check_total("tokens", "tokens", before.tokens, after.tokens)
        self._check_money(self.cost(before), self.cost(after))

    def covers(self, totals: Totals) -> bool:
        """Return whether the totals are within the limits on tokens and money."""
        tokens = self.tokens is None or totals.tokens <= self.tokens
        return tokens and (self.money is None or self.cost(totals) <= self.money * (1 + 1e-9))

    def check_next(self, spent: Totals, batch: Totals, everything: Totals) -> None:
        """Raise `BudgetExceeded` if a batch that was reserved no longer fits beside what was really spent.

        `spent` holds what is settled or at the model, `batch` the batch as well, and `everything` all that is reserved too.
        """
        self._check_total("tokens", "tokens", spent.tokens, batch.tokens, needed=everything.tokens)
        self._check_money(self.cost(spent), self.cost(batch), self.cost(everything))

    def _check_scope(self, scope: str, needs: Sequence[Need]) -> None:
        allowed = self.limit(scope)
        if allowed is None:
            return
        over = [need for need in needs if need.used + need.added > allowed]
        if over:
            worst = max(over, key=lambda need: need.used + need.added)
            left = max(0, allowed - worst.used)
            many, every = (sum(need.examples for need in some) for some in (over, needs))
            raise BudgetExceeded(
                f"{many} of {every} examples would exceed the budget of {allowed} passes per example "
                f"{_WHERE[scope]}: {worst.added} more asked for one where {left} are left",
                limit=_FIELD[scope],
                allowed=allowed,
                asked=worst.added,
                left=left,
                needed=worst.used + worst.added,
            )

    def _check_total(self, name: str, unit: str, used: int, then: int, *, needed: int = 0) -> None:
        allowed: int | None = getattr(self, name)
        if allowed is not None and then > used and then > allowed:
            asked, left = then - used, max(0, allowed - used)
            most = "up to " if name == "tokens" else ""
            raise BudgetExceeded(
                f"the budget of {allowed} {unit} in all doesn't allow it: {most}{asked} more asked, {left} left",
                limit=name,
                allowed=allowed,
                asked=asked,
                left=left,
                needed=max(then, needed),
            )

    def _check_money(self, spent: float, then: float, needed: float = 0.0) -> None:
        if self.money is not None and then > spent and then > self.money * (1 + 1e-9):
            asked, left = then - spent, max(0.0, self.money - spent)
            raise BudgetExceeded(
                f"the budget of {self.money:g} units of currency doesn't allow it: up to {asked:.6g} more asked, {left:.6g} left",
                limit="money",
                allowed=self.money,
                asked=asked,
                left=left,
                needed=math.ceil(max(then, needed)),
            )

    def to_dict(self) -> dict[str, int | float | bool | None]:
        """Return the limits by name."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, int | float | bool | None]) -> Self:
        """Read what `to_dict` wrote, ignoring names that this version doesn't know."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})  # type: ignore[arg-type]  # checked in __post_init__
