"""Training through remote backends: the same model, the same ledger, whatever the network does."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import requests
from helpers.servers import OpenAIScript, Reply, json_reply, query, scripted

from pbsdk import MeteredBackend, PromptBoostingClassifier, connect
from pbsdk.backend import digest
from pbsdk.data.tickets import load_tickets
from pbsdk.errors import BudgetExceeded
from pbsdk.testing import FakeBackend
from pbsdk_backends._protocol import wire as _wire
from pbsdk_backends.http import HttpBackend
from pbsdk_backends.huggingface import HuggingFaceBackend
from pbsdk_backends.openai import OpenAIBackend
from pbsdk_backends.serve import serving

PROMPTS = [f"<input> {cue} <mask>" for cue in ("It was", "So", "About", "The")]
TICKETS = load_tickets()
TRAIN = (TICKETS.train.texts[:32], TICKETS.train.labels[:32])
DEV = (TICKETS.validation.texts[:32], TICKETS.validation.labels[:32])
TEST = (TICKETS.test.texts[:40], TICKETS.test.labels[:40])
QUERIES = len(PROMPTS) * (len(TRAIN[0]) + len(DEV[0]))
KEY = "very-secret-key-31415926"


def no_wait(_: float) -> None:
    pass


def trained(backend, folder: Path, **options) -> tuple[PromptBoostingClassifier, MeteredBackend, bytes]:
    meter = MeteredBackend(backend, folder / "run", **{"sleep": no_wait, "deadline": 1e9, **options})
    clf = PromptBoostingClassifier(meter, PROMPTS, head="boosting", rounds=40, random_state=13, progress=False)
    clf.fit(*TRAIN, validation=DEV)
    clf.save(folder / "model.json")
    return clf, meter, (folder / "model.json").read_bytes()


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The model that local training gives, as its file's bytes, and its predictions."""
    clf, meter, saved = trained(FakeBackend(batch_size=4), tmp_path_factory.mktemp("plain"))
    found = clf.predict_proba(TEST[0])
    meter.close()
    return saved, found


def test_local_and_http_give_the_same_ensemble_bit_for_bit(tmp_path, plain):
    with serving(FakeBackend(batch_size=4)) as url, HttpBackend(url) as backend:
        clf, meter, saved = trained(backend, tmp_path)
        assert saved == plain[0]
        assert np.array_equal(clf.predict_proba(TEST[0]), plain[1])
        meter.close()


def test_local_and_remote_share_a_run_folder(tmp_path):
    fake = FakeBackend(batch_size=4)
    with serving(fake) as url, HttpBackend(url) as backend:
        _, meter, first = trained(backend, tmp_path)
        meter.close()
        asked = len(fake.asked)
        _, again, second = trained(FakeBackend(batch_size=4), tmp_path)
        assert again.backend.asked == []
        again.close()
    assert (asked, first) == (QUERIES, second)


def test_swapping_is_one_line(tmp_path):
    with serving(FakeBackend(batch_size=4)) as url:
        for name, options in (("fake", {}), ("http", {"url": url})):
            with connect(name, run=tmp_path / name, **options) as lm:
                clf = PromptBoostingClassifier(lm, PROMPTS, head="boosting", rounds=40, random_state=13, progress=False)
                clf.fit(*TRAIN, validation=DEV)
                clf.save(tmp_path / f"{name}.json")
                assert "within budget" in str(lm.audit())
    assert (tmp_path / "fake.json").read_bytes() == (tmp_path / "http.json").read_bytes()


