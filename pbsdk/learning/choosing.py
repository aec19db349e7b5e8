"""Nested cross-validation of regressions: which views and strengths do well on texts they weren't learned from.

A candidate (`Way`) is a share of the texts' own words (0: the answers alone, 1: the words alone), a strength of the regression, and
where texts are many, what kind of regression reads them. With
few examples the candidate that happens to do best is often not the best, so nothing is staked on one: candidates are averaged
in log space, each weighed by how likely it makes the labels of the examples that were left out. Averages of linear models are linear.

How good that average is must not be read off the folds that weighed it. So each fold is left out a second time, together with each
other fold: the pairs weigh the candidates, and the fold itself tests what came of it. These scores (`Chosen.left_out`) also set
the temperature, so that probabilities mean what they say. The problems of a candidate are solved in one batch (`regression.fit_many`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
import numpy.typing as npt

from pbsdk.backend import Floats
from pbsdk.learning.calibration import loss, stratified_folds, temperature
from pbsdk.learning.linear import Material
from pbsdk.learning.regression import LOOSE, MOST_COORDINATES, Space, fit_many, log_softmax
from pbsdk.learning.texts import STRENGTH

__all__ = ["Candidate", "Chosen", "Grid", "Solution", "Solver", "Way", "choose", "grid_for"]

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
STRENGTHS = (3.0, 10.0, 30.0, 100.0)
SHARPNESS = 0.25
"""A candidate whose examples left out are together a nat less likely weighs this much less, in nats."""

LEAST_WEIGHT = 1e-3
"""Relative to the best candidate; what weighs less is left out."""

Labels = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Grid:
    """What is tried, and how it is compared."""

    shares: tuple[float, ...]
    strengths: tuple[float, ...]
    folds: int
    repeats: int
    nested: bool
    """Whether folds are left out in pairs too."""


def grid_for(labels: Labels, n_classes: int, *, texts: bool) -> Grid:
    """Return as fine a grid as so many examples and classes are worth and can afford."""
    fewest = int(np.bincount(labels, minlength=n_classes).min())
    folds = max(2, min(5, fewest))
    size = len(labels) * n_classes
    shares = SHARES if texts else (0.0,)
    if size <= 2_000:
        return Grid(shares, STRENGTHS, folds, 2, nested=folds > 2)
    if size <= 16_000:
        return Grid(shares, (10.0, 30.0, 100.0), folds, 1, nested=folds > 2)
    return Grid(shares, (30.0, 300.0), min(3, folds), 1, nested=False)


@dataclass(frozen=True)
class Way:
    """A way to learn: how much the texts' own words count, how far weights may go, and how texts are read."""

    text_share: float
    strength: float
    """Of what reads the answers; of the texts alone, if there are no answers."""
    ridge: bool = False
    """Whether a ridge regression reads the texts by themselves."""


@dataclass(frozen=True)
class Candidate:
    """A regression that was tried: how it learned, how it did on examples left out, and what it weighs."""

    way: Way
    loss: float
    """The mean negative log-likelihood of the labels, at the candidate's own temperature."""
    accuracy: float
    weight: float


@dataclass(frozen=True)
class Chosen:
    """The average of the candidates, as duals (N, C) per view and a bias (C,), at its temperature."""

    candidates: tuple[Candidate, ...]
    answers: Floats
    texts: Floats | None
    bias: Floats
    way: Way
    """Of the candidate with the lowest loss."""
    left_out: Floats
    """The log-probabilities (N, C) of each example, by regressions and weights that never saw it."""
    temperature: float


@dataclass(frozen=True)
class Solution:
    """One regression, learned from several choices of rows: its scores under each, and what it is made of under the first.

    Duals are None for what it doesn't read.
    """

    scores: Floats
    """(B, N, C)"""
    answers: Floats | None
    texts: Floats | None
    bias: Floats

    def scaled(self, factor: float) -> Solution:
        """Return it with all scores multiplied."""
        return Solution(
            factor * self.scores,
            None if self.answers is None else factor * self.answers,
            None if self.texts is None else factor * self.texts,
            factor * self.bias,
        )


