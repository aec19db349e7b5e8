"""A run folder that grows: queries through the meter, and what they cost, as it fills.

The throughput must not fall to a third of what it was, nor memory grow with the folder.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

from pbsdk.backend import (
    Abilities,
    MaskDistribution,
    MaskedLMBackend,
    MaskedQuery,
    ModelIdentity,
    Part,
    Phase,
    Vocabulary,
    digest,
)
from pbsdk.ledger.verifier import verify_run
from pbsdk.metering.meter import MeteredBackend
from soak import promise

SIZE, TOP, PROMPTS = 1000, 20, 10


class Instant(MaskedLMBackend):
    """A model that takes no time, and shows its top twenty."""

    def __init__(self):
        self.identity = ModelIdentity("instant")
        self.vocabulary = Vocabulary(str(token) for token in range(SIZE))
        self.abilities = Abilities(whole=False, top=TOP, batch_size=100)
        logits = np.sort(np.random.default_rng(0).standard_normal(SIZE))[::-1]
        logprobs = logits - np.log(np.exp(logits).sum())
        self._answer = MaskDistribution.from_logprobs(logprobs[:TOP], np.arange(TOP), top=True, read_tokens=20)

    def fill(self, queries, tokens=None):
        return [self._answer] * len(queries)


def queries(first, count):
    for number in range(first, first + count):
        name, prompt = digest(str(number // PROMPTS)), f"<input> p{number % PROMPTS} <mask>"
        parts = (Part("input", name), Part("prompt", f" p{number % PROMPTS} "), Part("mask"))
        yield MaskedQuery(parts, name, prompt, Phase.PREDICT)


def run(count=1_000_000, step=100_000, seconds=float("inf"), report=lambda _: None):
    """Ask that many queries, or as many as fit; report a row after every `step`, and return all rows."""
    rows, own = [], psutil.Process()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        with MeteredBackend(Instant(), folder, None) as lm:
            began = time.monotonic()
            for first in range(0, count, step):
                here, busy = time.monotonic(), time.process_time()
                for part in range(first, first + step, 1000):
                    promise(
                        len(lm.fill(list(queries(part, min(1000, step))))) == min(1000, step), "an answer is missing"
                    )
                row = {
                    "queries": first + step,
                    "per second": step / (time.monotonic() - here),
                    "ms of processor": (time.process_time() - busy) / step * 1e3,
                    "memory, MB": own.memory_info().rss / 1e6,
                    "files, MB": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6,
                }
                rows.append(row)
                report(row)
                if time.monotonic() - began > seconds:
                    break
        here = time.process_time()
        promise(verify_run(folder).answers == rows[-1]["queries"], "an answer is missing")
        rows.append({"verified": rows[-1]["queries"], "s of processor": time.process_time() - here})
    first, last = rows[0], rows[-2]
    promise(last["ms of processor"] < 3 * first["ms of processor"], f"a query costs ever more: {first}, {last}")
    promise(last["memory, MB"] < first["memory, MB"] + 300, f"memory grows: {first}, {last}")
    return rows
