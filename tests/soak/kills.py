"""Runs that are killed, by SIGKILL and by Ctrl-C in turn, at any moment of their lives: opening, fit, predict, closing.

A life trains a classifier and predicts, in a process of its own. Whenever it was killed the folder is verified and compared with
what the process had said, and the next process goes on with it. A folder whose life came to its end must have
given the classifier and the labels of an undisturbed one.
"""

from __future__ import annotations

import os
import random
import select
import signal
import time
from collections import Counter
from pathlib import Path

from pbsdk.backend import digest
from pbsdk.classifier import PromptBoostingClassifier
from pbsdk.data.tickets import load_tickets
from pbsdk.errors import LedgerError
from pbsdk.ledger.budget import QueryBudget
from pbsdk.ledger.reader import LedgerReader
from pbsdk.ledger.verifier import verify_run
from pbsdk.metering.meter import MeteredBackend
from pbsdk.testing import FakeBackend
from soak import promise, scratch

PATIENCE = 300
INTERRUPTED = 130
PROMPTS = ["<input> So <mask>.", "<input> The <mask>", "<input> It is <mask>"]
TICKETS = load_tickets()
TRAIN = TICKETS.train.texts[::8], TICKETS.train.labels[::8]
NEW = TICKETS.test.texts[:12]


class Telling(FakeBackend):
    """Says through a pipe what it is asked, before it answers."""

    pipe = 1

    def fill(self, queries, tokens=None):
        os.write(self.pipe, b"".join(f"asked {q.example} {digest(q.prompt)}\n".encode() for q in queries))
        return super().fill(queries, tokens)


class Metered(MeteredBackend):
    """Says through the pipe which answers it has given."""

    def stream(self, queries, tokens=None):
        for query, answer in zip(queries, super().stream(queries, tokens), strict=True):
            os.write(self.backend.pipe, f"stored {query.example} {digest(query.prompt)}\n".encode())
            yield answer


def live(run, pipe, result):
    backend = Telling(vocabulary_size=200, batch_size=4, latency=0.002)
    backend.pipe = pipe
    budget = QueryBudget(passes=len(PROMPTS), predict=len(PROMPTS))
    with Metered(backend, run, budget) as lm:
        clf = PromptBoostingClassifier(lm, PROMPTS, head="boosting", rounds=5, random_state=13).fit(*TRAIN)
        labels = clf.predict(NEW)
        clf.save(result)
        Path(f"{result}.labels").write_text("\n".join(labels), "utf-8")


def begin(run, result):
    """Begin a life in a child; return its number and the pipe on which it tells, when it has begun."""
    out, pipe = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(out)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.write(pipe, b"begun\n")
            live(run, pipe, result)
            code = 0
        except KeyboardInterrupt:
            code = INTERRUPTED
        except BaseException as error:  # noqa: BLE001 - the parent judges
            os.write(pipe, f"foreign {error!r}\n".encode())
        finally:
            os._exit(code)
    os.close(pipe)
    return child, out


def listen(out, seconds):
    """Return what is told for some seconds, or until the pipe is closed, and whether it was."""
    said, limit = b"", time.monotonic() + seconds
    while select.select([out], [], [], max(0.0, limit - time.monotonic()))[0]:
        part = os.read(out, 65536)
        if not part:
            return said, True
        said += part
    return said, False


def end(run, result, seconds, how):
    """Live a life that is killed after some seconds, if it lives that long; return what it told and how it ended."""
    child, out = begin(run, result)
    try:
        said = os.read(out, 6)
        more, over = listen(out, seconds)
        said += more
        if not over:
            os.kill(child, how)
            more, over = listen(out, PATIENCE)
            said += more
        if not over:
            os.kill(child, signal.SIGKILL)
    finally:
        os.close(out)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    lines = said.decode().splitlines()
    promise(over, f"it was stuck after signal {how}; the last that it said: {lines[-1]}")
    promise(code in {0, INTERRUPTED, -signal.SIGKILL}, f"it ended with {code}: {lines[-1]}")
    return lines, code


def inspect(run, asked, stored):
    """Compare a folder with what the processes that used it had said."""
    try:
        verify_run(run)
    except LedgerError as error:
        promise(
            not asked and ("not a run folder" in str(error) or "not a pbsdk ledger" in str(error)),
            f"it asked, and then: {error}",
        )
        return
    with LedgerReader(run) as reader:
        rows = reader.select(
            "SELECT example, prompt, sum(state = 'sent'), sum(state = 'done') FROM records WHERE query <> '' GROUP BY 1, 2"
        )
        sent, done = {}, set()
        for example, prompt, sends, answers in rows:
            sent[example, prompt] = sends
            if answers:
                done.add((example, prompt))
    promise(not stored - done, f"{len(stored - done)} answers that were given are not stored")
    over = [what for what, times in asked.items() if times > sent.get(what, 0)]
    promise(not over, f"{len(over)} queries were asked more often than the record says")


def run(kills=200, seed=0):
    """Kill that often; return figures."""
    draw = random.Random(seed)
    with scratch() as place:
        calm = os.open(place / "calm.txt", os.O_CREAT | os.O_WRONLY, 0o600)
        for again in ("before it is compiled", "as a child will find it"):
            began = time.monotonic()
            live(place / again, calm, place / "calm.json")
            span = time.monotonic() - began
        os.close(calm)
        expected = [(place / name).read_bytes() for name in ("calm.json", "calm.json.labels")]
        ends, folders = Counter(), 0
        while ends[-signal.SIGKILL] + ends[INTERRUPTED] < kills:
            folders += 1
            folder, result = place / str(folders), place / f"{folders}.json"
            asked, stored, code = Counter(), set(), 1
            while code:
                how = signal.SIGINT if ends[-signal.SIGKILL] > ends[INTERRUPTED] else signal.SIGKILL
                lines, code = end(folder, result, draw.uniform(0, span), how)
                ends[code] += 1
                asked.update(tuple(line.split()[1:]) for line in lines if line.startswith("asked"))
                stored.update(tuple(line.split()[1:]) for line in lines if line.startswith("stored"))
                inspect(folder, asked, stored)
            found = [(place / name).read_bytes() for name in (f"{folders}.json", f"{folders}.json.labels")]
            promise(found == expected, "a run that was killed gave another classifier than an undisturbed one")
    return {"killed": ends[-signal.SIGKILL], "interrupted": ends[INTERRUPTED], "runs that came to their end": folders}
