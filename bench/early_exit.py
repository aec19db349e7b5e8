"""Verdicts against passes: what an early exit saves on real data, and how many labels it changes.

    python bench/early_exit.py trec agnews sst2 mr subj --draws 13 21 42 --test-rows 300

The head is `auto`, fitted with `early_exit=True` to the 16 + 16 texts per class of each draw. What each limit asks is counted as
`predict_early` counts it; all answers are in the run folder after the first, so that the whole table costs at most
ten passes per example, and nothing with the run folder of `pbsdk reproduce` on the same rows (`--run runs/reproduce/run`).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from pbsdk import PromptBoostingClassifier, connect
from pbsdk.data.loading import LabelledTexts
from pbsdk.metering.meter import MeteredBackend
from pbsdk.reproduce.benchmarks import few_shot_of, named
from pbsdk.reproduce.prompt_sets import prompts_of

LIMITS = (0.0, 0.01, 0.02, 0.05)


def main() -> None:
    """Print a line per data set, draw and limit, and the means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--backend", default="smollm2")
    parser.add_argument("--draws", type=int, nargs="+", default=[13])
    parser.add_argument("--test-rows", type=int, default=300)
    parser.add_argument("--run", type=Path, default=Path("runs/early_exit"))
    given = parser.parse_args()
    found: dict[float, list[tuple[float, ...]]] = {limit: [] for limit in LIMITS}
    print("| data set | draw | max_changed | passes per text | labels changed | accuracy, and of all ten |")
    print("|---|--:|--:|--:|--:|--:|")
    with connect(given.backend, run=given.run, budget=10) as lm:
        for name in given.datasets:
            whole = named(name, "test")
            rows = np.random.default_rng(13).permutation(len(whole.labels))[: given.test_rows].tolist()
            for draw in given.draws:
                for limit, line in _measured(lm, name, draw, whole.take(rows)):
                    found[limit].append(line)
                    _show(f"{name} | {draw}", limit, line)
    for limit, lines in found.items():
        _show("mean | ", limit, np.mean(lines, axis=0))
        _show("worst | ", limit, np.max(lines, axis=0))


def _measured(lm: MeteredBackend, name: str, draw: int, test: LabelledTexts) -> list[tuple[float, tuple[float, ...]]]:
    """Return, for each limit, passes per text, the share of changed labels, and both accuracies."""
    parts = few_shot_of(name, seed=draw)
    prompts = [template.source for template in prompts_of(name, "paper", lm.abilities)]
    clf = PromptBoostingClassifier(lm, prompts[:10], early_exit=True, random_state=draw, keep="whole", progress=False)
    clf.fit(parts.train.examples, parts.train.labels, validation=(parts.validation.examples, parts.validation.labels))
    said, truth = clf.predict(test.examples), np.array(test.labels)
    lines = []
    for limit in LIMITS:
        early = clf.predict_early(test.examples, max_changed=limit)
        changed = (early.labels != said).mean()
        lines.append(
            (limit, (early.saved.per_example, changed, (early.labels == truth).mean(), (said == truth).mean()))
        )
    return lines


def _show(what: str, limit: float, line: object) -> None:
    print("| {} | {:g} | {:.1f} | {:.2%} | {:.1%}, {:.1%} |".format(what, limit, *line), flush=True)  # type: ignore[misc]


if __name__ == "__main__":
    main()
