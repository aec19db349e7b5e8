"""The adapter `ray`, on a real cluster of this machine: the same answers, and actors that die, stall or never come."""

import json
import pickle
import threading
import time
from contextlib import suppress

import numpy as np
import psutil
import pytest
from helpers.commands import called, write_table
from helpers.tiny_models import ask

ray = pytest.importorskip("ray", reason="the adapter ray needs Ray: pip install ray")

from pbsdk import PromptBoostingClassifier, connect  # noqa: E402
from pbsdk.audit.report import AuditReport  # noqa: E402
from pbsdk.data.tickets import Split, load_tickets  # noqa: E402
from pbsdk.errors import BackendTimeout, BackendUnavailable, InputError, QueryRefused, SetupError  # noqa: E402
from pbsdk.metering.meter import MeteredBackend  # noqa: E402
from pbsdk.testing import BackendContract, FakeBackend  # noqa: E402
from pbsdk_backends._ray.cluster import join  # noqa: E402
from pbsdk_backends._ray.pool import Pool  # noqa: E402
from pbsdk_backends._ray.worker import Worker  # noqa: E402
from pbsdk_backends.ray import RayBackend  # noqa: E402

TICKETS = load_tickets()
QUERIES = [ask(text) for text in TICKETS.test.texts]
SMALL = {"inner": "fake", "cpus_per_actor": 0.1, "batch_size": 4}


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """A cluster of this machine, which tells nobody that it is there."""
    join("local")
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def backend(cluster):
    with RayBackend(**SMALL, actors=2) as opened:
        yield opened


class TestRayContract(BackendContract):
    """Everything that any backend must do."""

    @pytest.fixture
    def backend(self, backend):
        return backend


def processes(doing=""):
    """Return the processes that run actors now; Ray names them after what they do."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error, IndexError):
            if process.cmdline()[0].startswith(f"ray::Worker{doing}"):
                found.append(process)
    return found


def kill_one_that_answers():
    """Kill an actor as the system does, with its queries."""
    found = []
    wait_for(lambda: found.extend(processes(".fill")) or found)
    found[0].kill()


def wait_for(happened):
    for _ in range(600):
        if happened():
            return
        time.sleep(0.1)
    pytest.fail("it never happened")


def test_identity_and_answers_are_the_inner_backends(backend):
    plain = FakeBackend(batch_size=4)
    assert backend.identity == plain.identity
    assert backend.abilities.batch_size == 4 * 2 * 4
    tokens = np.array([3, 5, 900])
    for wanted in (None, tokens):
        ours, theirs = backend.fill(QUERIES[:30], wanted), [a for q in QUERIES[:30] for a in plain.fill([q], wanted)]
        assert all(np.array_equal(one.codes, other.codes) for one, other in zip(ours, theirs, strict=True))
    assert backend.count_tokens(QUERIES[0]) == plain.count_tokens(QUERIES[0])
    assert backend.most_tokens(QUERIES[0]) == plain.most_tokens(QUERIES[0])


def test_a_run_that_was_begun_without_ray_goes_on_with_it(tmp_path):
    def fitted(lm):
        clf = PromptBoostingClassifier(lm, ["<input> So <mask>.", "<input> The <mask>"], head="voting", random_state=0)
        return clf.fit(TICKETS.train.texts[:16], TICKETS.train.labels[:16])

    with connect("fake", run=tmp_path / "run") as lm:
        labels = fitted(lm).predict(TICKETS.test.texts[:8]).tolist()
    with connect("ray", run=tmp_path / "run", actors=1, **SMALL) as lm:
        before = sum(phase.attempts for phase in lm.audit().phases)
        again = fitted(lm)
        assert sum(phase.attempts for phase in lm.audit().phases) == before
        assert again.predict(TICKETS.test.texts[:8]).tolist() == labels
        assert sum(phase.attempts for phase in lm.audit().phases) == before
        with pickle.loads(pickle.dumps(lm)) as copied:
            assert copied.backend.fill(QUERIES[:1])[0].codes.tolist() == lm.backend.fill(QUERIES[:1])[0].codes.tolist()


def test_an_actor_that_is_killed_is_replaced_and_its_piece_asked_again_and_counted(tmp_path):
    with connect("ray", run=tmp_path / "run", budget=10, actors=2, latency=1.0, **SMALL) as lm:
        before = {process.pid for process in processes()}

        def kill():
            wait_for(lambda: sum(phase.attempts for phase in lm.audit().phases))
            kill_one_that_answers()

        killer = threading.Thread(target=kill)
        killer.start()
        answers = list(lm.stream(QUERIES[:16]))
        killer.join()
        plain = FakeBackend(batch_size=16).fill(QUERIES[:16])
        assert all(np.array_equal(one.codes, other.codes) for one, other in zip(answers, plain, strict=True))
        (phase,) = [phase for phase in lm.audit().phases if phase.attempts]
        assert phase.passes == 16
        assert phase.attempts == 20  # the piece that died with its actor
        wait_for(lambda: len({process.pid for process in processes()} - before) >= 1)


def test_an_adapter_says_which_queries_died_and_does_not_ask_again():
    with RayBackend(**SMALL, actors=1, latency=1.0) as lm:
        killer = threading.Thread(target=kill_one_that_answers)
        killer.start()
        with pytest.raises(
            BackendTimeout, match=r"an actor died with its queries.*\(4 of 12 queries failed\)"
        ) as raised:
            lm.fill(QUERIES[:12])
        killer.join()
        assert raised.value.retryable
        assert raised.value.may_have_run
        assert len(raised.value.failures) == 4
        assert sorted([*raised.value.failures, *raised.value.answered]) == list(range(12))


def test_a_stalled_actor_holds_up_its_own_piece_only(monkeypatch):
    finished = []
    result = Pool._result

    def counted(self, seat):
        finished.append(seat)
        return result(self, seat)

    others = {process.pid for process in processes()}
    with RayBackend(**SMALL, actors=2, latency=0.05) as lm:
        wait_for(lambda: not any(seat.opening or seat.task for seat in opened(lm)))
        monkeypatch.setattr(Pool, "_result", counted)
        stalled = next(process for process in processes() if process.pid not in others)
        stalled.suspend()
        answers = []
        asking = threading.Thread(target=lambda: answers.extend(lm.fill(QUERIES[:32])))
        asking.start()
        try:
            wait_for(lambda: len(finished) == 7)
            assert not answers
        finally:
            stalled.resume()
        asking.join(60)
        assert len(answers) == 32


def opened(lm):
    """Return the pool's actors, after a look at what those that were opening have said."""
    lm.fill(QUERIES[:8])
    return lm._pool._seats


