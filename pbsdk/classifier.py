"""The estimator: texts and labels in, a classifier out, through the interface alone.

`fit` checks everything that can be wrong before anything is sent, asks for every training and
validation example under every prompt in one go, and then boosts on the answers without asking again.
`predict` asks only for the prompts and tokens that the ensemble uses.

>>> from pbsdk.testing import FakeBackend
>>> clf = PromptBoostingClassifier(FakeBackend(), ["<input> So <mask>.", "<input> The <mask>"], random_state=1)
>>> texts = ["the parcel is late", "a courier at the door", "our team won", "the match was lost"]
>>> clf.fit(texts, ["post", "post", "sport", "sport"]).predict(["no delivery today", "a season of goals"]).tolist()
['post', 'sport']
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted

from pbsdk.backend import (
    Floats,
    MaskDistribution,
    MaskedLMBackend,
    MaskedQuery,
    OpenVocabulary,
    Phase,
    Tokens,
    Vocabulary,
)
from pbsdk.errors import InputError, ModelFileError
from pbsdk.learning.boosting import Boosted, Outcome, RoundRecord, WayOut, boost
from pbsdk.learning.ensemble import Ensemble, SavedEnsemble, TrainingFacts, WeakLearner
from pbsdk.learning.explanation import Explanation, LearnerRow
from pbsdk.learning.matrix import collect
from pbsdk.progress import progress_bar
from pbsdk.queries.examples import Example, read_examples, read_labels
from pbsdk.queries.markers import escape_markers, refuse_markers
from pbsdk.queries.pools import choosers, fit_templates, read_pool
from pbsdk.queries.rendering import render
from pbsdk.queries.reuse import warn_of_reuse
from pbsdk.queries.templates import Style, Template

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["PromptBoostingClassifier"]

Labels = npt.NDArray[Any]


@dataclass(frozen=True)
class _Problem:
    """What `fit` was given, checked."""

    templates: list[Template]
    classes: Labels
    train: list[Example]
    train_labels: npt.NDArray[np.intp]
    validation: list[Example]
    validation_labels: npt.NDArray[np.intp]


class PromptBoostingClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc] # scikit-learn is untyped
    """A text classifier made of prompts, words and votes.

    Args:
        backend: the language model, from `pbsdk.connect(...)`; copies of the estimator share it.
        prompts: a list of prompts, the name of a pool, or a pool's JSON file.
        rounds: how many rounds of boosting at most.
        m: how many candidate words a class has; None: 50 for two classes, 10 for up to four,
            fewer for more.
        n_prompts: use only the first so many prompts of the pool.
        draw: "cycles" (every prompt before any comes again) or "independent".
        on_perfect: what to do when a learner makes no error on the training set, which boosting can't
            use: "vote" (one learner a prompt, majority) or "best" (the one that validates best).
        merge_validation: train on the validation set too, and keep all `rounds`.
        style: how texts and prompts are joined: "plain", or "paper" as the authors did.
        markers: what to do with texts that contain a mask: "refuse" or "escape".
        keep: what predictions leave in the run folder: "needed" tokens, "whole" answers, or "auto",
            which is "needed" but for `score` on no more texts than were trained on: such texts are
            likely to be trained on next, by cross-validation, and then need no second pass.
        random_state: the seed of the draws.
        progress: show progress bars; None: in a terminal or notebook.
    """

    def __init__(
        self,
        backend: MaskedLMBackend,
        prompts: Any = "topic",
        *,
        rounds: int = 200,
        m: int | None = None,
        n_prompts: int | None = None,
        draw: Literal["cycles", "independent"] = "cycles",
        on_perfect: Literal["vote", "best"] = "vote",
        merge_validation: bool = False,
        style: Style = "plain",
        markers: Literal["refuse", "escape"] = "refuse",
        keep: Literal["auto", "needed", "whole"] = "auto",
        random_state: Any = None,
        progress: bool | None = None,
    ) -> None:
        self.backend = backend
        self.prompts = prompts
        self.rounds = rounds
        self.m = m
        self.n_prompts = n_prompts
        self.draw = draw
        self.on_perfect = on_perfect
        self.merge_validation = merge_validation
        self.style = style
        self.markers = markers
        self.keep = keep
        self.random_state = random_state
        self.progress = progress

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        return tags

    def fit(self, X: Any, y: Any, *, validation: tuple[Any, Any] | None = None) -> Self:
        """Learn from texts and labels.

        Args:
            X: texts, or pairs of texts.
            y: a label for each.
            validation: (texts, labels) that choose how many rounds are kept.
        """
        problem = self._checked(X, y, validation)
        templates, train, held_out = problem.templates, problem.train, problem.validation
        queries = self._fit_queries(problem)
        seed = self._seed()
        answers = progress_bar(self.backend.stream(queries), total=len(queries), what="asking", show=self.progress)
        with (
            collect(islice(answers, len(train) * len(templates)), len(train), len(templates)) as train_answers,
            collect(answers, len(held_out), len(templates)) as held_out_answers,
        ):
            boosted = boost(
                train_answers,
                problem.train_labels,
                len(problem.classes),
                rounds=self.rounds,
                m=self.m,
                draw=self.draw,
                on_perfect=self.on_perfect,
                seed=seed,
                validation=(held_out_answers, problem.validation_labels) if held_out else None,
            )
        self.classes_ = problem.classes
        self.templates_ = templates
        self.ensemble_ = boosted.ensemble
        self.history_ = boosted.history
        self.n_train_ = len(train)
        self._chose_all = choosers(self.prompts).intersection(example.id for example in held_out)
        self._facts = self._training_facts(problem, boosted, seed)
        return self

    def predict(self, X: Any) -> Labels:
        """Return the label of each text."""
        return self._labels(self._votes(X))

    def predict_proba(self, X: Any) -> Floats:
        """Return each class's share of the votes; columns as in `classes_`."""
        votes = self._votes(X)
        shares: Floats = votes / votes.sum(axis=1, keepdims=True)
        return shares

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy on texts and their labels.

        Texts that chose both the prompts and the number of rounds give a `ReusedExamplesWarning`.
        """
        check_is_fitted(self)
        examples = self._readable(X)
        warn_of_reuse(examples, self._chose_all)
        labels = read_labels(y, len(examples))
        whole = self.keep == "auto" and len(examples) <= self.n_train_
        predicted = self._labels(self._votes(X, whole=whole))
        return float(accuracy_score(labels, predicted, sample_weight=sample_weight))

    def staged_score(self, X: Any, y: Any) -> Iterator[float]:
        """Yield the accuracy after the first learner, the first two, and so on to all."""
        check_is_fitted(self)
        examples = self._readable(X)
        warn_of_reuse(examples, self._chose_all)
        labels = read_labels(y, len(examples))
        for votes in self.ensemble_.staged_votes(self._answers(examples, whole=False), len(examples)):
            yield float(accuracy_score(labels, self._labels(votes)))

    def fit_queries(self, X: Any, y: Any, *, validation: tuple[Any, Any] | None = None) -> list[MaskedQuery]:
        """Return what `fit` would ask, in order; nothing is sent."""
        return self._fit_queries(self._checked(X, y, validation))

    def predict_queries(self, X: Any, *, fitted: bool = True) -> tuple[list[MaskedQuery], Tokens | None]:
        """Return what `predict` would ask, and for which tokens; nothing is sent.

        `fitted=False` says what it may ask at most: every prompt of the pool, for all tokens.
        """
        examples = self._readable(X)
        if fitted:
            check_is_fitted(self)
            return self._predict_queries(examples, whole=False)
        pool = read_pool(self.prompts, self.backend.abilities)[: self.n_prompts]
        pairs = bool(examples) and examples[0].pair is not None
        templates = fit_templates(pool, self.backend.abilities, pairs=pairs)
        return self._queries(templates, examples, Phase.PREDICT), None

    def explain(self) -> Explanation:
        """Return a table of prompts, words for each class, and weights."""
        check_is_fitted(self)
        vocabulary = self.backend.vocabulary
        return Explanation(
            tuple(self.classes_.tolist()),
            tuple(
                LearnerRow(
                    self.templates_[learner.template].source,
                    tuple(vocabulary[token] for token in learner.tokens),
                    learner.alpha,
                )
                for learner in self.ensemble_.learners
            ),
        )

    @overload
    def plot_staged(self, X: Any = None, y: Any = None, *, name: str = "these texts", ax: None = None) -> Figure: ...
    @overload
    def plot_staged(self, X: Any = None, y: Any = None, *, name: str = "these texts", ax: Axes) -> Axes: ...
    def plot_staged(
        self, X: Any = None, y: Any = None, *, name: str = "these texts", ax: Axes | None = None
    ) -> Figure | Axes:
        """Draw the accuracy after each learner, how many learners were kept, and the weight of each.

        The validation set's accuracy is that of training. With texts and labels, theirs is drawn too, which
        asks for them as `staged_score` does. Needs matplotlib: `pip install "pbsdk[plot]"`.

        Args:
            X: texts, such as a test set's.
            y: their labels.
            name: what to call them.
            ax: draw the accuracy alone, into these axes.
        """
        from pbsdk.plotting import draw_staged  # noqa: PLC0415 - matplotlib is an extra

        check_is_fitted(self)
        if (X is None) != (y is None):
            raise InputError("plot_staged needs texts and labels, both or neither")
        tried = self._tried()
        curves = {}
        validated = [record.validation_accuracy for record in tried if record.validation_accuracy is not None]
        if validated:
            curves["validation"] = validated
        if X is not None:
            curves[name] = list(self.staged_score(X, y))
        if not curves:
            raise InputError(
                "there is no accuracy to draw: fit(..., validation=...) keeps one for each learner, but not in a "
                "saved file, nor where learners were perfect or none was kept; or give plot_staged texts and labels"
            )
        kept = self.ensemble_.learners
        alphas = [record.alpha or 0.0 for record in tried] or [learner.alpha for learner in kept]
        return draw_staged(curves, alphas, len(kept), ax)

    @overload
    def plot_words(self, count: int = 8, *, classes: Any = None, ax: None = None) -> Figure: ...
    @overload
    def plot_words(self, count: int = 8, *, classes: Any = None, ax: Axes) -> Axes: ...
    def plot_words(self, count: int = 8, *, classes: Any = None, ax: Axes | None = None) -> Figure | Axes:
        """Draw which words speak for each class, and how strongly: the summed weight of the learners that use them.

        Needs matplotlib: `pip install "pbsdk[plot]"`.

        Args:
            count: how many words of a class to draw, the weightiest.
            classes: some of the classes, in this order; None: all.
            ax: draw a single class into these axes.
        """
        from pbsdk.plotting import draw_words  # noqa: PLC0415 - matplotlib is an extra

        explanation = self.explain()
        labels = list(explanation.classes if classes is None else classes)
        strange = [label for label in labels if label not in explanation.classes]
        if strange or not labels:
            known = ", ".join(map(repr, explanation.classes))
            raise InputError(f"classes must be some of {known}; not {labels!r}")
        if not isinstance(count, Integral) or count < 1:
            raise InputError(f"count must be a whole number of at least 1, not {count!r}")
        if ax is not None and len(labels) > 1:
            raise InputError(f"ax takes one class, and there are {len(labels)}; say which: classes=[{labels[0]!r}]")
        return draw_words({label: explanation.weights(label) for label in labels}, int(count), ax)

    def save(self, path: str | Path) -> None:
        """Write the classifier as readable JSON: prompts, words, weights, and which model it needs."""
        check_is_fitted(self)
        vocabulary = self.backend.vocabulary
        SavedEnsemble.of(
            self.ensemble_,
            classes=self.classes_.tolist(),
            templates=[template.source for template in self.templates_],
            style=self.style,
            word=lambda token: vocabulary[token],
            identity=self.backend.identity,
            facts=self._facts,
        ).save(path)

    @classmethod
    def load(cls, path: str | Path, backend: MaskedLMBackend, **parameters: Any) -> Self:
        """Read a saved classifier, to be used with `backend`.

        Another model than the one it was trained on gives a warning that says what differs.
        """
        saved = SavedEnsemble.load(path)
        difference = backend.identity.differences(saved.identity)
        if difference:
            warnings.warn(
                f"{path} was trained on another model than this one ({difference}); its accuracy is not what it was",
                stacklevel=2,
            )
        loaded = cls(backend, prompts=list(saved.templates), style=saved.style, **parameters)
        loaded.classes_ = np.asarray(saved.classes)
        loaded.templates_ = [Template(source) for source in saved.templates]
        loaded.ensemble_ = _translated(saved, backend.vocabulary, path)
        loaded.n_train_ = saved.facts.n_train
        loaded._chose_all = frozenset()  # a file doesn't name the examples
        loaded._facts = saved.facts
        return loaded

    def _checked(self, X: Any, y: Any, validation: tuple[Any, Any] | None) -> _Problem:
        self._check_parameters()
        train = self._readable(X)
        if not train:
            raise InputError("there are no texts to train on")
        labels = read_labels(y, len(train))
        held_out, held_out_labels = self._checked_validation(validation, train)
        classes = np.unique(labels)
        if len(classes) < 2:
            raise InputError(
                f"all {len(labels)} texts are of one class, {classes.tolist()[0]!r}; training needs two classes or more"
            )
        strange = set(held_out_labels.tolist()) - set(classes.tolist())
        if strange:
            raise InputError(
                f"the validation set has labels that the training set lacks: {', '.join(sorted(map(repr, strange)))}"
            )
        if self.merge_validation:
            train, held_out = train + held_out, []
            labels, held_out_labels = np.concatenate([labels, held_out_labels.astype(labels.dtype)]), labels[:0]
        pool = read_pool(self.prompts, self.backend.abilities)[: self.n_prompts]
        templates = fit_templates(pool, self.backend.abilities, pairs=train[0].pair is not None)
        return _Problem(
            templates,
            classes,
            train,
            np.searchsorted(classes, labels),
            held_out,
            np.searchsorted(classes, held_out_labels),
        )

    def _checked_validation(
        self, validation: tuple[Any, Any] | None, train: Sequence[Example]
    ) -> tuple[list[Example], Labels]:
        if validation is None:
            if self.merge_validation:
                raise InputError("merge_validation=True needs fit(..., validation=(texts, labels))")
            return [], np.asarray([])
        if not isinstance(validation, tuple | list) or len(validation) != 2:
            raise InputError("validation must be (texts, labels)")
        held_out = self._readable(validation[0], name="validation texts")
        if not held_out:
            raise InputError("the validation set is empty; leave it out, or give it texts")
        if (held_out[0].pair is None) != (train[0].pair is None):
            raise InputError("the training set and the validation set must both be single texts, or both pairs")
        return held_out, read_labels(validation[1], len(held_out), name="validation labels")

    def _check_parameters(self) -> None:
        if not isinstance(self.backend, MaskedLMBackend):
            raise InputError(
                f"backend must be a language model, such as pbsdk.connect(); this is a {type(self.backend).__name__}"
            )
        for name, optional in (("rounds", False), ("m", True), ("n_prompts", True)):
            value = getattr(self, name)
            if value is None and optional:
                continue
            if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
                raise InputError(f"{name} must be a whole number of at least 1, not {value!r}")
        for name, choices in (
            ("draw", ("cycles", "independent")),
            ("on_perfect", ("vote", "best")),
            ("style", ("plain", "paper")),
            ("markers", ("refuse", "escape")),
            ("keep", ("auto", "needed", "whole")),
        ):
            if getattr(self, name) not in choices:
                raise InputError(f"{name} must be one of {', '.join(choices)}; not {getattr(self, name)!r}")

    def _seed(self) -> int:
        if isinstance(self.random_state, Integral):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31))

    def _readable(self, texts: Any, name: str = "texts") -> list[Example]:
        examples = read_examples(texts, name=name)
        if self.markers == "escape":
            return [escape_markers(example, self.backend.mask_token) for example in examples]
        refuse_markers(examples, self.backend.mask_token, name=name)
        return examples

    def _fit_queries(self, problem: _Problem) -> list[MaskedQuery]:
        phases = [(problem.train, Phase.TRAIN), (problem.validation, Phase.VALIDATE)]
        return [query for examples, phase in phases for query in self._queries(problem.templates, examples, phase)]

    def _queries(self, templates: Sequence[Template], examples: Sequence[Example], phase: Phase) -> list[MaskedQuery]:
        return render(examples, templates, phase, self.style)

    def _answers(self, examples: Sequence[Example], *, whole: bool) -> Iterator[MaskDistribution]:
        queries, tokens = self._predict_queries(examples, whole=whole)
        answers = self.backend.stream(queries, tokens)
        return progress_bar(answers, total=len(queries), what="predicting", show=self.progress)

    def _predict_queries(self, examples: Sequence[Example], *, whole: bool) -> tuple[list[MaskedQuery], Tokens | None]:
        used = [self.templates_[template] for template in self.ensemble_.templates]
        tokens = None if whole or self.keep == "whole" else self.ensemble_.tokens
        return self._queries(used, examples, Phase.PREDICT), tokens

    def _votes(self, X: Any, *, whole: bool = False) -> Floats:
        check_is_fitted(self)
        examples = self._readable(X)
        return self.ensemble_.votes(self._answers(examples, whole=whole), len(examples))

    def _labels(self, votes: Floats) -> Labels:
        chosen: Labels = self.classes_[votes.argmax(axis=1)]
        return chosen

    def _tried(self) -> list[RoundRecord]:
        """Return the rounds whose learners the ensemble is a prefix of; none if the file doesn't say, or others took their place."""
        if self._facts.way_out != WayOut.ROUNDS:
            return []
        return [record for record in getattr(self, "history_", ()) if record.outcome is Outcome.KEPT]

    def _training_facts(self, problem: _Problem, boosted: Boosted, seed: int) -> TrainingFacts:
        return TrainingFacts(
            n_train=len(problem.train),
            n_validation=len(problem.validation),
            rounds_run=len(boosted.history),
            rounds_kept=boosted.rounds_kept,
            m=boosted.m,
            seed=seed,
            draw=self.draw,
            on_perfect=self.on_perfect,
            way_out=boosted.way_out,
            validation_accuracy=boosted.validation_accuracy,
        )


def _translated(saved: SavedEnsemble, vocabulary: Vocabulary, path: str | Path) -> Ensemble:
    """Return the ensemble with each word's token in this vocabulary."""

    def token_of(token: int, word: str) -> int:
        if isinstance(vocabulary, OpenVocabulary):
            vocabulary.learn(token, word)
        if token < len(vocabulary) and vocabulary[token] == word:
            return token
        found = vocabulary.get(word)
        if found is None:
            raise ModelFileError(f"{path} uses the word {word!r}, which is not a token of this model; train it anew")
        return found

    learners = tuple(
        WeakLearner(one.prompt, tuple(map(token_of, one.tokens, one.words)), one.alpha) for one in saved.learners
    )
    return Ensemble(len(saved.classes), learners)
