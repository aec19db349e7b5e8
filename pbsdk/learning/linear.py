"""Linear models over views: what every regression of ours becomes, however it was found.

A `Material` is what the labelled examples of a trial are made of: a view of each prompt's answers, perhaps a view of the texts, and
their features, centred. A `FittedRegression` has a weight per feature and class. Its scores are log-probabilities up to a
constant; it can be read, saved, and asked for by tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict
from scipy.sparse import csr_matrix

from pbsdk.backend import Floats, MaskDistribution
from pbsdk.errors import InputError
from pbsdk.learning.calibration import Confidences, SavedConfidences
from pbsdk.learning.exits import Prefix, PrefixExit
from pbsdk.learning.explanation import Explanation, LearnerRow
from pbsdk.learning.heads import TokenOf, Trial, Word
from pbsdk.learning.matrix import TokenMatrix
from pbsdk.learning.regression import log_softmax, per_length
from pbsdk.learning.ridge import Ridges, unit_scale
from pbsdk.learning.texts import SavedTextView, TextView
from pbsdk.learning.verbalizer import check_labels
from pbsdk.learning.views import OfViews, SavedView, View, saved_fields, view_of
from pbsdk.queries.examples import Example

__all__ = ["FittedRegression", "Material", "WeighedTexts", "restored"]

WORDS_SHOWN = 8
"""How many tokens of each prompt an explanation names per class."""

TEXT_ITSELF = "(the text's own words)"
"""What an explanation calls the view of the texts, in a prompt's place."""

_DIGITS = 9

Facts = Mapping[str, str | int | float | bool | None]


@dataclass(frozen=True)
class Material:
    """The labelled examples of a trial, the validation set among them, as features.

    Attributes:
        labels: the class (N,) of each example.
        views: what is read of each prompt's answers.
        answers: the features (N, D) of all prompts side by side, centred, with a mean square length of 1.
        texts: what is read of the texts, if it is.
        prompts: the place of each view's prompt in the pool.
        weights: how much each example counts (N,), 1 on average; None: all alike.
    """

    labels: npt.NDArray[np.intp]
    n_classes: int
    views: tuple[View, ...]
    answers: npt.NDArray[np.float32]
    texts: TextView | None
    prompts: tuple[int, ...]
    _scale: float
    _text_features: csr_matrix | None
    weights: Floats | None = None

    @classmethod
    def of(cls, trial: Trial, *, texts: bool = False) -> Self:
        """Read a trial; with `texts`, the examples' own words too."""
        labels = check_labels(trial.labels, trial.n_classes, trial.answers[0].n_examples)
        pools = [trial.answers]
        if trial.validation is not None:
            pools.append(trial.validation[0])
            labels = np.concatenate([labels, np.asarray(trial.validation[1], dtype=np.int64)])
        views = [view_of(matrix) for matrix in trial.answers]
        ends = np.cumsum([len(view.mean) for view in views])
        answers = np.empty((len(labels), ends[-1]), dtype=np.float32)
        for place, (view, block) in enumerate(zip(views, np.split(answers, ends[:-1], axis=1), strict=True)):
            starts = np.cumsum([0, *(pool[place].n_examples for pool in pools)])
            for pool, start in zip(pools, starts, strict=False):
                block[start : start + pool[place].n_examples] = view.features(pool[place])
            asked = np.ones(len(block), dtype=np.bool_) if trial.silent is None else ~trial.silent[:, place]
            centre = block[asked].mean(axis=0, dtype=np.float64)
            np.subtract(block, centre.astype(np.float32), out=block)
            block[~asked] = 0  # no evidence: the mean answer
            views[place] = view.moved(centre)
        scale = _unit(answers)
        answers *= np.float32(scale)
        text_view = TextView.of(trial.examples) if texts else None
        features = text_view.features(trial.examples) if text_view is not None else None
        prompts = tuple(range(len(views)))
        return cls(labels, trial.n_classes, tuple(views), answers, text_view, prompts, scale, features, trial.weights)

    @cached_property
    def ridges(self) -> Ridges:
        """What learns from the texts."""
        assert self._text_features is not None  # noqa: S101 - for the type checker
        return Ridges(self._text_features, self.labels, self.n_classes, self.weights)

    def of_prompts(self, places: Sequence[int]) -> Self:
        """Return the same examples with the answers of some prompts alone, by their places here."""
        ends = np.cumsum([len(view.mean) for view in self.views])
        columns = np.concatenate([np.arange(ends[at] - len(self.views[at].mean), ends[at]) for at in places])
        answers = self.answers[:, columns]
        unit = np.float32(_unit(answers))
        return replace(
            self,
            views=tuple(self.views[at] for at in places),
            prompts=tuple(self.prompts[at] for at in places),
            answers=answers * unit,
            _scale=self._scale * float(unit),
        )

    def blocks(self) -> list[npt.NDArray[np.float32]]:
        """Return the features (N, D) of each prompt, as its view gives them."""
        ends = np.cumsum([len(view.mean) for view in self.views])[:-1]
        return np.split(self.answers / np.float32(self._scale), ends, axis=1)

    def without_texts(self) -> Self:
        """Return the same examples with their answers alone."""
        return replace(self, texts=None, _text_features=None)

    def fitted(self, answers: Floats, texts: Floats | None, bias: Floats, facts: Facts) -> FittedRegression:
        """Return the model with these duals (N, C) of the answers and of the texts, and this bias (C,)."""
        weights = np.round(self._scale * (self.answers.T.astype(np.float64) @ answers), _DIGITS)
        weighed = None
        if texts is not None:
            assert self.texts is not None and self._text_features is not None  # noqa: S101, PT018 - for the type checker
            centred = texts - texts.mean(axis=0)
            of_terms = np.round(unit_scale(self._text_features) ** 2 * (self._text_features.T @ centred), _DIGITS)
            bias = bias - np.asarray(self._text_features.mean(axis=0)).ravel() @ of_terms
            weighed = WeighedTexts(self.texts, of_terms)
        ends = np.cumsum([len(view.mean) for view in self.views])[:-1]
        return FittedRegression(
            self.prompts, self.views, tuple(np.split(weights, ends)), np.round(bias, _DIGITS), weighed, facts
        )


