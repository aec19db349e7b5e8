"""Feature-MLP and a linear probe: small models on hidden states of a frozen one, which is run once for each example.

The features are the last hidden state of the token that stands for the whole text: the first of a masked model, the last of a causal one. No prompt is used.
Settings as in the paper: three layers with a hidden dimension of 100, Adam at 1e-3 without decay, 100 epochs. The probe is scikit-learn's logistic regression.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from pbsdk.queries.examples import Example
from pbsdk.reproduce.rivals import Access, Contest, Passes
from pbsdk_rivals.box import Row, WhiteBox
from pbsdk_rivals.prompted import texts_of
from pbsdk_rivals.training import Stepped, batches_of_epoch

__all__ = ["FeatureMlp", "LinearProbe"]


class _Fitted(Protocol):
    """What was learned from features, and can be written down."""

    def scores(self, features: Tensor) -> Tensor:
        """Return the log-probabilities (N, C)."""

    def state(self) -> dict[str, Any]:
        """Return it as tensors."""


@dataclass(frozen=True)
class _OnFeatures(Stepped):
    """A small model on the features: one step, one forward pass for each training example."""

    access = Access.STATES

    def steps(self, contest: Contest) -> int:
        """Return 1: all is learned from the same features."""
        del contest
        return 1

    def step_passes(self, contest: Contest, number: int) -> Passes:
        """Return one forward pass for each training example."""
        del number
        return Passes.of(contest.train.examples)

    def learner(self, contest: Contest) -> _Reading:
        """Return the learner."""
        return _Reading(self, contest, WhiteBox(contest.backend, contest.meter))

    @abstractmethod
    def fit(self, features: Tensor, contest: Contest) -> _Fitted:
        """Learn from the training examples' features."""


class _Reading:
    """Reads features, and hands them to what learns."""

    def __init__(self, rival: _OnFeatures, contest: Contest, box: WhiteBox) -> None:
        self._rival, self._contest, self._box = rival, contest, box
        self._fitted: _Fitted | None = None

    def lengths(self, examples: Sequence[Example]) -> list[Row]:
        """Return the examples' rows."""
        return texts_of(self._box, examples)

    def step(self, number: int) -> None:
        """Read the training examples' features, and learn."""
        del number
        self._fitted = self._rival.fit(self._features(self._contest.train.examples), self._contest)

    def scores(self, examples: Sequence[Example]) -> Tensor:
        """Return the log-probabilities (N, C)."""
        assert self._fitted is not None  # noqa: S101 - it is tested after its step
        return self._fitted.scores(self._features(examples))

    def _features(self, examples: Sequence[Example]) -> Tensor:
        states = self._box.each(self.lengths(examples), lambda rows: self._box.logits(rows, states=True))
        return states.float().cpu().clone()

    def state(self) -> dict[str, Any]:
        """Return nothing: after its one step and test it has finished."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a state."""


@dataclass(frozen=True)
class FeatureMlp(_OnFeatures):
    """A network of three layers on the features."""

    name = "feature-mlp"
    title = "Feature-MLP"

    hidden: int = 100
    epochs: int = 100
    learning_rate: float = 1e-3
    batch_size: int = 16

    def parameters(self, contest: Contest) -> int:
        """Return the network's size."""
        width = WhiteBox(contest.backend, contest.meter).width
        return sum(weight.numel() for weight in self._network(width, len(contest.classes)).parameters())

    def _network(self, width: int, n_classes: int) -> nn.Sequential:
        layers = [nn.Linear(width, self.hidden), nn.ReLU(), nn.Linear(self.hidden, self.hidden), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(self.hidden, n_classes))

    def fit(self, features: Tensor, contest: Contest) -> _Fitted:
        """Train the network."""
        network = self._network(features.shape[1], len(contest.classes))
        optimizer = torch.optim.Adam(network.parameters(), lr=self.learning_rate)
        labels = torch.as_tensor(contest.train.labels)
        for epoch in range(self.epochs):
            for batch in batches_of_epoch(len(labels), self.batch_size, contest.seed, epoch):
                optimizer.zero_grad()
                nn.functional.cross_entropy(network(features[batch]), labels[batch]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        return _Network(network)


class _Network:
    """A trained network."""

    def __init__(self, network: nn.Sequential) -> None:
        self._network = network

    def scores(self, features: Tensor) -> Tensor:
        """Return the log-probabilities (N, C)."""
        with torch.no_grad():
            found: Tensor = self._network(features).log_softmax(dim=-1)
        return found

    def state(self) -> dict[str, Any]:
        """Return the weights."""
        return self._network.state_dict()


@dataclass(frozen=True)
class LinearProbe(_OnFeatures):
    """A logistic regression on the features, each brought to mean 0 and deviation 1."""

    name = "linear-probe"
    title = "Linear probe"

    strength: float = 0.01
    """scikit-learn's C: the smaller, the more the weights are held back."""

    def parameters(self, contest: Contest) -> int:
        """Return the number of weights and intercepts."""
        return (WhiteBox(contest.backend, contest.meter).width + 1) * len(contest.classes)

    def fit(self, features: Tensor, contest: Contest) -> _Fitted:
        """Fit the regression."""
        regression = make_pipeline(StandardScaler(), LogisticRegression(C=self.strength, max_iter=1000))
        return _Regression(regression.fit(features.double().numpy(), contest.train.labels))


class _Regression:
    """A fitted regression."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def scores(self, features: Tensor) -> Tensor:
        """Return the log-probabilities (N, C)."""
        return torch.from_numpy(np.asarray(self._model.predict_log_proba(features.double().numpy())))

    def state(self) -> dict[str, Any]:
        """Return nothing."""
        return {}
