"""What `auto` tried, how each attempt did on examples it hadn't seen, and what came of it, as a table."""

from __future__ import annotations

import html
from typing import Any

from pydantic import BaseModel, ConfigDict

from pbsdk.formatting import aligned, html_table, percent

__all__ = ["Selection", "Tried"]

HEADER = ("weight", "accuracy", "loss", "head", "settings")

FIRST = 5
"""How many attempts a short table has."""


class Tried(BaseModel):
    """One attempt: a head and its settings, cross-validated."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    head: str
    settings: dict[str, float | int]
    loss: float
    """The mean negative log-likelihood of the labels of examples that were left out, calibrated."""
    accuracy: float
    """The share of examples left out that it gets right."""
    weight: float
    """Its share of the average that was chosen; 0: not chosen."""

    def said(self) -> str:
        """Return the settings in words."""
        return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in self.settings.items())


class Selection(BaseModel):
    """Everything that was tried, and how good the choice is."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    tried: tuple[Tried, ...]
    accuracy: float
    """Of the choice itself, on examples that neither taught nor chose it, where `nested`."""
    nested: bool
    """Whether the choice was cross-validated too, or only what it was made among."""
    text_accuracy: float | None
    """The best of the texts' own words alone (TF-IDF and a linear model): what costs no pass."""
    n_examples: int

    @property
    def choice(self) -> str:
        """Why this was chosen, in a sentence."""
        used = [one for one in self.tried if one.weight > 0]
        best = min(self.tried, key=lambda one: one.loss)
        said = f"On examples left out, {best.head} ({best.said()}) has the lowest loss"
        if len(used) > 1:
            said += f"; {len(used)} attempts are too close to tell apart, and are averaged"
        return f"{said}."

    @property
    def reason(self) -> str:
        """Why this was chosen, and how good it is."""
        said = f"{self.choice} Cross-validated accuracy {percent(self.accuracy)}"
        if self.text_accuracy is not None:
            said += f"; TF-IDF and a linear model on the same {self.n_examples} texts, at no pass: {percent(self.text_accuracy)}"
        return said + "."

    def to_dict(self) -> dict[str, Any]:
        """Return the table as plain data."""
        return {**self.model_dump(mode="json"), "reason": self.reason}

    def brief(self) -> str:
        """Return the attempts that weigh most, and why this was chosen."""
        return f"{aligned([HEADER, *self._cells()[:FIRST]])}\n{self.choice}"

    def __str__(self) -> str:
        return f"{aligned([HEADER, *self._cells()])}\n{self.reason}"

    def _repr_html_(self) -> str:
        return f"{html_table(HEADER, self._cells())}<p>{html.escape(self.reason)}</p>"

    def _cells(self) -> list[tuple[str, ...]]:
        ranked = sorted(self.tried, key=lambda one: (-one.weight, one.loss))
        return [(f"{one.weight:.3f}", percent(one.accuracy), f"{one.loss:.3f}", one.head, one.said()) for one in ranked]
