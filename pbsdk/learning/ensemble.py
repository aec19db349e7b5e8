"""Weak learners that vote.

A `WeakLearner` is a template, one token per class, and a weight alpha. It says the class whose token
is most probable at the mask (ties to the lowest class). An `Ensemble` gives each class the summed
alpha of the learners that say it, and predicts the class with most (ties to the lowest).

To predict, an ensemble needs only `templates` and `tokens`: those that some learner uses. It reads
answers as they come, example by example and template by template, and keeps nothing but the votes.

>>> ensemble = Ensemble(2, (WeakLearner(0, (3, 5), 1.0), WeakLearner(4, (5, 9), 0.5)))
>>> ensemble.templates, ensemble.tokens
((0, 4), array([3, 5, 9]))
>>> answers = [MaskDistribution.from_logprobs([-3, -1, -2], [3, 5, 9])] * 2
>>> ensemble.votes(answers, 1), ensemble.predict(answers, 1)
(array([[0.5, 1. ]]), array([1]))

A `FittedEnsemble` is what the paper's heads make of a trial: an ensemble whose votes are its scores.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from pbsdk.backend import Floats, MaskDistribution, Tokens
from pbsdk.errors import BadAnswer, InputError
from pbsdk.learning.exits import VotesExit
from pbsdk.learning.explanation import Explanation, LearnerRow
from pbsdk.learning.heads import Fitted, TokenOf, Word
from pbsdk.learning.matrix import TokenMatrix
from pbsdk.learning.verbalizer import says
from pbsdk.queries.examples import Example

__all__ = ["Ensemble", "FittedEnsemble", "SavedLearner", "WeakLearner"]


@dataclass(frozen=True)
class WeakLearner:
    """A template (its place in the pool), one token per class, and the weight of its vote."""

    template: int
    tokens: tuple[int, ...]
    alpha: float

    def says(self, matrices: Sequence[TokenMatrix]) -> npt.NDArray[np.intp]:
        """Return the class (N,) it gives each example of a pool's matrices."""
        return says(matrices[self.template].codes_of(self.tokens))


@dataclass(frozen=True)
class Ensemble:
    """Weak learners that vote."""

    n_classes: int
    learners: tuple[WeakLearner, ...]

    def __post_init__(self) -> None:
        if not self.learners:
            raise InputError("an ensemble needs at least one weak learner")
        if any(len(learner.tokens) != self.n_classes for learner in self.learners):
            raise InputError(f"each weak learner needs one token for each of the {self.n_classes} classes")

    @cached_property
    def tokens(self) -> Tokens:
        """Every token that some learner uses, ascending."""
        return np.unique(np.array([learner.tokens for learner in self.learners], dtype=np.int64))

    @cached_property
    def templates(self) -> tuple[int, ...]:
        """Every template that some learner uses, ascending."""
        return tuple(sorted({learner.template for learner in self.learners}))

    @cached_property
    def _places(self) -> tuple[Tokens, Tokens]:
        """Where each learner (L,) finds its template, and (L, C) its tokens."""
        at = {template: k for k, template in enumerate(self.templates)}
        templates = np.array([at[learner.template] for learner in self.learners])
        return templates, np.searchsorted(self.tokens, np.array([learner.tokens for learner in self.learners]))

    @cached_property
    def _alphas(self) -> Floats:
        return np.array([learner.alpha for learner in self.learners])

    def opinions(self, answers: Iterable[MaskDistribution | None], n_examples: int) -> Iterator[npt.NDArray[np.intp]]:
        """Yield, example by example, the class that each learner says (L,); -1 where its template wasn't asked.

        Answers come example by example, for each under all of `templates` in order; they need hold
        no more than `tokens`.
        """
        templates, places = self._places
        stream = iter(answers)
        for _ in range(n_examples):
            group = list(islice(stream, len(self.templates)))
            if len(group) < len(self.templates):
                raise BadAnswer(f"fewer answers came than {n_examples} examples need")
            nothing = np.zeros(len(self.tokens), dtype=np.uint16)
            codes = np.stack([nothing if answer is None else answer.at(self.tokens) for answer in group])
            asked = np.array([answer is not None for answer in group])
            yield np.where(asked[templates], says(codes[templates[:, None], places]), -1)

    @cached_property
    def exit(self) -> VotesExit:
        """When the votes that are still out can't change the verdict; places are those of `templates`."""
        templates, places = self._places
        tokens_of = [places[templates == place] for place in range(len(self.templates))]

        def opinions(place: int, answer: MaskDistribution) -> npt.NDArray[np.intp]:
            said: npt.NDArray[np.intp] = says(answer.at(self.tokens)[tokens_of[place]])
            return said

        return VotesExit(self.n_classes, templates, self._alphas, opinions)

    def votes(self, answers: Iterable[MaskDistribution | None], n_examples: int) -> Floats:
        """Return the summed alphas (N, C), from answers as `opinions` reads them."""
        votes = np.zeros((n_examples, self.n_classes))
        for example, said in enumerate(self.opinions(answers, n_examples)):
            votes[example] = np.bincount(said[said >= 0], self._alphas[said >= 0], self.n_classes)
        return votes

    def staged_votes(self, answers: Iterable[MaskDistribution | None], n_examples: int) -> Iterator[Floats]:
        """Yield the votes (N, C) of the first learner, of the first two, and so on to all."""
        opinions = np.empty((n_examples, len(self.learners)), dtype=np.int32)
        for example, said in enumerate(self.opinions(answers, n_examples)):
            opinions[example] = said
        return self._staged(opinions.T)

    def staged_votes_of(
        self, matrices: Sequence[TokenMatrix], silent: npt.NDArray[np.bool_] | None = None
    ) -> Iterator[Floats]:
        """Yield the same as `staged_votes`, from the matrices of the whole pool; `silent` says where (N, prompts) nothing was asked."""
        unasked = np.zeros((1, len(matrices)), dtype=np.bool_) if silent is None else silent
        return self._staged(np.where(unasked[:, one.template], -1, one.says(matrices)) for one in self.learners)

    def _staged(self, opinions: Iterable[npt.NDArray[np.integer]]) -> Iterator[Floats]:
        votes: Floats | None = None
        for alpha, said in zip(self._alphas, opinions, strict=True):
            votes = np.zeros((len(said), self.n_classes)) if votes is None else votes.copy()
            voted = np.flatnonzero(np.asarray(said) >= 0)
            votes[voted, said[voted]] += alpha
            yield votes

    def predict(self, answers: Iterable[MaskDistribution | None], n_examples: int) -> npt.NDArray[np.intp]:
        """Return the class (N,) with most votes, the lowest of equals."""
        classes: npt.NDArray[np.intp] = self.votes(answers, n_examples).argmax(axis=1)
        return classes


