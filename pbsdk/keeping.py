"""Keeping: a fitted classifier is written to a file, read again, and described on a card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from pbsdk.backend import MaskedLMBackend
from pbsdk.card import ModelCard
from pbsdk.errors import InputError, ModelFileError
from pbsdk.learning.heads import Fitted
from pbsdk.learning.model_file import SavedClassifier, TrainingFacts, token_finder
from pbsdk.learning.screen import Screen
from pbsdk.queries.examples import read_labels
from pbsdk.queries.templates import Style, Template

__all__ = ["Keeping"]


class Keeping:
    """`save`, `load` and `card`, for an estimator that takes a backend first and the rest by name."""

    backend: MaskedLMBackend
    style: Style
    classes_: Any
    templates_: Sequence[Template]
    fitted_: Fitted
    facts_: TrainingFacts
    head_name_: str
    n_train_: int
    screen_: Screen | None
    history_: tuple[Any, ...]
    _chose_all: frozenset[str]

    if TYPE_CHECKING:

        def __init__(self, backend: MaskedLMBackend, **parameters: Any) -> None: ...

    def save(self, path: str | Path, *, backend: Mapping[str, Any] | None = None) -> None:
        """Write the classifier as readable JSON: prompts, words, weights, and which model it needs.

        `backend`, a `name` and `options` for `connect`, is kept too, so that `pbsdk predict` can open it again; give no secrets.

        The texts that prompts show as demonstrations are in it too, and the words and short runs of characters of all
        texts if "auto" reads them; otherwise it holds no texts.
        """
        self._saved(backend).save(path)

    def card(self, *, title: str = "", notes: str = "") -> ModelCard:
        """Return a model card: data, accuracy, confusions, calibration, prompts, passes and a certificate, in Markdown.

        Args:
            title: its heading.
            notes: Markdown of your own under it, such as what the classifier is for.
        """
        check_is_fitted(self)
        ledger = getattr(self.backend, "ledger", None)
        return ModelCard.of(self._saved(), None if ledger is None else ledger.folder, title=title, notes=notes)

    def _saved(self, backend: Mapping[str, Any] | None = None) -> SavedClassifier:
        check_is_fitted(self)
        return SavedClassifier.of(
            self.fitted_,
            head=self.head_name_,
            classes=self.classes_.tolist(),
            templates=self.templates_,
            style=self.style,
            word=self.backend.vocabulary.__getitem__,
            identity=self.backend.identity,
            facts=self.facts_,
            backend=backend,
        )

    @classmethod
    def load(cls, path: str | Path, backend: MaskedLMBackend, **parameters: Any) -> Self:
        """Read a saved classifier, to be used with `backend`.

        Another model than the one it was trained on gives a warning that says what differs.
        """
        saved = SavedClassifier.load(path)
        saved.warn_of_another(backend.identity, path)
        names = dict(zip(saved.classes, saved.label_names, strict=True)) if saved.label_names else None
        parameters = {"head": cls._head_of(saved, path), "label_names": names, **parameters}
        loaded = cls(backend, **parameters, prompts=list(saved.templates), style=saved.style)
        loaded.classes_ = _read_classes(saved.classes, path)
        loaded.templates_ = [template.put_to(backend.abilities) for template in saved.filled_templates()]
        loaded.fitted_ = saved.fitted(token_finder(backend.vocabulary, path))
        loaded.history_ = ()
        loaded.screen_ = None
        loaded.facts_ = saved.facts
        loaded.n_train_ = saved.facts.n_train
        loaded.head_name_ = saved.head
        loaded._chose_all = frozenset()  # a file doesn't name the examples
        return loaded

    @classmethod
    def _head_of(cls, saved: SavedClassifier, path: str | Path) -> str:
        """Return the head that the estimator's parameter names."""
        if saved.several:
            raise ModelFileError(f"{path} gives texts several labels; load it with MultiLabelPromptClassifier")
        return saved.head


def _read_classes(classes: Sequence[Any], path: str | Path) -> np.ndarray[Any, Any]:
    """Return a file's labels as they were; numpy alone would make floats of large numbers and strings of mixed ones."""
    try:
        return read_labels(list(classes), len(classes), name="classes")
    except InputError as error:
        raise ModelFileError(f"{path} can't be used: {error}") from error
