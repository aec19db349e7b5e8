"""A disk that fails: every write, sync, truncation, removal and creation below a run folder, one after the other, in every way.

python -m soak.disk WAYS STEP    (with the library of `faults.c` preloaded)

A child process lives a short life in a new run folder: it opens it, asks, closes it, and goes on with it. At the n-th call
that changes a file the disk strikes. Then, on a disk that works again, the folder is opened and looked at; then the next n, until a
life ends before its n-th call.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from helpers.meter import grid, same

from pbsdk.errors import PbsdkError
from pbsdk.ledger.budget import QueryBudget
from pbsdk.ledger.verifier import verify_run
from pbsdk.metering.meter import MeteredBackend
from pbsdk.testing import FakeBackend
from soak import promise, scratch

WAYS = {"fails once": 1, "is full": 2, "fails for good": 3, "killed before it": 4, "killed in it": 5}
QUERIES = grid(3, 1)
BATCH = 2
LIMIT = len(QUERIES) + BATCH
"""Sends: what is needed, and as much again as one kill or failure may cost."""
EXPECTED = FakeBackend(vocabulary_size=20).fill(QUERIES)


class Telling(FakeBackend):
    """Says through a pipe what it is asked, before it answers."""

    pipe = 1

    def fill(self, queries, tokens=None):
        os.write(self.pipe, b"asked\n" * len(queries))
        return super().fill(queries, tokens)


def meter(run, pipe):
    backend = Telling(vocabulary_size=20, batch_size=BATCH)
    backend.pipe = pipe
    return MeteredBackend(backend, run, QueryBudget(attempts=LIMIT), sleep=lambda _: None)


def live(run, pipe):
    for part in (QUERIES[:2], QUERIES):
        with meter(run, pipe) as lm:
            for number, _ in enumerate(lm.stream(part)):
                os.write(pipe, b"stored %d\n" % number)


def struck(disk, run, number, way):
    """Live a life in a child; return what it said, how it ended, and whether the disk struck."""
    out, pipe = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(out)
        disk.fault_arm(bytes(run), number, WAYS[way])
        code = 0
        try:
            live(run, pipe)
        except PbsdkError as error:
            os.write(pipe, f"refused {type(error).__name__}\n".encode())
        except BaseException as error:  # noqa: BLE001 - the parent judges
            os.write(pipe, f"foreign {error!r}\n".encode())
            code = 1
        os.write(pipe, b"seen %d\n" % disk.fault_seen())
        os._exit(code)
    os.close(pipe)
    with os.fdopen(out) as said:
        lines = said.read().splitlines()
    return lines, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def inspect(run, lines):
    """Check the folder that a life left behind, and finish its work."""
    asked = lines.count("asked")
    stored = {int(line.split()[1]) for line in lines if line.startswith("stored")}
    out, pipe = os.pipe()
    with meter(run, pipe) as lm:
        with lm.ledger.reader() as reader:
            promise(reader.totals().sends >= asked, f"the model was asked {asked} times, more than the record says")
        verify_run(run)
        for number in stored:
            (answer,) = lm.fill([QUERIES[number]])
            promise(same(answer, EXPECTED[number]), "an answer has changed")
        promise(not lm.backend.asked, "an answer that was stored is lost")
        answers = lm.fill(QUERIES)
        promise(all(map(same, answers, EXPECTED)), "the answers are not those of an undisturbed run")
        asked += len(lm.backend.asked)
        promise(asked <= LIMIT, f"the model was asked {asked} times; the budget allows {LIMIT}")
    verify_run(run)
    os.close(out)
    os.close(pipe)


def work(ways, step):
    """Go through every `step`-th call in each of the ways, in turn; return how many calls a life has and how often the disk struck."""
    disk = ctypes.CDLL(None)
    disk.fault_seen.restype = ctypes.c_long
    disk.fault_arm.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int]
    strikes, most = 0, 0
    for offset, way in enumerate(ways):
        number = 1 + offset % step
        while True:
            with scratch() as place:
                lines, code = struck(disk, place / "run", number, way)
                over = code == 0 and int(lines[-1].split()[1]) < number
                where = f"when the disk {way} at call {number}" if "disk" not in way else way
                promise(code in {0, -signal.SIGKILL}, f"{where}: {lines}")
                try:
                    inspect(place / "run", lines)
                except Exception as error:
                    raise RuntimeError(f"{where}: {lines}") from error
            if over:
                most = max(most, int(lines[-1].split()[1]))
                break
            strikes += 1
            number += step
    return {"calls": most, "strikes": strikes}


def can_run():
    """Return why this can't run here, or nothing."""
    if not sys.platform.startswith("linux"):
        return "a disk that fails is built for Linux"
    return "" if shutil.which("gcc") else "there is no C compiler to build a disk that fails with"


def run(ways=tuple(WAYS), step=1):
    """Build the library, and work in a process that has it preloaded."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "faults.so"
        source = Path(__file__).with_name("faults.c")
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
        tests = Path(__file__).parents[1]
        more = {"LD_PRELOAD": str(library), "PYTHONPATH": f"{tests}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
        command = [sys.executable, "-m", "soak.disk", ",".join(ways), str(step)]
        done = subprocess.run(command, env=os.environ | more, capture_output=True, text=True, check=False)
    promise(done.returncode == 0, done.stderr[-3000:])
    return json.loads(done.stdout)


if __name__ == "__main__":
    print(json.dumps(work(sys.argv[1].split(","), int(sys.argv[2]))))
