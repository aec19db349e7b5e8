"""The head `knn`: the nearest labelled examples vote.

Near is what a model answers alike: the cosine between two examples' features (`views`), all prompts side by side. A neighbour's vote
is its similarity. How many neighbours vote, and how far their word is trusted, is what does best when each labelled example is
left out in turn; the validation set is learned from too. Nothing is summed up: a fitted model holds the examples' features.

Similarities are rounded before they are compared, so that equals are equal on all machines; ties go to the earlier example.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from pbsdk.backend import Floats, MaskDistribution
from pbsdk.learning.calibration import loss
from pbsdk.learning.explanation import Explanation, LearnerRow
from pbsdk.learning.heads import Fitted, Head, TokenOf, Trial, Word
from pbsdk.learning.linear import Material
from pbsdk.learning.matrix import TokenMatrix
from pbsdk.learning.parameters import check_count
from pbsdk.learning.views import OfViews, SavedView, View, saved_fields
from pbsdk.queries.examples import Example

__all__ = ["FittedNeighbours", "Nearest"]

NEIGHBOURS = (1, 3, 5, 9, 15)
"""Among which their number is chosen."""

DOUBTS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Among which is chosen what all classes together get before anybody votes; a vote is worth at most 1."""

STEPS = 100_000
"""Similarities are rounded to 1 / STEPS."""

AT_A_TIME = 256
"""How many examples are compared with all others at a time."""

_DIGITS = 4

Features = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


def _directions(blocks: Sequence[Features]) -> Features:
    """Return features side by side (N, D), each row of length 1, or 0 where there is nothing."""
    rows = np.ascontiguousarray(np.hstack(blocks))  # else sums would depend on how blocks lie in memory
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    rows /= np.where(lengths > 0, lengths, 1)
    return rows


def _nearest(
    asking: Features, known: Features, count: int, *, left_out: bool = False
) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return the nearest rows (N, count) of `known`, nearest first, and how similar they are; `left_out`: but for oneself."""
    rows, similarities = [], []
    for at in range(0, len(asking), AT_A_TIME):
        steps = np.rint(asking[at : at + AT_A_TIME] @ known.T * STEPS).astype(np.int64)
        if left_out:
            places = np.arange(len(steps))
            steps[places, at + places] = -2 * STEPS  # below any
        keys = np.arange(len(known)) - steps * len(known)  # all different: by similarity, then by place
        best = np.sort(np.partition(keys, count - 1, axis=1)[:, :count], axis=1)
        rows.append(best % len(known))
        similarities.append(-(best // len(known)) / STEPS)
    return np.concatenate(rows), np.concatenate(similarities)


def _votes(
    rows: npt.NDArray[np.int64], similarities: Floats, labels: Labels, n_classes: int, weights: Floats | None
) -> Floats:
    """Return the votes (N, C) of neighbours; one that is no more similar than chance has none."""
    votes = np.zeros((len(rows), n_classes))
    said = similarities.clip(min=0)
    np.add.at(votes, (np.arange(len(rows))[:, None], labels[rows]), said if weights is None else said * weights[rows])
    return votes


@dataclass(frozen=True)
class FittedNeighbours(OfViews):
    """Labelled examples, as a view and features (N, D) per prompt: scores are the votes of the nearest."""

    n_classes: int
    used: tuple[int, ...]
    views: tuple[View, ...]
    features: tuple[Features, ...]
    labels: Labels
    neighbours: int
    doubt: float
    shares: tuple[float, ...]
    """How much of the similarity of neighbours comes from each prompt."""
    facts: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    history: tuple[Any, ...] = ()
    validation_accuracy: float | None = None
    weights: Floats | None = None
    """How much each example's vote counts; None: all alike."""

    @property
    def size(self) -> int:  # type: ignore[override] # read only
        """How many examples may vote."""
        return len(self.labels)

    @cached_property
    def _known(self) -> Features:
        return _directions(self.features)

    def _scores(self, blocks: Sequence[Features]) -> Floats:
        rows, similarities = _nearest(_directions(blocks), self._known, self.neighbours)
        return _votes(rows, similarities, self.labels, self.n_classes, self.weights) + self.doubt / self.n_classes

    def scores_of_one(self, answers: Sequence[MaskDistribution | None], example: Example) -> Floats:
        """Return the votes (C,) on one example; a prompt that wasn't asked is left out of the comparison."""
        del example
        blocks = [
            np.zeros((1, features.shape[1]), np.float32)
            if answer is None
            else _rounded(view.features_of_one(answer)[None])
            for answer, view, features in zip(answers, self.views, self.features, strict=True)
        ]
        scores: Floats = self._scores(blocks)[0]
        return scores

    def scores_of(self, matrices: Sequence[TokenMatrix], examples: Sequence[Example]) -> Floats:
        """Return the votes (N, C) on examples whose answers lie in the matrices of the whole pool."""
        del examples
        pairs = zip(self.used, self.views, strict=True)
        return self._scores([_rounded(view.features(matrices[prompt])) for prompt, view in pairs])

    def state(self, word: Word) -> Mapping[str, Any]:
        """Return views, features and labels as plain values, tokens beside their words."""
        parts = zip(self.used, self.views, self.features, self.shares, strict=True)
        prompts = tuple(
            _SharedView(**saved_fields(prompt, view, word), share=share, features=tuple(_decimals(features)))
            for prompt, view, features, share in parts
        )
        state = _State(
            neighbours=self.neighbours,
            doubt=self.doubt,
            labels=tuple(self.labels.tolist()),
            prompts=prompts,
            weights=None if self.weights is None else tuple(self.weights.tolist()),
        )
        return state.model_dump(mode="json")

    def explain(self, classes: Sequence[Any], prompts: Sequence[str], word: Word) -> Explanation:
        """Return, prompt by prompt, the token that stands out most in each class, and the prompt's share of the similarity."""
        rows = []
        for prompt, view, features, share in zip(self.used, self.views, self.features, self.shares, strict=True):
            means = np.array([features[self.labels == label].mean(axis=0) for label in range(self.n_classes)])
            # A token of a censored view has two features: being shown, and how far above the smallest.
            best = means.reshape(self.n_classes, -1, len(view.tokens)).sum(axis=1).argmax(axis=1)
            rows.append(LearnerRow(prompts[prompt], tuple(word(int(view.tokens[at])) for at in best), share))
        return Explanation(tuple(classes), tuple(sorted(rows, key=lambda row: -row.weight)))