def _unit(features: npt.NDArray[np.float32]) -> float:
    return per_length(float(np.square(features).sum(dtype=np.float64)) / len(features))


@dataclass(frozen=True)
class WeighedTexts:
    """A view of the texts, and a weight (D, C) for each of its n-grams."""

    view: TextView
    weights: Floats

    def scores(self, examples: Sequence[Example]) -> Floats:
        """Return what it adds to the scores (N, C)."""
        added: Floats = self.view.features(examples) @ self.weights
        return added

    def explained(self) -> Iterator[LearnerRow]:
        """Yield the single words that speak most for each class; pairs of words and n-grams of characters are left out."""
        known = [(at, term) for at, term in enumerate(self.view.ngrams["words"]) if term.isalnum()]
        weights = self.weights[[at for at, _ in known]]
        for ranked in np.argsort(-weights, axis=0, kind="stable")[:WORDS_SHOWN]:
            weight = float(weights[ranked, np.arange(weights.shape[1])].mean())
            yield LearnerRow(TEXT_ITSELF, tuple(known[at][1] for at in ranked), weight, answered=False)


@dataclass(frozen=True)
class FittedRegression(OfViews):
    """A view and weights (D, C) per prompt and perhaps for the texts, and a bias (C,)."""

    used: tuple[int, ...]
    views: tuple[View, ...]
    weights: tuple[Floats, ...]
    bias: Floats
    texts: WeighedTexts | None = None
    facts: Facts = field(default_factory=dict)
    history: tuple[Any, ...] = ()
    validation_accuracy: float | None = None
    confidences: Confidences | None = None
    study: Any = field(default=None, compare=False, repr=False)
    prefixes: tuple[Prefix, ...] = field(default=(), compare=False, repr=False)

    @property
    def n_classes(self) -> int:  # type: ignore[override] # read only
        """How many classes it tells apart."""
        return len(self.bias)

    @property
    def size(self) -> int:  # type: ignore[override] # read only
        """How many prompts are weighed."""
        return len(self.used)

    def scores_of_one(self, answers: Sequence[MaskDistribution | None], example: Example) -> Floats:
        """Return the scores (C,) of one example."""
        parts = (
            None if answer is None else view.features_of_one(answer) @ weights
            for answer, view, weights in zip(answers, self.views, self.weights, strict=True)
        )
        return self.summed(parts, example)

    def summed(self, parts: Iterable[Floats | None], example: Example) -> Floats:
        """Return the scores (C,) of one example, from what each prompt adds (C,); None where it wasn't asked."""
        scores = self.bias.copy() if self.texts is None else self.bias + self.texts.scores([example])[0]
        for part in parts:
            if part is not None:  # features are centred, so none at all is the mean answer
                scores += part
        return scores

    def scores_of(self, matrices: Sequence[TokenMatrix], examples: Sequence[Example]) -> Floats:
        """Return the scores (N, C) of examples whose answers lie in the matrices of the whole pool."""
        parts = zip(self.used, self.views, self.weights, strict=True)
        total: Floats = sum(view.features(matrices[prompt]) @ weights for prompt, view, weights in parts) + self.bias
        return total if self.texts is None else total + self.texts.scores(examples)

    def exit(self, max_changed: float | None) -> PrefixExit:
        """Return when a text needs no further answer, if prefixes were fitted."""
        if max_changed is None:
            raise InputError(
                "a regression has no exact early exit; give max_changed=0.01, the share of verdicts that may change"
            )
        if not self.prefixes and len(self.used) > 1:
            raise InputError(
                "max_changed needs a classifier that was fitted with early_exit=True; fit it again: the run folder has the answers, and they cost nothing"
            )
        return PrefixExit(self, self.prefixes, max_changed)

    def probabilities(self, scores: Floats) -> Floats:
        """Return the calibrated probabilities (..., C)."""
        return np.exp(log_softmax(scores))

    def state(self, word: Word) -> Mapping[str, Any]:
        """Return the views and weights as plain values, tokens beside their words."""
        prompts = tuple(
            _WeighedView(**saved_fields(prompt, view, word), weights=tuple(map(tuple, weights.tolist())))
            for prompt, view, weights in zip(self.used, self.views, self.weights, strict=True)
        )
        texts = None
        if self.texts is not None:
            weights = tuple(map(tuple, self.texts.weights.tolist()))
            texts = _SavedTexts(view=self.texts.view.saved(), weights=weights)
        sure = None if self.confidences is None else self.confidences.saved()
        bias = tuple(self.bias.tolist())
        prefixes = tuple(map(_saved_prefix, self.prefixes))
        state = _State(bias=bias, prompts=prompts, texts=texts, confidences=sure, prefixes=prefixes)
        return state.model_dump(mode="json")

    def explain(self, classes: Sequence[Any], prompts: Sequence[str], word: Word) -> Explanation:
        """Return, prompt by prompt, the tokens that speak most for each class, and how much they weigh on average."""
        rows = []
        for prompt, view, weights in zip(self.used, self.views, self.weights, strict=True):
            # A token of a censored view has two weights: being shown, and a nat above the smallest.
            strength = (weights * view.scale[:, None] if view.censored else weights).reshape(
                -1, *self._token_shape(view)
            )
            speaks = strength.sum(axis=0)  # (tokens, C)
            order = np.argsort(-speaks, axis=0, kind="stable")[:WORDS_SHOWN]
            for ranked in order:
                words = tuple(word(int(view.tokens[at])) for at in ranked)
                weight = float(speaks[ranked, np.arange(self.n_classes)].mean())
                rows.append(LearnerRow(prompts[prompt], words, weight))
        rows.sort(key=lambda row: -row.weight)
        if self.texts is not None:
            rows += self.texts.explained()
        return Explanation(tuple(classes), tuple(rows))

    def _token_shape(self, view: View) -> tuple[int, int]:
        return len(view.tokens), self.n_classes


