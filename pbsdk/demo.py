"""The demo: route support tickets with the embedded model, and show what it cost.

It does what a user would do with texts of their own, and prints two honest references beside the
result, both computed from the same forward passes: the most frequent class, and a majority vote of
the same prompts with the class names as words.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pbsdk.audit.report import AuditReport
from pbsdk.backend import Phase
from pbsdk.classifier import PromptBoostingClassifier
from pbsdk.connecting import connect
from pbsdk.data.tickets import Split, load_tickets
from pbsdk.errors import InputError
from pbsdk.learning.ensemble import Ensemble, WeakLearner
from pbsdk.progress import progress_bar
from pbsdk.queries.examples import read_examples
from pbsdk.queries.rendering import render

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
    """Return the accuracies of the class names as words, and of the classifier, from the same passes."""
    trained: Ensemble = clf.ensemble_
    names = tuple(_token(clf, str(label)) for label in clf.classes_)
    untrained = Ensemble(trained.n_classes, tuple(WeakLearner(at, names, 1.0) for at in trained.templates))
    examples = read_examples(test.texts)
    templates = [clf.templates_[at] for at in trained.templates]
    queries = render(examples, templates, Phase.PREDICT)
    tokens = np.union1d(trained.tokens, names)
    answers = list(progress_bar(clf.backend.stream(queries, tokens), total=len(queries), what="testing"))
    labels = np.searchsorted(clf.classes_, test.labels)
    zero_shot, boosted = (float((e.predict(answers, len(test)) == labels).mean()) for e in (untrained, trained))
    return zero_shot, boosted


def _token(clf: PromptBoostingClassifier, name: str) -> int:
    token = clf.backend.vocabulary.find(name)
    if token is None:
        raise InputError(
            f"the model has no single token for {name!r}, so the demo's reference can't be computed with it"
        )
    return token
