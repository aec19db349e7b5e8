"""Foresight: what an estimator would ask, before anything is sent.

It checks what it is given as `fit` and `predict` do, and stops short of asking. Plans are made of it (`pbsdk.metering.plan`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from sklearn.utils.validation import check_is_fitted

from pbsdk.backend import MaskedLMBackend, MaskedQuery, Phase, Tokens
from pbsdk.learning.parameters import read_seed
from pbsdk.learning.screen import pilot_size
from pbsdk.queries.examples import Example, in_chunks
from pbsdk.queries.grid import Foreseen
from pbsdk.queries.problem import Problem
from pbsdk.queries.rendering import asked, render_unshown
from pbsdk.queries.templates import Style, Template

__all__ = ["Foresight"]

_CHUNK = 5000
"""How many texts are read at a time."""


class Foresight:
    """What would be asked, for an estimator that reads texts and fills templates."""

    backend: MaskedLMBackend
    style: Style
    screen: int | None
    random_state: Any

    @abstractmethod
    def _checked(
        self, X: Any, y: Any, validation: tuple[Any, Any] | None, seed: int
    ) -> tuple[Any, Any, Problem, list[Template]]:
        """Look at everything that can be wrong; the templates come filled."""

    @abstractmethod
    def _templates(self, *, pairs: bool) -> list[Template]:
        """Return the templates as they are before a fit."""

    @abstractmethod
    def _readable(self, texts: Any, name: str = "texts", first: int = 0) -> list[Example]:
        """Read texts; errors count from the `first`."""

    def fit_queries(self, X: Any, y: Any, *, validation: tuple[Any, Any] | None = None) -> list[MaskedQuery]:
        """Return what `fit` would ask, in order; nothing is sent."""
        seen = self.foresee((X, y), validation=validation)
        train = render_unshown(seen.train, seen.templates, Phase.TRAIN, self.style)
        return asked([*train, *render_unshown(seen.validation, seen.templates, Phase.VALIDATE, self.style)])

    def predict_queries(
        self,
        X: Any,
        *,
        fitted: bool = True,
        fit: tuple[Any, Any] | None = None,
        validation: tuple[Any, Any] | None = None,
    ) -> tuple[list[MaskedQuery], Tokens | None]:
        """Return what `predict` would ask, and for which tokens; nothing is sent.

        `fitted=False` says what it may ask at most, after a `fit` to texts and labels: every prompt of the pool, for
        all tokens. Prompts that name classes or show demonstrations need to know these texts.
        """
        if fitted:
            check_is_fitted(self)
        seen = self.foresee(None if fitted else fit, validation=validation, predict=X, fitted=fitted)
        examples = list(chain.from_iterable(seen.predict))
        slots = render_unshown(examples, seen.templates, Phase.PREDICT, self.style, [range(len(seen.templates))])
        return asked(slots), seen.tokens

    def foresee(
        self,
        fit: tuple[Any, Any] | None = None,
        *,
        validation: tuple[Any, Any] | None = None,
        predict: Any = None,
        fitted: bool | None = None,
    ) -> Foreseen:
        """Return what `fit(*fit)` and `predict(predict)` would ask about; nothing is sent, and a long iterator is read a chunk at a time.

        Before a fit, or with `fitted=False`, a prediction may ask for every prompt of the pool, for all tokens.
        """
        chunks = self._in_chunks(predict) if predict is not None else iter(())
        if fit is not None:
            _, _, problem, templates = self._checked(*fit, validation, read_seed(self.random_state, ahead=True))
            texts = len({example.id for example in [*problem.train, *problem.validation]})
            abilities, vocabulary = self.backend.abilities, len(self.backend.vocabulary)
            pilot = pilot_size(self.screen, abilities, vocabulary, texts, len(templates))
            return Foreseen(templates, self.style, None, problem.train, problem.validation, chunks, pilot)
        if hasattr(self, "fitted_") if fitted is None else fitted:
            return Foreseen(*self._as_fitted(), predict=chunks)
        first = next(chunks, [])
        templates = self._templates(pairs=bool(first) and first[0].pair is not None)
        return Foreseen(templates, self.style, None, predict=chain([first], chunks))

    @abstractmethod
    def _as_fitted(self) -> tuple[Sequence[Template], Style, Tokens | None]:
        """Return what a fitted estimator asks with: templates, style and tokens."""

    def _in_chunks(self, texts: Any) -> Iterator[list[Example]]:
        count = 0
        for rows in in_chunks(texts, _CHUNK):
            yield self._readable(rows, "texts", count)
            count += len(rows)
