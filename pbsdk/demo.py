"""The demo: route support tickets with the embedded model, and show what it cost.

It does what users would do with their own texts, and prints two baselines beside the result, both
computed from the same forward passes: the most frequent class, and a majority vote of the same
prompts with the class names as words.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sklearn.metrics import accuracy_score

from pbsdk.audit.report import AuditReport
from pbsdk.classifier import PromptBoostingClassifier
from pbsdk.connecting import connect
from pbsdk.data.tickets import Split, load_tickets
from pbsdk.errors import InputError
from pbsdk.learning.ensemble import Ensemble, FittedEnsemble, WeakLearner

__all__ = ["DemoResult", "run_demo"]

POOL = "intent"
SEED = 13


@dataclass(frozen=True)
class DemoResult:
    """What the demo measured."""

    model: str
    accuracy: float
    zero_shot_accuracy: float
    majority_accuracy: float
    learners: int
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
  PromptBoosting ({self.learners} weak learners)          {self.accuracy:6.1%}
  the same prompts, class names as words      {self.zero_shot_accuracy:6.1%}
  always the most frequent class              {self.majority_accuracy:6.1%}

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
        clf = PromptBoostingClassifier(lm, prompts=POOL, random_state=SEED)
        clf.fit(
            tickets.train.texts, tickets.train.labels, validation=(tickets.validation.texts, tickets.validation.labels)
        )
        clf.save(saved)
        zero_shot, accuracy = _test(clf, tickets.test)
        explanation = clf.explain()
        report = lm.audit()
        return DemoResult(
            model=lm.identity.name,
            accuracy=accuracy,
            zero_shot_accuracy=zero_shot,
            majority_accuracy=max(Counter(tickets.test.labels).values()) / len(tickets.test),
            learners=len(explanation.rows),
            words={label: explanation.words(label) for label in explanation.classes},
            audit=report,
            passes_now=_asked(report) - before,
            seconds=time.monotonic() - started,
            saved=str(saved),
            run=str(run),
        )


def _asked(report: AuditReport) -> int:
    return sum(phase.attempts for phase in report.phases)


def _test(clf: PromptBoostingClassifier, test: Split) -> tuple[float, float]:
    """Return the accuracy with the class names as words, and the classifier's, from the same passes."""
    names = tuple(_token(clf, str(label)) for label in clf.classes_)
    learners = (WeakLearner(prompt, names, 1.0) for prompt in clf.fitted_.prompts)
    untrained = FittedEnsemble(Ensemble(len(names), tuple(learners)))
    verdicts = list(clf.predict_iter(test.texts, beside=[untrained]))
    zero_shot = [clf.classes_[verdict.beside[0].argmax()] for verdict in verdicts]
    trained = [verdict.label for verdict in verdicts]
    return accuracy_score(test.labels, zero_shot), accuracy_score(test.labels, trained)


def _token(clf: PromptBoostingClassifier, name: str) -> int:
    token = clf.backend.vocabulary.find(name)
    if token is None:
        raise InputError(
            f"the model has no single token for {name!r}, so the demo's baseline can't be computed with it"
        )
    return token
