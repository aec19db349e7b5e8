"""The data that comes with pbsdk: support tickets to be routed to four departments.

>>> tickets = load_tickets()
>>> len(tickets.train), len(tickets.validation), len(tickets.test)
(64, 64, 160)
>>> sorted(set(tickets.train.labels))
['account', 'billing', 'shipping', 'technical']
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources

__all__ = ["Split", "Tickets", "load_tickets"]


@dataclass(frozen=True)
class Split:
    """Texts and their labels."""

    texts: list[str]
    labels: list[str]

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class Tickets:
    """Support tickets of an online shop: 16, 16 and 40 texts for each of four departments."""

    train: Split
    validation: Split
    test: Split


def load_tickets() -> Tickets:
    """Load the support tickets, which were written for pbsdk and share its licence."""
    return Tickets(_split("train"), _split("validation"), _split("test"))


def _split(name: str) -> Split:
    lines = (resources.files("pbsdk") / "data" / "ticket_texts" / f"{name}.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return Split([row["text"] for row in rows], [row["label"] for row in rows])
