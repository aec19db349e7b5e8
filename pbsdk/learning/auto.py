"""The head `auto`: tries what can be made of the same answers, and takes what does best on examples left out.

It learns from every labelled example, those of a validation set among them, and spends no pass. It tries regressions on the answers,
on the texts' own words (if it may) and on both (`choosing`), and beside them the paper's boosting with several settings
(`_boostings`). Regressions are averaged, weighed by how they do; boosting takes their place only if it does clearly better than
that average, since the best of several attempts always looks good.
Everything tried stands in a table (`selection`). The draws are seeded, and two runs give the same model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from pbsdk.backend import Floats, MaskDistribution, Tokens
from pbsdk.learning.boosting import Boosting, boost
from pbsdk.learning.calibration import Confidences, SavedConfidences, loss, stratified_folds, temperature
from pbsdk.learning.choosing import Chosen, Grid, Way, choose, grid_for
from pbsdk.learning.ensemble import FittedEnsemble
from pbsdk.learning.exits import Exit
from pbsdk.learning.explanation import Explanation
from pbsdk.learning.heads import Fitted, Head, TokenOf, Trial, Word
from pbsdk.learning.linear import Material, restored
from pbsdk.learning.matrix import TokenMatrix
from pbsdk.learning.prefixes import fit_prefixes
from pbsdk.learning.regression import log_softmax, one_thread
from pbsdk.learning.ridge import PENALTY
from pbsdk.learning.selection import Selection, Tried
from pbsdk.learning.soft import Soft
from pbsdk.learning.study import Study
from pbsdk.learning.verbalizer import checked_m
from pbsdk.queries.examples import Example

__all__ = ["Auto", "FittedAuto"]

ROUNDS = (10, 30, 100)
"""After how many rounds boosting is looked at."""

MOST_BOOSTED = 2_000
"""Above so many examples times classes, boosting isn't tried: it would take longer than all the rest."""

STANDARD_ERRORS = 3
"""By how many of the difference's standard errors boosting must be ahead."""

MOST_CLASSES = 6
"""Above so many classes, boosting isn't tried: a regression is far ahead there."""


@dataclass(frozen=True)
class FittedAuto(Fitted):
    """What was chosen, and among what."""

    inner: Fitted
    head: str
    """The name of the head that `inner` is of."""
    selection: Selection
    factor: float | None = None
    """The temperature of an ensemble's shares of votes; None: `inner` is calibrated."""
    confidences: Confidences | None = None
    study: Any = field(default=None, compare=False, repr=False)

    @property
    def n_classes(self) -> int:  # type: ignore[override] # read only
        """How many classes it tells apart."""
        return self.inner.n_classes

    @property
    def prompts(self) -> tuple[int, ...]:  # type: ignore[override] # read only
        """The prompts it needs."""
        return self.inner.prompts

    @property
    def tokens(self) -> Tokens | None:  # type: ignore[override] # read only
        """The tokens it needs."""
        return self.inner.tokens

    @property
    def censored(self) -> bool:  # type: ignore[override] # read only
        """Whether it reads where an answer ends."""
        return self.inner.censored

    @property
    def size(self) -> int:  # type: ignore[override] # read only
        """How many learners it is made of."""
        return self.inner.size

    @property
    def history(self) -> tuple[Any, ...]:  # type: ignore[override] # read only
        """What happened in each round, if boosting was chosen."""
        return self.inner.history

    @property
    def facts(self) -> Mapping[str, str | int | float | bool | None]:  # type: ignore[override] # read only
        """How it came about."""
        return {
            **self.inner.facts,
            "chosen": self.head,
            "cross_validated_accuracy": self.selection.accuracy,
            "text_accuracy": self.selection.text_accuracy,
        }

    def scores_of_one(self, answers: Sequence[MaskDistribution | None], example: Example) -> Floats:
        """Return the scores (C,) of one example."""
        return self.inner.scores_of_one(answers, example)

    def scores_of(self, matrices: Sequence[TokenMatrix], examples: Sequence[Example]) -> Floats:
        """Return the scores (N, C) of examples whose answers lie in the matrices of the whole pool."""
        return self.inner.scores_of(matrices, examples)

    def staged_scores(self, answers: Iterable[MaskDistribution | None], n_examples: int) -> Iterator[Floats]:
        """Yield the scores of the first learner, of the first two, and so on, if boosting was chosen."""
        return self.inner.staged_scores(answers, n_examples)

    def exit(self, max_changed: float | None) -> Exit:
        """Return when a text needs no further answer."""
        return self.inner.exit(max_changed)

    def probabilities(self, scores: Floats) -> Floats:
        """Return the calibrated probabilities (..., C)."""
        shares = self.inner.probabilities(scores)
        return shares if self.factor is None else np.exp(log_softmax(self.factor * shares))

    def state(self, word: Word) -> Mapping[str, Any]:
        """Return what was chosen in its own form, and the table."""
        return {
            "head": self.head,
            "learned": dict(self.inner.state(word)),
            "factor": self.factor,
            "selection": self.selection.model_dump(mode="json"),
            "confidences": None if self.confidences is None else self.confidences.saved().model_dump(mode="json"),
        }

    def explain(self, classes: Sequence[Any], prompts: Sequence[str], word: Word) -> Explanation:
        """Return what was learned as a table, and under it what was tried and why this was chosen."""
        return replace(self.inner.explain(classes, prompts, word), note=str(self.selection))


