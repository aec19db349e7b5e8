"""Several labels per text: the same prompts, answers and passes, and a yes or no for each label.

>>> from pbsdk.testing import FakeBackend
>>> clf = MultiLabelPromptClassifier(FakeBackend(), ["<input> So <mask>.", "<input> The <mask>"], head="soft", random_state=1)
>>> texts = ["the parcel is late", "a courier at the door", "our team won", "the match was lost"] * 3
>>> _ = clf.fit(texts, [{"post"}, {"post"}, {"sport"}, {"sport"}] * 3)
>>> clf.predict(["a late courier"]).shape, clf.classes_.tolist()
((1, 2), ['post', 'sport'])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.metrics import accuracy_score
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from pbsdk.backend import Floats, MaskedLMBackend
from pbsdk.classifier import PromptBoostingClassifier
from pbsdk.errors import InputError, ModelFileError
from pbsdk.formatting import aligned, html_table, number, percent
from pbsdk.learning.calibration import Confidences
from pbsdk.learning.heads import Head, head_from
from pbsdk.learning.model_file import SavedClassifier
from pbsdk.learning.multilabel import FittedLabels, LabelReport, MultiLabel
from pbsdk.predicting import Labels
from pbsdk.queries.demonstrations import name_classes
from pbsdk.queries.examples import text_rows
from pbsdk.queries.given import Given, read_given
from pbsdk.queries.label_sets import GivenSets, objects_of, problem_of_sets, read_sets
from pbsdk.queries.problem import Problem
from pbsdk.queries.templates import Template

__all__ = ["LabelReports", "MultiLabelPromptClassifier", "load_classifier"]

HEADER = ("label", "texts", "threshold", "precision", "recall", "F1")


@dataclass(frozen=True)
class LabelReports:
    """How each label did on texts left out."""

    labels: tuple[Any, ...]
    reports: tuple[LabelReport, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the table as plain data."""
        return {str(label): one.model_dump() for label, one in zip(self.labels, self.reports, strict=True)}

    def __str__(self) -> str:
        return aligned([HEADER, *self._cells()])

    def _repr_html_(self) -> str:
        return html_table(HEADER, self._cells(), "Labels")

    def _cells(self) -> list[tuple[str, ...]]:
        return [
            (str(label), number(one.texts), f"{one.threshold:.3f}", *map(percent, (one.precision, one.recall, one.f1)))
            for label, one in zip(self.labels, self.reports, strict=True)
        ]


