"""The estimator: texts and labels in, a classifier out, through the interface alone.

`fit` checks everything that can be wrong before anything is sent, asks for every training and
validation example under every prompt in one go, and then lets a head learn from the answers without
asking again. `predict` asks only for the prompts and tokens that the head needs.

>>> from pbsdk.testing import FakeBackend
>>> clf = PromptBoostingClassifier(FakeBackend(), ["<input> So <mask>.", "<input> The <mask>"], random_state=1)
>>> texts = ["the parcel is late", "a courier at the door", "our team won", "the match was lost"]
>>> clf.fit(texts, ["post", "post", "sport", "sport"]).predict(["no delivery today", "a season of goals"]).tolist()
['post', 'sport']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from pbsdk.backend import MaskedLMBackend, MaskedQuery, Phase, Tokens
from pbsdk.errors import InputError
from pbsdk.foresight import Foresight
from pbsdk.keeping import Keeping
from pbsdk.learning.ensemble import Ensemble
from pbsdk.learning.estimates import largest_share
from pbsdk.learning.explanation import Explanation
from pbsdk.learning.gaps import with_stand_ins
from pbsdk.learning.heads import Head, Trial, head_from
from pbsdk.learning.matrix import collect
from pbsdk.learning.model_file import TrainingFacts
from pbsdk.learning.parameters import check_choice, check_count, read_seed
from pbsdk.learning.selection import Selection
from pbsdk.pictures import Pictures
from pbsdk.progress import progress_bar, progress_steps
from pbsdk.queries.demonstrations import check_demonstrations, fill_templates, name_classes, shown
from pbsdk.queries.examples import Example
from pbsdk.queries.given import Given, read_given
from pbsdk.queries.markers import Markers, read_unmarked
from pbsdk.queries.pools import choosers, fit_templates, read_pool
from pbsdk.queries.problem import Problem, problem_of
from pbsdk.queries.rendering import asked, render_unshown
from pbsdk.queries.templates import Style, Template
from pbsdk.scoring import Scoring
from pbsdk.screening import screened

__all__ = ["PromptBoostingClassifier"]


class PromptBoostingClassifier(Keeping, Scoring, Pictures, Foresight, ClassifierMixin, BaseEstimator):  # type: ignore[misc] # scikit-learn is untyped
    """A text classifier made of prompts, words and votes.

    Args:
        backend: the language model, from `pbsdk.connect(...)`; copies of the estimator share it.
        prompts: a list of prompts, the name of a pool, or a pool's JSON file.
        head: what learns from the answers: "auto" (whatever does best in cross-validation), "boosting" (the paper's
            method to the letter), "voting" (one learner per prompt, majority), "best" (the one of them that
            validates best), "soft" (a regression on hundreds of tokens of every prompt), "knn" (the nearest
            examples vote), the name of a head that another package registers, or a `pbsdk.learning.heads.Head`.
        text_features: whether "auto" may read the texts' own words beside the answers.
        early_exit: let "soft" and "auto" learn, too, when a text needs no further prompt, for `predict(X, max_changed=...)`.
        rounds: how many rounds of boosting at most.
        m: how many candidate words a class has; None: 50 for two classes, 10 for up to four,
            fewer for up to 20, and 10 for more, where the search isn't exact. It is for the paper's heads, and
            `rounds`, `draw` and `on_perfect` are for "boosting".
        n_prompts: use only the first so many prompts of the pool.
        demonstrations: how many labelled training texts per class a prompt shows at `<examples>`, 16 in all at
            most; a number also puts `<examples>` in front of prompts that lack it, 0 shows none; None: 1 where a
            prompt has `<examples>`. No text is asked about under a prompt that shows it.
        label_names: what `<labels>` and demonstrations call each class; by default its label, with spaces for "_" and "-".
        class_weight: how much the texts of each class count: "balanced" (all classes the same in all), or a mapping of labels to
            numbers. Figures that `fit` reports count every text once.
        draw: "cycles" (every prompt before any comes again) or "independent".
        on_perfect: what to do when a learner makes no error on the training set, which boosting can't
            use: "vote" (one learner per prompt, majority) or "best" (the one that validates best).
        merge_validation: train on the validation set too, and keep all `rounds`.
        style: how texts and prompts are joined: "plain", or "paper" as the authors did.
        markers: what to do with texts that contain a mask: "refuse" or "escape".
        screen: how many training texts are asked about in full; of the others, answers are kept for the tokens alone that were likeliest
            there (a few thousand). 0: all are asked about in full; None: 1,000 where whole answers would take more than 10 GB, else 0.
        keep: what predictions leave in the run folder: "needed" tokens, "whole" answers, or "auto",
            which is "needed" but for `score` on no more texts than were trained on: such texts are
            likely to be trained on next, by cross-validation, and then need no second pass.
        random_state: the seed of the draws.
        progress: show progress bars; None: in a terminal or notebook.

    Attributes:
        classes_: the labels, sorted; the columns of `predict_proba`.
        templates_: the prompts of the pool, as this model reads them, with the demonstrations they show.
        fitted_: what the head learned (`pbsdk.learning.heads.Fitted`).
        ensemble_: the weak learners that vote, for the heads that make them.
        history_: what happened in each round of boosting; empty for other heads, and after `load`.
        facts_: how the classifier came about, as its file says it.
        estimate_: its accuracy on texts left out, with a 95% interval, and a warning if that holds chance.
        n_train_: how many texts it learned from.
        head_name_: the name of the head.
        screen_: which tokens answers were kept for, and what speaks for it; None if for all.
        selection_: what the head "auto" tried, and why it chose as it did.
        passes_saved_: how many passes the last `predict` with an early exit asked and saved.
        errors_: what was wrong with each text of the last prediction with `on_error`; empty where all was well.
    """

    def __init__(  # noqa: PLR0913 - independent settings, all keywords
        self,
        backend: MaskedLMBackend,
        prompts: Any = "topic",
        *,
        head: Any = "auto",
        text_features: bool = True,
        early_exit: bool = False,
        rounds: int = 200,
        m: int | None = None,
        n_prompts: int | None = None,
        demonstrations: int | None = None,
        label_names: Mapping[Any, str] | None = None,
        class_weight: Any = None,
        draw: Literal["cycles", "independent"] = "cycles",
        on_perfect: Literal["vote", "best"] = "vote",
        merge_validation: bool = False,
        style: Style = "plain",
        markers: Markers = "refuse",
        screen: int | None = None,
        keep: Literal["auto", "needed", "whole"] = "auto",
        random_state: Any = None,
        progress: bool | None = None,
    ) -> None:
        self.backend = backend
        self.prompts = prompts
        self.head = head
        self.text_features = text_features
        self.early_exit = early_exit
        self.rounds = rounds
        self.m = m
        self.n_prompts = n_prompts
        self.demonstrations = demonstrations
        self.label_names = label_names
        self.class_weight = class_weight
        self.draw = draw
        self.on_perfect = on_perfect
        self.merge_validation = merge_validation
        self.style = style
        self.markers = markers
        self.screen = screen
        self.keep = keep
        self.random_state = random_state
        self.progress = progress

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, validation: tuple[Any, Any] | None = None) -> Self:
        """Learn from texts and labels.

        Args:
            X: texts, or pairs of texts.
            y: a label for each.
            sample_weight: how much each counts; only proportions matter, and a text of weight 0 isn't asked about.
            validation: (texts, labels) that choose how many rounds are kept.
        """
        seed = read_seed(self.random_state)
        given, head, problem, templates = self._checked(X, y, validation, seed, sample_weight)
        self._learn(head, problem, templates, seed)
        self._given = given
        return self

    def add(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from further texts too: only these are asked about, since the run folder has the other answers.

        A text that it was fitted to takes the new label. The prompts stay as they are, and so do the demonstrations they show.
        """
        check_is_fitted(self)
        if not hasattr(self, "_given"):
            raise InputError(
                "a saved classifier doesn't keep its texts; fit it again with all of them: the run folder has the answers, and they cost nothing"
            )
        more = self._given_of(X, y, None, sample_weight)
        if shown(self._given.relabelled(more.examples, more.labels), self.templates_).any():
            raise InputError("a prompt shows one of these texts under its old label; fit again with all texts")
        given = self._given.with_more(more.examples, more.labels, more.weights)
        head, problem = self._stated(given)
        unfilled = self._templates(pairs=problem.pairs)
        if len(problem.classes) > len(self.classes_) and any(one.names_classes for one in unfilled):
            raise InputError("the prompts name the classes, so a new class changes them all; fit again with all texts")
        self._learn(head, problem, list(self.templates_), self.facts_.seed or 0)
        self._given = given
        return self

    def _learn(self, head: Head, problem: Problem, templates: list[Template], seed: int) -> None:
        """Ask for everything at once, and let the head learn from the answers."""
        train, held_out = problem.train, problem.validation
        silent = shown([*train, *held_out], templates)
        queries = self._fit_queries(problem, templates)
        screen = screened(self.backend, queries, self.screen, progress=self.progress)
        asking = self.backend.stream(queries, None if screen is None else screen.tokens)
        stream = progress_bar(asking, total=len(queries), what="asking", show=self.progress)
        answers = with_stand_ins(stream, ~silent.ravel(), len(templates))
        with (
            collect(islice(answers, len(train) * len(templates)), len(train), len(templates)) as train_answers,
            collect(answers, len(held_out), len(templates)) as held_out_answers,
            progress_steps(head.steps, what="training", unit="round", show=self.progress) as report,
        ):
            fitted = head.fit(
                Trial(
                    train_answers,
                    problem.train_labels,
                    len(problem.classes),
                    seed,
                    validation=(held_out_answers, problem.validation_labels) if held_out else None,
                    report=report,
                    examples=[*train, *held_out],
                    silent=silent if silent.any() else None,
                    weights=problem.weights,
                )
            )
        self.classes_ = problem.classes
        self.templates_ = templates
        self.fitted_ = fitted
        self.screen_ = screen
        self.history_ = fitted.history
        self.n_train_ = len(train)
        self.facts_ = TrainingFacts(
            n_train=len(train),
            n_validation=len(held_out),
            seed=seed,
            validation_accuracy=fitted.validation_accuracy,
            largest_share=_chance(problem, head),
            texts_per_class=problem.texts_per_class,
            weighted=problem.weights is not None,
            data_digest=problem.digest,
            confusions=() if fitted.study is None else fitted.study.confusion_counts,
            **({} if screen is None else {"screened_tokens": len(screen.tokens)}),
            **fitted.facts,
        )
        self.head_name_ = head.name
        self._chose_all = choosers(self.prompts).intersection(example.id for example in held_out)

    @property
    def ensemble_(self) -> Ensemble:
        """The weak learners that vote."""
        check_is_fitted(self)
        ensemble: Ensemble | None = getattr(self.fitted_, "ensemble", None)
        if ensemble is None:
            raise AttributeError(f"the head {self.head_name_!r} makes no ensemble of weak learners; see fitted_")
        return ensemble

    @property
    def selection_(self) -> Selection:
        """What the head "auto" tried, how each attempt did on examples left out, and why it chose as it did."""
        check_is_fitted(self)
        selection: Selection | None = getattr(self.fitted_, "selection", None)
        if selection is None:
            raise AttributeError(f"the head {self.head_name_!r} chooses among nothing; head='auto' does")
        return selection

    def explain(self) -> Explanation:
        """Return a table of prompts, words for each class, and weights."""
        check_is_fitted(self)
        sources = [template.source for template in self.templates_]
        return self.fitted_.explain(self.classes_.tolist(), sources, self.backend.vocabulary.__getitem__)

    def _checked(
        self, X: Any, y: Any, validation: tuple[Any, Any] | None, seed: int, sample_weight: Any = None
    ) -> tuple[Given, Head, Problem, list[Template]]:
        """Look at everything that can be wrong before anything is sent; the templates come filled."""
        self._check_parameters()
        given = self._given_of(X, y, validation, sample_weight)
        head, problem = self._stated(given)
        templates = self._templates(pairs=problem.pairs)
        if self.label_names is None and not any(template.names_classes for template in templates):
            return given, head, problem, templates
        return given, head, problem, self._filled(templates, problem, seed)

    def _filled(self, templates: Sequence[Template], problem: Problem, seed: int) -> list[Template]:
        """Name the classes, and show demonstrations."""
        names = name_classes(problem.classes.tolist(), self.label_names, self.backend.mask_token)
        return fill_templates(templates, problem, names, per_class=self.demonstrations, seed=seed)

    def _given_of(self, X: Any, y: Any, validation: tuple[Any, Any] | None, sample_weight: Any) -> Given:
        """Read texts and labels; texts of weight 0 are left out."""
        given = read_given(X, y, validation, read=self._readable, sample_weight=sample_weight)
        return given.without_weightless()

    def _stated(self, given: Given) -> tuple[Head, Problem]:
        """Return the head, and what it is to learn."""
        head = head_from(self.head, self.get_params(deep=False))
        problem = problem_of(given, merge=self.merge_validation, class_weight=self.class_weight)
        if problem.weights is not None and not head.weighs:
            raise InputError(
                f"the head {head.name!r} doesn't weigh texts; leave sample_weight and class_weight out, or take another head"
            )
        head.check(len(problem.classes))
        return head, problem

    def _templates(self, *, pairs: bool) -> list[Template]:
        pool = read_pool(self.prompts, self.backend.abilities)[: self.n_prompts]
        if self.demonstrations:
            pool = [template.with_examples() for template in pool]
        return fit_templates(pool, self.backend.abilities, pairs=pairs)

    def _check_parameters(self) -> None:
        if not isinstance(self.backend, MaskedLMBackend):
            raise InputError(
                f"backend must be a language model, such as pbsdk.connect(); this is a {type(self.backend).__name__}"
            )
        check_count("n_prompts", self.n_prompts, optional=True)
        check_demonstrations(self.demonstrations)
        check_choice("style", self.style, ("plain", "paper"))
        check_choice("markers", self.markers, ("refuse", "escape"))
        check_choice("keep", self.keep, ("auto", "needed", "whole"))
        check_count("screen", self.screen or None, optional=True)
        parameters = self.get_params(deep=False)
        head_from("boosting", parameters)  # its parameters are refused if they can't work, whatever the head
        head_from(self.head, parameters)

    def _readable(self, texts: Any, name: str = "texts", first: int = 0) -> list[Example]:
        return read_unmarked(texts, self.backend.mask_token, self.markers, name=name, first=first)

    def _as_fitted(self) -> tuple[list[Template], Style, Tokens | None]:
        return [self.templates_[prompt] for prompt in self.fitted_.prompts], self.style, self._needed_tokens

    def _fit_queries(self, problem: Problem, templates: Sequence[Template]) -> list[MaskedQuery]:
        train = render_unshown(problem.train, templates, Phase.TRAIN, self.style)
        return asked([*train, *render_unshown(problem.validation, templates, Phase.VALIDATE, self.style)])

    def _new_examples(self, X: Any) -> list[Example]:
        check_is_fitted(self)
        return self._readable(X)


def _chance(problem: Problem, head: Head) -> float | None:
    """Return the share of the largest class among the texts on which a head measures its accuracy: the validation set, or all."""
    if problem.train_labels.ndim > 1:
        return None
    if problem.validation and head.validates:
        return largest_share(problem.validation_labels)
    return largest_share(np.concatenate([problem.train_labels, problem.validation_labels]).astype(np.intp))