def test_an_actor_with_another_model_is_never_asked(tmp_path, monkeypatch):
    plain = FakeBackend(batch_size=64).fill(QUERIES[:64])
    with RayBackend(**SMALL, actors=2) as lm:
        wait_for(lambda: not any(seat.opening or seat.task for seat in opened(lm)))
        other = ray.remote(Worker).options(num_cpus=0.1)
        monkeypatch.setattr(lm._pool, "_make", lambda: other.remote("fake", {"seed": 9}))
        ray.kill(lm._pool._seats[0].actor)
        metered = MeteredBackend(lm, tmp_path / "run", sleep=lambda seconds: None)
        answers = list(metered.stream(QUERIES[:64]))
        metered.ledger.close()
        assert all(np.array_equal(one.codes, other.codes) for one, other in zip(answers, plain, strict=True))
        ray.kill(lm._pool._seats[1].actor)
        with pytest.raises(BackendTimeout):
            lm.fill(QUERIES[:4])
        with pytest.raises(BackendUnavailable, match=r"actors in a row came to nothing; .*another model") as raised:
            lm.fill(QUERIES[:4])
        assert not raised.value.retryable


def test_errors_of_the_inner_backend_arrive_whole():
    with RayBackend(**SMALL, actors=1, refuse="parcel") as lm:
        with pytest.raises(QueryRefused, match=r"\(1 of 5 queries failed\)") as raised:
            lm.fill([ask(text) for text in ("a", "b", "my parcel", "c", "d")])
        assert list(raised.value.failures) == [2]
        assert sorted(raised.value.answered) == [0, 1, 3, 4]
        assert not raised.value.retryable


def test_what_cannot_work_is_said_when_connecting():
    with pytest.raises(InputError, match="no machine of the cluster has room for an actor with 1 CPUs and 1 GPUs"):
        RayBackend(inner="fake", gpus_per_actor=1)
    with pytest.raises(InputError, match="another backend than ray"):
        RayBackend(inner="ray")
    with pytest.raises(InputError, match="actors must be a whole number"):
        RayBackend(inner="fake", actors=0)
    with pytest.raises(SetupError, match=r"no backend is called 'fakee'\. Did you mean 'fake'"):
        RayBackend(inner="fakee")
    with pytest.raises(InputError, match=r"can't be opened with these options.*colour"):
        RayBackend(inner="fake", colour="red")
    with pytest.raises(InputError, match="vocabulary"):
        RayBackend(inner="fake", vocabulary_size=1)
    with pytest.warns(UserWarning, match="actors fit into the cluster as it is"):
        lm = RayBackend(inner="fake", actors=psutil.cpu_count() + 1, cpus_per_actor=1)
    assert len(lm.fill(QUERIES[:3])) == 3
    lm.close()
    with pytest.raises(BackendUnavailable, match="this backend is closed"):
        lm.fill(QUERIES[:1])


def test_the_engine_reads_files_and_writes_what_is_written_without_it(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for name, start, stop in (("a", 0, 30), ("b", 30, 50), ("c", 50, 60)):
        write_table(data / f"{name}.jsonl", Split(TICKETS.test.texts[start:stop], TICKETS.test.labels[start:stop]))
    with connect("fake", run=tmp_path / "fit") as lm:
        clf = PromptBoostingClassifier(lm, ["<input> So <mask>.", "<input> The <mask>"], head="voting", random_state=0)
        clf.fit(TICKETS.train.texts[:16], TICKETS.train.labels[:16]).save(tmp_path / "model.json")

    def predict(run, out, *more):
        common = ("--backend", "fake", "--probabilities", "--text-column", "text", "--json", "-o", "batch_size=4")
        folders = ("--run", tmp_path / run, "--out", tmp_path / out)
        shown = called("predict", tmp_path / "model.json", data, *common, *folders, *more)
        assert shown.returncode == 0, shown.stderr
        return json.loads(shown.stdout)

    plain = predict("plain", "one")
    streamed = predict("ray", "two", "--engine", "ray", "-o", "actors=1", "-o", "cpus_per_actor=0.1")
    assert streamed["model"] == plain["model"]
    paid = sum(phase.passes for phase in AuditReport.read(tmp_path / "ray").phases)
    assert streamed["sent_now"] == plain["sent_now"] == paid == 120
    for name in ("a.jsonl", "b.jsonl", "c.jsonl"):
        assert (tmp_path / "two" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()


def test_a_cluster_started_here_listens_to_this_machine_and_reports_to_nobody():
    listening, reporting = set(), []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            listening |= {one.laddr.ip for one in process.net_connections() if one.status == "LISTEN"}
            reporting += [process.environ()["RAY_USAGE_STATS_ENABLED"]] if process.name() == "gcs_server" else []
    assert listening <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
    assert listening
    assert reporting == ["0"]
