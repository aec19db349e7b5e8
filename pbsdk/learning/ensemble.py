"""Weak learners that vote, and the file they are saved in.

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

A `SavedEnsemble` is readable JSON: the words beside the tokens, the prompts as they were typed, how
it was trained and which model answers. It holds no texts and no credentials.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
    model_validator,
)

from pbsdk.backend import Floats, MaskDistribution, ModelIdentity, Tokens
from pbsdk.errors import BadAnswer, InputError, ModelFileError
from pbsdk.learning.explanation import Explanation, LearnerRow
from pbsdk.learning.matrix import TokenMatrix
from pbsdk.learning.verbalizer import says
from pbsdk.queries.templates import Style
from pbsdk.version import __version__

__all__ = ["Ensemble", "SavedEnsemble", "SavedLearner", "TrainingFacts", "WeakLearner"]


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

    def opinions(self, answers: Iterable[MaskDistribution], n_examples: int) -> Iterator[npt.NDArray[np.intp]]:
        """Yield, example by example, the class that each learner says (L,).

        Answers come example by example, for each under all of `templates` in order; they need hold
        no more than `tokens`.
        """
        templates, places = self._places
        stream = iter(answers)
        for _ in range(n_examples):
            group = [answer.at(self.tokens) for answer in islice(stream, len(self.templates))]
            if len(group) < len(self.templates):
                raise BadAnswer(f"fewer answers came than {n_examples} examples need")
            codes = np.stack(group)  # (templates, tokens)
            yield says(codes[templates[:, None], places])

    def votes(self, answers: Iterable[MaskDistribution], n_examples: int) -> Floats:
        """Return the summed alphas (N, C), from answers as `opinions` reads them."""
        votes = np.zeros((n_examples, self.n_classes))
        for example, said in enumerate(self.opinions(answers, n_examples)):
            votes[example] = np.bincount(said, self._alphas, self.n_classes)
        return votes

    def staged_votes(self, answers: Iterable[MaskDistribution], n_examples: int) -> Iterator[Floats]:
        """Yield the votes (N, C) of the first learner, of the first two, and so on to all."""
        opinions = np.empty((n_examples, len(self.learners)), dtype=np.int32)
        for example, said in enumerate(self.opinions(answers, n_examples)):
            opinions[example] = said
        return self._staged(opinions.T)

    def staged_votes_of(self, matrices: Sequence[TokenMatrix]) -> Iterator[Floats]:
        """Yield the same as `staged_votes`, from the matrices of the whole pool."""
        return self._staged(learner.says(matrices) for learner in self.learners)

    def _staged(self, opinions: Iterable[npt.NDArray[np.integer]]) -> Iterator[Floats]:
        votes: Floats | None = None
        for alpha, said in zip(self._alphas, opinions, strict=True):
            votes = np.zeros((len(said), self.n_classes)) if votes is None else votes.copy()
            votes[np.arange(len(said)), said] += alpha
            yield votes

    def predict(self, answers: Iterable[MaskDistribution], n_examples: int) -> npt.NDArray[np.intp]:
        """Return the class (N,) with most votes, the lowest of equals."""
        classes: npt.NDArray[np.intp] = self.votes(answers, n_examples).argmax(axis=1)
        return classes


Label = StrictBool | StrictInt | StrictFloat | StrictStr
VERSION = 1


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=True)


class SavedLearner(_Model):
    """A weak learner, with its words."""

    prompt: Annotated[int, Field(ge=0)]
    tokens: tuple[Annotated[int, Field(ge=0)], ...]
    words: tuple[str, ...]
    alpha: float


class TrainingFacts(_Model):
    """How an ensemble came about."""

    n_train: int
    n_validation: int
    rounds_run: int
    rounds_kept: int
    m: int
    seed: int | None
    draw: str
    on_perfect: str
    way_out: str
    validation_accuracy: float | None


class SavedEnsemble(_Model):
    """A trained classifier as a file: everything to predict with, given the model."""

    schema_name: Literal["pbsdk.ensemble"] = Field(default="pbsdk.ensemble", alias="schema")
    version: int = VERSION
    pbsdk: str = __version__
    model: dict[str, str]
    """The identity of the model: its name and details."""
    classes: tuple[Label, ...]
    templates: tuple[str, ...]
    """The prompts of the pool, as they were typed."""
    style: Style
    """How prompts are rendered."""
    learners: tuple[SavedLearner, ...]
    facts: TrainingFacts

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if len(self.classes) < 2 or len(set(self.classes)) < len(self.classes):
            raise ValueError("it needs at least two classes, each once")
        if not self.learners:
            raise ValueError("it has no learners")
        for k, learner in enumerate(self.learners):
            if not len(learner.tokens) == len(learner.words) == len(self.classes):
                raise ValueError(f"learner {k} needs a token and a word for each of {len(self.classes)} classes")
            if learner.prompt >= len(self.templates):
                raise ValueError(f"learner {k} uses prompt {learner.prompt} of {len(self.templates)}, counted from 0")
        return self

    @classmethod
    def of(
        cls,
        ensemble: Ensemble,
        *,
        classes: Iterable[Label],
        templates: Iterable[str],
        style: Style,
        word: Callable[[int], str],
        identity: ModelIdentity,
        facts: TrainingFacts,
    ) -> SavedEnsemble:
        """Put together what a file holds; `word` tells what a token says."""
        return cls(
            model=json.loads(identity.to_json()),
            classes=tuple(classes),
            templates=tuple(templates),
            style=style,
            learners=tuple(
                SavedLearner(
                    prompt=learner.template,
                    tokens=learner.tokens,
                    words=tuple(word(token) for token in learner.tokens),
                    alpha=learner.alpha,
                )
                for learner in ensemble.learners
            ),
            facts=facts,
        )

    @property
    def ensemble(self) -> Ensemble:
        """The ensemble itself."""
        learners = tuple(WeakLearner(saved.prompt, saved.tokens, saved.alpha) for saved in self.learners)
        return Ensemble(len(self.classes), learners)

    @property
    def identity(self) -> ModelIdentity:
        """The model that it was trained on."""
        return ModelIdentity.from_json(json.dumps(self.model))

    def explain(self) -> Explanation:
        """Return a table of prompts, words for each class, and weights."""
        rows = (LearnerRow(self.templates[saved.prompt], saved.words, saved.alpha) for saved in self.learners)
        return Explanation(self.classes, tuple(rows))

    def save(self, path: str | Path) -> None:
        """Write the file as a whole or not at all."""
        target = Path(path)
        text = self.model_dump_json(by_alias=True, indent=2) + "\n"
        try:
            handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
            try:
                with open(handle, "w", encoding="utf-8") as file:  # noqa: PTH123 - an open descriptor
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                Path(name).chmod(0o644)
                Path(name).replace(target)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise ModelFileError(
                f"can't write {target}: {error.strerror or error}; choose a folder that exists, can be written and has room"
            ) from error

    @classmethod
    def load(cls, path: str | Path) -> SavedEnsemble:
        """Read what `save` wrote."""
        source = Path(path)
        try:
            data = json.loads(source.read_text(encoding="utf-8"))
        except OSError as error:
            raise ModelFileError(f"can't read {source}: {error.strerror or error}; check the path") from error
        except (ValueError, RecursionError) as error:
            raise ModelFileError(f"{source} is not JSON ({error}); give a file that `save` wrote") from error
        if not isinstance(data, dict) or data.get("schema") != "pbsdk.ensemble":
            raise ModelFileError(f"{source} is not a saved classifier; give a file that `save` wrote")
        version = data.get("version")
        if isinstance(version, int) and version > VERSION:
            raise ModelFileError(
                f"{source} was written by pbsdk {data.get('pbsdk')} in version {version} of the format, "
                f"and this pbsdk reads up to {VERSION}; update it: pip install -U pbsdk"
            )
        if version != VERSION:
            raise ModelFileError(f"{source} has no version that exists ({version!r}); save the classifier again")
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(piece) for piece in first["loc"])
            what = f"{place}: {first['msg']}" if place else first["msg"]
            raise ModelFileError(f"{source} was changed or damaged ({what}); save the classifier again") from error
