"""For what share of a run the model waits: `python bench/idle.py [--precision fast]`.

SmolLM2 answers ten prompts about the first texts of AG's News' test set, which is found through `PBSDK_DATA`, through the meter, into a new run folder,
and every answer is stored whole, as in training. Time in which the model runs is time in a forward pass and in what turns its output into
log-probabilities; the rest, reading texts, putting answers on the grid, the ledger and the disk, is time in which it is idle. The
turn with the smallest share counts, and the script fails if it is above 3%.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from local_speed import ENDINGS, query
from torch import Tensor
from transformers.utils import logging as transformers_logging

from pbsdk.metering.meter import MeteredBackend
from pbsdk.reproduce.benchmarks import named
from pbsdk_backends._local.passes import Passes
from pbsdk_backends._local.sharing import Row
from pbsdk_backends.smollm2 import SmolLM2Backend

MOST = 0.03


class Timed:
    """Passes whose time is added up."""

    def __init__(self, passes: Passes) -> None:
        self.batch_tokens = passes.batch_tokens
        self._passes = passes
        self.seconds = 0.0

    def run(self, rows: Sequence[Row]) -> Iterator[tuple[list[int], Tensor]]:
        """Yield what the passes yield."""
        found = self._passes.run(rows)
        while True:
            start = time.perf_counter()
            try:
                one = next(found)
            except StopIteration:
                return
            finally:
                self.seconds += time.perf_counter() - start
            yield one


def main() -> None:
    """Measure, and print each turn's share."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", default="exact")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--texts", type=int, default=32)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    queries = [query(text, end) for text in named("agnews", "test").examples[: options.texts] for end in ENDINGS]
    backend = SmolLM2Backend(device="cpu", precision=options.precision, threads=options.threads)
    backend.fill(queries[:10])
    timed = Timed(backend._passes)  # noqa: SLF001 - the model's own work, apart from what is done around it
    backend._passes = timed  # type: ignore[assignment] # noqa: SLF001
    shares = []
    print(
        f"\n| turn, `{options.precision}`, threads: {torch.get_num_threads()} | seconds | the model runs | idle |\n|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as scratch:
        for turn in range(options.repeat):
            timed.seconds, start = 0.0, time.perf_counter()
            for _ in MeteredBackend(backend, Path(scratch) / str(turn), budget=len(ENDINGS)).stream(queries):
                pass
            spent = time.perf_counter() - start
            shares.append(1 - timed.seconds / spent)
            print(f"| {turn + 1} | {spent:.2f} | {timed.seconds:.2f} | {shares[-1]:.1%} |", flush=True)
    if min(shares) > MOST:
        sys.exit(f"the model is idle for more than {MOST:.0%} of the time")


if __name__ == "__main__":
    main()