class SavedLearner(BaseModel):
    """A weak learner in a file, with its words."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    prompt: Annotated[int, Field(ge=0)]
    tokens: tuple[Annotated[int, Field(ge=0, lt=1 << 63)], ...]
    words: tuple[str, ...]
    alpha: Annotated[float, Field(gt=0, lt=1e100)]


class _State(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    learners: tuple[SavedLearner, ...]


@dataclass(frozen=True)
class FittedEnsemble(Fitted):
    """An ensemble whose votes are scores, and how it came about."""

    ensemble: Ensemble
    history: tuple[Any, ...] = ()
    facts: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    validation_accuracy: float | None = None

    @property
    def n_classes(self) -> int:  # type: ignore[override] # read only
        """How many classes it tells apart."""
        return self.ensemble.n_classes

    @property
    def prompts(self) -> tuple[int, ...]:  # type: ignore[override] # read only
        """The prompts that some learner uses."""
        return self.ensemble.templates

    @property
    def tokens(self) -> Tokens:  # type: ignore[override] # read only
        """The tokens that some learner uses."""
        return self.ensemble.tokens

    @property
    def size(self) -> int:  # type: ignore[override] # read only
        """How many learners vote."""
        return len(self.ensemble.learners)

    def scores_of_one(self, answers: Sequence[MaskDistribution | None], example: Example) -> Floats:
        """Return the summed alphas (C,) of one example."""
        del example
        votes: Floats = self.ensemble.votes(answers, 1)[0]
        return votes

    def staged_scores(self, answers: Iterable[MaskDistribution | None], n_examples: int) -> Iterator[Floats]:
        """Yield the votes (N, C) of the first learner, of the first two, and so on to all."""
        return self.ensemble.staged_votes(answers, n_examples)

    def exit(self, max_changed: float | None) -> VotesExit:
        """Return the exact rule, which changes no verdict."""
        del max_changed
        return self.ensemble.exit

    def state(self, word: Word) -> Mapping[str, Any]:
        """Return the learners as plain values."""
        learners = tuple(
            SavedLearner(
                prompt=one.template,
                tokens=one.tokens,
                words=tuple(word(token) for token in one.tokens),
                alpha=one.alpha,
            )
            for one in self.ensemble.learners
        )
        return _State(learners=learners).model_dump(mode="json")

    @classmethod
    def restored(cls, state: Mapping[str, Any], n_classes: int, n_prompts: int, token_of: TokenOf) -> FittedEnsemble:
        """Return the ensemble that `state` describes."""
        saved = _State.model_validate(state).learners
        if not saved:
            raise ValueError("it has no learners")
        for k, learner in enumerate(saved):
            if not len(learner.tokens) == len(learner.words) == n_classes:
                raise ValueError(f"learner {k} needs a token and a word for each of {n_classes} classes")
            if learner.prompt >= n_prompts:
                raise ValueError(f"learner {k} uses prompt {learner.prompt} of {n_prompts}, counted from 0")
        learners = (WeakLearner(one.prompt, tuple(map(token_of, one.tokens, one.words)), one.alpha) for one in saved)
        return cls(Ensemble(n_classes, tuple(learners)))

    def explain(self, classes: Sequence[Any], prompts: Sequence[str], word: Word) -> Explanation:
        """Return a table of prompts, words for each class, and weights."""
        rows = (
            LearnerRow(prompts[one.template], tuple(word(token) for token in one.tokens), one.alpha)
            for one in self.ensemble.learners
        )
        return Explanation(tuple(classes), tuple(rows))
