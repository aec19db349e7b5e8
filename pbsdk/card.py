"""The model card: a classifier described in Markdown for whoever has to approve of it.

It says what the classifier was made of and how good it is on texts it didn't learn from, with intervals and without adjectives, and what it
took, with a certificate that can be checked against the run folder. It holds no texts. What only people know (what it is
for, where the texts come from, who is affected) is given as notes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pbsdk.audit.certificate import Certificate
from pbsdk.audit.report import AuditReport
from pbsdk.audit.text import escaped, markdown_table
from pbsdk.formatting import Cell, Table, number, one_line, percent
from pbsdk.learning.heads import Fitted
from pbsdk.learning.model_file import SavedClassifier
from pbsdk.learning.multilabel import FittedLabels

__all__ = ["ModelCard"]

PRECISIONS = (0.9, 0.95, 0.99)
"""For which a threshold is named."""

MOST_CONFUSIONS = 20
_UNKNOWN = "Not measured in training; measure it on texts that it hasn't seen."
WORDS = 8


@dataclass(frozen=True)
class ModelCard:
    """Everything that a card says; `str` and `to_markdown` write it."""

    model: SavedClassifier
    title: str = ""
    notes: str = ""
    """Markdown of your own: what the classifier is for, where its texts come from, what it must not be used for."""
    report: AuditReport | None = None
    """What was asked, if the run folder is at hand."""
    certificate: Certificate | None = None

    @classmethod
    def of(
        cls, model: SavedClassifier, run: str | os.PathLike[str] | None = None, *, title: str = "", notes: str = ""
    ) -> Self:
        """Read a run folder, if there is one, verify it and certify it."""
        if run is None:
            return cls(model, title, notes)
        report = AuditReport.read(run)
        return cls(model, title, notes, report, Certificate.of(run) if report.records else None)

    def to_markdown(self) -> str:
        """Return the card."""
        name = self.title or f"{self.model.head} classifier on {self.model.identity.name}"
        blocks = [f"# Model card: {escaped(name)}", *filter(None, [self.notes.strip()]), *self._sections()]
        return "\n\n".join(blocks) + "\n"

    def __str__(self) -> str:
        return self.to_markdown()

    def _repr_markdown_(self) -> str:
        return self.to_markdown()

    def _sections(self) -> Iterator[str]:
        yield "## What it is"
        yield _bullets(self._what())
        yield "## Data"
        yield from self._data()
        yield "## Accuracy"
        learned = self.model.fitted()
        if isinstance(learned, FittedLabels):
            yield from self._labels(learned)
        else:
            yield _bullets(self._accuracy())
            yield from self._confusions()
            yield "## Calibration"
            yield from self._calibration(learned)
        yield "## Prompts and words"
        yield from self._prompts()
        yield "## What it took"
        yield from self._proof()

    def _what(self) -> Iterator[str]:
        model = self.model
        kind = "pairs of texts" if model.filled_templates()[0].is_pair else "texts"
        does = "Gives {} any of {} labels, or none" if model.several else "Assigns {} one of {} classes"
        names = [str(label) for label in model.classes]
        yield f"{does.format(kind, len(names))}: {('; ' if any(',' in name for name in names) else ', ').join(names)}."
        details = "; ".join(f"{key} {value}" for key, value in sorted(model.model.items()) if key != "name")
        yield f"Language model, frozen: {model.identity.name}{f' ({details})' if details else ''}."
        facts = {
            key: value
            for key, value in (model.facts.model_extra or {}).items()
            if key not in _ELSEWHERE and value is not None
        }
        said = ", ".join(f"{key.replace('_', ' ')} {_said(value)}" for key, value in facts.items())
        yield f"Head: {model.head}{f' ({said})' if said else ''}; seed {model.facts.seed}."
        yield f"Made with pbsdk {model.pbsdk}."
        if model.demonstrations:
            yield "Its prompts show labelled texts of the training set, which are in the model file and go to the provider with every query."

    def _data(self) -> Iterator[str]:
        facts = self.model.facts
        lines = [f"{number(facts.n_train)} labelled texts to learn from, {number(facts.n_validation)} for validation."]
        if facts.weighted:
            lines.append("Texts counted differently (sample or class weights); the figures below count each once.")
        if facts.data_digest:
            lines.append(f"Digest of texts and labels (BLAKE2b): {facts.data_digest}")
        yield _bullets(lines)
        if facts.texts_per_class:
            rows = zip(map(str, self.model.classes), map(number, facts.texts_per_class), strict=True)
            yield _table(("class", "texts"), list(rows))

    def _accuracy(self) -> Iterator[str]:
        estimate = self.model.facts.estimate
        if estimate is None:
            yield _UNKNOWN
            return
        yield f"{estimate.said[0].upper()}{estimate.said[1:]}."
        yield f"The largest class alone: {percent(estimate.chance)}."
        simpler = getattr(self.model.facts, "text_accuracy", None)
        if simpler is not None:
            yield f"TF-IDF and a linear model on the same texts: {percent(simpler)}."
        if estimate.warning:
            yield f"Warning: {estimate.warning}"
        yield "Measured on texts like those it learned from; on others it may be lower."

    def _confusions(self) -> Iterator[str]:
        names, found = self.model.classes, self.model.facts.confusions
        if not found:
            return
        rows = [(str(names[label]), str(names[other]), number(count)) for label, other, count in found]
        yield _table(("class", "taken for", "texts left out"), rows[:MOST_CONFUSIONS])
        if len(rows) > MOST_CONFUSIONS:
            yield f"... and {len(rows) - MOST_CONFUSIONS} more pairs."

    def _labels(self, learned: FittedLabels) -> Iterator[str]:
        reports = list(zip(self.model.classes, learned.reports, strict=True))
        if all(report.f1 is None for _, report in reports):
            yield _bullets([_UNKNOWN])
            return
        yield "On texts left out, each judged by a threshold that was found without it:"
        rows = [
            (str(label), number(one.texts), f"{one.threshold:.3f}", *map(percent, (one.precision, one.recall, one.f1)))
            for label, one in reports
        ]
        yield _table(("label", "texts", "said from", "precision", "recall", "F1"), rows)

    def _calibration(self, learned: Fitted) -> Iterator[str]:
        known = learned.confidences
        if known is None:
            yield "This head doesn't cross-validate: its probabilities are shares of votes, and not calibrated."
            return
        yield f"Expected calibration error {percent(known.error())} over {number(len(known.sure))} texts left out."
        bins = [(number(one.count), percent(one.confidence), percent(one.accuracy)) for one in known.bins()]
        yield _table(("texts", "confidence", "accuracy"), bins)
        rows = []
        for precision in PRECISIONS:
            found = known.threshold(precision)
            answered = "-" if found.precision is None else f"{found.value:.3f}"
            rows.append((percent(precision), answered, percent(found.precision), percent(found.coverage)))
        yield _table(("promised precision", "answer from", "precision", "texts answered"), rows)

    def _prompts(self) -> Iterator[str]:
        yield "\n".join(f"{at}. {_code(source)}" for at, source in enumerate(self.model.templates, start=1))
        found = self.model.explain()
        rows = [(str(label), ", ".join(found.words(label, WORDS))) for label in self.model.classes]
        yield _table(("class", "recognised by"), rows)

    def _proof(self) -> Iterator[str]:
        if self.report is None:
            yield "The run folder was not at hand; `pbsdk card MODEL --run RUN` adds its counts and a certificate."
            return
        report = self.report
        yield _bullets([f"Budget: {report.budget}", f"Verdict: {report.verdict}", f"Records: {number(report.records)}"])
        rows = [
            (phase.phase, number(phase.passes), number(phase.attempts), number(phase.hits)) for phase in report.phases
        ]
        yield _table(("phase", "passes", "queries sent", "recalled"), rows)
        if self.certificate is not None:
            size, content = self.certificate.records, self.certificate.model_dump_json(indent=2)
            yield (
                f"Certificate over {number(size)} records. Saved as `certificate.json`, it checks the run folder, which may have grown "
                "since: `pbsdk audit verify RUN --certificate certificate.json`."
            )
            yield f"```json\n{content}\n```"


_ELSEWHERE = {"cross_validated_accuracy", "text_accuracy", "text_column", "pair_column", "label_separator"}
"""Facts that are no setting of the head: told under other headings, or about the table."""


def _said(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _bullets(lines: Sequence[str] | Iterator[str]) -> str:
    return "\n".join(f"- {escaped(line)}" for line in lines)


def _table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    cells = [[Cell(str(value)) for value in row] for row in rows]
    head, _, *lines = markdown_table(Table("", list(header), cells))
    return "\n".join([head, "|---" * len(header) + "|", *lines])


def _code(source: str) -> str:
    """Return a prompt as code; a fence is longer than any run of backticks in it."""
    line = one_line(source)
    fence = "`"
    while fence in line:
        fence += "`"
    return f"{fence} {line} {fence}" if "`" in line else f"`{line}`"
