"""Several labels per text: one yes-or-no model for each label, all on the same answers.

Nothing is asked for it that one label per text wouldn't ask. A label is said where its probability is at least its threshold,
which is where F1 was highest on examples left out; heads that don't cross-validate use a half. What `LabelReport` says of a label was measured
with thresholds that were found without the examples that measured it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from pbsdk.backend import Floats, MaskDistribution, Tokens
from pbsdk.errors import InputError
from pbsdk.learning.calibration import stratified_folds
from pbsdk.learning.explanation import Explanation, LearnerRow
from pbsdk.learning.heads import Fitted, Head, TokenOf, Trial, Word, head_named
from pbsdk.learning.matrix import TokenMatrix
from pbsdk.queries.examples import Example

__all__ = ["FittedLabels", "LabelReport", "MultiLabel", "best_threshold"]

HALF = 0.5
FOLDS = 5

Indicators = npt.NDArray[np.intp]


class LabelReport(BaseModel):
    """How one label did on examples left out."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    texts: int
    """How many have it."""
    threshold: float
    precision: float | None = None
    """Of those it was given to, how many have it; None if it was given to none, or nothing was left out."""
    recall: float | None = None
    """Of those that have it, how many it was given to."""
    f1: float | None = None


@dataclass(frozen=True)
class FittedLabels(Fitted):
    """A model for each label, or what is always so, and its threshold; scores are the labels' probabilities."""

    models: tuple[Fitted | None, ...]
    reports: tuple[LabelReport, ...]
    head: str
    """The head of each model."""
    facts: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)

    @property
    def n_classes(self) -> int:  # type: ignore[override] # read only
        """How many labels there are."""
        return len(self.models)

    @property
    def prompts(self) -> tuple[int, ...]:  # type: ignore[override] # read only
        """The prompts that some label needs."""
        return tuple(sorted({prompt for model in self._known for prompt in model.prompts}))

    @property
    def tokens(self) -> Tokens | None:  # type: ignore[override] # read only
        """The tokens that some label needs."""
        needed = [model.tokens for model in self._known]
        known = [tokens for tokens in needed if tokens is not None]
        return np.unique(np.concatenate(known)) if len(known) == len(needed) else None

    @property
    def censored(self) -> bool:  # type: ignore[override] # read only
        """Whether some label's model reads where an answer ends."""
        return any(model.censored for model in self._known)

    @property
    def size(self) -> int:  # type: ignore[override] # read only
        """How many labels have a model."""
        return len(self._known)

    @property
    def thresholds(self) -> Floats:
        """From which probability (C,) each label is said."""
        return np.array([report.threshold for report in self.reports])

    @property
    def _known(self) -> list[Fitted]:
        return [model for model in self.models if model is not None]

    def scores_of_one(self, answers: Sequence[MaskDistribution | None], example: Example) -> Floats:
        """Return the probability (C,) of each label."""
        prompts = self.prompts
        return np.array(
            [
                self._always(at)
                if model is None
                else float(
                    model.probabilities(
                        model.scores_of_one([answers[prompts.index(p)] for p in model.prompts], example)
                    )[1]
                )
                for at, model in enumerate(self.models)
            ]
        )

    def scores_of(self, matrices: Sequence[TokenMatrix], examples: Sequence[Example]) -> Floats:
        """Return the probabilities (N, C) of the labels of examples whose answers lie in the matrices of the whole pool."""
        columns = [
            np.full(len(examples), self._always(at))
            if model is None
            else model.probabilities(model.scores_of(matrices, examples))[:, 1]
            for at, model in enumerate(self.models)
        ]
        return np.column_stack(columns)

    def probabilities(self, scores: Floats) -> Floats:
        """Return the probabilities, which scores are already; labels are told apart from their absence, not from each other."""
        return scores

    def said(self, probabilities: Floats) -> npt.NDArray[np.bool_]:
        """Return which labels are said, by probabilities (..., C)."""
        return probabilities >= self.thresholds

    def state(self, word: Word) -> Mapping[str, Any]:
        """Return each label's model in its head's own form."""
        return {
            "head": self.head,
            "models": [None if model is None else dict(model.state(word)) for model in self.models],
            "reports": [report.model_dump() for report in self.reports],
        }

    def explain(self, classes: Sequence[Any], prompts: Sequence[str], word: Word) -> Explanation:
        """Return, prompt by prompt, the words that speak most for each label, against its absence."""
        words: dict[str, list[list[str]]] = {}
        weights: dict[str, list[float]] = {}
        for at, model in enumerate(self.models):
            if model is not None:
                for row in model.explain((f"not {classes[at]}", classes[at]), prompts, word).rows:
                    if row.answered:
                        words.setdefault(row.prompt, [[] for _ in classes])[at].append(row.words[1])
                        weights.setdefault(row.prompt, []).append(row.weight)
        rows = []
        for prompt, columns in words.items():
            weight = float(np.mean(weights[prompt]))
            for rank in range(max(map(len, columns))):
                said = tuple(column[rank] if rank < len(column) else "" for column in columns)
                rows.append(LearnerRow(prompt, said, weight))
        return Explanation(tuple(classes), tuple(rows))

    def _always(self, at: int) -> float:
        return float(self.reports[at].texts > 0)


