"""The seam for heads: what turns answered examples into a fitted model.

A `Head` learns from a `Trial`, which holds the answers of a pool's prompts and the labels, and never a model to ask. What it
returns is `Fitted`: it says which prompts and tokens it needs of a new text, turns those answers into a score per class,
writes itself into a file, and explains itself. The classifier, the command line and `pbsdk.reproduce` know no more of it.

A head of your own is two classes and one line, the entry point in `pyproject.toml`:

    [project.entry-points."pbsdk.heads"]
    centroid = "my_package:Centroid"

`PromptBoostingClassifier(lm, head="centroid")` then makes it with those of the classifier's parameters that its constructor
takes by name (such as `m`); `head=Centroid(...)` uses it as it is.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from pbsdk.backend import Floats, MaskDistribution, Tokens
from pbsdk.errors import InputError
from pbsdk.learning.calibration import Confidences
from pbsdk.learning.exits import Exit
from pbsdk.learning.explanation import Explanation
from pbsdk.learning.matrix import TokenMatrix
from pbsdk.plugins import HEADS
from pbsdk.queries.examples import Example

__all__ = ["Fitted", "Head", "Trial", "Validation", "head_from", "head_named"]

Validation = tuple[Sequence[TokenMatrix], npt.ArrayLike]
"""The answers of the validation set, one matrix per prompt, and its labels."""

Word = Callable[[int], str]
"""What a token says."""

TokenOf = Callable[[int, str], int]
"""The token that says a word in the vocabulary at hand; given what it was in the vocabulary that the file is from."""


def _no_report() -> None:
    pass


@dataclass(frozen=True)
class Trial:
    """Answered examples: all that a head learns from.

    Args:
        answers: one matrix per prompt of the pool.
        labels: the class of each example, from 0.
        n_classes: how many classes there are.
        seed: what draws, if anything is drawn.
        validation: answers and labels that choose among models, if there are any.
        report: to be called after each of the head's `steps`.
        examples: the examples themselves, those of the validation set last; for heads that read texts.
        silent: where (N, prompts) an example wasn't asked, since the prompt shows it as a demonstration. The matrices
            hold some other answer there, which is no evidence.
        weights: how much each example counts (N,), those of the validation set last; 1 on average. None: all alike.
    """

    answers: Sequence[TokenMatrix]
    labels: npt.ArrayLike
    n_classes: int
    seed: int
    validation: Validation | None = None
    report: Callable[[], None] = _no_report
    examples: Sequence[Example] = ()
    silent: npt.NDArray[np.bool_] | None = None
    weights: Floats | None = None


class Fitted(ABC):
    """A fitted model with scores.

    Attributes:
        n_classes: how many classes it tells apart.
        prompts: the prompts it needs, by their places in the pool, ascending.
        tokens: the tokens it needs, ascending; None: whole answers.
        censored: whether it learned from a model's top k, and reads where an answer ends; an answer for chosen tokens doesn't say that.
        size: how many learners it is made of.
        history: what happened in each round, for heads that have rounds.
        facts: how it came about: plain values that the model file keeps.
        validation_accuracy: on the validation set, if there was one.
        confidences: how sure the head was of examples left out, and whether it was right, if it cross-validates.
        study: what else cross-validation found (`pbsdk.learning.study.Study`); not saved.
    """

    n_classes: int
    prompts: tuple[int, ...]
    tokens: Tokens | None
    censored: bool = False
    size: int
    history: tuple[Any, ...] = ()
    facts: Mapping[str, str | int | float | bool | None]
    validation_accuracy: float | None = None
    confidences: Confidences | None = None
    study: Any = None

    @abstractmethod
    def scores_of_one(self, answers: Sequence[MaskDistribution | None], example: Example) -> Floats:
        """Return the scores (C,) of one example, from its answers under each of `prompts`; None where it wasn't asked."""

    @abstractmethod
    def state(self, word: Word) -> Mapping[str, Any]:
        """Return what `Head.restore` needs, as plain values; tokens beside their words."""

    @abstractmethod
    def explain(self, classes: Sequence[Any], prompts: Sequence[str], word: Word) -> Explanation:
        """Return what it learned as a table; `prompts` are those of the whole pool."""

    def scores(self, answers: Iterable[MaskDistribution | None], examples: Iterable[Example]) -> Iterator[Floats]:
        """Yield the scores (C,) of each example as soon as its answers have come: all of `prompts`, in order."""
        stream = iter(answers)
        for example in examples:
            yield self.scores_of_one(list(islice(stream, len(self.prompts))), example)

    def scores_of(self, matrices: Sequence[TokenMatrix], examples: Sequence[Example]) -> Floats:
        """Return the scores (N, C) of examples whose answers lie in the matrices of the whole pool."""
        used = [matrices[prompt].answers(self.tokens) for prompt in self.prompts]
        groups = zip(*used, strict=True)
        return np.array([self.scores_of_one(group, example) for group, example in zip(groups, examples, strict=True)])

    def staged_scores(self, answers: Iterable[MaskDistribution | None], n_examples: int) -> Iterator[Floats]:
        """Yield the scores (N, C) of the first learner, of the first two, and so on; for heads that add learners."""
        del answers, n_examples
        raise InputError("this head doesn't add one learner to another, so it has no stages")

    def exit(self, max_changed: float | None) -> Exit:
        """Return when a text needs no further answer: without `max_changed` no verdict may change, else at most this share."""
        del max_changed
        raise InputError(
            "this head needs every answer, so it has no early exit; the heads that vote, 'soft' and 'auto' have"
        )

    def probabilities(self, scores: Floats) -> Floats:
        """Return what share of an example's scores (..., C) each class has."""
        shares: Floats = scores / scores.sum(axis=-1, keepdims=True)
        return shares


class Head(ABC):
    """How a model is made of answers. Its constructor refuses parameters that can't work, before anything is asked."""

    name: ClassVar[str]
    """What the model file and `head=` call it: its entry point's name."""

    validates: ClassVar[bool] = True
    """Whether a validation set chooses among models; otherwise its texts are learned from like the others."""

    weighs: ClassVar[bool] = False
    """Whether it heeds `Trial.weights`; weights for a head that doesn't are refused."""

    @property
    def steps(self) -> int:
        """How often `fit` reports at most; 0: it is done in a blink."""
        return 0

    def check(self, n_classes: int) -> None:  # noqa: B027 - a head that works with any number need not say so
        """Refuse, before anything is asked, what can't work with so many classes."""

    @abstractmethod
    def fit(self, trial: Trial) -> Fitted:
        """Learn from answered examples."""

    @classmethod
    @abstractmethod
    def restore(cls, state: Mapping[str, Any], n_classes: int, n_prompts: int, token_of: TokenOf) -> Fitted:
        """Return the model that `Fitted.state` describes; a ValueError says what doesn't fit."""


def head_named(name: str) -> type[Head]:
    """Return the head that is registered under a name."""
    found = HEADS.load(name)
    if not (isinstance(found, type) and issubclass(found, Head)):
        raise InputError(f"{name!r} is registered as a head, but {found!r} is not a subclass of pbsdk's Head")
    return found


def head_from(given: Any, parameters: Mapping[str, Any]) -> Head:
    """Return a head itself, or make the one that is named, with those parameters that its constructor takes."""
    if isinstance(given, Head):
        return given
    if not isinstance(given, str):
        raise InputError(f"head must be a name, such as 'boosting', or a Head; not {given!r}")
    kind = head_named(given)
    return kind(**{name: parameters[name] for name in inspect.signature(kind).parameters if name in parameters})
