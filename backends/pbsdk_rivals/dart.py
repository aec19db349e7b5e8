"""DART: prompt and label words as trainable pseudo-tokens, with a fluency objective (Zhang et al., ICLR 2022).

The prompt's tokens and the label words become new tokens of a copy of the model. They begin as copies of the words that they stand for, and are trained with all other weights. Two
passes, forward and backward, make an update: one for the class, by the cross-entropy of the label tokens, and one for fluency. In a masked model the true label's token
stands at the mask, a tenth of the text's other tokens are masked, and have to be said. A causal model can't look back at a label that comes after the
text, so there the tokens that have to be said are a tenth of the text's own, each from what comes before it.

Settings as published for SST-2: AdamW at 2e-5, batches of 8, weight decay 0.01, a twentieth of the updates to warm up; 30 epochs, as in the paper's table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from pbsdk.queries.examples import Example
from pbsdk.reproduce.rivals import Contest
from pbsdk_rivals.adaptation import Adapted, Adapting
from pbsdk_rivals.box import Row, WhiteBox
from pbsdk_rivals.prompted import Worded, label_tokens, rows_of

__all__ = ["Dart", "shared_ends"]


@dataclass(frozen=True)
class Dart(Worded, Adapting):
    """Differentiable prompts."""

    name = "dart"
    title = "DART"
    passes_each = 2

    learning_rate: float = 2e-5
    batch_size: int = 8
    weight_decay: float = 0.01
    warmup: float = 0.05
    epochs: int = 30
    fluency: float = 1.0
    """How much the fluency objective counts beside the classes'."""
    mask_rate: float = 0.1

    def updates(self, contest: Contest) -> int:
        """Return how many updates there are."""
        return self.epochs * self.per_epoch(contest)

    def learner(self, contest: Contest) -> Differentiable:
        """Return the learner."""
        return Differentiable(self, contest, WhiteBox(contest.backend, contest.meter))

    def parameters(self, contest: Contest) -> int:
        """Return the model's size with its new tokens."""
        box = WhiteBox(contest.backend, contest.meter)
        model: int = sum(weight.numel() for weight in box.model.parameters())
        before, after = shared_ends(rows_of(box, contest.train.examples, contest.templates[0], contest.style), box)
        return model + (before + after + len(contest.classes)) * box.width


def shared_ends(rows: Sequence[Row], box: WhiteBox) -> tuple[int, int]:
    """Return how many tokens all rows have in common after the opening, and how many up to their end: those of the prompt.

    The mask counts among the latter; a causal model's rows end before it.
    """
    first = rows[0].ids
    shortest = min(len(row.ids) for row in rows)
    before = next((at for at in range(shortest) if any(row.ids[at] != first[at] for row in rows)), shortest)
    end = next((at for at in range(1, shortest - before + 1) if any(row.ids[-at] != first[-at] for row in rows)), 1)
    return max(0, before - box.opening), end - 1


class Differentiable(Adapted):
    """A model whose prompt and label words are tokens of their own."""

    _rival: Dart

    def __init__(self, rival: Dart, contest: Contest, box: WhiteBox) -> None:
        self._plain = {
            row.example: row for row in rows_of(box, contest.train.examples, contest.templates[0], contest.style)
        }
        self._ends = shared_ends(list(self._plain.values()), box)
        self._spoken = label_tokens(contest, contest.backend.vocabulary)
        self._size = 0
        super().__init__(rival, contest, box)

    def prepared(self, model: nn.Module) -> nn.Module:
        """Give the copy a token for each of the prompt's, and one for each class."""
        row, (before, after) = next(iter(self._plain.values())), self._ends
        opening = self._box.opening
        said = [*row.ids[opening : opening + before], *row.ids[len(row.ids) - after :], *self._spoken]
        self._size = model.get_input_embeddings().weight.shape[0]  # type: ignore[operator] # transformers' own
        model.resize_token_embeddings(self._size + len(said), mean_resizing=False)  # type: ignore[operator]
        new = slice(self._size, self._size + len(said))
        with torch.no_grad():
            for layer in {model.get_input_embeddings(), model.get_output_embeddings()}:  # type: ignore[operator]
                layer.weight[new] = layer.weight[said]
                if getattr(layer, "bias", None) is not None:
                    layer.bias[new] = layer.bias[said]
        return model

    @property
    def _labels_at(self) -> list[int]:
        """The label tokens."""
        first = self._size + sum(self._ends)
        return list(range(first, first + len(self._spoken)))

    def lengths(self, examples: Sequence[Example]) -> list[Row]:
        """Return the examples' rows, with the prompt's tokens replaced."""
        missing = [example for example in examples if example.id not in self._plain]
        found = rows_of(self._box, missing, self._contest.templates[0], self._contest.style)
        self._plain |= {row.example: row for row in found}
        return [self._replaced(self._plain[example.id]) for example in examples]

    def _prompt_places(self, row: Row) -> list[int]:
        before, after = self._ends
        opening = self._box.opening
        return [*range(opening, opening + before), *range(len(row.ids) - after, len(row.ids))]

    def _replaced(self, row: Row) -> Row:
        ids = list(row.ids)
        for number, place in enumerate(self._prompt_places(row)):
            if self._box.causal or place != row.at:  # the mask stays a mask
                ids[place] = self._size + number
        return replace(row, ids=tuple(ids))

    def learn(self, batch: Sequence[int], epoch: int) -> None:
        """Run a batch for its classes, and again for fluency."""
        rows, labels = self.lengths(list(self.examples_of(batch))), self.labels_of(batch)
        logits = self._box.logits(rows, model=self.model)[:, self._labels_at]
        self._box.backward(nn.functional.cross_entropy(logits.float(), labels), rows)
        random = np.random.default_rng([self._contest.seed, 4, epoch, *batch])
        changed, places, wanted = self._to_say(rows, labels.tolist(), random)
        spoken = self._box.logits(changed, model=self.model, places=places)
        loss = nn.functional.cross_entropy(spoken.float(), torch.tensor(wanted, device=spoken.device))
        self._box.backward(self._rival.fluency * loss, changed)

    def _to_say(
        self, rows: Sequence[Row], labels: Sequence[int], random: np.random.Generator
    ) -> tuple[list[Row], list[list[int]], list[int]]:
        """Return rows to be completed, the places to look at in each, and the tokens that belong there."""
        changed, places, wanted = [], [], []
        for row, label in zip(rows, labels, strict=True):
            fixed = {*self._prompt_places(row), *range(self._box.opening), row.at}
            free = [at for at in range(len(row.ids)) if at not in fixed and (at > 0 or not self._box.causal)] or [
                max(1, row.at) if self._box.causal else row.at
            ]
            many = max(1, round(self._rival.mask_rate * len(free)))
            chosen = sorted(random.choice(free, many, replace=False).tolist())
            ids = list(row.ids)
            wanted += [ids[at] for at in chosen]
            if self._box.causal:
                places.append([at - 1 for at in chosen])
            else:
                for at in chosen:
                    ids[at] = self._box.tokenizer.mask_token_id
                ids[row.at] = self._labels_at[label]
                places.append(chosen)
            changed.append(replace(row, ids=tuple(ids)))
        return changed, places, wanted

    def class_logits(self, examples: Sequence[Example]) -> Tensor:
        """Return the logits (N, C) of the label tokens."""
        return self._box.each(
            self.lengths(examples),
            lambda rows: self._box.logits(rows, model=self.model)[:, self._labels_at].float(),
        )
