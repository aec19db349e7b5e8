"""What a provider's top k costs in accuracy: SmolLM2 behind `pbsdk serve`, at k = 5, 20, 100 and whole.

    python bench/top_k.py [--data trec agnews] [--tops 5 20 100] [--test 300] [--seed 13] [--run FOLDER]

A server runs in a process of its own and answers whole; every question is asked once, and kept. A view
of it then shows only the k most probable tokens, in training and in prediction, as a provider with
that limit would: the rest is censored. So all columns stand on the same passes. Data comes from the
folder that PBSDK_DATA names (see `pbsdk.reproduce.benchmarks`); 16 texts per class to train on and as many to
validate on, ten prompts that end at the mask.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from pbsdk import PromptBoostingClassifier, connect
from pbsdk.backend import Abilities, MaskDistribution, MaskedLMBackend, MaskedQuery, ModelIdentity, Tokens
from pbsdk.data.loading import LabelledTexts
from pbsdk.data.sampling import few_shot
from pbsdk.reproduce.benchmarks import named

SERVER = """
from pbsdk_backends.serve import serve
from pbsdk_backends.smollm2 import SmolLM2Backend

with SmolLM2Backend() as backend:
    serve(backend, port=0, ready=lambda url: print(url, flush=True))
"""


class TopOnly(MaskedLMBackend):
    """A view of a backend that shows its `top` most probable tokens, and sums up the mass seen."""

    def __init__(self, backend: MaskedLMBackend, top: int) -> None:
        self._backend = backend
        self._top = top
        self.identity = ModelIdentity(backend.identity.name, {**backend.identity.details, "top": str(top)})
        self.vocabulary = backend.vocabulary
        self.mask_token = backend.mask_token
        self.abilities = Abilities(whole=False, top=top, mask=backend.abilities.mask, batch_size=32)
        self.masses: list[float] = []

    def fill(self, queries: Sequence[MaskedQuery], tokens: Tokens | None = None) -> list[MaskDistribution]:
        """Ask for whole answers, and hide what is not among the most probable."""
        del tokens
        answers = []
        for whole in self._backend.stream(queries):
            best = np.sort(np.argsort(whole.codes, kind="stable")[: self._top])
            codes = whole.codes[best]
            answers.append(MaskDistribution(codes, best.astype(np.int64), int(codes.max()), whole.read_tokens))
            self.masses.append(answers[-1].mass)
        return answers


@contextlib.contextmanager
def server() -> Iterator[str]:
    """Serve SmolLM2 from a process of its own."""
    process = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait(60)


def texts(data: LabelledTexts) -> tuple[list[object], list[object]]:
    """Return a data set as the estimator takes it."""
    return list(data.examples), list(data.labels)


def measure(name: str, url: str, run: Path, options: argparse.Namespace) -> None:
    """Train and test on one data set at every k, and print its row."""
    draw = few_shot(named(name, "train"), k=16, seed=options.seed, fewer=True)
    train, validation = texts(draw.train), texts(draw.validation)
    whole_test = named(name, "test")
    rows = np.random.default_rng(options.seed).permutation(len(whole_test))[: options.test]
    test = texts(whole_test.take(sorted(int(row) for row in rows)))
    with connect("http", url=url, run=run / name, budget=None) as lm:
        for top in (*options.tops, None):
            backend = lm if top is None else TopOnly(lm, top)
            start = time.monotonic()
            clf = PromptBoostingClassifier(
                backend,
                name,
                head="boosting",
                rounds=options.rounds,
                random_state=options.seed,
                keep="whole",
                progress=False,
            )
            clf.fit(*train, validation=validation)
            mass = float(np.mean(backend.masses)) if isinstance(backend, TopOnly) else 1.0
            accuracy = clf.score(*test)
            label = "whole" if top is None else str(top)
            print(
                f"{name:8s} {label:>6s} {accuracy:9.1%} {mass:10.1%} {len(clf.ensemble_.learners):9d} "
                f"{time.monotonic() - start:8.0f}",
                flush=True,
            )
        print(lm.audit(), flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", nargs="+", default=["trec", "agnews"])
    parser.add_argument("--tops", nargs="+", type=int, default=[5, 20, 100])
    parser.add_argument("--test", type=int, default=300, help="how many test texts")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=13)
    parser.add_argument("--run", type=Path, help="where the passes are kept; a temporary folder unless told")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, server() as url:
        print(f"{'data':8s} {'k':>6s} {'accuracy':>9s} {'mass seen':>10s} {'learners':>9s} {'seconds':>8s}", flush=True)
        for name in options.data:
            measure(name, url, options.run or Path(scratch), options)


if __name__ == "__main__":
    main()
