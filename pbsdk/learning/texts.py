"""The texts' own words as one more view: TF-IDF of words and of character n-grams, which cost no pass.

Words and pairs of words say what a text is about; n-grams of two to five characters bridge inflections and misspellings. Each half
has unit length, and n-grams that most texts share count less. This is also what a user would try first, so `text_accuracy` says how
far it gets on its own.

>>> view = TextView.of([Example("late parcel"), Example("late train"), Example("lost match")])
>>> view.features([Example("a parcel")]).shape == (1, len(view.terms))
True
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field
from scipy.sparse import csr_matrix, hstack
from sklearn.feature_extraction.text import TfidfVectorizer

from pbsdk.backend import Floats
from pbsdk.learning.calibration import stratified_folds
from pbsdk.learning.regression import LOOSE, fit_many, one_thread
from pbsdk.learning.ridge import Ridges
from pbsdk.queries.examples import Example

__all__ = ["STRENGTH", "SavedTextView", "TextView", "text_accuracy"]

WORD = r"\b\w+\b|[^\w\s]"
"""A word, or a mark of punctuation."""

KINDS: Mapping[str, Mapping[str, Any]] = {
    "words": {"ngram_range": (1, 2), "token_pattern": WORD},
    "characters": {"ngram_range": (2, 5), "analyzer": "char_wb"},
}

STRENGTH = 100.0
"""Of a softmax regression on texts alone, where they are many; with many classes, less is far too little."""

MOST_TERMS = 20_000
"""How many n-grams of each kind are kept, those that most texts have."""


class SavedTextView(BaseModel):
    """A view as a file holds it: for each kind its n-grams, and how much each counts."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    words: tuple[str, ...]
    words_idf: tuple[Annotated[float, Field(gt=0)], ...]
    characters: tuple[str, ...]
    characters_idf: tuple[Annotated[float, Field(gt=0)], ...]


@dataclass(frozen=True)
class TextView:
    """Which n-grams are read, by kind, and their inverse document frequencies."""

    ngrams: Mapping[str, Sequence[str]]
    idf: Mapping[str, Floats]

    @classmethod
    def of(cls, examples: Sequence[Example]) -> TextView:
        """Choose the n-grams of labelled texts, without looking at labels."""
        ngrams, idf = {}, {}
        for kind, settings in KINDS.items():
            vectorizer = TfidfVectorizer(sublinear_tf=True, **settings)
            try:
                counts = vectorizer.fit_transform([_joined(example) for example in examples])
            except ValueError:  # texts of nothing but white space
                ngrams[kind], idf[kind] = (), np.empty(0)
                continue
            terms = vectorizer.get_feature_names_out()
            kept = np.sort(np.argsort(-counts.getnnz(axis=0), kind="stable")[:MOST_TERMS])
            ngrams[kind] = tuple(terms[kept].tolist())
            idf[kind] = np.round(vectorizer.idf_[kept], 9)
        return cls(ngrams, idf)

    @property
    def terms(self) -> list[str]:
        """What each feature stands for."""
        return [term for kind in KINDS for term in self.ngrams[kind]]

    @cached_property
    def _vectorizers(self) -> list[TfidfVectorizer]:
        made = []
        for kind, settings in KINDS.items():
            if self.ngrams[kind]:
                made.append(TfidfVectorizer(sublinear_tf=True, vocabulary=self.ngrams[kind], **settings))
                made[-1].idf_ = self.idf[kind]
        return made

    def features(self, examples: Sequence[Example]) -> csr_matrix:
        """Return the features (N, D); not centred, since they are sparse."""
        texts = [_joined(example) for example in examples]
        blocks = [vectorizer.transform(texts) for vectorizer in self._vectorizers]
        return hstack(blocks).tocsr() if blocks else csr_matrix((len(texts), 0))

    def saved(self) -> SavedTextView:
        """Return what a file holds."""
        return SavedTextView(
            words=tuple(self.ngrams["words"]),
            words_idf=tuple(self.idf["words"].tolist()),
            characters=tuple(self.ngrams["characters"]),
            characters_idf=tuple(self.idf["characters"].tolist()),
        )

    @classmethod
    def restored(cls, saved: SavedTextView) -> TextView:
        """Return the view of a file."""
        pairs = {"words": (saved.words, saved.words_idf), "characters": (saved.characters, saved.characters_idf)}
        for kind, (terms, idf) in pairs.items():
            if len(terms) != len(idf) or len(set(terms)) < len(terms):
                raise ValueError(f"text.{kind} needs each n-gram once, and a number for each")
        return cls({kind: terms for kind, (terms, _) in pairs.items()}, {k: np.array(v) for k, (_, v) in pairs.items()})


def _joined(example: Example) -> str:
    return "\n".join(example.texts)


@one_thread()
def text_accuracy(examples: Sequence[Example], labels: npt.NDArray[np.intp], seed: int) -> float:
    """Return the cross-validated accuracy of TF-IDF and a linear model on labelled texts: a ridge or softmax regression, whichever does better."""
    n_folds = max(2, min(5, int(np.bincount(labels).min())))
    (folds,) = stratified_folds(labels, n_folds, 1, seed)
    n_classes = int(labels.max()) + 1
    ridges = Ridges(TextView.of(examples).features(examples), labels, n_classes)
    used = np.array([folds != fold for fold in range(n_folds)])
    whole = ridges.space.coordinates
    solved = fit_many(whole, labels, n_classes, [STRENGTH] * n_folds, used, tolerance=LOOSE)
    kinds = [ridges.solve(rows)[0] for rows in used], whole @ solved[:, :-1] + solved[:, -1:]
    return max(
        float((left_out.argmax(axis=1) == labels).mean())
        for left_out in (np.array(kind)[folds, np.arange(len(labels))] for kind in kinds)
    )
