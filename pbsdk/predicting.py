"""Predicting: a fitted classifier asks about new texts, and says what it makes of the answers.

It asks only for the prompts and tokens that the fitted model needs, of each text about which a prompt may be asked, and hands answers on as they come.
`predict` may abstain (`diagnosis`) or stop early (`stopping`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted

from pbsdk.backend import Floats, MaskDistribution, MaskedLMBackend, MaskedQuery, Phase, Tokens
from pbsdk.diagnosis import Diagnosis
from pbsdk.errors import InputError, PbsdkError
from pbsdk.failures import OnError, Streak, ask_each, check_on_error, read_each
from pbsdk.learning.gaps import with_gaps
from pbsdk.learning.heads import Fitted
from pbsdk.learning.screen import Screen
from pbsdk.progress import progress_bar
from pbsdk.queries.examples import Example
from pbsdk.queries.rendering import asked, render_unshown
from pbsdk.queries.templates import Style, Template
from pbsdk.stopping import EarlyPredictions, PassesSaved, ask_in_stages, exit_of

__all__ = ["Labels", "Predicting", "Prediction"]

Labels = npt.NDArray[Any]
Needs = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Prediction:
    """The verdict on one text, or why there is none."""

    row: int
    """Which of the texts it is, from 0."""
    label: Any
    """None where the text failed."""
    probabilities: Floats
    """The probability (C,) of each class, in the order of `classes_`; NaN where the text failed."""
    beside: tuple[Floats, ...] = field(default=())
    """The scores (C,) of each model that `predict_iter` was given to run beside."""
    failure: PbsdkError | None = None
    """Why the text could not be read, or the model not be asked about it, with `on_error="record"`."""

    @property
    def error(self) -> str:
        """What the failure says; empty if all is well."""
        return "" if self.failure is None else str(self.failure)


class Predicting(Diagnosis):
    """`predict` and its kin, for an estimator with a fitted model, templates and a backend."""

    backend: MaskedLMBackend
    templates_: Sequence[Template]
    style: Style
    screen_: Screen | None
    n_train_: int
    keep: str
    progress: bool | None

    @abstractmethod
    def _new_examples(self, X: Any) -> list[Example]:
        """Read texts that a fitted classifier is given."""

    def predict(  # noqa: PLR0913 - independent settings, all keywords
        self,
        X: Any,
        *,
        abstain_below: float | None = None,
        precision: float | None = None,
        unsure: Any = None,
        early_exit: bool = False,
        max_changed: float | None = None,
        on_error: OnError = "fail",
    ) -> Labels:
        """Return the label of each text.

        Args:
            X: texts, or pairs of texts.
            abstain_below: answer only where the likeliest class has at least this probability.
            precision: answer only where cross-validation promises to be right this often; see `threshold`.
            unsure: what stands for "don't know" in the answer, which then is an array of objects.
            early_exit: ask each text only until its verdict is settled, for heads that vote; see `predict_early`.
            max_changed: the same where at most this share of verdicts may change, for regressions too.
            on_error: "fail" raises the first error. With "record" a text that can't be read, or that the model can't be asked
                about, gets `unsure`, with "skip" it is left out, and `errors_` says of each text what is wrong.
        """
        check_on_error(on_error)
        if early_exit or max_changed is not None:
            if abstain_below is not None or precision is not None:
                raise InputError("abstaining needs every answer; give either early_exit or a threshold, not both")
            if on_error != "fail":
                raise InputError("an early exit asks for all texts together; leave on_error out, or early_exit")
            found = self.predict_early(X, max_changed=max_changed)
            self.passes_saved_ = found.saved
            return found.labels
        if on_error != "fail":
            least = 0.0
            if abstain_below is not None or precision is not None:
                least = self.threshold(precision=precision, abstain_below=abstain_below).value
            kept = self._survivors(X, on_error)
            return _objects([one.label if one.probabilities.max() >= least else unsure for one in kept])
        if abstain_below is None and precision is None:
            return self._labels(self._scores(self._new_examples(X)))
        examples = self._new_examples(X)
        least = self.threshold(precision=precision, abstain_below=abstain_below).value
        scores = self._scores(examples)
        labels = self._labels(scores).astype(object)
        labels[self.fitted_.probabilities(scores).max(axis=1, initial=0) < least] = unsure
        return labels

    def predict_early(self, X: Any, *, max_changed: float | None = None) -> EarlyPredictions:
        """Return the label of each text, asking only until it is settled, and how many passes that saved.

        Prompts are asked in stages, each for all texts that are still open; the budget is asked stage by stage.

        Args:
            X: texts, or pairs of texts.
            max_changed: which share of verdicts may differ from `predict`, as cross-validation has it; None: none at all,
                which the votes of "boosting", "voting" and "best" allow.
        """
        examples = self._new_examples(X)
        rule = exit_of(self.fitted_, max_changed)
        slots = self._slots(examples, self.fitted_.prompts)
        scores, passes = ask_in_stages(rule, examples, slots, lambda queries: self._asked(queries, self._needed_tokens))
        stacked = np.array(scores).reshape(len(examples), len(self.classes_))
        every = len(asked(slots))
        saved = PassesSaved(int(passes.sum()), every - int(passes.sum()), len(examples))
        return EarlyPredictions(self._labels(stacked), self.fitted_.probabilities(stacked), passes, saved)

    def decision_function(self, X: Any) -> Floats:
        """Return the score of each class; of two classes, by how much the second is ahead."""
        scores = self._scores(self._new_examples(X))
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_proba(self, X: Any, *, on_error: OnError = "fail") -> Floats:
        """Return the probability of each class; columns as in `classes_`.

        They are calibrated by the heads that cross-validate; of other heads, they are shares of the votes. Texts that fail are
        rows of NaN with `on_error="record"`, and left out with "skip"; see `predict`.
        """
        check_on_error(on_error)
        if on_error != "fail":
            found = [one.probabilities for one in self._survivors(X, on_error)]
            return np.array(found).reshape(len(found), len(self.classes_))
        scores = self._scores(self._new_examples(X))
        return self.fitted_.probabilities(scores)

    def predict_log_proba(self, X: Any) -> Floats:
        """Return the logarithm of `predict_proba`."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def predict_iter(
        self, X: Any, *, beside: Sequence[Fitted] = (), on_error: OnError = "fail"
    ) -> Iterator[Prediction]:
        """Yield the verdict on each text as soon as its answers have come.

        The budget is asked for all texts before the first is sent.

        Args:
            X: texts, or pairs of texts.
            beside: other models over the same prompts, which read the same answers at no further pass.
            on_error: what becomes of a text that can't be read, or that the model refuses or fails for: "fail" raises the
                error, "skip" leaves the text out, "record" yields a `Prediction` that says why.
        """
        check_on_error(on_error)
        entries = self._entries(X, on_error)
        models = [self.fitted_, *beside]
        prompts = sorted({prompt for model in models for prompt in model.prompts})
        places = [[prompts.index(prompt) for prompt in model.prompts] for model in models]
        tokens = self._tokens_of(models)
        slots = self._slots([entry for entry in entries if isinstance(entry, Example)], prompts, places)
        rows = [slots[at : at + len(prompts)] for at in range(0, len(slots), len(prompts))]
        heard = ask_each(rows, lambda queries: self._asked(queries, tokens), fail=on_error == "fail")
        streak = Streak()
        for row, entry in enumerate(entries):
            group = next(heard) if isinstance(entry, Example) else entry
            failure = group if isinstance(group, PbsdkError) else None
            streak.count(failure)
            if isinstance(entry, Example) and not isinstance(group, PbsdkError):
                scores, *others = (
                    model.scores_of_one([group[place] for place in where], entry)
                    for model, where in zip(models, places, strict=True)
                )
                yield Prediction(row, self._label_of(scores), self.fitted_.probabilities(scores), tuple(others))
            elif on_error == "record":
                yield Prediction(row, None, np.full(len(self.classes_), np.nan), failure=failure)

    def _entries(self, X: Any, on_error: OnError) -> Sequence[Example | InputError]:
        """Read texts, each alone unless one that can't be read ends it all."""
        if on_error == "fail":
            return self._new_examples(X)
        check_is_fitted(self)
        return read_each(X, self._new_examples, pairs=self.templates_[0].is_pair)

    def _survivors(self, X: Any, on_error: OnError) -> list[Prediction]:
        """Return a verdict on each text, but for those that are skipped, and keep what is wrong with each."""
        found = list(self.predict_iter(X, on_error="record"))
        self.errors_ = _objects([one.error for one in found])
        return [one for one in found if on_error == "record" or one.failure is None]

    @property
    def _trained_tokens(self) -> Tokens | None:
        """The tokens of answers that may be trained on next; a file says only whether they were screened."""
        if self.screen_ is None:
            return self._needed_tokens if hasattr(self.facts_, "screened_tokens") else None
        return self.screen_.tokens

    @property
    def _needed_tokens(self) -> Tokens | None:
        return self._tokens_of([self.fitted_])

    def _tokens_of(self, models: Sequence[Fitted]) -> Tokens | None:
        """Return all tokens that some model needs; None for answers as they are."""
        can = self.backend.abilities
        ends_matter = can.chosen and not can.whole and any(model.censored for model in models)
        every = [model.tokens for model in models]
        if self.keep == "whole" or ends_matter or any(tokens is None for tokens in every):
            return None
        return np.unique(np.concatenate(every))  # type: ignore[arg-type] # none is None

    def _answers(
        self, examples: Sequence[Example], prompts: Sequence[int], tokens: Tokens | None, needs: Needs = ()
    ) -> Iterator[MaskDistribution | None]:
        """Ask about each example under the prompts, and yield None where a prompt shows it."""
        slots = self._slots(examples, prompts, needs)
        return with_gaps(self._asked(asked(slots), tokens), (slot is not None for slot in slots))

    def _slots(
        self, examples: Sequence[Example], prompts: Sequence[int], needs: Needs = ()
    ) -> list[MaskedQuery | None]:
        templates = [self.templates_[prompt] for prompt in prompts]
        return render_unshown(examples, templates, Phase.PREDICT, self.style, needs or [range(len(prompts))])

    def _asked(self, queries: Sequence[MaskedQuery], tokens: Tokens | None) -> Iterator[MaskDistribution]:
        answers = self.backend.stream(queries, None if self.keep == "whole" else tokens)
        return progress_bar(answers, total=len(queries), what="predicting", show=self.progress)

    def _scores(self, examples: Sequence[Example], *, scoring: bool = False) -> Floats:
        trained_on_next = scoring and self.keep == "auto" and len(examples) <= self.n_train_
        tokens = self._trained_tokens if trained_on_next else self._needed_tokens
        answers = self._answers(examples, self.fitted_.prompts, tokens)
        return np.array(list(self.fitted_.scores(answers, examples))).reshape(len(examples), -1)

    def _label_of(self, scores: Floats) -> Any:
        """Return the label of one text, by its scores (C,)."""
        return self.classes_.tolist()[int(scores.argmax())]

    def _labels(self, scores: Floats) -> Labels:
        chosen: Labels = self.classes_[scores.argmax(axis=1)]
        return chosen


def _objects(values: Sequence[Any]) -> Labels:
    """Return an array of the values as they are."""
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found
