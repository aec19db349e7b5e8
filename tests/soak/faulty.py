"""A server of which a share of the replies is no answer: connections reset, bodies cut, silence, errors, refusals, nonsense.

Real sockets, and the adapter for OpenAI's interface. In the end every answer must be that of a server without faults, and the record
must have counted every request that the server got.
"""

from __future__ import annotations

import random
import threading

from helpers.meter import grid, same
from helpers.servers import OpenAIScript, Reply, json_reply, scripted

from pbsdk.errors import BackendError
from pbsdk.ledger.budget import QueryBudget
from pbsdk.ledger.reader import LedgerReader
from pbsdk.ledger.verifier import verify_run
from pbsdk.metering.meter import MeteredBackend
from pbsdk.testing import FakeBackend
from pbsdk_backends.openai import OpenAIBackend
from soak import promise, scratch

TIMEOUT = 0.5
TOP = 10
FAULTS = [
    Reply(fault="reset"),
    Reply(200, b'{"choices": [{"index": 0, "text": "and then it was', {"Content-Type": "application/json"}, "cut"),
    Reply(fault="stall"),
    json_reply({"error": {"message": "slow down"}}, 429, **{"Retry-After": "0"}),
    json_reply({"error": {"message": "overloaded"}}, 503),
    json_reply({"error": {"message": "it broke"}}, 500),
    Reply(200, b"<html>a gateway</html>", {"Content-Type": "text/html"}),
    json_reply({"id": "1", "model": "tiny", "choices": []}),
]


def adapter(url):
    return OpenAIBackend("tiny", url=f"{url}/v1", api="completions", top=TOP, read_timeout=TIMEOUT, workers=4)


def run(examples=300, prompts=2, share=0.3, seed=0):
    """Ask through the faults until everything is answered; return figures."""
    draw, turn = random.Random(seed), threading.Lock()
    script = OpenAIScript(FakeBackend(mask="last", vocabulary_size=200), completions=TOP)
    faults, requests = [0.0], [0, 0]

    def answer(asked):
        with turn:
            fault = draw.choice(FAULTS) if draw.random() < faults[0] else None
            requests[fault is not None] += faults[0] > 0
        return script(asked) if fault is None else fault

    queries = grid(examples, prompts)
    with scratch() as place, scripted(answer) as server:
        with MeteredBackend(adapter(server.url), place / "calm", None) as lm:
            expected = lm.fill(queries)
        backend = adapter(server.url)
        with MeteredBackend(backend, place / "run", QueryBudget.of(prompts), retries=8, sleep=lambda _: None) as lm:
            faults[0] = share
            calls = 0
            while True:
                calls += 1
                try:
                    answers = lm.fill(queries)
                except BackendError:
                    promise(calls < 100, "it doesn't come to an end")
                else:
                    break
            faults[0] = 0.0
            promise(all(map(same, answers, expected)), "an answer is not that of a server without faults")
        verified = verify_run(place / "run")
        with LedgerReader(place / "run") as reader:
            spent = reader.totals()
        promise(spent.passes == len(queries) == verified.answers, f"{spent.passes} passes for {len(queries)} queries")
        promise(
            spent.sends >= sum(requests),
            f"the server got {sum(requests)} requests, more than the record says: {spent.sends}",
        )
        return {
            "queries": len(queries),
            "requests": sum(requests),
            "faults": requests[1],
            "attempts": spent.sends,
            "calls of fill": calls,
        }
