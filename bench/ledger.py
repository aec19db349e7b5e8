"""What metering costs: milliseconds a query asked and recalled, and seconds to report, to verify and to prove.

    python bench/ledger.py [RECORDS]

The first table meters a backend that answers at once with whole answers of RoBERTa's vocabulary, so
that all the time is the meter's. The second lets a ledger of prediction answers grow to RECORDS records
(1,000,000 unless told), and times the report, the verification, and the verification with the Merkle tree's root and a
path in it, at a tenth, a quarter, a half and the whole of that, each row in a process of its own. Where the time for a million records stays the same from row
to row, growth is linear.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pbsdk.audit.certificate import verified_runs
from pbsdk.audit.report import AuditReport
from pbsdk.backend import (
    Abilities,
    MaskDistribution,
    MaskedLMBackend,
    MaskedQuery,
    ModelIdentity,
    Part,
    Phase,
    Tokens,
    Vocabulary,
    digest,
)
from pbsdk.ledger.merkle import inclusion_runs
from pbsdk.ledger.verifier import verify_run
from pbsdk.metering.meter import MeteredBackend

V = 50265


class Instant(MaskedLMBackend):
    """A model that takes no time: one answer for everything."""

    def __init__(self, batch_size: int) -> None:
        self.identity = ModelIdentity("instant")
        self.vocabulary = Vocabulary(str(token) for token in range(V))
        self.abilities = Abilities(batch_size=batch_size)
        logits = np.random.default_rng(0).standard_normal(V)
        self._answer = MaskDistribution.from_logprobs(logits - np.log(np.exp(logits).sum()), read_tokens=20)

    def fill(self, queries: Sequence[MaskedQuery], tokens: Tokens | None = None) -> list[MaskDistribution]:  # noqa: ARG002 - the interface's
        """Answer at once."""
        return [self._answer] * len(queries)


def queries(examples: int, prompts: int, phase: Phase) -> list[MaskedQuery]:
    """Return as many distinct queries as examples times prompts, example-major."""
    names = [digest(str(i)) for i in range(examples)]
    return [
        MaskedQuery((Part("input", name), Part("prompt", f" p{j} "), Part("mask")), name, f"<input> p{j} <mask>", phase)
        for name in names
        for j in range(prompts)
    ]


def seconds(lm: MeteredBackend, asked: list[MaskedQuery], tokens: Tokens | None = None) -> float:
    """Return how long it takes to stream the answers."""
    began = time.perf_counter()
    for _ in lm.stream(asked, tokens):
        pass
    return time.perf_counter() - began


def main() -> None:
    """Print both tables."""
    records = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    print(f"{'batch':>6} {'asked, ms a query':>18} {'recalled, ms a query':>21}   (V = {V}, whole answers)")
    for batch in (1, 32):
        with tempfile.TemporaryDirectory() as folder, MeteredBackend(Instant(batch), Path(folder) / "run") as lm:
            asked = queries(200, 10, Phase.TRAIN)
            first, again = seconds(lm, asked), seconds(lm, asked)
            print(f"{batch:>6} {first / len(asked) * 1e3:>18.3f} {again / len(asked) * 1e3:>21.3f}")
    print(
        f"\n{'records':>10} {'report, s':>10} {'for a million':>14} {'peak MB':>8} {'verify, s':>10} {'for a million':>14}"
        f" {'peak MB':>8} {'with tree, s':>13} {'peak MB':>8} {'MB on disk':>11}"
    )
    tokens = np.arange(0, V, V // 800)[:800]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        for size in (records // 10, records // 4, records // 2, records):
            with MeteredBackend(Instant(32), run) as lm:
                examples = -(-size // 30)  # ten prompts each, and three records a query
                known = lm.audit().scopes[1].examples
                seconds(lm, queries(examples, 10, Phase.PREDICT)[known * 10 :], tokens)
            disk = sum(path.stat().st_size for path in run.rglob("*") if path.is_file()) / 1e6
            # In a process of its own, whose memory is the reader's alone.
            found = subprocess.run([sys.executable, __file__, "read", run], capture_output=True, text=True, check=True)
            count, reported, memory, verified, peak, proved, most = map(float, found.stdout.split())
            print(
                f"{int(count):>10,} {reported:>10.2f} {reported / count * 1e6:>14.2f} {memory:>8.0f}"
                f" {verified:>10.2f} {verified / count * 1e6:>14.2f} {peak:>8.0f} {proved:>13.2f} {most:>8.0f} {disk:>11.0f}"
            )


def peak_megabytes() -> float:
    """Return this process's own peak (getrusage would count its parent's too)."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def read(run: str) -> None:
    """Print the records, and seconds and peak memory (MB) of the report, of verifying, and of verifying with the tree."""
    began = time.perf_counter()
    report = AuditReport.read(run)
    reported = time.perf_counter() - began
    memory = peak_megabytes()
    began = time.perf_counter()
    verify_run(run)
    verified = time.perf_counter() - began
    peak = peak_megabytes()
    began = time.perf_counter()
    verified_runs(run, [(0, report.records)], inclusion_runs(report.records // 3, report.records))
    proved = time.perf_counter() - began
    print(f"{report.records} {reported:.2f} {memory:.0f} {verified:.2f} {peak:.0f} {proved:.2f} {peak_megabytes():.0f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["read"]:
        read(sys.argv[2])
    else:
        main()