class Solver:
    """Regresses on the answers, on the texts, or on both, from several choices of rows at once.

    Where examples are few, one regression reads both side by side. Where they are many, texts have more to say than a softmax
    regression has coordinates for. Then they have a regression of their own, and a mixture adds the scores of both, each at
    the temperature that suits it; with few examples that temperature would be guesswork. It is a ridge regression (`ridge`),
    which has room for every word, or a softmax regression, which tells many classes apart that share their words.
    """

    def __init__(self, material: Material) -> None:
        self._material = material
        self._together = material.texts is None or len(material.labels) <= MOST_COORDINATES
        self._answers = Space.of(material.answers)
        self._spaces: dict[float, Space] = {}
        self._known: dict[tuple[Way, bytes], Solution] = {}

    def ways(self, grid: Grid) -> Iterator[Way]:
        """Yield each share with each strength, and where texts are many, with both kinds of regression on them."""
        for share in grid.shares:
            if share == 0 or self._together:
                yield from (Way(share, strength) for strength in grid.strengths)
            else:
                strengths = grid.strengths if share < 1 else (STRENGTH,)
                yield from (Way(share, strength, kind) for strength in strengths for kind in (True, False))

    def solve(self, way: Way, rows: Floats) -> Solution:
        """Learn from the rows (B, N) in use."""
        if self._together:
            return self._regressed(way.text_share, way.strength, rows)
        if way.text_share in (0, 1):
            return self._alone(way, rows)
        alone = self._alone(Way(0, way.strength), rows), self._alone(Way(1, STRENGTH, way.ridge), rows)
        answers, texts = (
            one.scaled(part * self._temperature(one, rows))
            for part, one in zip((1 - way.text_share, way.text_share), alone, strict=True)
        )
        return Solution(answers.scores + texts.scores, answers.answers, texts.texts, answers.bias + texts.bias)

    def _regressed(self, share: float, strength: float, rows: Floats) -> Solution:
        space, material = self._at(share), self._material
        if material.weights is not None:  # row weights are at most 1, and a loss multiplied is a strength multiplied
            most = float(material.weights.max())
            rows, strength = rows * (material.weights / most), strength * most
        solved = fit_many(
            space.coordinates, material.labels, material.n_classes, [strength] * len(rows), rows, tolerance=LOOSE
        )
        scores = space.coordinates @ solved[:, :-1] + solved[:, -1:]
        duals = space.duals(solved[0, :-1])
        texts = None if share == 0 else share * self._texts.within(duals)
        answers = None if share == 1 else (1 - share) * self._answers.within(duals)
        return Solution(scores, answers, texts, solved[0, -1])

    @cached_property
    def _texts(self) -> Space:
        return self._material.ridges.space

    def _at(self, share: float) -> Space:
        """Return the coordinates of both side by side, brought to orthogonal ones."""
        if share == 0:
            return self._answers
        if share == 1:
            return self._texts
        if share not in self._spaces:
            sides = np.sqrt(1 - share) * self._answers.coordinates, np.sqrt(share) * self._texts.coordinates
            self._spaces[share] = Space.of(np.hstack(sides))
        return self._spaces[share]

    def _alone(self, way: Way, rows: Floats) -> Solution:
        """Return what reads one of the two, which every mixture needs again."""
        key = (way, rows.tobytes())
        if key not in self._known:
            self._known[key] = self._ridges(rows) if way.ridge else self._regressed(way.text_share, way.strength, rows)
        return self._known[key]

    def _ridges(self, rows: Floats) -> Solution:
        scores, duals, biases = zip(*(self._material.ridges.solve(used > 0) for used in rows), strict=True)
        return Solution(np.array(scores), None, duals[0], biases[0])

    def _temperature(self, solution: Solution, rows: Floats) -> float:
        """Return the temperature of scores of rows that weren't learned from."""
        problem, row = np.nonzero(rows == 0)
        if not len(row):
            return 1.0
        weights = None if self._material.weights is None else self._material.weights[row]
        return temperature(solution.scores[problem, row], self._material.labels[row], weights)


@dataclass(frozen=True)
class _Solved:
    """One candidate: the whole fit, and the log-probabilities of examples left out, once and twice."""

    way: Way
    whole: Solution
    once: Floats
    """(repeats, N, C)"""
    twice: Floats | None
    """(repeats, folds, N, C): entry f was learned without fold f too; rows of f itself are meaningless."""


