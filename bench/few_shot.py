"""A 16-shot run on a real data set: accuracy, passes and time.

    python bench/few_shot.py sst2 trec --backend smollm2 --seed 13 --test-rows 300

The data sets are found through PBSDK_DATA, or taken from the `datasets` library. Run folders are kept, so that a
second run asks nothing and an interrupted one goes on.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from pbsdk import PromptBoostingClassifier, connect
from pbsdk.benchmarks import data_folder, named
from pbsdk.sampling import few_shot
from pbsdk.templates import pool_names

OWN_POOLS = {"subj": "sentiment"}


def main() -> None:
    """Run the data sets one after another and print a table row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--backend", default="smollm2")
    parser.add_argument("--seed", type=int, default=13)
    parser.add_argument("--test-rows", type=int, default=300)
    parser.add_argument("--runs", type=Path, default=Path("runs/few_shot"))
    given = parser.parse_args()
    print("| data | classes | prompts | accuracy | learners | training passes | test passes | asked now | seconds |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in given.datasets:
        pool = name if name in pool_names() else OWN_POOLS[name]
        folder = data_folder()
        if folder is not None and (folder / name / f"16-{given.seed}").is_dir():
            train, dev = (named(name, f"16-{given.seed}/{split}") for split in ("train", "dev"))
        else:
            draw = few_shot(named(name, "train"), k=16, seed=given.seed)
            train, dev = draw.train, draw.validation
        test = named(name, "test")
        rows = np.random.default_rng(given.seed).permutation(len(test.labels))[: given.test_rows].tolist()
        test = test.take(rows)
        began = time.monotonic()
        with connect(given.backend, run=given.runs / f"{name}-{given.seed}", budget=10) as lm:
            before = sum(phase.attempts for phase in lm.audit().phases)
            clf = PromptBoostingClassifier(lm, prompts=pool, random_state=given.seed)
            clf.fit(train.examples, train.labels, validation=(dev.examples, dev.labels))
            accuracy = clf.score(test.examples, test.labels)
            report = lm.audit()
        passes = {phase.phase: phase.passes for phase in report.phases}
        asked = sum(phase.attempts for phase in report.phases) - before
        print(
            f"| {name} | {len(clf.classes_)} | {pool} | {accuracy:.1%} | {len(clf.ensemble_.learners)} | "
            f"{passes['train'] + passes['validate']:,} | {passes['predict']:,} | {asked:,} | "
            f"{time.monotonic() - began:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
