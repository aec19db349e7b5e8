"""How much of the processor's time `pbsdk plan` and `pbsdk doctor` take before they have said anything.

    python bench/start.py                             # this checkout
    python bench/start.py --beside ../pbsdk-before    # beside another checkout, by turns

Each turn is a process of its own, on one thread; what counts is its user time, which other work on the machine hardly changes. The
embedded model is opened once before, so that it is unpacked and its outline is at hand.
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
from pathlib import Path

from pbsdk.audit.text import aligned
from pbsdk.data.tickets import load_tickets
from pbsdk.formatting import Cell, Table

COMMANDS = {"plan": ["plan", "tickets.csv"], "doctor": ["doctor"]}


def spent(checkout: Path, command: list[str], folder: str) -> float:
    """Return the seconds of user time that a command of a checkout takes, with the processes that it starts."""
    path = os.pathsep.join(str(checkout / part) for part in (".", "backends"))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    subprocess.run(
        [sys.executable, "-m", "pbsdk", *command], cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=True
    )
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def main() -> None:
    """Measure by turns, and print each checkout's median."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", type=Path, help="another checkout to measure by turns")
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args()
    checkouts = {"here": Path(__file__).resolve().parents[1]}
    if given.beside is not None:
        checkouts["beside"] = given.beside.resolve()
    times: dict[tuple[str, str], list[float]] = {(name, side): [] for name in COMMANDS for side in checkouts}
    with tempfile.TemporaryDirectory() as folder:
        write_tickets(Path(folder) / "tickets.csv")
        spent(checkouts["here"], COMMANDS["plan"], folder)
        for _ in range(given.turns):
            for (name, side), found in times.items():
                found.append(spent(checkouts[side], COMMANDS[name], folder))
    rows = [
        [Cell(f"pbsdk {name}"), *(Cell(f"{statistics.median(times[name, side]):.1f} s") for side in checkouts)]
        for name in COMMANDS
    ]
    print("\n".join(aligned(Table("User time", ["", *checkouts], rows))))


def write_tickets(file: Path) -> None:
    """Write the tickets that ship with pbsdk as a table."""
    train = load_tickets().train
    with file.open("w", encoding="utf-8", newline="") as table:
        csv.writer(table).writerows([("text", "label"), *zip(train.texts, train.labels, strict=True)])


if __name__ == "__main__":
    main()