class MultiLabelPromptClassifier(PromptBoostingClassifier):
    """A classifier of texts that may have several labels, or none.

    It takes the parameters of `PromptBoostingClassifier`. `head` learns each label, on the same answers: no pass is asked for it. `fit` takes
    what scikit-learn does, an indicator matrix (N, C), or a set of labels for each text; a frame's columns name the labels.
    `predict` returns an indicator matrix, whose columns are `classes_`. `class_weight="balanced"` lets a label's texts
    count as much in all as those without it.

    Attributes:
        report_: each label's threshold, and its precision, recall and F1 on texts left out.
    """

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.classifier_tags.multi_label = True
        return tags

    @property
    def report_(self) -> LabelReports:
        """How each label did on texts left out, and from which probability it is said."""
        check_is_fitted(self)
        return LabelReports(tuple(self.classes_.tolist()), self._labelled.reports)

    def predict(self, X: Any, *, threshold: float | None = None) -> Labels:  # type: ignore[override] # there is no one class to be sure of
        """Return which labels (N, C) each text has: those whose probability is at least the label's threshold, or this one."""
        if threshold is not None and not (isinstance(threshold, int | float) and 0 <= threshold <= 1):
            raise InputError(f"threshold must be a probability, not {threshold!r}")
        probabilities = self.predict_proba(X)
        said = self._labelled.said(probabilities) if threshold is None else probabilities >= threshold
        return said.astype(np.intp)

    def predict_sets(self, X: Any, *, threshold: float | None = None) -> list[tuple[Any, ...]]:
        """Return the labels of each text by their names; an empty tuple is none of these."""
        names = self.classes_.tolist()
        return [tuple(names[at] for at in np.flatnonzero(row)) for row in self.predict(X, threshold=threshold)]

    def decision_function(self, X: Any) -> Floats:
        """Return by how much each label's probability (N, C) is above its threshold."""
        above: Floats = self.predict_proba(X) - self._labelled.thresholds
        return above

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of texts all of whose labels are right."""
        examples = self._new_examples(X)
        names = self.classes_.tolist()
        _, sets = read_sets(y, len(examples), known=names)
        said = self._labelled.said(self._scores(examples, scoring=True)).astype(np.intp)
        true = np.array([[name in row for name in names] for row in sets], dtype=np.intp)
        return float(accuracy_score(true, said, sample_weight=sample_weight))

    @property
    def _labelled(self) -> FittedLabels:
        check_is_fitted(self)
        assert isinstance(self.fitted_, FittedLabels)  # noqa: S101 - for the type checker
        return self.fitted_

    def _label_of(self, scores: Floats) -> Any:
        names = self.classes_.tolist()
        return tuple(names[at] for at in np.flatnonzero(self._labelled.said(scores)))

    def _confidences(self) -> Confidences:
        raise InputError(
            "a text may have several labels, so there is no one verdict to be sure of; report_ says how each label does"
        )

    def add(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from further texts too: only these are asked about. Their labels are those that `fit` knew."""
        check_is_fitted(self)
        _, sets = read_sets(y, len(text_rows(X)), known=self.classes_.tolist())
        return super().add(X, sets, sample_weight)

    def _given_of(self, X: Any, y: Any, validation: tuple[Any, Any] | None, sample_weight: Any) -> GivenSets:
        names: list[Any] = []

        def read(labels: Any, count: int, *, name: str = "labels") -> Labels:
            found, sets = read_sets(labels, count, known=names or None, name=name)
            names[:] = found
            return objects_of(sets)

        given = read_given(X, y, validation, read=self._readable, sample_weight=sample_weight, read_labels=read)
        return GivenSets(**vars(given), names=tuple(names)).without_weightless()

    def _stated(self, given: Given) -> tuple[Head, Problem]:
        assert isinstance(given, GivenSets)  # noqa: S101 - for the type checker
        if self.class_weight is not None and self.class_weight != "balanced":
            raise InputError('class_weight must be "balanced" or None where texts have several labels')
        problem = problem_of_sets(given)
        head = head_from(self.head, self.get_params(deep=False))
        if (problem.weights is not None or self.class_weight) and not head.weighs:
            raise InputError(
                f"the head {head.name!r} doesn't weigh texts; leave sample_weight and class_weight out, or take another head"
            )
        head.check(2)
        return MultiLabel(head, balanced=self.class_weight == "balanced"), problem

    def _filled(self, templates: Sequence[Template], problem: Problem, seed: int) -> list[Template]:
        del seed  # nothing is drawn
        names = name_classes(problem.classes.tolist(), self.label_names, self.backend.mask_token)
        return [template.filled(names, []) for template in templates]

    def _templates(self, *, pairs: bool) -> list[Template]:
        found = super()._templates(pairs=pairs)
        if any(template.has_examples for template in found):
            raise InputError(
                "a demonstration shows one label, and these texts may have several; take prompts without <examples>, or none with",
                setting="demonstrations",
                value="0",
            )
        return found

    @classmethod
    def _head_of(cls, saved: SavedClassifier, path: str | Path) -> str:
        if not saved.several:
            raise ModelFileError(f"{path} gives each text one label; load it with PromptBoostingClassifier")
        return str(saved.learned["head"])


def load_classifier(path: str | Path, backend: MaskedLMBackend, **parameters: Any) -> PromptBoostingClassifier:
    """Read a saved classifier of either kind: with one label per text, or with several."""
    kind = MultiLabelPromptClassifier if SavedClassifier.load(path).several else PromptBoostingClassifier
    return kind.load(path, backend, **parameters)
