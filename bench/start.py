"""How long pbsdk takes before it has said anything: `pbsdk plan`, `pbsdk doctor`, and `connect()` to the first answer.

    python bench/start.py                             # this checkout
    python bench/start.py --beside ../pbsdk-before    # beside another checkout, by turns

Each turn is a process of its own, on one thread. User time hardly depends on other work on the machine; wall time is what a user waits for. The
last row is what the second-last can't do without: importing torch, and of transformers what the embedded model needs.
The model is opened once before, so that it is unpacked and its outline is at hand.
The script fails if this checkout's first answer takes longer than 2.5 s (median, wall time).
"""

from __future__ import annotations

import argparse
import csv
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from pbsdk.audit.text import aligned
from pbsdk.data.tickets import load_tickets
from pbsdk.formatting import Cell, Table

FIRST_ANSWER = 2.5
ANSWER = """
from pbsdk import connect
from pbsdk.backend import MaskedQuery, Part
lm = connect("smollm2")
lm.fill([MaskedQuery((Part("input", "A sunny day."), Part("prompt", " It was "), Part("mask")), "text", "prompt")])
"""
CONNECT = "connect() and one answer"
COMMANDS = {
    "pbsdk plan": ["-m", "pbsdk", "plan", "tickets.csv"],
    "pbsdk doctor": ["-m", "pbsdk", "doctor"],
    CONNECT: ["-c", ANSWER],
    "of it, imports of torch and transformers": [
        "-c",
        "import torch; from transformers import AutoTokenizer, LlamaForCausalLM",
    ],
}


class Spent(NamedTuple):
    """The seconds that a process took, with those that it started."""

    user: float
    wall: float


def spent(checkout: Path, command: list[str], folder: str) -> Spent:
    """Run Python with a checkout's code."""
    path = os.pathsep.join(str(checkout / part) for part in (".", "backends"))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime, time.perf_counter()
    subprocess.run([sys.executable, *command], cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=True)
    wall = time.perf_counter() - start
    return Spent(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before, wall)


def main() -> None:
    """Measure by turns, and print each checkout's medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", type=Path, help="another checkout to measure by turns")
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args()
    checkouts = {"here": Path(__file__).resolve().parents[1]}
    if given.beside is not None:
        checkouts["beside"] = given.beside.resolve()
    times: dict[tuple[str, str], list[Spent]] = {(name, side): [] for name in COMMANDS for side in checkouts}
    with tempfile.TemporaryDirectory() as folder:
        write_tickets(Path(folder) / "tickets.csv")
        spent(checkouts["here"], COMMANDS["pbsdk plan"], folder)
        for turn in range(given.turns):
            for (name, side), found in times.items():
                place = Path(folder) / f"{side}-{turn}"  # each run is a new one, in which nothing is answered yet
                place.mkdir(exist_ok=True)
                (place / "tickets.csv").write_bytes((Path(folder) / "tickets.csv").read_bytes())
                found.append(spent(checkouts[side], COMMANDS[name], str(place)))
    heads = ["", *(f"{what}, {side}" for side in checkouts for what in ("user time", "wall time"))]
    rows = [
        [
            Cell(name),
            *(Cell(f"{median(times[name, side], what):.1f} s") for side in checkouts for what in Spent._fields),
        ]
        for name in COMMANDS
    ]
    print("\n".join(aligned(Table("Start", heads, rows))))
    if median(times[CONNECT, "here"], "wall") > FIRST_ANSWER:
        sys.exit(f"the first answer took longer than {FIRST_ANSWER} s")


def median(found: list[Spent], what: str) -> float:
    """Return the median of one kind of time."""
    return statistics.median(getattr(one, what) for one in found)


def write_tickets(file: Path) -> None:
    """Write the tickets that ship with pbsdk as a table."""
    train = load_tickets().train
    with file.open("w", encoding="utf-8", newline="") as table:
        csv.writer(table).writerows([("text", "label"), *zip(train.texts, train.labels, strict=True)])


if __name__ == "__main__":
    main()