class _State(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    head: str
    learned: dict[str, Any]
    factor: float | None = Field(default=None, gt=0)
    selection: Selection
    confidences: SavedConfidences | None = None


@dataclass(frozen=True)
class Auto(Head):
    """Whatever does best on examples left out, among regressions and boosting.

    Args:
        text_features: whether the texts' own words may be read beside the answers.
        early_exit: whether to fit, too, what may decide before every prompt was asked.
    """

    name: ClassVar[str] = "auto"
    validates: ClassVar[bool] = False
    weighs: ClassVar[bool] = True

    text_features: bool = True
    early_exit: bool = False

    @one_thread()
    def fit(self, trial: Trial) -> FittedAuto:
        """Try everything, choose, and learn from all examples."""
        material = Material.of(trial, texts=self.text_features and bool(trial.examples))
        grid = grid_for(material.labels, trial.n_classes, texts=material.texts is not None)
        chosen = choose(material, grid, trial.seed)
        rivals = list(_boostings(trial, material, grid))
        best = min(rivals, key=lambda one: one.loss, default=None)
        if best is not None and best.is_clearly_better_than(chosen.left_out):
            table = _selection(material, grid, chosen, rivals, best)
            study = replace(Study.of(material, chosen, trial), probabilities=best.probabilities)
            return FittedAuto(best.fitted(trial.seed), Boosting.name, table, best.factor, study.confidences, study)
        facts = {"temperature": round(chosen.temperature, 6), "folds": grid.folds}
        inner = material.fitted(chosen.answers, chosen.texts, chosen.bias, facts)
        if self.early_exit:
            inner = replace(inner, prefixes=fit_prefixes(material, grid, chosen.left_out, trial.seed))
        table, study = _selection(material, grid, chosen, rivals, None), Study.of(material, chosen, trial)
        return FittedAuto(inner, Soft.name, table, None, study.confidences, study)

    @classmethod
    def restore(cls, state: Mapping[str, Any], n_classes: int, n_prompts: int, token_of: TokenOf) -> Fitted:
        """Return what was chosen, from a file."""
        saved = _State.model_validate(state)
        known = {Soft.name: restored, Boosting.name: FittedEnsemble.restored}
        if saved.head not in known:
            raise ValueError(f"head must be one of {', '.join(known)}, not {saved.head!r}")
        inner = known[saved.head](saved.learned, n_classes, n_prompts, token_of)
        confidences = None if saved.confidences is None else Confidences.restored(saved.confidences)
        return FittedAuto(inner, saved.head, saved.selection, saved.factor, confidences)


@dataclass(frozen=True)
class _Boosting:
    """Boosting with some settings, cross-validated."""

    pool: Sequence[npt.NDArray[np.uint16]]
    """The codes (N, k) of each prompt's likeliest tokens."""
    tokens: Sequence[Tokens]
    labels: npt.NDArray[np.intp]
    n_classes: int
    m: int
    rounds: int
    scores: Floats
    """The shares of votes (N, C) of examples left out."""
    weights: Floats | None
    silent: npt.NDArray[np.bool_] | None
    """Where (N, prompts) an example wasn't asked, as in `Trial`."""

    @property
    def factor(self) -> float:
        """The temperature of its shares of votes."""
        return temperature(self.scores, self.labels, self.weights)

    @property
    def loss(self) -> float:
        """The loss on examples left out, calibrated."""
        return loss(self._log_probabilities, self.labels, self.weights)

    @property
    def probabilities(self) -> Floats:
        """The calibrated probabilities (N, C) of examples left out."""
        return np.exp(self._log_probabilities)

    @property
    def _log_probabilities(self) -> Floats:
        return log_softmax(self.factor * self.scores)

    def is_clearly_better_than(self, log_probabilities: Floats) -> bool:
        """Whether the labels are likelier than under these, by more than chance would have it."""
        rows = np.arange(len(self.labels))
        gain = (self._log_probabilities - log_probabilities)[rows, self.labels]
        gain = gain if self.weights is None else gain * self.weights
        return bool(gain.mean() > STANDARD_ERRORS * gain.std() / np.sqrt(len(gain)))

    def tried(self, weight: float) -> Tried:
        """Return the row of the table."""
        right = float((self.scores.argmax(axis=1) == self.labels).mean())
        return Tried(
            head=Boosting.name,
            settings={"m": self.m, "rounds": self.rounds},
            loss=self.loss,
            accuracy=right,
            weight=weight,
        )

    def fitted(self, seed: int) -> FittedEnsemble:
        """Boost on all examples."""
        matrices = [TokenMatrix.from_codes(*pair) for pair in zip(self.pool, self.tokens, strict=True)]
        boosted = boost(
            matrices,
            self.labels,
            self.n_classes,
            rounds=self.rounds,
            m=self.m,
            seed=seed,
            weights=self.weights,
            silent=self.silent,
        )
        return FittedEnsemble(boosted.ensemble, boosted.history, {"m": self.m, "rounds_run": len(boosted.history)})


def _boostings(trial: Trial, material: Material, grid: Grid) -> Iterator[_Boosting]:
    """Cross-validate boosting on the tokens that the regressions read, with few words per class and many."""
    labels, n_classes = material.labels, trial.n_classes
    too_large = len(labels) * n_classes > MOST_BOOSTED or n_classes > MOST_CLASSES
    alone = np.bincount(labels).min() < 2  # some fold would lack the class
    if too_large or alone:
        return
    pools = [trial.answers] if trial.validation is None else [trial.answers, trial.validation[0]]
    tokens = [view.tokens for view in material.views]
    codes = [np.vstack([pool[p].codes_of(own) for pool in pools]) for p, own in enumerate(tokens)]
    (folds,) = stratified_folds(labels, min(3, grid.folds), 1, trial.seed)
    most = checked_m(None, n_classes)
    for m in sorted({most, max(2, most // 5)}):
        votes = np.zeros((len(ROUNDS), len(labels), n_classes))
        for fold in range(folds.max() + 1):
            kept, left = folds != fold, folds == fold
            train, test = (
                [TokenMatrix.from_codes(one[rows], own) for one, own in zip(codes, tokens, strict=True)]
                for rows in (kept, left)
            )
            found = boost(
                train,
                labels[kept],
                n_classes,
                rounds=ROUNDS[-1],
                m=m,
                seed=trial.seed,
                weights=None if material.weights is None else material.weights[kept],
                silent=None if trial.silent is None else trial.silent[kept],
            )
            stages = list(found.ensemble.staged_votes_of(test, None if trial.silent is None else trial.silent[left]))
            for k, rounds in enumerate(ROUNDS):
                votes[k, left] = stages[min(rounds, len(stages)) - 1]
        for rounds, one in zip(ROUNDS, votes, strict=True):
            shares = one / np.maximum(one.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
            yield _Boosting(codes, tokens, labels, n_classes, m, rounds, shares, material.weights, trial.silent)


def _settings(way: Way, *, texts: bool) -> dict[str, float | int]:
    if not texts:
        return {"strength": way.strength}
    return {"strength": way.strength, "text": way.text_share, **({"ridge": PENALTY} if way.ridge else {})}


def _selection(
    material: Material, grid: Grid, chosen: Chosen, rivals: Sequence[_Boosting], winner: _Boosting | None
) -> Selection:
    """Put the table together."""
    regressions = [
        Tried(
            head=Soft.name,
            settings=_settings(one.way, texts=material.texts is not None),
            loss=one.loss,
            accuracy=one.accuracy,
            weight=one.weight if winner is None else 0.0,
        )
        for one in chosen.candidates
    ]
    alone = [one for one in chosen.candidates if one.way.text_share == 1]
    right = (chosen.left_out.argmax(axis=1) == material.labels).mean()
    return Selection(
        tried=(*regressions, *(one.tried(float(one is winner)) for one in rivals)),
        accuracy=float(right) if winner is None else winner.tried(1).accuracy,
        nested=grid.nested and winner is None,
        text_accuracy=min(alone, key=lambda one: one.loss).accuracy if alone else None,
        n_examples=len(material.labels),
    )
