"""What the meter's tests share: queries, a clock-free meter, and work to run in other processes.

python _meter_helpers.py JOB RUN [ARGUMENT ...]
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
import types

import numpy as np

if __name__ == "__main__":
    # The meter stands without the classifier, whose imports would be most of a job's time.
    package = types.ModuleType("pbsdk")
    package.__path__ = importlib.util.find_spec("pbsdk").submodule_search_locations
    sys.modules["pbsdk"] = package

from pbsdk.backend import MaskDistribution, MaskedQuery, Part, Phase, digest
from pbsdk.errors import BudgetExceeded
from pbsdk.ledger.budget import QueryBudget
from pbsdk.metering.meter import MeteredBackend
from pbsdk.testing import FakeBackend


def query(example, prompt=0, phase="train"):
    return MaskedQuery(
        (Part("input", f"a secret text {example}"), Part("prompt", f" It was {prompt} "), Part("mask")),
        example=digest(str(example)),
        prompt=f"<input> It was {prompt} <mask>",
        phase=Phase(phase),
    )


def grid(examples, prompts, phase="train"):
    return [query(i, j, phase) for i in range(examples) for j in range(prompts)]


def metered(run, *, budget=10, sleep=None, retries=5, deadline=300.0, **fake):
    fake.setdefault("vocabulary_size", 50)
    slept = [] if sleep is None else sleep
    return MeteredBackend(FakeBackend(**fake), run, budget, retries=retries, deadline=deadline, sleep=slept.append)


def same(one: MaskDistribution, two: MaskDistribution) -> bool:
    def tokens(answer):
        return None if answer.tokens is None else answer.tokens.tolist()

    return (
        np.array_equal(one.codes, two.codes)
        and tokens(one) == tokens(two)
        and (one.rest, one.read_tokens, one.cut_tokens) == (two.rest, two.read_tokens, two.cut_tokens)
    )


def rows(lm, statement, *values):
    return lm.ledger._run.con.execute(statement, values).fetchall()


def states(lm):
    """Count the records by state, without the openings."""
    return dict(rows(lm, "SELECT state, count(*) FROM records WHERE state <> 'opened' GROUP BY state"))


def as_nobody(work):
    """Run work() in a child without root's rights; return what it says."""
    out, back = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            text = work()
        except BaseException as error:  # noqa: BLE001 - the parent judges
            text = f"{type(error).__name__}: {error}"
        os.write(back, text.encode())
        os._exit(0)
    os.close(back)
    with os.fdopen(out) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


def start(job, *arguments, **more):
    """Run one of the jobs below in another process."""
    command = [sys.executable, __file__, job, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **more)


def say(*words):
    """Tell the parent process."""
    print(*words, flush=True)  # noqa: T201 - a pipe to the test


class Reporting(FakeBackend):
    """Says each query it is asked on standard output, as it is asked; dies in call `dies`."""

    dies = 0

    def fill(self, queries, tokens=None):
        for asked in queries:
            say("asked", asked.example, asked.prompt)
        if len(self.calls) + 1 == self.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().fill(queries, tokens)


def one_by_one(run, first, count, total):
    """Ask for queries in calls of their own until the budget refuses."""
    lm = MeteredBackend(Reporting(vocabulary_size=20), run, QueryBudget(passes=None, total=int(total)))
    for i in range(int(first), int(first) + int(count)):
        try:
            lm.fill([query(i)])
        except BudgetExceeded:
            say("refused")


def at_gate(run, url, first, count, batch):
    """Ask a gate for queries, so many in each call, until all are answered or refused."""
    from pbsdk_backends.http import HttpBackend

    with MeteredBackend(HttpBackend(url), run, None) as lm:
        for i in range(int(first), int(first) + int(count), int(batch)):
            try:
                lm.fill([query(i + j) for j in range(int(batch))])
            except BudgetExceeded as error:
                say("refused", error)
            else:
                say("answered", i)
        told = lm.audit().remaining
        say("left", told and told.left)


def all_at_once(run, examples, prompts, batch, latency):
    """Ask for a grid of queries, as everyone else does at the same time."""
    lm = MeteredBackend(Reporting(vocabulary_size=20, batch_size=int(batch), latency=float(latency)), run)
    lm.fill(grid(int(examples), int(prompts)))
    lm.close()


def die(run, examples, prompts, batch, call):
    """Ask for a grid of queries and be killed while one batch is at the model."""
    backend = Reporting(vocabulary_size=20, batch_size=int(batch))
    backend.dies = int(call)
    MeteredBackend(backend, run).fill(grid(int(examples), int(prompts)))


def hang(run, examples, prompts):
    """Ask, and never come back from the model."""
    backend = Reporting(vocabulary_size=20, latency=1.0, sleep=lambda _: time.sleep(600))
    MeteredBackend(backend, run).fill(grid(int(examples), int(prompts)))


def orphan(run):
    """Leave a child behind, as a pool of workers may, and die at the model."""
    backend = FakeBackend(vocabulary_size=20, latency=1.0, sleep=lambda _: _fork_and_die())
    MeteredBackend(backend, run).fill(grid(1, 2))


def _fork_and_die():
    there, here = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(here, b"!")  # it runs, and what follows a fork is done
        time.sleep(600)
        os._exit(0)
    os.read(there, 1)
    say(child)
    os.kill(os.getpid(), signal.SIGKILL)


def outgrow(run, limit):
    """Ask for answers that no longer fit the file size allowed; say what happens."""
    import resource

    lm = MeteredBackend(FakeBackend(vocabulary_size=50_000, batch_size=2), run)
    lm.fill(grid(1, 2))
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    try:
        lm.fill(grid(30, 2))
    except Exception as error:  # noqa: BLE001 - the parent judges
        say(type(error).__name__, error)


def create_full(run):
    """Make a ledger where not even its first pages fit."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    try:
        MeteredBackend(FakeBackend(vocabulary_size=20), run)
    except Exception as error:  # noqa: BLE001 - the parent judges
        say(type(error).__name__, error)


if __name__ == "__main__":
    {job.__name__: job for job in (one_by_one, at_gate, all_at_once, die, hang, orphan, outgrow, create_full)}[
        sys.argv[1]
    ](*sys.argv[2:])
