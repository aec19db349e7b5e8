"""How far an accuracy can be believed: with the interval that so many texts leave, and beside chance.

Twelve texts of which nine are right say 75%, and mean anything from 47% to 91%. So an accuracy is shown with Wilson's interval, and
with a warning where that holds the share of the largest class, which whoever always says that class would get.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pbsdk.formatting import number, percent

__all__ = ["Estimate", "largest_share", "wilson"]

Z = 1.959964
"""Of a normal distribution, 95% is within so many standard deviations."""

Kind = Literal["cross-validated", "validation"]


def wilson(share: float, count: int) -> tuple[float, float]:
    """Return Wilson's 95% interval of a share of so many.

    >>> [round(end, 3) for end in wilson(9 / 12, 12)]
    [0.468, 0.911]
    """
    square = Z**2 / count
    centre = (share + square / 2) / (1 + square)
    half = Z * float(np.sqrt(share * (1 - share) / count + square / count / 4)) / (1 + square)
    return max(0.0, centre - half), min(1.0, centre + half)


def largest_share(labels: npt.ArrayLike) -> float:
    """Return the share of the class that most labels name.

    >>> largest_share([0, 1, 1, 1])
    0.75
    """
    counts = np.bincount(np.asarray(labels))
    return float(counts.max() / counts.sum())


@dataclass(frozen=True)
class Estimate:
    """An accuracy on texts that a classifier didn't learn from, and what it is worth.

    >>> print(Estimate("validation", 0.75, 12, 0.5))
    accuracy on validation 75.0% (of 12 texts; 95% interval 46.8% to 91.1%)
    Warning: the interval holds 50.0%, the share of the largest class: so few texts don't tell this from chance; label more.
    """

    kind: Kind
    accuracy: float
    texts: int
    chance: float
    """The share of the largest class among these texts."""

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95% interval."""
        return wilson(self.accuracy, self.texts)

    @property
    def warning(self) -> str | None:
        """What to say where the accuracy can't be told from chance, or is below it."""
        low, high = self.interval
        if low > self.chance:
            return None
        share = f"{percent(self.chance)}, the share of the largest class"
        if high < self.chance:
            return f"this is below {share}: the classifier does worse than whoever always says that class."
        return f"the interval holds {share}: so few texts don't tell this from chance; label more."

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        low, high = self.interval
        return {
            "kind": self.kind,
            "accuracy": self.accuracy,
            "low": round(low, 6),
            "high": round(high, 6),
            "texts": self.texts,
            "chance": self.chance,
            "warning": self.warning,
        }

    @property
    def said(self) -> str:
        """The accuracy and its interval, in a line."""
        low, high = self.interval
        name = "cross-validated accuracy" if self.kind == "cross-validated" else "accuracy on validation"
        return f"{name} {percent(self.accuracy)} (of {number(self.texts)} texts; 95% interval {percent(low)} to {percent(high)})"

    def __str__(self) -> str:
        return self.said if self.warning is None else f"{self.said}\nWarning: {self.warning}"