class Faulty:
    """A proxy that spoils three requests in ten, and writes down what it saw.

    What happens to a request depends on its content and on how often it came, not on the moment, so
    that a run can be repeated.
    """

    KINDS = ("429", "503", "loading", "reset", "late reset", "cut", "stall", "NaN", "swap")

    def __init__(self, url: str, rate: float = 0.3) -> None:
        self.url = url
        self.rate = rate
        self.came: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self.served: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.lock = threading.Lock()

    def __call__(self, asked):  # noqa: PLR0911 - a reply for each fault
        if asked.method == "GET":
            return Reply(200, requests.get(self.url + asked.path, timeout=60).content)
        names = self.names(asked)
        with self.lock:
            key = digest(*names)
            self.came[key] += 1
            self.received.update(names)
            draw = int(digest("faults", key, str(self.came[key]))[:8], 16) / 2**32
            fault = self.KINDS[int(draw / self.rate * len(self.KINDS))] if draw < self.rate else ""
            if fault == "stall" and self.faults["stall"] == 2:
                fault = "reset"  # two time-outs are enough to wait for
            self.faults[fault] += 1
        if fault == "429":
            return json_reply({"error": "slow down"}, 429, **{"retry-after-ms": "5"})
        if fault == "503":
            return json_reply({"error": "overloaded"}, 503)
        if fault == "loading":
            return json_reply({"error": "loading", "estimated_time": 0.01}, 503)
        if fault in {"reset", "stall"}:
            return Reply(fault=fault)
        reply = requests.post(self.url + asked.path, json=asked.json, timeout=60)
        assert reply.status_code == 200
        if fault == "late reset":
            return Reply(fault="reset")
        if fault == "cut":
            return Reply(200, reply.content, fault="cut")
        if fault in {"NaN", "swap"}:
            return Reply(200, self.spoiled(reply.content, fault))
        with self.lock:
            self.served.update(names)
        return Reply(200, reply.content)


class FaultyOwn(Faulty):
    """For our own protocol."""

    def names(self, asked):
        return [one.content for one in _wire.FillRequest.model_validate(asked.json).unpacked()]

    def spoiled(self, body, fault):
        end = 8 + int.from_bytes(body[4:8], "little")
        header = json.loads(body[8:end])
        rows = header["rows"]
        if fault == "NaN":
            rows[0]["read"] = float("nan")
        elif len(rows) == 1:
            rows[0]["query"] = digest("another question")
        else:
            rows[0], rows[1] = {**rows[1], "place": rows[0]["place"]}, {**rows[0], "place": rows[1]["place"]}
        head = json.dumps(header).encode()
        return body[:4] + len(head).to_bytes(4, "little") + head + body[end:]


class FaultyFillMask(Faulty):
    """For the fill-mask API, which can't tell a swapped row: numbers that are none stand in for it."""

    def names(self, asked):
        return [asked.json["inputs"]]

    def spoiled(self, body, fault):
        items = json.loads(body)
        items[0]["score"] = float("nan") if fault == "NaN" else 2.0
        return json.dumps(items).encode()


def check_accounts(meter: MeteredBackend, faulty: Faulty) -> None:
    """The ledger's counts are the server's own, and nothing was lost or paid twice."""
    phases = meter.audit().phases
    assert sum(phase.passes for phase in phases) == len(faulty.served) == QUERIES
    assert set(faulty.served.values()) == {1}
    attempts = sum(phase.attempts for phase in phases)
    assert attempts == sum(faulty.received.values())
    assert attempts == QUERIES + sum(phase.failed + phase.unknown for phase in phases)
    assert meter.ledger.verify().answers == QUERIES
    assert set(faulty.faults) >= {"", *Faulty.KINDS}
    assert attempts > 1.2 * QUERIES


def test_a_faulty_network_changes_nothing(tmp_path, plain):
    with serving(FakeBackend(batch_size=2)) as url:
        faulty = FaultyOwn(url)
        with scripted(faulty) as server, HttpBackend(server.url, read_timeout=4.0, workers=8) as backend:
            clf, meter, saved = trained(backend, tmp_path, retries=30)
            check_accounts(meter, faulty)
            assert saved == plain[0]
            assert np.array_equal(clf.predict_proba(TEST[0]), plain[1])
            meter.close()


