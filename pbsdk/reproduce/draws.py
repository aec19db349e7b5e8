"""Draws: a benchmark's rows as the methods see them, with test rows that all draws share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt
from sklearn.metrics import accuracy_score, f1_score

from pbsdk.backend import digest
from pbsdk.data.loading import LabelledTexts
from pbsdk.data.sampling import held_out
from pbsdk.errors import InputError
from pbsdk.queries.demonstrations import fill_templates, name_classes
from pbsdk.queries.examples import Example, read_examples
from pbsdk.queries.markers import escape_markers
from pbsdk.queries.problem import Problem
from pbsdk.queries.templates import Template
from pbsdk.reproduce.benchmarks import few_shot_of, named

__all__ = ["DataSet", "Draw", "LabelledExamples"]

Labels = npt.NDArray[np.intp]

_TEST_SEED = 13
"""The seed that draws the test rows: the same for all draws, so that they share the answers."""


@dataclass(frozen=True)
class LabelledExamples:
    """Examples and their classes."""

    examples: list[Example]
    labels: Labels

    def __add__(self, other: LabelledExamples) -> LabelledExamples:
        return LabelledExamples(self.examples + other.examples, np.concatenate([self.labels, other.labels]))

    @cached_property
    def id(self) -> str:
        """A digest of the examples and their classes."""
        return digest(*(f"{example.id} {label}" for example, label in zip(self.examples, self.labels, strict=True)))


@dataclass(frozen=True)
class Draw:
    """What a method learns from, before it is answered."""

    train: LabelledExamples
    validation: LabelledExamples

    @property
    def both(self) -> LabelledExamples:
        """Training and validation as one set."""
        return self.train + self.validation


class DataSet:
    """A benchmark: its classes, its test rows, its draws, and how it is scored.

    Args:
        name: the benchmark's name, see `pbsdk.reproduce.benchmarks`.
        mask_token: the model's mask; texts that contain it are escaped.
        test_rows: how many test rows, drawn once for all draws; None for all of them.
    """

    def __init__(self, name: str, mask_token: str, test_rows: int | None) -> None:
        self.name = name
        self._mask_token = mask_token
        self._train = named(name)
        self.classes = tuple(sorted(set(self._train.labels)))
        self.pairs = self._train.pairs
        test = named(name, "test")
        if test_rows is not None and test_rows < len(test):
            test = test.take(sorted(np.random.default_rng(_TEST_SEED).permutation(len(test))[:test_rows].tolist()))
        self.test = self._read(test)
        self._draws: dict[tuple[int | None, int], Draw] = {}

    def draw(self, k: int | None, seed: int) -> Draw:
        """Return k texts per class (None: all but a tenth) and the validation set."""
        if (k, seed) not in self._draws:
            drawn = held_out(self._train, seed=seed) if k is None else few_shot_of(self.name, k=k, seed=seed)
            self._draws[k, seed] = Draw(self._read(drawn.train), self._read(drawn.validation))
        return self._draws[k, seed]

    def filled(self, templates: Sequence[Template], k: int | None, seed: int) -> list[Template]:
        """Return templates with the names of the classes and with demonstrations from a draw's training texts."""
        if not any(template.names_classes for template in templates):
            return list(templates)
        draw = self.draw(k, seed)
        problem = Problem(
            np.array(self.classes),
            draw.train.examples,
            draw.train.labels,
            draw.validation.examples,
            draw.validation.labels,
        )
        names = name_classes(self.classes, None, self._mask_token)
        return fill_templates(templates, problem, names, per_class=None, seed=seed)

    def texts(self, given: LabelledExamples) -> LabelledTexts:
        """Return examples in the form that users pass in."""
        texts = [example.texts if self.pairs else example.text for example in given.examples]
        return LabelledTexts(texts, [self.classes[label] for label in given.labels])  # type: ignore[arg-type] # one kind

    @property
    def measure(self) -> Literal["accuracy", "F1"]:
        """How it is scored."""
        return "F1" if self.name == "mrpc" else "accuracy"

    def score(self, predicted: Labels) -> float:
        """Return the score of predictions for the test rows."""
        if self.measure == "F1":
            return float(f1_score(self.test.labels, predicted, pos_label=self.classes.index("equivalent")))
        return float(accuracy_score(self.test.labels, predicted))

    def _read(self, rows: LabelledTexts) -> LabelledExamples:
        strange = set(rows.labels) - set(self.classes)
        if strange:
            raise InputError(f"{self.name} has labels that its training rows lack: {', '.join(sorted(strange))}")
        # A benchmark's texts can't be changed, even if one of them contains a mask.
        examples = [escape_markers(example, self._mask_token) for example in read_examples(rows.examples)]
        return LabelledExamples(examples, np.searchsorted(self.classes, rows.labels))
