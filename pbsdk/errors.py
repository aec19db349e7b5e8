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
    ├── BudgetExceeded           the budget doesn't allow it; nothing was sent
    ├── LedgerError              the run folder can't be used
    │   ├── LedgerMismatch       written by another model or a newer pbsdk
    │   └── LedgerCorrupted      its content doesn't fit its digests
    ├── RecordingError           a recording that can't be read or written
    └── ModelFileError           a saved classifier that can't be read

A `BackendError` answers the three questions that a meter must ask: may the same query succeed later
(`retryable`), may it have run and so have to be paid for (`may_have_run`), and how long to wait
(`retry_after`, seconds). `answered` holds the part of a batch that did succeed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from pbsdk.backend import MaskDistribution

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
    """The root of the tree."""


class InputError(PbsdkError, ValueError):
    """Texts, labels or parameters that can't work; raised before anything is sent."""


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


class BackendError(PbsdkError):
    """A batch of queries that was not, or not wholly, answered."""

    default_retryable: ClassVar[bool] = False
    default_may_have_run: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        retryable: bool | None = None,
        may_have_run: bool | None = None,
        retry_after: float | None = None,
        answered: Mapping[int, MaskDistribution] | None = None,
    ) -> None:
        super().__init__(message)
        self.retryable = self.default_retryable if retryable is None else retryable
        self.may_have_run = self.default_may_have_run if may_have_run is None else may_have_run
        self.retry_after = retry_after
        self.answered: Mapping[int, MaskDistribution] = answered or {}


class BackendUnavailable(BackendError):
    """The model could not be reached, is loading, or asks for patience."""

    default_retryable = True


class BackendTimeout(BackendError):
    """Sent, and the outcome is unknown."""

    default_retryable = True
    default_may_have_run = True


class QueryRefused(BackendError):
    """The model's server says no, and will say no again."""


class NotRecorded(QueryRefused):
    """A recording holds no such answer; nothing was asked."""


class BadAnswer(BackendError):
    """An answer came that can't be right, and is not used."""

    default_retryable = True
    default_may_have_run = True


class BudgetExceeded(PbsdkError):
    """The budget doesn't allow the queries; none of them was sent."""


class LedgerError(PbsdkError):
    """The run folder can't be used."""


class LedgerMismatch(LedgerError):
    """The run folder was written by another model or a newer pbsdk."""


class LedgerCorrupted(LedgerError):
    """The run folder's content doesn't fit its own digests."""


class RecordingError(PbsdkError):
    """A recording that can't be read or written."""


class ModelFileError(PbsdkError):
    """A saved classifier that can't be read."""
