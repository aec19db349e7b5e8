"""A crowd at one budget: processes times threads that ask for what others ask for too, and for what nobody did, until long after the limit.

The model counts what it is asked, in a file of its own. The budget must be used up exactly, and nothing asked twice.
"""

from __future__ import annotations

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor

from helpers.meter import query

from pbsdk.errors import BudgetExceeded
from pbsdk.ledger.budget import QueryBudget
from pbsdk.ledger.reader import LedgerReader
from pbsdk.ledger.verifier import verify_run
from pbsdk.metering.meter import MeteredBackend
from pbsdk.testing import FakeBackend
from soak import counted, forked, join, promise, scratch


class Counting(FakeBackend):
    """Appends what it is asked to a file that all processes share."""

    file = 1

    def fill(self, queries, tokens=None):
        os.write(self.file, b"".join(f"{q.example}\n".encode() for q in queries))
        return super().fill(queries, tokens)


def member(lm, seed, universe, until):
    """Ask at random until the time is over; return how many answers came and how many calls were refused."""
    draw = random.Random(seed)
    answers, refused = 0, 0
    while time.monotonic() < until:
        wanted = [query(draw.randrange(universe)) for _ in range(draw.randint(1, 4))]
        try:
            answers += len(lm.fill(wanted))
        except BudgetExceeded:
            refused += 1
    return answers, refused


def process(run, number, threads, total, universe, until, told, asked):  # noqa: PLR0913, PLR0917 - called once
    """Be one of the processes; write the sums of its threads to a pipe."""
    backend = Counting(vocabulary_size=50, batch_size=4)
    backend.file = asked
    with MeteredBackend(backend, run, QueryBudget(passes=None, total=total)) as lm, ThreadPoolExecutor(threads) as pool:
        jobs = [pool.submit(member, lm, 1000 * number + i, universe, until) for i in range(threads)]
        sums = [sum(counts) for counts in zip(*(job.result() for job in jobs), strict=True)]
    os.write(told, b"%d %d\n" % tuple(sums))


def run(processes=8, threads=32, seconds=180, total=6_000):
    """Let the crowd ask; return figures."""
    with scratch() as place:
        folder = place / "run"
        out, told = os.pipe()
        asked = os.open(place / "asked", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        until = time.monotonic() + seconds
        children = [
            forked(process, folder, number, threads, total, 2 * total, until, told, asked)
            for number in range(processes)
        ]
        codes = join(children)
        os.close(told)
        os.close(asked)
        counts = counted(place / "asked")
        promise(max(counts.values()) == 1, "what two wanted was asked twice")
        promise(counts.total() <= total, f"{counts.total()} passes; the budget allows {total}")
        verified = verify_run(folder)
        with LedgerReader(folder) as reader:
            spent = reader.totals()
        promise(spent.sends >= counts.total(), f"the model was asked {counts.total()} times; the record says {spent}")
        promise(not any(codes), f"processes ended with {codes}, within the budget")
        with os.fdopen(out) as pipe:
            answers, refused = (sum(counts) for counts in zip(*(map(int, line.split()) for line in pipe), strict=True))
        promise(spent.passes == spent.sends == verified.answers == counts.total(), f"the record says {spent}")
        promise(
            not refused or spent.passes > total - 4,
            f"{refused} calls were refused with {total - spent.passes} passes left",
        )
        return {
            "answers": answers,
            "refused": refused,
            "passes": spent.passes,
            "budget": total,
            "records": verified.records,
        }
