"""A team at its gates: two servers over one run folder, and processes of several threads that ask in their members' names.

The model counts what it is asked, in a file of its own. Each member gets what the allowance has and not one pass more, whichever gate is
asked; nothing is asked twice, whoever wants it; and the shared record says the same as the model.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

from pbsdk.audit.report import AuditReport
from pbsdk.ledger.budget import QueryBudget
from pbsdk.ledger.verifier import verify_run
from pbsdk.metering.gate import Gate
from pbsdk.metering.members import MembersFile
from pbsdk.metering.meter import MeteredBackend
from pbsdk_backends.http import HttpBackend
from pbsdk_backends.serve import serve
from soak import counted, forked, join, promise, scratch
from soak.crowd import Counting, member

NAMES = ("ana", "ben", "cara")
BATCH = 4


def keep_gate(place, number, asked):
    """Be a gate until a signal; say the address in a file."""
    backend = Counting(vocabulary_size=50, batch_size=BATCH)
    backend.file = asked
    gate = Gate(backend, place / "run", place / "team.json")

    def ready(url):
        (place / f"url{number}").write_text(url, "ascii")

    serve(backend, gate=gate, port=0, queue=512, ready=ready)
    gate.close()


def ask(place, number, url, token, threads, universe, until):  # noqa: PLR0913, PLR0917 - called once
    """Be one of the clients; write the sums of its threads to a file."""
    budget = QueryBudget(passes=None, predict=None)
    with (
        MeteredBackend(HttpBackend(url, api_key=token), place / f"client{number}", budget, retries=100) as lm,
        ThreadPoolExecutor(threads) as pool,
    ):
        jobs = [pool.submit(member, lm, 1000 * number + i, universe, until) for i in range(threads)]
        sums = [sum(counts) for counts in zip(*(job.result() for job in jobs), strict=True)]
    verify_run(place / f"client{number}")
    (place / f"sums{number}").write_text("{} {}".format(*sums), "ascii")


def addresses(place, count):
    """Wait until the gates say where they listen."""
    files, until = [place / f"url{number}" for number in range(count)], time.monotonic() + 120
    while not all(file.exists() and file.read_text("ascii") for file in files):
        promise(time.monotonic() < until, "a gate doesn't start")
        time.sleep(0.05)
    return [file.read_text("ascii") for file in files]


def run(seconds=60, processes=6, threads=4, allowance=0):
    """Let the team ask; return figures."""
    allowance = allowance or 5 * seconds
    with scratch() as place:
        members = MembersFile(place / "team.json")
        tokens = [members.add(name, passes=allowance) for name in NAMES]
        asked = os.open(place / "asked", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        gates = [forked(keep_gate, place, number, asked) for number in range(2)]
        try:
            urls = addresses(place, 2)
            until, universe = time.monotonic() + seconds, 4 * allowance * len(NAMES)
            clients = [
                forked(ask, place, n, urls[n % 2], tokens[n % len(NAMES)], threads, universe, until)
                for n in range(processes)
            ]
            codes = join(clients)
        finally:
            ends = join(gates, stop=True)
        os.close(asked)
        promise(not any(codes + ends), f"clients ended with {codes}, gates with {ends}")
        counts = counted(place / "asked")
        promise(max(counts.values()) == 1, "what two wanted was asked twice")
        verified = verify_run(place / "run")
        passes = {each.name: each.passes for each in AuditReport.read(place / "run").members}
        promise(all(used <= allowance for used in passes.values()), f"{passes} passes; each may have {allowance}")
        promise(
            sum(passes.values()) == counts.total(), f"the model was asked {counts.total()} times; recorded: {passes}"
        )
        sums = [map(int, (place / f"sums{number}").read_text("ascii").split()) for number in range(processes)]
        answers, refused = map(sum, zip(*sums, strict=True))
        promise(
            not refused or max(passes.values()) > allowance - BATCH, f"{refused} refusals at {passes} of {allowance}"
        )
        return {
            "answers": answers,
            "refused": refused,
            "passes": counts.total(),
            "allowances": allowance * len(NAMES),
            "records": verified.records,
        }