class _SharedView(SavedView):
    share: float
    features: tuple[tuple[float, ...], ...]


class _State(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    neighbours: int
    doubt: float
    labels: tuple[int, ...]
    prompts: tuple[_SharedView, ...]
    weights: tuple[Annotated[float, Field(gt=0)], ...] | None = None


def _rounded(features: npt.NDArray[np.floating]) -> Features:
    """Return features as they are kept in a file."""
    return np.round(features, _DIGITS).astype(np.float32)


def _decimals(features: Features) -> Iterator[tuple[float, ...]]:
    for row in features:
        yield tuple(np.round(row.astype(np.float64), _DIGITS).tolist())


@dataclass(frozen=True)
class Nearest(Head):
    """The nearest labelled examples vote, by how similar a model's answers are.

    Args:
        neighbours: how many vote; None: 1, 3, 5, 9 or 15, whichever does best when each example is left out in turn.
    """

    name: ClassVar[str] = "knn"
    validates: ClassVar[bool] = False
    weighs: ClassVar[bool] = True

    neighbours: int | None = None

    def __post_init__(self) -> None:
        check_count("neighbours", self.neighbours, optional=True)

    def fit(self, trial: Trial) -> FittedNeighbours:
        """Choose views, and how many neighbours vote."""
        material = Material.of(trial)
        labels, weights = material.labels, material.weights
        blocks = [_rounded(block) for block in material.blocks()]
        known = _directions(blocks)
        most = len(labels) - 1
        tried = sorted({min(count, most) for count in ((self.neighbours,) if self.neighbours else NEIGHBOURS)})
        rows, similarities = _nearest(known, known, tried[-1], left_out=True)
        best: tuple[float, float, int, float, float] | None = None
        for count in tried:
            votes = _votes(rows[:, :count], similarities[:, :count], labels, trial.n_classes, weights)
            right = votes.argmax(axis=1) == labels
            for doubt in DOUBTS:
                scores = votes + doubt / trial.n_classes
                likely = -loss(np.log(scores / scores.sum(axis=1, keepdims=True)), labels, weights)
                found = (float(np.average(right, weights=weights)), likely, count, doubt, float(right.mean()))
                best = found if best is None else max(best, found)
        assert best is not None  # noqa: S101 - for the type checker
        _, _, count, doubt, accuracy = best
        ends = np.cumsum([block.shape[1] for block in blocks])[:-1]
        facts = {"neighbours": count, "doubt": doubt, "left_out_accuracy": accuracy}
        return FittedNeighbours(
            n_classes=trial.n_classes,
            used=material.prompts,
            views=material.views,
            features=tuple(blocks),
            labels=labels,
            neighbours=count,
            doubt=doubt,
            shares=_shares([known[:, part] for part in np.split(np.arange(known.shape[1]), ends)], rows[:, :count]),
            facts=facts,
            weights=None if weights is None else np.maximum(np.round(weights, _DIGITS), 10.0**-_DIGITS),
        )

    @classmethod
    def restore(cls, state: Mapping[str, Any], n_classes: int, n_prompts: int, token_of: TokenOf) -> Fitted:
        """Return the examples of a file."""
        saved = _State.model_validate(state)
        size = len(saved.labels)
        if not saved.prompts or not 1 <= saved.neighbours <= size or saved.doubt <= 0:
            raise ValueError(
                "it needs a prompt, a doubt above 0, and at least as many labels as neighbours, which are 1 or more"
            )
        if set(saved.labels) != set(range(n_classes)):
            raise ValueError(f"labels must be 0 to {n_classes - 1}, and each must have an example")
        if saved.weights is not None and len(saved.weights) != size:
            raise ValueError(f"weights needs a number for each of {size} examples")
        views, features = [], []
        for k, one in enumerate(saved.prompts):
            one.check(k, n_prompts)
            if len(one.features) != size or any(len(row) != one.n_features for row in one.features):
                raise ValueError(f"prompts.{k} needs {one.n_features} features for each of {size} examples")
            view, order = one.translated(token_of)
            views.append(view)
            features.append(np.array(one.features, dtype=np.float32)[:, order])
        return FittedNeighbours(
            n_classes=n_classes,
            used=tuple(one.prompt for one in saved.prompts),
            views=tuple(views),
            features=tuple(features),
            labels=np.array(saved.labels, dtype=np.int64),
            neighbours=saved.neighbours,
            doubt=saved.doubt,
            shares=tuple(one.share for one in saved.prompts),
            weights=None if saved.weights is None else np.array(saved.weights),
        )


def _shares(parts: Sequence[Features], rows: npt.NDArray[np.int64]) -> tuple[float, ...]:
    """Return how much of the similarity of examples to their neighbours (N, k) comes from each prompt, on average."""
    shares = [
        float(np.mean([np.einsum("nd,nd->n", part, part[column]).mean(dtype=np.float64) for column in rows.T]))
        for part in parts
    ]
    return tuple(round(share, _DIGITS) for share in shares)
