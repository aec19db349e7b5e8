"""Fine-tuning: a classification head on the model, and all weights trained.

The head of a masked model sees the last hidden state of the first token, through a dense layer as RoBERTa's own has; that of a causal model sees the last
token's and is one matrix, as is customary for each. Settings as in the paper: AdamW at 1e-5 with linear decay, batches of 16, 100 epochs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pbsdk.queries.examples import Example
from pbsdk.reproduce.rivals import Contest
from pbsdk_rivals.adaptation import Adapted, Adapting
from pbsdk_rivals.box import Row, WhiteBox
from pbsdk_rivals.prompted import texts_of

__all__ = ["FineTuning"]

SPREAD = 0.02
"""The standard deviation with which a head begins."""


@dataclass(frozen=True)
class FineTuning(Adapting):
    """Standard fine-tuning."""

    name = "fine-tuning"
    title = "Fine-tuning"

    epochs: int = 100

    def updates(self, contest: Contest) -> int:
        """Return how many updates there are."""
        return self.epochs * self.per_epoch(contest)

    def learner(self, contest: Contest) -> FineTuned:
        """Return the learner."""
        return FineTuned(self, contest, WhiteBox(contest.backend, contest.meter))

    def parameters(self, contest: Contest) -> int:
        """Return the size of the model's body and the head's."""
        box = WhiteBox(contest.backend, contest.meter)
        body: int = sum(weight.numel() for weight in box.model.base_model.parameters())
        return body + sum(weight.numel() for weight in _head(box, len(contest.classes)).parameters())


def _head(box: WhiteBox, n_classes: int) -> nn.Module:
    """Return the head that is customary for the model's kind."""
    if box.causal:
        layers: list[nn.Module] = [nn.Linear(box.width, n_classes, bias=False)]
    else:
        dense, last = nn.Linear(box.width, box.width), nn.Linear(box.width, n_classes)
        layers = [nn.Dropout(0.1), dense, nn.Tanh(), nn.Dropout(0.1), last]
    for layer in layers:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=SPREAD)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


class FineTuned(Adapted):
    """A model with a head."""

    def __init__(self, rival: FineTuning, contest: Contest, box: WhiteBox) -> None:
        self._rows: dict[str, Row] = {}
        super().__init__(rival, contest, box, head=_head(box, len(contest.classes)).to(box.model.device))

    def lengths(self, examples: Sequence[Example]) -> list[Row]:
        """Return the examples' rows."""
        missing = [example for example in examples if example.id not in self._rows]
        self._rows |= {row.example: row for row in texts_of(self._box, missing)} if missing else {}
        return [self._rows[example.id] for example in examples]

    def learn(self, batch: Sequence[int], epoch: int) -> None:
        """Run a batch forward and backward."""
        del epoch
        rows = self.lengths(list(self.examples_of(batch)))
        loss = nn.functional.cross_entropy(self._classified(rows), self.labels_of(batch))
        self._box.backward(loss, rows)

    def class_logits(self, examples: Sequence[Example]) -> Tensor:
        """Return the head's logits (N, C)."""
        return self._box.each(self.lengths(examples), self._classified)

    def _classified(self, rows: Sequence[Row]) -> Tensor:
        assert self.head is not None  # noqa: S101 - made in __init__
        states = self._box.logits(rows, model=self.model, states=True)
        logits: Tensor = self.head(states.to(torch.float32))
        return logits