def choose(material: Material, grid: Grid, seed: int) -> Chosen:
    """Try every candidate of the grid, and average them."""
    folds = stratified_folds(material.labels, grid.folds, grid.repeats, seed)
    solved = list(_solve(material, grid, folds))
    once = [log_softmax(one.once.mean(axis=0)) for one in solved]
    weights, factors, losses = _weigh(once, material.labels, material.weights)
    left_out = _left_out(solved, folds, material) if grid.nested else _averaged(once, weights, factors)
    final = temperature(left_out, material.labels, material.weights)
    answers = np.zeros((len(material.labels), material.n_classes))
    texts = np.zeros_like(answers) if material.texts is not None and max(grid.shares) > 0 else None
    bias = np.zeros(material.n_classes)
    for one, weight, factor in zip(solved, weights, factors, strict=True):
        if weight > 0:
            part = one.whole.scaled(final * weight * factor)
            bias += part.bias
            if part.answers is not None:
                answers += part.answers
            if texts is not None and part.texts is not None:
                texts += part.texts
    candidates = (
        Candidate(
            one.way,
            lost,
            float((scores.argmax(axis=1) == material.labels).mean()),
            float(weight),
        )
        for one, lost, scores, weight in zip(solved, losses, once, weights, strict=True)
    )
    best = solved[int(np.argmin(losses))]
    return Chosen(tuple(candidates), answers, texts, bias, best.way, log_softmax(final * left_out), final)


def _solve(material: Material, grid: Grid, folds: Labels) -> Iterator[_Solved]:
    """Solve all problems of all candidates: the whole, without each fold, and without each pair of folds."""
    absent: list[tuple[int, tuple[int, ...]]] = []
    for repeat in range(grid.repeats):
        absent += [(repeat, (fold,)) for fold in range(grid.folds)]
        absent += [(repeat, pair) for pair in combinations(range(grid.folds), 2) if grid.nested]
    n_examples = len(material.labels)
    rows = np.array([np.ones(n_examples), *(~np.isin(folds[repeat], out) for repeat, out in absent)], dtype=np.float64)
    solver = Solver(material)
    for way in solver.ways(grid):
        solution = solver.solve(way, rows)
        once = np.zeros((grid.repeats, n_examples, material.n_classes))
        twice = np.zeros((grid.repeats, grid.folds, n_examples, material.n_classes)) if grid.nested else None
        for (repeat, out), scores in zip(absent, solution.scores[1:], strict=True):
            left = np.flatnonzero(np.isin(folds[repeat], out))
            found = log_softmax(scores[left])
            if len(out) == 1:
                once[repeat, left] = found
            elif twice is not None:
                for outer, inner in (out, out[::-1]):
                    of_inner = folds[repeat][left] == inner
                    twice[repeat, outer, left[of_inner]] = found[of_inner]
        whole = Solution(np.empty(0), solution.answers, solution.texts, solution.bias)
        yield _Solved(way, whole, once, twice)


def _weigh(scores: Sequence[Floats], labels: Labels, of_examples: Floats | None) -> tuple[Floats, Floats, Floats]:
    """Return each candidate's weight, its temperature, and its loss at that temperature."""
    factors = np.array([temperature(one, labels, of_examples) for one in scores])
    losses = np.array([loss(log_softmax(f * one), labels, of_examples) for f, one in zip(factors, scores, strict=True)])
    weights = np.exp(-SHARPNESS * len(labels) * (losses - losses.min()))
    weights[weights < LEAST_WEIGHT] = 0
    return weights / weights.sum(), factors, losses


def _averaged(scores: Sequence[Floats], weights: Floats, factors: Floats) -> Floats:
    total: Floats = sum(w * f * one for one, w, f in zip(scores, weights, factors, strict=True) if w > 0)
    return log_softmax(total)


def _left_out(solved: Sequence[_Solved], folds: Labels, material: Material) -> Floats:
    """Return the log-probabilities (N, C) of each fold under an average that was weighed without it."""
    total = np.zeros_like(solved[0].once[0])
    for repeat, dealt in enumerate(folds):
        for fold in range(dealt.max() + 1):
            inside, outside = dealt == fold, dealt != fold
            inner = [one.twice[repeat, fold][outside] for one in solved if one.twice is not None]
            of_examples = None if material.weights is None else material.weights[outside]
            weights, factors, _ = _weigh(inner, material.labels[outside], of_examples)
            total[inside] += _averaged([one.once[repeat][inside] for one in solved], weights, factors)
    return log_softmax(total / len(folds))
