"""The demo: route support tickets with the embedded model, and show what it cost.

It does what users would do with their own texts, and prints beside the result what others make of the same texts: the
paper's method, the class names as words (a majority vote of the same prompts, untrained) and the most frequent class, all from the same
forward passes, and TF-IDF with logistic regression, which needs none.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import accuracy_score

from pbsdk.audit.report import AuditReport
from pbsdk.backend import Floats
from pbsdk.classifier import PromptBoostingClassifier
from pbsdk.connecting import connect
from pbsdk.data.tickets import Split, Tickets, load_tickets
from pbsdk.errors import InputError
from pbsdk.learning.calibration import expected_calibration_error
from pbsdk.learning.ensemble import Ensemble, FittedEnsemble, WeakLearner
from pbsdk.learning.heads import Trial
from pbsdk.queries.examples import read_examples
from pbsdk.reproduce.references import words_probe

__all__ = ["DemoResult", "run_demo"]

POOL = "intent"
SEED = 13
PRECISION = 0.95
"""How often the answers that it is sure of should be right."""


@dataclass(frozen=True)
class DemoResult:
    """What the demo measured."""

    model: str
    head: str
    accuracy: float
    cross_validated_accuracy: float
    boosting_accuracy: float
    zero_shot_accuracy: float
    text_accuracy: float
    majority_accuracy: float
    calibration_error: float
    coverage: float
    """The share of test tickets that it is sure of."""
    precision: float
    """How many of those are right."""
    words: dict[str, list[str]]
    audit: AuditReport
    passes_now: int
    seconds: float
    saved: str
    run: str

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {**{key: value for key, value in asdict(self).items() if key != "audit"}, "audit": self.audit.to_dict()}

    def __str__(self) -> str:
        words = "\n".join(f"  {label:<12}{', '.join(words)}" for label, words in self.words.items())
        return f"""\
Support tickets, 4 departments, 16 + 16 labelled texts each, on {self.model}

Accuracy on 160 test tickets
  pbsdk (the head `{self.head}`)                     {self.accuracy:6.1%}   (cross-validated before: {self.cross_validated_accuracy:.1%})
  PromptBoosting as in the paper              {self.boosting_accuracy:6.1%}
  the same prompts, class names as words      {self.zero_shot_accuracy:6.1%}
  TF-IDF and logistic regression, no model    {self.text_accuracy:6.1%}
  always the most frequent class              {self.majority_accuracy:6.1%}

Its probabilities are off by {self.calibration_error:.1%} on average (expected calibration error). Asked for a precision of
{PRECISION:.0%}, it is sure of {self.coverage:.0%} of the tickets, and {self.precision:.1%} of those are right.

Words by which a department is recognised
{words}

{self.audit}

This time {self.passes_now} forward passes and {self.seconds:.0f} s.
The classifier is in {self.saved} (try: pbsdk explain {self.saved}),
the record of every query in {self.run} (try: pbsdk audit {self.run})."""


def run_demo(folder: Path, backend: str | None = None, **options: Any) -> DemoResult:
    """Train on the tickets, test, and save the model and the run under `folder`."""
    started = time.monotonic()
    tickets = load_tickets()
    run, saved = folder / "run", folder / "tickets.json"
    with connect(backend or "smollm2", run=run, budget=10, **options) as lm:
        before = _asked(lm.audit())
        clf = _fitted(PromptBoostingClassifier(lm, POOL, random_state=SEED), tickets)
        clf.save(saved)
        paper = _fitted(PromptBoostingClassifier(lm, POOL, head="boosting", random_state=SEED), tickets)
        probabilities, boosted, untrained = _tested(clf, paper, tickets.test)
        truth = np.searchsorted(clf.classes_, tickets.test.labels)
        sure = probabilities.max(axis=1) >= clf.threshold(precision=PRECISION).value
        right = probabilities.argmax(axis=1) == truth
        explanation = clf.explain()
        report = lm.audit()
        return DemoResult(
            model=lm.identity.name,
            head=clf.head_name_,
            accuracy=float(right.mean()),
            cross_validated_accuracy=clf.selection_.accuracy,
            boosting_accuracy=accuracy_score(truth, boosted.argmax(axis=1)),
            zero_shot_accuracy=accuracy_score(truth, untrained.argmax(axis=1)),
            text_accuracy=_text_accuracy(tickets),
            majority_accuracy=max(Counter(tickets.test.labels).values()) / len(tickets.test),
            calibration_error=expected_calibration_error(probabilities, truth),
            coverage=float(sure.mean()),
            precision=float(right[sure].mean()) if sure.any() else 1.0,
            words={label: explanation.words(label) for label in explanation.classes},
            audit=report,
            passes_now=_asked(report) - before,
            seconds=time.monotonic() - started,
            saved=str(saved),
            run=str(run),
        )


def _fitted(clf: PromptBoostingClassifier, tickets: Tickets) -> PromptBoostingClassifier:
    held_out = tickets.validation.texts, tickets.validation.labels
    return clf.fit(tickets.train.texts, tickets.train.labels, validation=held_out)


def _asked(report: AuditReport) -> int:
    return sum(phase.attempts for phase in report.phases)


def _tested(
    clf: PromptBoostingClassifier, paper: PromptBoostingClassifier, test: Split
) -> tuple[Floats, Floats, Floats]:
    """Return the classifier's probabilities, the votes of the paper's method, and those of the class names; from the same passes."""
    names = tuple(_token(clf, str(label)) for label in clf.classes_)
    learners = (WeakLearner(prompt, names, 1.0) for prompt in clf.fitted_.prompts)
    untrained = FittedEnsemble(Ensemble(len(names), tuple(learners)))
    verdicts = list(clf.predict_iter(test.texts, beside=[paper.fitted_, untrained]))
    boosted, voted = (np.array(votes) for votes in zip(*(verdict.beside for verdict in verdicts), strict=True))
    return np.array([verdict.probabilities for verdict in verdicts]), boosted, voted


def _text_accuracy(tickets: Tickets) -> float:
    """Return the accuracy of TF-IDF with logistic regression from the same labelled texts."""
    classes = sorted(set(tickets.train.labels))
    known = read_examples([*tickets.train.texts, *tickets.validation.texts])
    labels = np.searchsorted(classes, [*tickets.train.labels, *tickets.validation.labels])
    probe = words_probe().fit(Trial((), labels, len(classes), SEED, examples=known))
    scores = probe.scores_of((), read_examples(tickets.test.texts))
    return float(accuracy_score(np.searchsorted(classes, tickets.test.labels), scores.argmax(axis=1)))


def _token(clf: PromptBoostingClassifier, name: str) -> int:
    token = clf.backend.vocabulary.find(name)
    if token is None:
        raise InputError(
            f"the model has no single token for {name!r}, so the demo's baseline can't be computed with it"
        )
    return token
