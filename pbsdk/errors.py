"""Everything pbsdk raises, so that one `except PbsdkError` is enough.

    PbsdkError
    ├── InputError               texts, labels or parameters that can't work (also a ValueError)
    │   └── TemplateError        a prompt that can't work
    ├── SetupError               a backend that can't be made
    │   ├── UnknownBackend       no adapter of that name
    │   ├── MissingExtra         the adapter's packages are not installed (also an ImportError)
    │   └── ModelUnusable        no such model, broken weights, no mask, no such device
    ├── BackendError             a query that was not answered
    │   ├── BackendUnavailable   retryable; did not run
    │   ├── BackendTimeout       retryable; may have run
    │   ├── QueryRefused         final; did not run
    │   │   └── NotRecorded      a replay has no such answer
    │   └── BadAnswer            retryable; ran
    ├── BudgetExceeded           the budget doesn't allow it; says what was sent, if anything was
    ├── LedgerError              the run folder can't be used
    │   ├── LedgerMismatch       written by another model or a newer pbsdk
    │   └── LedgerCorrupted      its content doesn't match its digests
    ├── RecordingError           a recording that can't be read or written
    └── ModelFileError           a saved classifier that can't be read

A `BackendError` answers the three questions that a meter must ask: can the same query succeed later
(`retryable`), may it have run, so that it must be paid for (`may_have_run`), and how long to wait
(`retry_after`, in seconds). The queries of a batch needn't share one fate: `answered` holds the part that did
succeed, and `failures` the errors of those that failed in a way of their own.

A `BudgetExceeded` carries what it means, so that a command line or a page can name the cure in its own words.

>>> refused = BudgetExceeded("12 passes are too many", limit="passes", allowed=10, asked=12, left=10, needed=12)
>>> print(refused)
12 passes are too many. None of it was sent. To allow it: connect(..., budget=QueryBudget(passes=12)), or use fewer prompts
>>> print(refused.with_cure("--budget 12"))
12 passes are too many. None of it was sent. To allow it: --budget 12, or use fewer prompts
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Any, ClassVar, Protocol

from pbsdk.visible import visible

__all__ = [
    "BackendError",
    "BackendTimeout",
    "BackendUnavailable",
    "BadAnswer",
    "BudgetExceeded",
    "InputError",
    "LedgerCorrupted",
    "LedgerError",
    "LedgerMismatch",
    "MissingExtra",
    "ModelFileError",
    "ModelUnusable",
    "NotRecorded",
    "PbsdkError",
    "QueryRefused",
    "RecordingError",
    "SetupError",
    "TemplateError",
    "UnknownBackend",
]


class PbsdkError(Exception):
    """The root of the tree; control characters that a message quotes are shown, not sent to the terminal."""

    def __str__(self) -> str:
        return visible(self._said())

    def _said(self) -> str:
        return super().__str__()


class InputError(PbsdkError, ValueError):
    """Texts, labels or parameters that can't work; raised before anything is sent.

    Args:
        problem: what is wrong, in words; where a setting would cure it, the sentence up to the setting's name.
        setting: the Python name of the parameter that would cure it; each front has its own name for it.
        value: what to set it to, as Python writes it.
    """

    def __init__(self, problem: str = "", *, setting: str = "", value: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.setting = setting
        self.value = value

    def _said(self) -> str:
        return f"{self.problem} {self.setting}={self.value}" if self.setting else self.problem


class TemplateError(InputError):
    """A prompt that can't work."""


class SetupError(PbsdkError):
    """A backend that can't be made."""


class UnknownBackend(SetupError):
    """No adapter is registered under that name."""


class MissingExtra(SetupError, ImportError):
    """The adapter's packages are not installed."""


class ModelUnusable(SetupError):
    """No such model, broken weights, no mask or head, or no such device."""


class Answer(Protocol):
    """What a model answered to one query: the part of `pbsdk.backend.MaskDistribution` that an error needs to know."""

    @property
    def codes(self) -> Sized:
        """A code for each token shown."""

    @property
    def read_tokens(self) -> int:
        """How many tokens the model read."""


