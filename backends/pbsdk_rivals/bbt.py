"""BBT and BBTv2: soft prompts found by evolution, without gradients (Sun et al., ICML 2022 and EMNLP 2022).

BBT puts 50 vectors before the text. They are the embeddings of 50 tokens of the vocabulary plus a random projection of a point in 500 dimensions, and CMA-ES looks for
the point where the label words of the training set have the least cross-entropy, in generations of 20. Each evaluation is a forward pass of every
training example, 8,000 of them by default. BBTv2 adds vectors to the hidden states before every layer as well: a projection and a search for each
layer, which take turns (divide and conquer), each keeping the best that the others have found, within the same 8,000 evaluations.

Entries of a projection have the deviation of what the vectors are added to, divided by the root of the dimension and CMA-ES's first step: of the word
embeddings for the first layer, and for later layers of their own hidden states, read off the training set in one pass each, without its outliers.

CMA-ES is deterministic given its losses, so a checkpoint holds those, and an interrupted search is told them again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cma
import numpy as np
import torch
from torch import Tensor, nn

from pbsdk.queries.examples import Example
from pbsdk.reproduce.rivals import Access, Contest, Passes
from pbsdk_rivals.box import Row, SoftPrompt, WhiteBox
from pbsdk_rivals.prompted import Worded, label_tokens, rows_of
from pbsdk_rivals.training import Stepped

__all__ = ["Bbt", "BbtV2"]

OUTLIERS = 3.0
"""Hidden states further from their mean than so many deviations don't count."""


