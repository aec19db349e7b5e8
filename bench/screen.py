"""A fit to a hundred thousand texts: `python bench/screen.py`, and beside one without a screen: `python bench/screen.py --texts 4000 --compare`.

Two classes, ten prompts, 50,265 tokens, a million passes through meter and ledger: whole answers would take 100 GB. Each fit is a process of its own; its
peak memory is its largest resident set, the answers' bytes are what the run folder holds in the end, and a hundredth as many new texts (at least 1,000) measure its accuracy.

Answers are made up: each prompt has its own rate for each token, most of it shared by all prompts; each answer has noise, and some of the likely
tokens and some of the others lean to one of the classes. Texts are twenty words, a few of which one class says more often.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pbsdk import PromptBoostingClassifier
from pbsdk.backend import Abilities, MaskDistribution, MaskedLMBackend, MaskedQuery, ModelIdentity, Tokens, Vocabulary
from pbsdk.metering.meter import MeteredBackend

VOCABULARY = 50_265
PROMPTS = 10
NOISE = 1.0
LEANING = 2000
"""How many tokens lean to a class; a tenth of them much."""


class MadeUp(MaskedLMBackend):
    """A model that answers for chosen tokens at little cost: what an answer sums to is right on average only."""

    def __init__(self) -> None:
        self.identity = ModelIdentity("made-up", {"noise": str(NOISE)})
        self.vocabulary = Vocabulary(f" w{token}" for token in range(VOCABULARY))
        self.abilities = Abilities(chosen=True, batch_size=256)
        generator = np.random.default_rng(7)
        shared = generator.normal(scale=2.2, size=VOCABULARY)
        logits = shared + generator.normal(scale=0.6, size=(PROMPTS, VOCABULARY))
        self._base = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)) - NOISE**2 / 2
        self._noise = generator.normal(scale=NOISE, size=2**22).astype(np.float32)
        self._leaning = np.zeros((PROMPTS, VOCABULARY), dtype=np.float32)
        leaning = generator.choice(VOCABULARY, LEANING, replace=False)
        strength = np.where(np.arange(LEANING) < LEANING // 10, 0.15, 0.03)
        self._leaning[:, leaning] = strength * generator.normal(size=(PROMPTS, LEANING))

    def fill(self, queries: Sequence[MaskedQuery], tokens: Tokens | None = None) -> list[MaskDistribution]:
        """Answer by the number at the beginning of each text."""
        return [self._answer(query, tokens) for query in queries]

    def _answer(self, query: MaskedQuery, tokens: Tokens | None) -> MaskDistribution:
        text, prompt = query.parts[0].text, int(query.parts[1].text.split()[-1])
        side = 2 * label_of(text) - 1
        start = int(query.content[:12], 16) % (len(self._noise) - VOCABULARY)
        noise, base, leaning = self._noise[start : start + VOCABULARY], self._base[prompt], self._leaning[prompt]
        if tokens is not None:
            noise, base, leaning = noise[tokens], base[tokens], leaning[tokens]
        codes = np.clip(np.rint(-1024 * (base + noise + side * leaning)), 0, 65535).astype(np.uint16)
        return MaskDistribution(codes=codes, tokens=tokens)


def label_of(text: str) -> int:
    """Return the class of a text, which its number tells."""
    return int(text.split(maxsplit=1)[0][1:]) % 2


def texts(count: int, first: int) -> list[str]:
    """Return different texts, numbered from the first."""
    generator = np.random.default_rng(first)
    words = np.array([f"v{k}" for k in range(5000)])
    common = 1 / np.arange(1, len(words) + 1)
    leaning = np.exp(np.random.default_rng(8).normal(scale=0.2, size=len(words)))
    chances = [common / common.sum(), common * leaning / (common * leaning).sum()]
    drawn = [generator.choice(words, (count, 20), p=chance) for chance in chances]
    return [f"#{at} {' '.join(drawn[at % 2][at - first])}" for at in range(first, first + count)]


def fit(given: argparse.Namespace) -> None:
    """Fit once, in this process, and print what it took as JSON."""
    train = texts(given.texts, 0)
    test = texts(max(1000, given.texts // 100), 10**7)
    prompts = [f"<input> So {at} <mask>" for at in range(PROMPTS)]
    run = Path(given.run)
    with MadeUp() if given.without_ledger else MeteredBackend(MadeUp(), run, None) as lm:
        began, busy = time.perf_counter(), time.process_time()
        clf = PromptBoostingClassifier(
            lm,
            prompts,
            head=given.head,
            rounds=given.rounds,
            text_features=not given.answers_alone,
            screen=given.screen,
            random_state=1,
            progress=False,
        )
        clf.fit(train, [label_of(text) for text in train])
        took, used = time.perf_counter() - began, time.process_time() - busy
        size = sum(file.stat().st_size for file in run.rglob("*") if file.is_file())
        found = clf.predict(test)
        print(
            json.dumps(
                {
                    "kept": None if clf.screen_ is None else str(clf.screen_),
                    "GB": size / 1e9,
                    "bytes a pass": size / given.texts / PROMPTS,
                    "peak GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
                    "seconds": took,
                    "processor": used,
                    "right": np.mean(found == [label_of(text) for text in test]),
                    "tested": len(test),
                }
            )
        )


def main() -> None:
    """Fit in processes of their own, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=100_000)
    parser.add_argument("--screen", type=int, default=1000, help="texts asked about in full")
    parser.add_argument("--compare", action="store_true", help="fit without a screen too")
    parser.add_argument("--head", default="auto")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--answers-alone", action="store_true", help="don't read the texts' own words")
    parser.add_argument("--without-ledger", action="store_true", help="ask the model itself: learning alone")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where run folders go, for the time being")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        fit(given)
        return
    for screen in [given.screen, 0] if given.compare else [given.screen]:
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            options = [f"--texts={given.texts}", f"--head={given.head}", f"--rounds={given.rounds}"]
            options += ["--answers-alone"] * given.answers_alone + ["--without-ledger"] * given.without_ledger
            command = [sys.executable, __file__, *options, f"--screen={screen}", f"--run={folder}/run"]
            said = subprocess.run(
                command, stdout=subprocess.PIPE, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
            )
        found = json.loads(said.stdout)
        print(
            f"{given.texts:,} texts, screen {screen:,}: {found['right']:.1%} of {found['tested']:,} new texts, run folder {found['GB']:.2f} GB "
            f"({found['bytes a pass']:,.0f} bytes a pass), peak memory {found['peak GiB']:.2f} GiB, {found['seconds']:,.0f} s "
            f"({found['processor']:,.0f} s of processor time)\n  {found['kept'] or 'all tokens kept'}",
            flush=True,
        )


if __name__ == "__main__":
    main()
