"""Peak memory of `pbsdk predict --out` at ten thousand, a hundred thousand and a million rows.

    python bench/streaming.py [--rows 10000 100000 1000000] [--engine ray] [--suffix .jsonl]

Each size is predicted by a process of its own from one file, with a classifier that asks a model once per text, so every
row is rendered, reserved, asked, recorded, scored and written. The model is the fake without its memory of what it was asked, and with sixteen
answers that it gives in turn. Peak memory is that process's largest resident set.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pbsdk.testing
from pbsdk import PromptBoostingClassifier, connect
from pbsdk.backend import MaskDistribution, MaskedQuery, Tokens
from pbsdk.cli import main as command_line
from pbsdk.data.tickets import load_tickets

TICKETS = load_tickets()


class Forgetful(pbsdk.testing.FakeBackend):
    """A fake that answers at once, and remembers nothing."""

    _ready: Sequence[MaskDistribution] = ()

    def fill(self, queries: Sequence[MaskedQuery], tokens: Tokens | None = None) -> list[MaskDistribution]:
        """Answer with one of sixteen answers."""
        if not self._ready:
            self._ready = super().fill(queries[:16], tokens)
        return [self._ready[int(query.example[:8], 16) % len(self._ready)] for query in queries]


def main() -> None:
    """Measure each size and print a line for it."""
    if sys.argv[1:2] == ["predict"]:
        pbsdk.testing.FakeBackend = Forgetful  # type: ignore[misc] # where the backend `fake` is looked up
        command_line()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--suffix", choices=[".csv", ".jsonl"], default=".jsonl")
    parser.add_argument("--engine", choices=["ray"])
    given = parser.parse_args()
    print(f"{'rows':>10} {'peak MiB':>9} {'seconds':>8} {'rows/s':>7} {'run folder, bytes per row':>26}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = fitted(folder)
        for rows in given.rows:
            peak, took, size = predicted(folder, model, rows, given.suffix, given.engine)
            print(f"{rows:>10,} {peak:>9.0f} {took:>8.1f} {rows / took:>7,.0f} {size / rows:>26,.0f}", flush=True)


def fitted(folder: Path) -> Path:
    """Save a classifier with one prompt."""
    with connect("fake", run=folder / "fit", budget=10) as lm:
        clf = PromptBoostingClassifier(lm, ["<input> So <mask>."], head="voting", random_state=0, progress=False)
        clf.fit(TICKETS.train.texts, TICKETS.train.labels).save(folder / "model.json")
    return folder / "model.json"


def predicted(folder: Path, model: Path, rows: int, suffix: str, engine: str | None) -> tuple[float, float, int]:
    """Predict so many rows; return peak MiB, seconds, and the bytes of the run folder."""
    source, run = written(folder / f"{rows}{suffix}", rows), folder / f"run-{rows}"
    command = [sys.executable, __file__, "predict", str(model), str(source), "--run", str(run)]
    command += [
        "--out",
        str(folder / f"out-{rows}"),
        "--text-column",
        "text",
        "--backend",
        "fake",
        "-o",
        "batch_size=256",
    ]
    command += ["--engine", engine] if engine else []
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"}) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, "the prediction failed"
    took = time.perf_counter() - began
    return used.ru_maxrss / 1024, took, sum(file.stat().st_size for file in run.rglob("*") if file.is_file())


def written(path: Path, rows: int) -> Path:
    """Write a file of different texts."""
    texts = TICKETS.test.texts
    numbered = ({"id": at, "text": f"{texts[at % len(texts)]} Ref {at}."} for at in range(rows))
    with path.open("w", encoding="utf-8") as text:
        if path.suffix == ".csv":
            text.write("id,text\n")
        for row in numbered:
            text.write(json.dumps(row) + "\n" if path.suffix == ".jsonl" else f'{row["id"]},"{row["text"]}"\n')
    return path


if __name__ == "__main__":
    main()
