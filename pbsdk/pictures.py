"""The classifier's pictures: their data is collected and checked here, and drawn by `pbsdk.plotting`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from numbers import Integral
from typing import TYPE_CHECKING, Any, overload

from sklearn.utils.validation import check_is_fitted

from pbsdk.errors import InputError
from pbsdk.learning.boosting import Outcome, RoundRecord, WayOut
from pbsdk.learning.ensemble import Ensemble
from pbsdk.learning.explanation import Explanation
from pbsdk.learning.heads import Fitted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Pictures"]


class Pictures:
    """`plot_staged` and `plot_words` for an estimator with weak learners."""

    fitted_: Fitted
    history_: tuple[Any, ...]

    @property
    @abstractmethod
    def ensemble_(self) -> Ensemble:
        """The weak learners that vote."""

    @abstractmethod
    def explain(self) -> Explanation:
        """Return what was learned as a table."""

    @abstractmethod
    def staged_score(self, X: Any, y: Any) -> Iterator[float]:
        """Yield the accuracy with the first learner, the first two, and so on up to all."""

    @overload
    def plot_staged(self, X: Any = None, y: Any = None, *, name: str = "these texts", ax: None = None) -> Figure: ...
    @overload
    def plot_staged(self, X: Any = None, y: Any = None, *, name: str = "these texts", ax: Axes) -> Axes: ...
    def plot_staged(
        self, X: Any = None, y: Any = None, *, name: str = "these texts", ax: Axes | None = None
    ) -> Figure | Axes:
        """Draw the accuracy after each learner, how many learners were kept, and each learner's weight.

        The accuracy on the validation set was recorded in training. Given texts and labels, the accuracy on them
        is drawn too; that asks the model, as `staged_score` does. Needs matplotlib: `pip install "pbsdk[plot]"`.

        Args:
            X: texts, such as a test set's.
            y: their labels.
            name: what to call them.
            ax: draw only the accuracy, into these axes.
        """
        from pbsdk.plotting import draw_staged  # noqa: PLC0415 - matplotlib is an extra

        check_is_fitted(self)
        if (X is None) != (y is None):
            raise InputError("plot_staged needs both texts and labels, or neither")
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
        """Draw which words indicate each class, and how strongly: the summed weight of the learners that use them.

        Needs matplotlib: `pip install "pbsdk[plot]"`.

        Args:
            count: how many words to draw per class, those with the largest weights.
            classes: which classes to draw, in this order; None for all.
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
            raise InputError(f"ax takes one class, and there are {len(labels)}; choose one: classes=[{labels[0]!r}]")
        return draw_words({label: explanation.weights(label) for label in labels}, int(count), ax)

    def _tried(self) -> list[RoundRecord]:
        """Return the rounds whose learners the ensemble is a prefix of; none if they weren't saved or were replaced."""
        if self.fitted_.facts.get("way_out") != WayOut.ROUNDS:
            return []
        return [record for record in self.history_ if record.outcome is Outcome.KEPT]
