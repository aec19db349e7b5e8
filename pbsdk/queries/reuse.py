"""The guard against scoring on examples that have chosen too much already.

Choosing prompts on a validation set is fine, and so is choosing the number of rounds on it. But the
score on examples that did both says how well the choice fits them, not how good the classifier is.
A refined pool remembers the examples that chose it, `fit` those that chose the rounds.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from pbsdk.queries.examples import Example

__all__ = ["ReusedExamplesWarning", "warn_of_reuse"]


class ReusedExamplesWarning(UserWarning):
    """The same examples chose the prompts, chose the number of rounds and report the score."""


def warn_of_reuse(scored: Sequence[Example], chose_all: AbstractSet[str]) -> None:
    """Warn if examples that chose both prompts and rounds are scored on."""
    reused = sum(example.id in chose_all for example in scored)
    if reused:
        warnings.warn(
            f"{reused} of {len(scored)} scored examples chose the prompts and the number of rounds; the score is too "
            "good to be true of others: score on examples that chose nothing",
            ReusedExamplesWarning,
            stacklevel=3,
        )