class _State(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    head: str
    models: Annotated[tuple[dict[str, Any] | None, ...], Field(min_length=1)]
    reports: tuple[LabelReport, ...]


@dataclass(frozen=True)
class MultiLabel(Head):
    """A model for each label, by another head.

    Args:
        head: what learns one label, as if there were two classes.
        balanced: whether a label's texts count as much in all as those without it.
    """

    name: ClassVar[str] = "multilabel"
    validates: ClassVar[bool] = False
    weighs: ClassVar[bool] = True

    head: Head
    balanced: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.head, Head):
            raise InputError(
                "texts with several labels have a classifier of their own, MultiLabelPromptClassifier; its head learns each label"
            )

    @property
    def steps(self) -> int:
        """Unknown: as many as there are labels."""
        return 0

    def fit(self, trial: Trial) -> FittedLabels:
        """Learn label by label; `trial.labels` are indicators (N, C), and so are those of a validation set."""
        labels = np.asarray(trial.labels, dtype=np.intp)
        held_out = labels[:0] if trial.validation is None else np.asarray(trial.validation[1], dtype=np.intp)
        models: list[Fitted | None] = []
        reports: list[LabelReport] = []
        probabilities: list[Floats | None] = []
        for at in range(trial.n_classes):
            every = np.concatenate([labels[:, at], held_out[:, at]])
            if len(set(labels[:, at].tolist())) < 2:
                models.append(None)
                reports.append(LabelReport(texts=int(labels[:, at].sum()), threshold=HALF))
                probabilities.append(np.full(len(every), float(labels[0, at])))
                continue
            validation = None if trial.validation is None else (trial.validation[0], held_out[:, at])
            weights = _balanced(every, trial.weights) if self.balanced else trial.weights
            model = self.head.fit(
                replace(trial, labels=labels[:, at], n_classes=2, validation=validation, weights=weights)
            )
            left_out = None if model.study is None else model.study.probabilities[:, 1]
            models.append(model)
            reports.append(_report(left_out, every, trial.seed))
            probabilities.append(left_out)
        if not any(model is not None for model in models):
            raise InputError("every label is on all texts or on none, so there is nothing to learn")
        facts = _facts(reports, probabilities)
        return FittedLabels(tuple(models), tuple(reports), self.head.name, {"each_label_by": self.head.name, **facts})

    @classmethod
    def restore(cls, state: Mapping[str, Any], n_classes: int, n_prompts: int, token_of: TokenOf) -> Fitted:
        """Return the models of a file."""
        saved = _State.model_validate(state)
        if not len(saved.models) == len(saved.reports) == n_classes or saved.head == cls.name:
            raise ValueError(f"it needs a model and a report for each of {n_classes} labels")
        kind = head_named(saved.head)
        models = tuple(None if one is None else kind.restore(one, 2, n_prompts, token_of) for one in saved.models)
        if not any(model is not None for model in models):
            raise ValueError("it needs a model for some label")
        return FittedLabels(models, saved.reports, saved.head)


def best_threshold(probabilities: Floats, labels: Indicators) -> float:
    """Return the threshold with the highest F1; of equals the one nearest to a half.

    >>> best_threshold(np.array([0.1, 0.2, 0.3, 0.9]), np.array([0, 0, 1, 1]))
    0.25
    """
    known = np.unique(probabilities)
    tried = np.unique(np.concatenate([[HALF], (known[1:] + known[:-1]) / 2]))
    said = probabilities[:, None] >= tried
    both = (said & (labels == 1)[:, None]).sum(axis=0)
    scores = 2 * both / np.maximum(said.sum(axis=0) + labels.sum(), 1)
    best = tried[scores >= scores.max() - 1e-12]
    return round(float(best[np.argmin(np.abs(best - HALF))]), 6)


def _report(probabilities: Floats | None, labels: Indicators, seed: int) -> LabelReport:
    """Return a label's threshold, and how it does where each fold is judged by the threshold of the others."""
    texts = int(labels.sum())
    if probabilities is None:
        return LabelReport(texts=texts, threshold=HALF)
    said = _judged(probabilities, labels, seed)
    both = int((said & (labels == 1)).sum())
    return LabelReport(
        texts=texts,
        threshold=best_threshold(probabilities, labels),
        precision=both / int(said.sum()) if said.any() else None,
        recall=both / texts,
        f1=2 * both / (int(said.sum()) + texts),
    )


def _judged(probabilities: Floats, labels: Indicators, seed: int) -> npt.NDArray[np.bool_]:
    (folds,) = stratified_folds(labels, FOLDS, 1, seed)
    said = np.zeros(len(labels), dtype=np.bool_)
    for fold in range(FOLDS):
        inside = folds == fold
        said[inside] = probabilities[inside] >= best_threshold(probabilities[~inside], labels[~inside])
    return said


def _facts(reports: Sequence[LabelReport], probabilities: Sequence[Floats | None]) -> dict[str, float | None]:
    """Return what is known of all labels together."""
    scores = [report.f1 for report in reports if report.f1 is not None]
    facts = {"cross_validated_macro_f1": round(float(np.mean(scores)), 6) if scores else None}
    known = [one for one in probabilities if one is not None]
    if len(known) == len(probabilities):
        said = np.column_stack(known) >= np.array([report.threshold for report in reports])
        facts["share_without_label"] = round(float((~said).all(axis=1).mean()), 6)
    return facts


def _balanced(labels: Indicators, weights: Floats | None) -> Floats:
    """Return weights under which those with a label and those without count the same in all."""
    given = np.ones(len(labels)) if weights is None else weights
    sums = np.bincount(labels, given, minlength=2)
    found: Floats = given * (sums.sum() / (2 * sums[labels]))
    return found
