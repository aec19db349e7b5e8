"""Rows of predictions: a table's columns, and what the classifier says of each row beside them."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pbsdk.cli._common import plain
from pbsdk.errors import InputError
from pbsdk.formatting import one_line

if TYPE_CHECKING:
    from pbsdk.data.loading import LabelledTexts
    from pbsdk.failures import OnError
    from pbsdk.ledger.places import Place
    from pbsdk.predicting import Prediction

__all__ = ["ERROR", "Tally", "Verdicts", "warn_of_known"]

ERROR = "error"
"""The column that says why a row has no prediction; empty where all is well."""


class Tally(Counter[str]):
    """How many texts failed, by what was said of them, and where the first are.

    >>> tally = Tally(["", "too long", "", "too long"])
    >>> tally.failed, str(tally)
    (2, '2 of 4 texts failed: too long (2)')
    >>> tally.add("too long", "row 9")
    >>> str(tally)
    '3 of 5 texts failed: too long (row 9 and 2 more)'
    """

    def __init__(self, said: Iterable[str] = ()) -> None:
        super().__init__(said)
        self._places: dict[str, list[str]] = {}

    def add(self, said: str, place: str) -> None:
        """Count a text, and remember where it is if it failed."""
        self[said] += 1
        places = self._places.setdefault(said, [])
        if said and len(places) < _KINDS:
            places.append(place)

    @property
    def failed(self) -> int:
        """How many texts failed."""
        return self.total() - self[""]

    def __str__(self) -> str:
        kinds = [(said, count) for said, count in self.most_common() if said]
        said = "; ".join(f"{said} ({self._counted(said, count)})" for said, count in kinds[:_KINDS])
        more = f"; and {len(kinds) - _KINDS} other reasons" if len(kinds) > _KINDS else ""
        return f"{self.failed} of {self.total()} texts failed{':' if kinds else ''} {said}{more}".rstrip()

    def _counted(self, said: str, count: int) -> str:
        """Return where the texts are of which something was said, or how many there are."""
        places = self._places.get(said, [])
        more = count - len(places)
        if not places or not more:
            return ", ".join(places) or str(count)
        return f"{', '.join(places)} and {more} more"


_KINDS = 3
"""How many reasons are said, and how many places of each."""


@dataclass
class Verdicts:
    """Puts predictions beside the rows they are about, and counts what became of them."""

    texts: LabelledTexts
    classes: tuple[Any, ...]
    least: float = 0.0
    """Below which confidence a row gets no label."""
    several: bool = False
    """Whether a text may have several labels, or none."""
    probabilities: bool = False
    """Whether each class has a column."""
    on_error: OnError = "fail"
    """With "record" there is a column of errors, with "skip" rows that fail are only counted."""
    source: str = ""
    """The file of the texts, to name where there are several."""
    right: int = field(default=0, init=False)
    answered: int = field(default=0, init=False)
    judged: int = field(default=0, init=False)
    """How many answers stand beside a true label."""
    tally: Tally = field(default_factory=Tally, init=False)

    @property
    def added(self) -> dict[str, list[Any]]:
        """The columns that are added, and what they may hold beside None; refuses a table that has one of these."""
        scored: dict[str, list[Any]] = {"right": [True]} if self.texts.labels else {}
        shares = {_share_of(label): [0.0] for label in self.classes} if self.probabilities else {}
        added = {"predicted": [""] if self.several else list(self.classes), "confidence": [0.0], **scored, **shares}
        added |= {ERROR: [""]} if self.on_error == "record" else {}
        for name in added:
            if name in self.texts.table:
                raise InputError(f"the table has a column {name!r} already, where predictions are to stand; rename it")
        return added

    @property
    def columns(self) -> list[str]:
        """The columns of the table, and those that are added."""
        return [*self.texts.table, *self.added]

    @property
    def accuracy(self) -> float | None:
        """The share of answers that are right, if it is known."""
        return self.right / self.judged if self.judged else None

    def __str__(self) -> str:
        said = []
        if self.least > 0:
            share = self.answered / max(self.tally.total(), 1)
            said.append(
                f"{self.answered} of {self.tally.total()} answered ({share:.1%}), where the probability is at least {self.least:.3f}"
            )
        if self.texts.labels:
            said.append(
                "no text with a label was answered, so there is no accuracy"
                if self.accuracy is None
                else f"accuracy {self.accuracy:.1%} ({self.right} of {self.judged})"
            )
        return "\n".join(said)

    def keep(self, rows: Iterable[dict[str, Any]]) -> None:
        """Count rows of an earlier prediction."""
        for row in rows:
            self.answered += row["predicted"] not in {None, ""}
            self._judge({"True": True, "False": False}.get(str(row.get("right"))))
            self.tally[""] += 1

    def rows(self, predictions: Iterable[Prediction]) -> Iterator[dict[str, Any]]:
        """Yield each row and what is predicted of it, as predictions come."""
        for one in predictions:
            said = "" if one.failure is None else one_line(plain(one.failure))
            place = self.texts.place(one.row)
            self.tally.add(said, f"{place} of {self.source}" if self.source else place)
            if said and self.on_error == "skip":
                continue
            row = {name: values[self.texts.rows[one.row]] for name, values in self.texts.table.items()}
            confidence = self._confidence(one)
            sure = bool(confidence >= self.least)  # NaN where it failed
            row["predicted"] = one.label if sure else None
            row["confidence"] = None if said else round(confidence, 6)
            if self.texts.labels:
                label = self.texts.labels[one.row]
                row["right"] = row["predicted"] == label if sure and label is not None else None
                self._judge(row["right"])
            if self.probabilities:
                shares = [None] * len(self.classes) if said else one.probabilities.round(6).tolist()
                row |= zip(map(_share_of, self.classes), shares, strict=True)
            if self.on_error == "record":
                row[ERROR] = said
            self.answered += sure
            yield row

    def _judge(self, right: bool | None) -> None:
        self.judged += right is not None
        self.right += bool(right)

    def _confidence(self, one: Prediction) -> float:
        """Return how sure the classifier is: of the label, or of the least sure of several."""
        shares = one.probabilities.tolist()
        return float(min(max(share, 1 - share) for share in shares) if self.several else max(shares))


def _share_of(label: Any) -> str:
    return f"probability of {label}"


def warn_of_known(texts: LabelledTexts, run: Place) -> None:
    """Warn if an accuracy will be that of texts on which a classifier was trained in this run."""
    from pbsdk.failures import read_each
    from pbsdk.ledger.reader import LedgerReader
    from pbsdk.queries.examples import Example, read_examples

    if not texts.labels:
        return
    found = read_each(texts.examples, read_examples, pairs=texts.pairs)
    ids = [one.id for one in found if isinstance(one, Example)]
    with LedgerReader(run) as reader:
        fitted = reader.fitted(ids)
    known = sum(one in fitted for one in ids)
    if known:
        warnings.warn(
            f"{known:,} of {len(ids):,} texts took part in a fit in {run}; the accuracy on them is too good to be true of others",
            stacklevel=2,
        )