@dataclass(frozen=True)
class Bbt(Worded, Stepped):
    """A soft prompt at the input."""

    name = "bbt"
    title = "BBT"
    access = Access.EMBEDDINGS

    tokens: int = 50
    dimension: int = 500
    population: int = 20
    evaluations: int = 8000
    sigma: float = 1.0
    """The first step of CMA-ES."""
    alpha: float = 1.0
    """How large the projections are."""

    def layers(self, contest: Contest) -> int:
        """Return for how many layers prompts are searched."""
        del contest
        return 1

    def rounds(self, contest: Contest) -> int:
        """Return how often each layer has its turn."""
        return max(1, self.evaluations // (self.population * self.layers(contest)))

    def steps(self, contest: Contest) -> int:
        """Return the number of generations, over all layers, and of passes that measure hidden states."""
        return self.preparation + self.rounds(contest) * self.layers(contest)

    def step_passes(self, contest: Contest, number: int) -> Passes:
        """Return the passes of a generation, or of the measurement."""
        return Passes.of(contest.train.examples, 1 if number < self.preparation else self.population)

    def learner(self, contest: Contest) -> Search:
        """Return the learner."""
        return Search(self, contest, WhiteBox(contest.backend, contest.meter, room=self.tokens))

    def parameters(self, contest: Contest) -> int:
        """Return how many numbers CMA-ES looks for."""
        return self.dimension * self.layers(contest)


@dataclass(frozen=True)
class BbtV2(Bbt):
    """Soft prompts before all layers."""

    name = "bbtv2"
    title = "BBTv2"
    access = Access.LAYERS

    @property
    def preparation(self) -> int:
        """One step measures the hidden states."""
        return 1

    def layers(self, contest: Contest) -> int:
        """Return how many layers the model has."""
        return len(WhiteBox(contest.backend, contest.meter).layers())


class Search:
    """The searches of all layers, and the best prompts so far."""

    def __init__(self, rival: Bbt, contest: Contest, box: WhiteBox) -> None:
        self._rival, self._contest, self._box = rival, contest, box
        self._words = label_tokens(contest, contest.backend.vocabulary)
        self._labels = torch.as_tensor(contest.train.labels)
        self._rows: dict[str, Row] = {}
        self._random = np.random.default_rng([contest.seed, 1])
        vectors = box.embeddings
        drawn = self._random.choice(len(vectors), rival.tokens, replace=False)
        self._start = vectors[torch.from_numpy(drawn).to(vectors.device)]  # (P, H)
        self._depth = rival.layers(contest)
        self._deviations = [float(vectors.std())] * self._depth
        self._searches = [self._search(layer) for layer in range(self._depth)]
        self._best = torch.zeros(self._depth, rival.tokens, box.width, device=vectors.device)
        """The best vectors (L, P, H) so far."""
        self._told: list[list[float]] = []

    def _search(self, layer: int) -> Any:
        """Return the search for a layer's prompt."""
        draws = np.random.default_rng([self._contest.seed, 2, layer])
        options = {
            "popsize": self._rival.population,
            "randn": lambda *size: draws.standard_normal(size),
            "seed": np.nan,
            "verbose": -9,
        }
        return cma.CMAEvolutionStrategy([0.0] * self._rival.dimension, self._rival.sigma, options)

    def _projection(self, layer: int) -> Tensor:
        """Return a layer's projection (P * H, D), drawn anew each time: thirty of them would take gigabytes."""
        rival = self._rival
        deviation = rival.alpha * self._deviations[layer] / (math.sqrt(rival.dimension) * rival.sigma)
        generator = torch.Generator().manual_seed(1000 * self._contest.seed + layer)
        size = (rival.tokens * self._box.width, rival.dimension)
        return torch.empty(size).normal_(0.0, deviation, generator=generator)

    def _vectors(self, layer: int, points: np.ndarray[Any, Any]) -> Tensor:
        """Return the vectors (N, P, H) that points (N, D) stand for."""
        found = torch.from_numpy(points).float() @ self._projection(layer).T
        return found.view(len(points), self._rival.tokens, -1).to(self._box.model.device)

    def _prompt(self, vectors: Tensor) -> SoftPrompt:
        """Return the prompt of all layers' vectors (L, P, H)."""
        return SoftPrompt(self._start + vectors[0], vectors if self._depth > 1 else None)

    def lengths(self, examples: Sequence[Example]) -> list[Row]:
        """Return the examples' rows."""
        missing = [example for example in examples if example.id not in self._rows]
        found = rows_of(self._box, missing, self._contest.templates[0], self._contest.style)
        self._rows |= {row.example: row for row in found}
        return [self._rows[example.id] for example in examples]

    def step(self, number: int) -> None:
        """Evaluate a generation of one layer, or measure the hidden states."""
        turn = number - self._rival.preparation
        if turn < 0:
            self._deviations[1:] = self._measured()
            return
        layer = turn % self._depth
        points = np.array(self._searches[layer].ask())
        vectors, losses = self._best.clone(), []
        for candidate in self._vectors(layer, points):
            vectors[layer] = candidate
            losses.append(self._loss(self._prompt(vectors)))
        self._tell(layer, points, losses)

    def _tell(self, layer: int, points: np.ndarray[Any, Any], losses: list[float]) -> None:
        self._searches[layer].tell(list(points), losses)
        best = self._searches[layer].result.xbest
        self._best[layer] = self._vectors(layer, best[np.newaxis])[0]
        self._told.append(losses)

    def _loss(self, prompt: SoftPrompt) -> float:
        """Return the cross-entropy of the training set's label words."""
        logits = self._box.prompted(self.lengths(self._contest.train.examples), prompt)[:, self._words]
        return float(nn.functional.cross_entropy(logits.float().cpu(), self._labels))

    def _measured(self) -> list[float]:
        """Return the deviation of the hidden states before each layer but the first, without outliers."""
        sums = np.zeros((self._depth - 1, 3))  # their number, sum, and sum of squares
        hooks = []
        for place, layer in enumerate(self._box.layers()[1:]):

            def look(_module: nn.Module, args: tuple[Any, ...], given: dict[str, Any], place: int = place) -> None:
                hidden = (args[0] if args else given["hidden_states"]).float()
                inner = hidden[(hidden - hidden.mean()).abs() < OUTLIERS * hidden.std()].double()
                sums[place] += [inner.numel(), float(inner.sum()), float((inner**2).sum())]

            hooks.append(layer.register_forward_pre_hook(look, with_kwargs=True))
        try:
            for row in self.lengths(self._contest.train.examples):  # one by one, so that no padding is measured
                with torch.inference_mode():
                    self._box.logits([row])
        finally:
            for hook in hooks:
                hook.remove()
        number, total, squares = sums.T
        return [float(one) for one in np.sqrt(squares / number - (total / number) ** 2)]

    def scores(self, examples: Sequence[Example]) -> Tensor:
        """Return the log-probabilities (N, C) under the best prompts so far."""
        logits = self._box.prompted(self.lengths(examples), self._prompt(self._best))
        return logits[:, self._words].float().log_softmax(dim=-1)

    def state(self) -> dict[str, Any]:
        """Return the losses so far and what was measured."""
        return {"told": self._told, "deviations": self._deviations}

    def restore(self, state: dict[str, Any]) -> None:
        """Tell the searches what they were told before."""
        self._deviations = list(state["deviations"])
        for turn, losses in enumerate(state["told"]):
            layer = turn % self._depth
            self._tell(layer, np.array(self._searches[layer].ask()), list(losses))
