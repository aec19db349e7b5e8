"""Every registered head with 77 classes, as intents have: `python bench/many_classes.py`.

16 texts per class under 10 prompts, 50,265 tokens. Each head learns in a process of its own from the same answers, of which
what exceeds 256 MB is on disk as in a fit, and is tested on other texts. Peak memory is that of the whole process, the
answers in memory included. Functions are compiled beforehand.

Answers are made up: each token has a base rate and noise, texts differ in a few ways that have nothing to do with their class,
and each class lifts fifteen of the 400 likeliest tokens, which it shares with other classes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import numpy as np
import numpy.typing as npt

from pbsdk.backend import MaskDistribution
from pbsdk.learning.heads import Trial, head_named
from pbsdk.learning.matrix import Matrices, collect
from pbsdk.plugins import HEADS
from pbsdk.queries.examples import Example

VOCABULARY = 50265
LIKELY = 400
LIFTED = 15
WAYS = 12
LIMIT_GIB = 2.0
LIMIT_SECONDS = 60.0

Labels = npt.NDArray[np.int64]


@dataclass
class World:
    """What a model would say: base rates, what each class lifts, and what texts differ in besides."""

    n_classes: int
    prompts: int
    vocabulary: int
    base: npt.NDArray[np.float32] = field(init=False)
    ways: npt.NDArray[np.float32] = field(init=False)

    def __post_init__(self) -> None:
        generator = np.random.default_rng(7)
        self.base = generator.normal(scale=2.5, size=(self.prompts, self.vocabulary)).astype(np.float32)
        self.ways = generator.normal(scale=0.35, size=(self.prompts, WAYS, self.vocabulary)).astype(np.float32)
        shape = (self.prompts, self.n_classes, LIFTED)
        likely = np.argsort(-self.base, axis=1)[:, :LIKELY]
        self.lifted = np.array([generator.choice(row, shape[1:]) for row in likely])
        self.lift = generator.uniform(0.8, 2.6, shape)

    def answers(self, labels: Labels, seed: int) -> Iterator[MaskDistribution]:
        """Yield the answers to texts of these classes, all prompts of a text together."""
        generator = np.random.default_rng(seed)
        noise = generator.normal(scale=0.7, size=2**22).astype(np.float32)
        for label in labels:
            ways = generator.normal(size=WAYS).astype(np.float32)
            for prompt in range(self.prompts):
                at = int(generator.integers(len(noise) - self.vocabulary))
                logits = self.base[prompt] + noise[at : at + self.vocabulary] + ways @ self.ways[prompt]
                logits[self.lifted[prompt, label]] += self.lift[prompt, label] * generator.uniform(0.5, 1.5)
                logprobs = logits - np.log(np.exp(logits).sum())
                yield MaskDistribution(codes=np.clip(np.rint(-1024 * logprobs), 0, 65535).astype(np.uint16))


@dataclass(frozen=True)
class Result:
    """How one head did."""

    seconds: float
    peak_gib: float
    accuracy: float
    about: str


def learn(name: str, trial: Trial, test: tuple[Matrices, Labels] | None) -> Result:
    """Let a head learn, and test it."""
    start = time.perf_counter()
    fitted = head_named(name)().fit(trial)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    if test is None:
        return Result(seconds, peak, 0.0, "")
    matrices, labels = test
    said = fitted.scores_of(matrices, _examples(labels)).argmax(axis=1)
    about = ", ".join(f"{key} {fitted.facts[key]}" for key in ("search", "neighbours") if key in fitted.facts)
    return Result(seconds, peak, float((said == labels).mean()), about)


def report(sender: Connection, name: str, trial: Trial, test: tuple[Matrices, Labels]) -> None:
    """Send how a head does, from a process of its own."""
    sender.send(learn(name, trial, test))


def _examples(labels: Labels) -> list[Example]:
    return [Example(f"text {k}") for k in range(len(labels))]


def warm_up(names: list[str]) -> None:
    """Have everything compiled."""
    for n_classes in (3, 30):
        labels = np.repeat(np.arange(n_classes), 4)
        with collect(World(n_classes, 2, 1000).answers(labels, 1), len(labels), 2) as matrices:
            for name in names:
                learn(name, Trial(matrices, labels, n_classes, 1, examples=_examples(labels)), None)


def main() -> int:
    """Print the table; return 1 if a head took too long or too much memory."""
    parser = argparse.ArgumentParser(description="every head with many classes")
    parser.add_argument("--classes", type=int, default=77)
    parser.add_argument("--texts", type=int, default=16, help="per class")
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    parser.add_argument("--heads", nargs="+", default=HEADS.names(), help="all that are registered unless told")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where temporary files go")
    options = parser.parse_args()
    processes = multiprocessing.get_context("fork")  # a child finds the answers there
    with processes.Pool(1) as pool:
        pool.apply(warm_up, (options.heads,))
    world = World(options.classes, options.prompts, options.vocabulary)
    labels, tested = (np.repeat(np.arange(options.classes), count) for count in (options.texts, 3))
    print("| head | seconds | peak memory, GiB | accuracy | |\n|---|---|---|---|---|")
    reached = True
    with (
        collect(world.answers(labels, 1), len(labels), options.prompts, folder=options.folder) as train,
        collect(world.answers(tested, 2), len(tested), options.prompts, max_memory=0, folder=options.folder) as test,
    ):
        trial = Trial(train, labels, options.classes, 1, examples=_examples(labels))
        for name in options.heads:
            receiver, sender = processes.Pipe(duplex=False)
            child = processes.Process(target=report, args=(sender, name, trial, (test, tested)))
            child.start()
            sender.close()
            result = receiver.recv()
            child.join()
            print(
                f"| {name} | {result.seconds:.1f} | {result.peak_gib:.2f} | {result.accuracy:.3f} | {result.about} |",
                flush=True,
            )
            reached &= result.seconds <= LIMIT_SECONDS and result.peak_gib <= LIMIT_GIB
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
