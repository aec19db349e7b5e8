"""How a plan's time and memory grow with the texts, beside rendering every query, as a run does.

    python bench/plan.py                  # 1,000 to 1,000,000 texts
    python bench/plan.py --most 100000

Times are the processor's, and each measurement has a process of its own, so that the peaks of memory don't mix. `rendered` plans the same by rendering every query, and
stops at 10,000 texts; the last column compares with it, per text. Nothing is cached: the run folder is new.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from pbsdk import PromptBoostingClassifier, connect
from pbsdk.audit.text import aligned
from pbsdk.formatting import Cell, Table, number
from pbsdk.metering.plan import Step, plan_classifier, plan_steps

WORDS = [
    "ticket",
    "invoice",
    "late",
    "refund",
    "order",
    "where",
    "is",
    "my",
    "the",
    "a",
    "please",
    "help",
    "broken",
    "phone",
]
RENDERED_MOST = 10_000


def texts(count: int) -> Iterator[str]:
    """Yield different texts of 21 words, which take hardly any time to make."""
    generator = random.Random(1)
    endings = [" ".join(generator.choices(WORDS, k=20)) for _ in range(97)]
    return (f"{number} {endings[number % 97]}" for number in range(count))


def measure(way: str, count: int) -> dict[str, float]:
    """Plan a prediction of so many texts under ten prompts."""
    with tempfile.TemporaryDirectory() as folder, connect("fake", run=folder, budget=10) as lm:
        clf = PromptBoostingClassifier(lm, "topic", progress=False)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.process_time()
        if way == "planned":
            found = plan_classifier(clf, predict=texts(count))
        else:
            queries, tokens = clf.predict_queries(list(texts(count)), fitted=False)
            found = plan_steps(lm, [Step("predict", queries, tokens)])
        seconds = time.process_time() - began
    assert found.total("passes") == 10 * count
    return {"seconds": seconds, "more_mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024}


def run(way: str, count: int) -> dict[str, float]:
    """Measure in a process of its own."""
    done = subprocess.run([sys.executable, __file__, "--one", way, str(count)], check=True, capture_output=True)
    return dict(json.loads(done.stdout))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=1_000_000, help="the most texts")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        sys.stdout.write(json.dumps(measure(given.one[0], int(given.one[1]))))
        return
    rows, slow = [], 0.0
    for count in (10**power for power in range(3, 8) if 10**power <= given.most):
        planned = run("planned", count)
        fast = planned["seconds"] / count * 1e6
        rendered = run("rendered", count) if count <= RENDERED_MOST else None
        slow = slow if rendered is None else rendered["seconds"] / count * 1e6
        compared = ["", ""] if rendered is None else [f"{slow:,.0f}", f"{rendered['more_mb']:,.0f}"]
        cells = [number(count), f"{planned['seconds']:.2f}", f"{fast:,.1f}", f"{planned['more_mb']:,.0f}", *compared]
        rows.append([Cell(cell) for cell in [*cells, f"{slow / fast:,.0f}"]])
    header = ["texts", "processor's s", "µs per text", "more MB", "rendered: µs per text", "more MB", "times as fast"]
    print("\n".join(aligned(Table("Plan", header, rows))))


if __name__ == "__main__":
    main()