def test_a_faulty_fill_mask_api_changes_nothing(tmp_path):
    with serving(FakeBackend()) as url:
        with HuggingFaceBackend("fake", url=url, top_k=50) as backend:
            (tmp_path / "plain").mkdir()
            clf, meter, expected = trained(backend, tmp_path / "plain")
            predicted = clf.predict_proba(TEST[0])
            meter.close()
        faulty = FaultyFillMask(url, rate=0)
        with scripted(faulty) as server:
            backend = HuggingFaceBackend("fake", url=server.url, top_k=50, read_timeout=4.0, workers=16)
            faulty.rate = 0.3
            for counter in (faulty.came, faulty.received, faulty.served, faulty.faults):
                counter.clear()
            (tmp_path / "faulty").mkdir()
            clf, meter, saved = trained(backend, tmp_path / "faulty", retries=30)
            check_accounts(meter, faulty)
            assert saved == expected
            assert np.array_equal(clf.predict_proba(TEST[0]), predicted)
            meter.close()


def test_sixteen_workers_use_a_slow_server_ten_times_as_fast_as_one():
    served = OpenAIScript(completions=5)

    def slow(asked):
        time.sleep(0.05)
        return served(asked)

    queries = [query(f"text {n}") for n in range(160)]

    def pace(workers, count):
        """Yield seconds a request, turn after turn."""
        backend = OpenAIBackend("tiny", url=f"{server.url}/v1", api="completions", top=5, workers=workers)
        with backend:
            list(backend.stream(queries[:16]))  # connections are open
            while True:
                start = time.monotonic()
                list(backend.stream(queries[:count]))
                yield (time.monotonic() - start) / count

    with scripted(slow) as server:
        alone = min(itertools.islice(pace(1, 20), 2))
        # What else the machine does slows many threads down more than one, so they have some turns to show it.
        assert any(alone / together >= 10 for together in itertools.islice(pace(16, 160), 20))


# Answers in part: the vocabulary opens as tokens appear.


@pytest.fixture
def openai_server():
    with scripted(OpenAIScript(completions=100)) as server:
        yield server


def test_a_provider_that_shows_its_top_tokens_still_trains(tmp_path, openai_server):
    with OpenAIBackend("tiny", url=f"{openai_server.url}/v1", api_key=KEY) as backend:
        clf, meter, _ = trained(backend, tmp_path)
        assert clf.score(*TEST) > 0.4
        assert 0 < meter.audit().phases[0].mass_seen < 1
        words = [word for row in clf.explain().rows for word in row.words]
        assert words
        assert not [word for word in words if word.startswith("<token")]
        predicted = clf.predict(TEST[0])
        meter.close()
    before = len(openai_server.asked)
    # Another process: nothing is known but what was saved.
    with OpenAIBackend("tiny", url=f"{openai_server.url}/v1", top=100, api="completions") as backend:
        meter = MeteredBackend(backend, tmp_path / "run", sleep=no_wait)
        loaded = PromptBoostingClassifier.load(tmp_path / "model.json", meter, progress=False)
        assert np.array_equal(loaded.predict(TEST[0]), predicted)
        meter.close()
    assert len(openai_server.asked) == before + 1
    # Training again from the ledger alone gives the same file, words and all.
    with OpenAIBackend("tiny", url=f"{openai_server.url}/v1", top=100, api="completions") as backend:
        first = (tmp_path / "model.json").read_bytes()
        _, meter, again = trained(backend, tmp_path)
        meter.close()
    assert again == first
    assert len(openai_server.asked) == before + 2