class _WeighedView(SavedView):
    weights: tuple[tuple[float, ...], ...]


class _SavedTexts(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    view: SavedTextView
    weights: tuple[tuple[float, ...], ...]


class _SavedPrefix(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    prompts: tuple[int, ...]
    weights: tuple[tuple[tuple[float, ...], ...], ...]
    bias: tuple[float, ...]
    texts: tuple[tuple[float, ...], ...] | None
    margins: tuple[float, ...]
    finals: tuple[float, ...]


def _saved_prefix(prefix: Prefix) -> _SavedPrefix:
    model = prefix.model
    return _SavedPrefix(
        prompts=model.used,
        weights=tuple(tuple(map(tuple, one.tolist())) for one in model.weights),
        bias=tuple(model.bias.tolist()),
        texts=None if model.texts is None else tuple(map(tuple, model.texts.weights.tolist())),
        margins=tuple(prefix.margins.tolist()),
        finals=tuple(prefix.finals.tolist()),
    )


class _State(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    bias: tuple[float, ...]
    prompts: tuple[_WeighedView, ...]
    texts: _SavedTexts | None = None
    confidences: SavedConfidences | None = None
    prefixes: tuple[_SavedPrefix, ...] = ()


def restored(state: Mapping[str, Any], n_classes: int, n_prompts: int, token_of: TokenOf) -> FittedRegression:
    """Return the regression that `FittedRegression.state` describes."""
    saved = _State.model_validate(state)
    if len(saved.bias) != n_classes or not saved.prompts:
        raise ValueError(f"it needs a bias for each of {n_classes} classes, and a prompt")
    for k, one in enumerate(saved.prompts):
        one.check(k, n_prompts)
        if len(one.weights) != one.n_features or any(len(row) != n_classes for row in one.weights):
            raise ValueError(f"prompts.{k} needs, for each feature, weights for {n_classes} classes")
    views, orders = zip(*(one.translated(token_of) for one in saved.prompts), strict=True)
    whole = FittedRegression(
        tuple(one.prompt for one in saved.prompts),
        views,
        tuple(np.array(one.weights)[order] for one, order in zip(saved.prompts, orders, strict=True)),
        np.array(saved.bias),
        _texts(saved.texts, n_classes),
        confidences=None if saved.confidences is None else Confidences.restored(saved.confidences),
    )
    return replace(whole, prefixes=tuple(_restored_prefix(one, whole, orders) for one in saved.prefixes))


def _restored_prefix(saved: _SavedPrefix, whole: FittedRegression, orders: Sequence[npt.NDArray[np.intp]]) -> Prefix:
    shape = len(saved.bias) == whole.n_classes and len(saved.weights) == len(saved.prompts) > 0
    if not (shape and set(saved.prompts) <= set(whole.used) and len(saved.margins) == len(saved.finals) > 0):
        raise ValueError("a prefix needs prompts of the whole, weights for each, and verdicts")
    places = [whole.used.index(prompt) for prompt in saved.prompts]
    for at, weights in zip(places, saved.weights, strict=True):
        if len(weights) != len(orders[at]) or any(len(row) != whole.n_classes for row in weights):
            raise ValueError(f"a prefix needs, for each feature, weights for {whole.n_classes} classes")
    texts = None
    if saved.texts is not None:
        if whole.texts is None or np.shape(saved.texts) != whole.texts.weights.shape:
            raise ValueError("a prefix needs the same n-grams as the whole")
        texts = WeighedTexts(whole.texts.view, np.array(saved.texts))
    model = FittedRegression(
        saved.prompts,
        tuple(whole.views[at] for at in places),
        tuple(np.array(one)[orders[at]] for at, one in zip(places, saved.weights, strict=True)),
        np.array(saved.bias),
        texts,
    )
    return Prefix(model, np.array(saved.margins), np.array(saved.finals))


def _texts(saved: _SavedTexts | None, n_classes: int) -> WeighedTexts | None:
    if saved is None:
        return None
    view = TextView.restored(saved.view)
    if len(saved.weights) != len(view.terms) or any(len(row) != n_classes for row in saved.weights):
        raise ValueError(f"texts needs weights for each n-gram and {n_classes} classes")
    return WeighedTexts(view, np.array(saved.weights).reshape(-1, n_classes))
