"""What m, rounds and the number of prompts do to accuracy, on real data and one set of answers.

    python bench/m_and_rounds.py sst2 trec --test-rows 200

Every setting is fitted to the same answers, so that the whole table costs what one classifier does: at most ten passes
per example, which the run's budget enforces.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path

import numpy as np

from pbsdk import PromptBoostingClassifier, connect
from pbsdk.data.loading import LabelledTexts
from pbsdk.metering.meter import MeteredBackend
from pbsdk.reproduce.benchmarks import named

ROUNDS = (1, 10, 50, 200)
PROMPTS = (1, 2, 5, 10)
EMS = {2: (1, 5, 10, 50, 200), 4: (1, 3, 5, 10, 20), 6: (1, 2, 3, 5, 8)}


def main() -> None:
    """Print a table a data set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--backend", default="smollm2")
    parser.add_argument("--draws", type=int, nargs="+", default=[13])
    parser.add_argument("--test-rows", type=int, default=200)
    parser.add_argument("--runs", type=Path, default=Path("runs/m_and_rounds"))
    given = parser.parse_args()
    for name in given.datasets:
        test = named(name, "test")
        rows = np.random.default_rng(13).permutation(len(test.labels))[: given.test_rows].tolist()
        with connect(given.backend, run=given.runs / name, budget=10) as lm:
            table = [Sweep(lm, name, draw, test.take(rows)).rows() for draw in given.draws]
            passes = int(sum(phase.passes for phase in lm.audit().phases))
        print(f"\n{name}: {given.test_rows} test rows, mean of {len(table)} draws, {passes:,} passes for all of it\n")
        print("| what | validation | test | learners | seconds a fit |\n|---|--:|--:|--:|--:|")
        for lines in zip(*table, strict=True):
            numbers = np.array([line[1:] for line in lines]).mean(axis=0)
            print("| {} | {:.1%} | {:.1%} | {:.0f} | {:.2f} |".format(lines[0][0], *numbers), flush=True)


class Sweep:
    """One data set, one draw: all answers, and fits on them."""

    def __init__(self, lm: MeteredBackend, name: str, draw: int, test: LabelledTexts) -> None:
        self.lm, self.name, self.draw, self.test = lm, name, draw, test
        self.train, self.dev = (named(name, f"16-{draw}/{split}") for split in ("train", "dev"))

    def rows(self) -> list[tuple[str, float, float, float, float]]:
        """Return a row for each setting."""
        rows = [("default", *self._one())]
        rows += [(f"m={m}", *self._one(m=m)) for m in EMS[len(self.train.classes)]]
        rows += [(f"rounds={rounds}", *self._one(rounds=rounds)) for rounds in ROUNDS]
        rows += [
            (f"rounds={rounds}, no validation", *self._one(rounds=rounds, validate=False)) for rounds in ROUNDS[1:]
        ]
        rows += [(f"n_prompts={count}", *self._one(n_prompts=count)) for count in PROMPTS]
        return rows

    def _one(self, *, validate: bool = True, **settings: object) -> tuple[float, float, float, float]:
        """Fit and score; return both accuracies, the number of learners, and the seconds of the fit."""
        clf = PromptBoostingClassifier(
            self.lm, self.name, head="boosting", random_state=self.draw, progress=False, keep="whole", **settings
        )
        held_out = (self.dev.examples, self.dev.labels)
        began = time.monotonic()
        clf.fit(self.train.examples, self.train.labels, validation=held_out if validate else None)
        seconds = time.monotonic() - began
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scores = [clf.score(*held_out), clf.score(self.test.examples, self.test.labels)]
        return *scores, len(clf.ensemble_.learners), seconds


if __name__ == "__main__":
    main()
