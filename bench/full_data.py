"""A full data set in little memory: `python bench/full_data.py`, and with `--head auto`.

Two classes, 8,662 examples under 10 prompts, 50,265 tokens: 8.7 GB of answers, which stream through
`collect` as they would from a model. 200 rounds of boosting, or all that `auto` tries, must run in at most 3 GiB. About
14 GB of disk are needed in the folder for temporary files, and given back at the end.

Answers are made up: each token has a base rate, noise, and for a few hundred tokens a leaning to
one of the classes, so that there is something to find. So are the texts that `auto` reads: twenty words each, a few of
which one class says more often.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator

import numpy as np

from pbsdk.backend import MaskDistribution
from pbsdk.learning.auto import Auto
from pbsdk.learning.boosting import boost
from pbsdk.learning.heads import Trial
from pbsdk.learning.matrix import Matrices, collect
from pbsdk.queries.examples import Example

VOCABULARY = 50265
LIMIT_GIB = 3.0

Labels = np.ndarray[tuple[int], np.dtype[np.int64]]


def answers(labels: Labels, prompts: int) -> Iterator[MaskDistribution]:
    """Yield made-up answers, all prompts of an example together."""
    generator = np.random.default_rng(7)
    noise = generator.normal(scale=2, size=2**24).astype(np.float32)
    base = generator.normal(scale=2, size=(prompts, VOCABULARY)).astype(np.float32)
    leaning = np.zeros((prompts, VOCABULARY), dtype=np.float32)
    leaning[:, :400] = generator.normal(scale=0.3, size=(prompts, 400))
    for label in labels:
        for prompt in range(prompts):
            at = int(generator.integers(len(noise) - VOCABULARY))
            logits = base[prompt] + noise[at : at + VOCABULARY] + (2 * label - 1) * leaning[prompt]
            logprobs = logits - np.log(np.exp(logits).sum())
            yield MaskDistribution(codes=np.clip(np.rint(-1024 * logprobs), 0, 65535).astype(np.uint16))


def texts(labels: Labels) -> list[Example]:
    """Return made-up texts."""
    generator = np.random.default_rng(8)
    words = np.array([f"w{k}" for k in range(5000)])
    common = 1 / np.arange(1, len(words) + 1)
    leaning = np.exp(generator.normal(scale=0.5, size=len(words)))
    chances = [common / common.sum(), common * leaning / (common * leaning).sum()]
    return [Example(" ".join(generator.choice(words, 20, p=chances[label]))) for label in labels]


def boost_and_print(matrices: Matrices, labels: Labels, prompts: int, rounds: int) -> None:
    """Boost, and say how long the rounds took."""
    times = [time.perf_counter()]
    boosted = boost(matrices, labels, 2, rounds=rounds, seed=1, progress=lambda _: times.append(time.perf_counter()))
    seconds = np.diff(times)
    print(f"first round of each prompt   {seconds[:prompts].sum():7.1f} s (makes the coarse copies)")
    print(f"other rounds                 {seconds[prompts:].sum():7.1f} s, median {np.median(seconds):.3f} s")
    print(f"rounds, learners, way out    {len(boosted.history)}, {boosted.rounds_kept}, {boosted.way_out}")
    print(f"error, first and last round  {boosted.history[0].error:.4f}, {boosted.history[-1].error:.4f}")


def fit_auto_and_print(matrices: Matrices, labels: Labels) -> None:
    """Let `auto` choose, and say how long it took."""
    trial = Trial(matrices, labels, 2, 1, examples=texts(labels))
    start = time.perf_counter()
    fitted = Auto().fit(trial)
    print(f"auto                         {time.perf_counter() - start:7.1f} s")
    print(fitted.selection)


def peak_gib() -> float:
    """Return the most memory this process has held, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> int:
    """Run, print, and return 1 if too much memory was used."""
    parser = argparse.ArgumentParser(description="200 rounds, or `auto`, on a full data set")
    parser.add_argument("--head", choices=["boosting", "auto"], default="boosting")
    parser.add_argument("--examples", type=int, default=8662)
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where temporary files go")
    options = parser.parse_args()
    needed = 1.6 * 2 * options.examples * options.prompts * VOCABULARY
    if shutil.disk_usage(options.folder).free < needed:
        sys.exit(f"{options.folder} needs {needed / 1e9:.0f} GB of free space; name another with --folder")
    labels = np.arange(options.examples, dtype=np.int64) % 2
    start = time.perf_counter()
    with collect(
        answers(labels, options.prompts), options.examples, options.prompts, folder=options.folder
    ) as matrices:
        print(f"answers made and collected   {time.perf_counter() - start:7.1f} s")
        if options.head == "auto":
            fit_auto_and_print(matrices, labels)
        else:
            boost_and_print(matrices, labels, options.prompts, options.rounds)
    print(f"peak memory                  {peak_gib():7.2f} GiB of {LIMIT_GIB}")
    return 0 if peak_gib() <= LIMIT_GIB else 1


if __name__ == "__main__":
    sys.exit(main())