class BackendError(PbsdkError):
    """A batch of queries that was not, or only partly, answered.

    Args:
        message: what went wrong, and the cure if there is one.
        retryable: whether the same queries can succeed later.
        may_have_run: whether the queries may have run, so that they must be paid for.
        retry_after: how many seconds to wait before that.
        answered: the answers that did come, by their position in the batch.
        failures: by their position, why queries failed for which something else is true than for the rest. An error of `stream`
            names every query that failed.
    """

    default_retryable: ClassVar[bool] = False
    default_may_have_run: ClassVar[bool] = False

    def __init__(  # noqa: PLR0913 - independent facts, all keywords
        self,
        message: str,
        *,
        retryable: bool | None = None,
        may_have_run: bool | None = None,
        retry_after: float | None = None,
        answered: Mapping[int, Answer] | None = None,
        failures: Mapping[int, BackendError] | None = None,
    ) -> None:
        super().__init__(message)
        self.retryable = self.default_retryable if retryable is None else retryable
        self.may_have_run = self.default_may_have_run if may_have_run is None else may_have_run
        self.retry_after = retry_after
        self.answered: Mapping[int, Answer] = answered or {}
        self.failures: Mapping[int, BackendError] = failures or {}

    def each(self, count: int) -> dict[int, BackendError]:
        """Return why each of `count` queries failed that was not answered, by position."""
        return {place: self.failures.get(place, self) for place in range(count) if place not in self.answered}


class BackendUnavailable(BackendError):
    """The model could not be reached, is loading, or asks the caller to wait."""

    default_retryable = True


class BackendTimeout(BackendError):
    """Sent, and the outcome is unknown."""

    default_retryable = True
    default_may_have_run = True


class QueryRefused(BackendError):
    """The model's server refused the query, and would refuse it again."""


class NotRecorded(QueryRefused):
    """The recording holds no such answer; no model was asked."""


class BadAnswer(BackendError):
    """The answer can't be right, and is not used."""

    default_retryable = True
    default_may_have_run = True


class BudgetExceeded(PbsdkError):
    """The budget doesn't allow the queries, or what is left of them.

    Args:
        problem: what is wrong, in words, without the cure.
        limit: the field of `QueryBudget` that is exceeded: `passes`, `predict` (both per example), `total`,
            `attempts`, `tokens` or `money`.
        allowed: the limit's value.
        asked: how much more was asked for; for a limit per example, by the example that asked for the most.
        left: how much of the limit was left.
        needed: the smallest limit that would allow it.
        sent: how many queries the same call had sent before, retries included.
        kept: how many answers it got for them; they are stored.
    """

    def __init__(  # noqa: PLR0913 - independent settings, all keywords
        self,
        problem: str,
        *,
        limit: str = "",
        allowed: float = 0,
        asked: float = 0,
        left: float = 0,
        needed: int = 0,
        sent: int = 0,
        kept: int = 0,
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.limit = limit
        self.allowed = allowed
        self.asked = asked
        self.left = left
        self.needed = needed
        self.sent = sent
        self.kept = kept

    @property
    def per_example(self) -> bool:
        """Whether the limit applies to each example rather than to the whole run folder."""
        return self.limit in {"passes", "predict"}

    def _said(self) -> str:
        if not self.limit:
            return self.problem
        return self.with_cure(f"connect(..., budget=QueryBudget({self.limit}={self.needed}))")

    def with_cure(self, cure: str) -> str:
        """Return the message with the cure in the caller's own words."""
        fewer = ", or use fewer prompts" if self.per_example else ""
        return f"{self.problem}. {self._sent()}. To allow it: {cure}{fewer}"

    def _sent(self) -> str:
        if not self.sent:
            return "None of it was sent"
        return (
            f"{self.sent} queries were sent before that, retries included, and {self.kept} answers came and are kept; "
            "nothing more was sent"
        )

    def during(self, what: str) -> BudgetExceeded:
        """Return the same refusal, preceded by what was being done."""
        return self._but(problem=f"{what}: {self.problem}")

    def after(self, sent: int, kept: int) -> BudgetExceeded:
        """Return the same refusal of a call that had sent queries before, and got answers."""
        return self._but(sent=sent, kept=kept)

    def _but(self, **changes: Any) -> BudgetExceeded:
        facts = {name: value for name, value in vars(self).items() if not name.startswith("_")}  # not its notes
        return BudgetExceeded(**{**facts, **changes})


class LedgerError(PbsdkError):
    """The run folder can't be used."""


class LedgerMismatch(LedgerError):
    """The run folder was written by another model or a newer pbsdk."""


class LedgerCorrupted(LedgerError):
    """The run folder's content doesn't match its own digests."""


class RecordingError(PbsdkError):
    """A recording that can't be read or written."""


class ModelFileError(PbsdkError):
    """A saved classifier that can't be read."""
