"""Changing the weights: what fine-tuning, LM-BFF and DART have in common.

A copy of the model is trained by AdamW in random batches, with a rate that rises for the first updates, if it is told to, and then falls to zero in a
line. A step of the frame is one epoch. Every example of a batch takes the same number of passes forward and backward.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pbsdk.queries.examples import Example
from pbsdk.reproduce.rivals import Access, Contest, Passes
from pbsdk_rivals.box import Row, WhiteBox
from pbsdk_rivals.training import Stepped, batches_of_epoch

__all__ = ["Adapted", "Adapting"]


@dataclass(frozen=True)
class Adapting(Stepped):
    """A rival that trains all weights in batches."""

    access = Access.GRADIENTS
    passes_each = 1
    """How many passes forward, and backward, an example takes in an update."""

    learning_rate: float = 1e-5
    batch_size: int = 16
    weight_decay: float = 0.0
    warmup: float = 0.0
    """During which part of the updates the rate rises."""

    @abstractmethod
    def updates(self, contest: Contest) -> int:
        """Return how many updates there are."""

    def per_epoch(self, contest: Contest) -> int:
        """Return how many updates an epoch has."""
        return math.ceil(len(contest.train.examples) / self.batch_size)

    def steps(self, contest: Contest) -> int:
        """Return how many steps there are: the preparation, and an epoch each."""
        return self.preparation + math.ceil(self.updates(contest) / self.per_epoch(contest))

    def batches(self, contest: Contest, epoch: int) -> list[list[int]]:
        """Return the batches of an epoch, of the last one only as many as there are updates left."""
        left = self.updates(contest) - epoch * self.per_epoch(contest)
        return batches_of_epoch(len(contest.train.examples), self.batch_size, contest.seed, epoch)[:left]

    def step_passes(self, contest: Contest, number: int) -> Passes:
        """Return the passes of an epoch."""
        places = [place for batch in self.batches(contest, number - self.preparation) for place in batch]
        examples = [contest.train.examples[place] for place in places]
        return Passes.of(examples, self.passes_each, self.passes_each)

    def rate(self, update: int, updates: int) -> float:
        """Return the learning rate of an update."""
        rising = math.ceil(self.warmup * updates)
        if update < rising:
            return self.learning_rate * (update + 1) / rising
        return self.learning_rate * (updates - update) / max(1, updates - rising)


class Adapted(ABC):
    """A learner that trains a copy of the model, and perhaps something on top of it."""

    def __init__(self, rival: Adapting, contest: Contest, box: WhiteBox, *, head: nn.Module | None = None) -> None:
        self._rival, self._contest, self._box = rival, contest, box
        self.model = self.prepared(box.trainable())
        self.head = head
        modules = [self.model] if head is None else [self.model, head]
        self._modules = nn.ModuleList(modules)
        self._optimizer = torch.optim.AdamW(
            self._modules.parameters(), lr=rival.learning_rate, weight_decay=rival.weight_decay
        )
        self._labels = torch.as_tensor(contest.train.labels, device=box.model.device)

    def prepared(self, model: nn.Module) -> nn.Module:
        """Return the copy as it is trained."""
        return model

    @abstractmethod
    def learn(self, batch: Sequence[int], epoch: int) -> None:
        """Run a batch forward and backward, as often as the rival says."""

    @abstractmethod
    def class_logits(self, examples: Sequence[Example]) -> Tensor:
        """Return the logits (N, C) of examples, without gradients."""

    @abstractmethod
    def lengths(self, examples: Sequence[Example]) -> Sequence[Row]:
        """Return the rows that passes of these examples read."""

    def step(self, number: int) -> None:
        """Train for an epoch."""
        rival, contest = self._rival, self._contest
        epoch, updates = number - rival.preparation, rival.updates(contest)
        self._modules.train()
        for at, batch in enumerate(rival.batches(contest, epoch)):
            for group in self._optimizer.param_groups:
                group["lr"] = rival.rate(epoch * rival.per_epoch(contest) + at, updates)
            self._optimizer.zero_grad(set_to_none=True)
            with self._box.autocast():
                self.learn(batch, epoch)
            nn.utils.clip_grad_norm_(self._modules.parameters(), 1.0)
            self._optimizer.step()
        self._modules.eval()

    def scores(self, examples: Sequence[Example]) -> Tensor:
        """Return the log-probabilities (N, C) of examples."""
        self._modules.eval()
        with self._box.autocast():
            logits = self.class_logits(examples)
        return logits.float().log_softmax(dim=-1)

    def state(self) -> dict[str, Any]:
        """Return weights and the optimizer's memory."""
        return {"weights": self._modules.state_dict(), "optimizer": self._optimizer.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a state."""
        self._modules.load_state_dict(state["weights"])
        self._optimizer.load_state_dict(state["optimizer"])

    def examples_of(self, batch: Sequence[int]) -> Iterator[Example]:
        """Yield a batch's examples."""
        return (self._contest.train.examples[place] for place in batch)

    def labels_of(self, batch: Sequence[int]) -> Tensor:
        """Return a batch's classes."""
        return self._labels[list(batch)]
