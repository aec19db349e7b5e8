"""The adapter `ray` on two nodes of a real cluster, one of which dies, and with a real model: `make test-ray`."""

import os
import threading

import numpy as np
import pytest
from helpers.tiny_models import ask

from pbsdk import connect
from pbsdk.data.tickets import load_tickets
from pbsdk.testing import FakeBackend

ray = pytest.importorskip("ray", reason="the adapter ray needs Ray: pip install ray")
if not os.environ.get("PBSDK_TEST_RAY"):
    pytest.skip("starting two nodes takes a while: make test-ray", allow_module_level=True)

from ray.cluster_utils import Cluster  # noqa: E402

from pbsdk_backends.local import LocalBackend  # noqa: E402
from pbsdk_backends.ray import RayBackend  # noqa: E402

QUERIES = [ask(text) for text in load_tickets().test.texts]


@pytest.fixture(scope="module")
def cluster():
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    yield found
    ray.shutdown()
    found.shutdown()


def nodes_of_actors():
    """Return on which nodes the pool's actors are."""
    from ray._private.state import actors

    return {one["Address"]["NodeID"] for one in actors().values() if one["State"] == "ALIVE"}


def test_two_nodes_answer_and_one_that_dies_is_made_up_for(cluster, tmp_path):
    second = cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    options = {"inner": "fake", "actors": 4, "batch_size": 4, "latency": 0.2, "address": cluster.address}
    with connect("ray", run=tmp_path / "run", budget=10, **options) as lm:
        list(lm.stream(QUERIES[:32]))
        assert len(nodes_of_actors()) == 2
        killer = threading.Timer(0.5, lambda: cluster.remove_node(second, allow_graceful=False))
        killer.start()
        answers = list(lm.stream(QUERIES[32:]))
        killer.join()
        plain = FakeBackend(batch_size=200).fill(QUERIES[32:])
        assert all(np.array_equal(one.codes, other.codes) for one, other in zip(answers, plain, strict=True))
        phase = next(phase for phase in lm.audit().phases if phase.attempts)
        assert phase.passes == len(QUERIES)
        assert len(QUERIES) < phase.attempts <= len(QUERIES) + 4 * 4 * 3
        assert len(nodes_of_actors()) == 1


def test_a_real_model_answers_as_it_does_without_ray(cluster, folder_of):
    model, queries = str(folder_of("roberta")), QUERIES[:24]
    with (
        LocalBackend(model, device="cpu") as plain,
        RayBackend(
            inner="local", model=model, device="cpu", actors=2, cpus_per_actor=0.5, address=cluster.address
        ) as lm,
    ):
        assert lm.identity == plain.identity
        ours, theirs = lm.fill(queries), plain.fill(queries)
        assert all(
            np.abs(one.codes.astype(int) - other.codes.astype(int)).max() <= 2
            for one, other in zip(ours, theirs, strict=True)
        )
