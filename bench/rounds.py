"""How long a round takes, beside the plain loop: `python bench/rounds.py`.

Both look for the best verbalizer under the same weights, in one process, one after the other. Ours
runs a few dozen rounds of boosting over a pool of prompts. The plain loop then does the same rounds
as the paper's authors do: score every token, sort the vocabulary once per class, and evaluate one
combination at a time. It is written in numpy, in single precision, and given the codes' probabilities
beforehand. Times are medians; the ratio is given of medians and of means, and both must reach the target.

Distributions are random: "peaked" ones like a language model's (a softmax of normal logits three
wide), and "flat" ones (uniform on the simplex), for which no token can be ruled out early.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pbsdk.learning.boosting import reweigh, samme_alpha
from pbsdk.learning.matrix import CHANCES, TokenMatrix
from pbsdk.learning.verbalizer import VerbalizerSearch, Weights, uniform_weights

VOCABULARY = 50265
CASES = ((2, 50, 32, 100), (4, 10, 64, 300), (6, 5, 96, 300))
"""Classes, m, examples, and how many times faster a round has to be."""


@dataclass(frozen=True)
class Round:
    """A round that was run: under which weights, how long it took, and what it found."""

    prompt: int
    weights: Weights
    seconds: float
    error: float


def draw_codes(kind: str, n_examples: int, generator: np.random.Generator) -> npt.NDArray[np.uint16]:
    """Return random answers (N, V) as codes."""
    if kind == "flat":
        logits = np.log(generator.standard_exponential((n_examples, VOCABULARY)))
    else:
        logits = 3 * generator.standard_normal((n_examples, VOCABULARY))
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    codes: npt.NDArray[np.uint16] = np.clip(np.rint(-1024 * logprobs), 0, 65535).astype(np.uint16)
    return codes


def our_rounds(searches: list[VerbalizerSearch], n_examples: int, n_classes: int, rounds: int) -> list[Round]:
    """Boost, and start anew where boosting would end."""
    weights = uniform_weights(n_examples)
    done = []
    for prompt in range(-len(searches), rounds):  # the first cycle warms up
        start = time.perf_counter()
        found = searches[prompt % len(searches)].best(weights)
        seconds = time.perf_counter() - start
        done.append(Round(prompt % len(searches), weights, seconds, found.error / int(weights.sum())))
        alpha = samme_alpha(found.error, int(weights.sum()), n_classes) if found.error else 0.0
        weights = reweigh(weights, found.wrong, n_classes) if alpha > 0 else uniform_weights(n_examples)
    return done[len(searches) :]


def plain_round(
    chances: npt.NDArray[np.float32], labels: npt.NDArray[np.int64], shares: npt.NDArray[np.float32], m: int
) -> tuple[int, ...]:
    """Return the best combination of tokens, found one by one."""
    n_classes = int(labels.max()) + 1
    signs = np.where(labels == np.arange(n_classes)[:, None], shares, -shares)  # (C, N)
    scores = signs @ chances  # (C, V)
    winner = scores.argmax(axis=0)
    shortlists = []
    for c in range(n_classes):
        order = np.argsort(-scores[c])
        shortlists.append(order[winner[order] == c][:m])
    pools = [shortlists, shortlists[::-1]] if n_classes == 2 else [shortlists]
    best, least = (0,) * n_classes, np.inf
    for pool in pools:
        for combination in itertools.product(*pool):
            predicted = chances[:, combination].argmax(axis=1)
            error = shares[predicted != labels].sum()
            if error < least:
                best, least = combination, error
    return best


def compare(case: tuple[int, int, int, int], kind: str, prompts: int, rounds: int, plain_rounds: int) -> bool:
    """Run one case, print its line, and say whether it is as fast as it has to be."""
    n_classes, m, n_examples, target = case
    generator = np.random.default_rng(n_classes)
    labels = np.arange(n_examples, dtype=np.int64) % n_classes
    pool = [draw_codes(kind, n_examples, generator) for _ in range(prompts)]
    searches = [VerbalizerSearch(TokenMatrix.from_codes(codes), labels, n_classes, m) for codes in pool]
    ours = our_rounds(searches, n_examples, n_classes, rounds)
    chances = [CHANCES[codes].astype(np.float32) for codes in pool]
    plain, worse = [], 0
    for done in ours[:: max(1, rounds // plain_rounds)]:
        shares = done.weights / done.weights.sum()
        start = time.perf_counter()
        tokens = plain_round(chances[done.prompt], labels, shares.astype(np.float32), m)
        plain.append(time.perf_counter() - start)
        error = shares[pool[done.prompt][:, tokens].argmin(axis=1) != labels].sum()
        worse += done.error > error + 1e-12
    seconds = [done.seconds for done in ours]
    our_time, plain_time = statistics.median(seconds), statistics.median(plain)
    ratio, of_means = plain_time / our_time, statistics.mean(plain) / statistics.mean(seconds)
    print(
        f"| {n_classes} | {m} | {n_examples} | {kind:6} | {1000 * our_time:5.2f} ms | {1000 * plain_time:5.0f} ms "
        f"| {ratio:4.0f} | {of_means:4.0f} | {target} | {worse} of {len(plain)} |",
        flush=True,
    )
    return min(ratio, of_means) >= target and not worse


def main() -> int:
    """Print the table; return 1 if a target was missed."""
    parser = argparse.ArgumentParser(description="time a round of training against the plain loop")
    parser.add_argument("--prompts", type=int, default=10, help="prompts in the pool")
    parser.add_argument("--rounds", type=int, default=200, help="our rounds")
    parser.add_argument("--plain-rounds", type=int, default=20, help="how many of them the plain loop does too")
    options = parser.parse_args()
    print(
        "| classes | m | N | answers | ours | plain loop | times faster | by means | target | ours had a higher error |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    reached = [
        compare(case, kind, options.prompts, options.rounds, options.plain_rounds)
        for case in CASES
        for kind in ("peaked", "flat")
    ]
    return 0 if all(reached) else 1


if __name__ == "__main__":
    sys.exit(main())