def test_fill_mask_predicts_by_chosen_targets(tmp_path):
    fake = FakeBackend()
    asked = []
    fill = fake.fill
    fake.fill = lambda queries, tokens=None: asked.append(tokens) or fill(queries, tokens)
    with serving(fake) as url:
        with HuggingFaceBackend("fake", url=url, top_k=50) as backend:
            clf, meter, _ = trained(backend, tmp_path)
            assert not [tokens for tokens in asked if tokens is not None]
            predicted = clf.predict(TEST[0])
            meter.close()
        asked.clear()
        with HuggingFaceBackend("fake", url=url, top_k=50) as backend:
            meter = MeteredBackend(backend, tmp_path / "fresh", sleep=no_wait)
            loaded = PromptBoostingClassifier.load(tmp_path / "model.json", meter, progress=False)
            assert np.array_equal(loaded.predict(TEST[0]), predicted)
            assert meter.audit().phases[0].passes > 0
            meter.close()
    # But for the question when connecting, only chosen tokens were asked for, and no more than the ensemble has.
    assert asked[0] is None
    assert all(0 < len(tokens) <= len(clf.ensemble_.tokens) for tokens in asked[1:])


def test_the_key_is_in_no_file(tmp_path, openai_server):
    with OpenAIBackend("tiny", url=f"{openai_server.url}/v1", api_key=KEY) as backend:
        clf, meter, _ = trained(backend, tmp_path)
        text = repr(meter) + repr(vars(meter)) + repr(clf) + str(meter.audit()) + backend.identity.to_json()
        meter.ledger.export(tmp_path / "ledger.jsonl")
        meter.close()
    assert openai_server.asked[-1].headers["Authorization"] == f"Bearer {KEY}"
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) >= 3
    assert not [path for path in files if KEY.encode() in path.read_bytes()]
    assert KEY not in text
    assert "127.0.0.1" not in backend.identity.to_json()


def test_a_budget_that_does_not_allow_it_sends_nothing(tmp_path, openai_server):
    with OpenAIBackend("tiny", url=f"{openai_server.url}/v1") as backend:
        before = len(openai_server.asked)
        with pytest.raises(BudgetExceeded):
            trained(backend, tmp_path, budget=3)
        assert len(openai_server.asked) == before


INTERRUPTED = """
import sys
from pbsdk import MeteredBackend, PromptBoostingClassifier
from pbsdk_backends._remote import parallel as _parallel
from pbsdk_backends.openai import OpenAIBackend
from pbsdk.data.tickets import load_tickets

_parallel.GRACE = 30.0
url, run = sys.argv[1:]
tickets = load_tickets()
backend = OpenAIBackend("tiny", url=url, api="completions", top=20, workers=4)
meter = MeteredBackend(backend, run)
clf = PromptBoostingClassifier(meter, ["<input> It was <mask>", "<input> So <mask>"], head="boosting", rounds=20, random_state=13, progress=False)
try:
    clf.fit(tickets.train.texts, tickets.train.labels, validation=(tickets.validation.texts, tickets.validation.labels))
    print("done", flush=True)
except KeyboardInterrupt:
    print("stopped", flush=True)
finally:
    meter.close()
"""


def test_an_interrupt_stops_cleanly_and_loses_nothing(tmp_path):
    script = OpenAIScript(completions=20)
    held, release = threading.Event(), threading.Event()

    def answer(asked):
        if len(server.asked) == 60:
            # One request is under way and nothing else: the interrupt falls into the wait for it.
            held.set()
            assert release.wait(60)
        return script(asked)

    with scripted(answer) as server:
        command = [sys.executable, "-c", INTERRUPTED, f"{server.url}/v1", str(tmp_path / "run")]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert held.wait(60)
            count = 0
            while count != len(server.asked):
                count = len(server.asked)
                time.sleep(0.5)
            os.kill(process.pid, signal.SIGINT)
            time.sleep(0.5)
            release.set()
            assert process.communicate(timeout=60)[0].strip() == "stopped"
        finally:
            release.set()
            process.kill()
            process.wait()
        assert 60 <= len(server.asked) < 100
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        assert done.stdout.strip() == "done"
        # One probe a process; not one of the 256 questions was asked twice.
        prompts = Counter(asked.json["prompt"] for asked in server.asked)
        probes = prompts.pop("The capital of France is")
        assert (probes, len(prompts), set(prompts.values())) == (2, 256, {1})
