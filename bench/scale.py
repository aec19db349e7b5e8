"""How fast Ray's actors answer here, and what a simulation that agrees with it says of 10 to 1,000 GPUs and a billion texts.

    python bench/scale.py [--inner smollm2 --precision bfloat16] [--passes 1500]
    python bench/scale.py --gpu-rate 1000 --gpu-price 2 --driver 3000 --bytes 1400

The first measures passes a second without Ray, with one actor and with two, each asked in turn by a meter over a ledger, and beside them what
the simulation expects of them. The fake model stands for a GPU: an actor sleeps for each piece, and computes little. The second only simulates.

The simulation is the pool's own rule: a batch is four pieces for each actor, a free actor takes the next piece, and while the driver (the process
with the ledger) prepares, stores and scores a batch, actors wait.
"""

from __future__ import annotations

import argparse
import heapq
import random
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pbsdk.backend import MaskedLMBackend, MaskedQuery, Part, Phase, digest
from pbsdk.connecting import open_backend
from pbsdk.data.tickets import load_tickets
from pbsdk.metering.meter import MeteredBackend
from pbsdk.testing import FakeBackend

PIECES = 4
"""Pieces of a batch for each actor, as `pbsdk_backends.ray` has it."""
TOKENS = np.arange(20)


@dataclass(frozen=True)
class Cluster:
    """Actors and drivers."""

    actors: int
    piece: int
    """Queries in a piece."""
    seconds: float
    """What a piece takes an actor."""
    driver: float
    """What a query takes its driver, in seconds."""
    drivers: int = 1
    spread: float = 0.1
    """How much pieces differ."""

    def rate(self, batches: int = 20) -> float:
        """Return passes a second in all."""
        rng = random.Random(0)
        actors, took = max(1, self.actors // self.drivers), 0.0
        for _ in range(batches):
            free = [0.0] * actors
            for _ in range(actors * PIECES):
                start = heapq.heappop(free)
                heapq.heappush(free, start + self.seconds * rng.lognormvariate(0, self.spread))
            took += max(free) + actors * PIECES * self.piece * self.driver
        return self.drivers * batches * actors * PIECES * self.piece / took


def main() -> None:
    """Measure, or simulate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inner", default="fake")
    parser.add_argument("--precision", help="of a real model, such as bfloat16")
    parser.add_argument("--passes", type=int, default=1500, help="passes of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each kind")
    parser.add_argument("--latency", type=float, default=0.4, help="seconds that the fake sleeps for a piece")
    parser.add_argument("--gpu-rate", type=float, help="passes a second of one GPU, which you measured")
    parser.add_argument("--gpu-price", type=float, default=2.0, help="what a GPU costs an hour")
    parser.add_argument(
        "--driver", type=float, default=3000, help="passes a second that one driver can prepare, store and score"
    )
    parser.add_argument("--bytes", type=float, default=1400, help="bytes of the run folder for each pass")
    parser.add_argument("--texts", type=float, default=1e9)
    parser.add_argument("--prompts", type=int, default=5)
    given = parser.parse_args()
    if given.gpu_rate is None:
        measure(given)
    else:
        simulate(given)


def measure(given: argparse.Namespace) -> None:
    """Measure one and two actors beside the model without Ray."""
    options: dict[str, Any] = {"latency": given.latency, "batch_size": 32} if given.inner == "fake" else {}
    options |= {"precision": given.precision} if given.precision else {}
    piece_seconds, driver = calibrated(given, options)
    print(f"an actor: {piece_seconds:.3f} s a piece; the driver: {1 / driver:,.0f} passes a second")
    print(f"{'':>12} {'passes/s':>9} {'lowest':>7} {'highest':>8} {'simulated':>10}")
    opened = {"without Ray": open_backend(given.inner, **options)}
    for actors in (1, 2):
        ray = {"inner": given.inner, "actors": actors, "cpus_per_actor": 0.5, "address": "local", **options}
        opened[f"{actors} actor{'s' * (actors > 1)}"] = open_backend("ray", **ray)
    seen: dict[str, list[float]] = {name: [] for name in opened}
    for turn in range(given.rounds):
        for name, backend in opened.items():
            seen[name].append(rate_of(backend, given.passes, f"{turn} {name}"))
    cluster = Cluster(1, getattr(opened["without Ray"].abilities, "batch_size", 32), piece_seconds, driver)
    expected = ["", f"{cluster.rate():,.0f}", f"{replace(cluster, actors=2).rate():,.0f}"]
    for (name, rates), simulated in zip(seen.items(), expected, strict=True):
        print(f"{name:>12} {statistics.median(rates):>9,.0f} {min(rates):>7,.0f} {max(rates):>8,.0f} {simulated:>10}")
    for backend in opened.values():
        backend.close()


def calibrated(given: argparse.Namespace, options: dict[str, Any]) -> tuple[float, float]:
    """Return what a piece takes the model, and a query the driver, in seconds."""
    with open_backend(given.inner, **options) as model:
        lot = queries(model.abilities.batch_size * 3, "calibration")
        size = model.abilities.batch_size
        took = []
        for start in range(0, len(lot), size):
            began = time.perf_counter()
            model.fill(lot[start : start + size], TOKENS)
            took.append(time.perf_counter() - began)
    fake = FakeBackend(batch_size=256)
    asked = queries(given.passes, "driver")
    began = time.perf_counter()
    for start in range(0, len(asked), 256):
        fake.fill(asked[start : start + 256], TOKENS)
    alone = time.perf_counter() - began
    metered = given.passes / rate_of(FakeBackend(batch_size=256), given.passes, "driver")
    return statistics.median(took), max(1e-6, (metered - alone) / given.passes)


def rate_of(backend: MaskedLMBackend, passes: int, name: str) -> float:
    """Return passes a second through a meter, in a run folder of its own."""
    asked = queries(passes, name)
    with tempfile.TemporaryDirectory() as folder:
        lm = MeteredBackend(backend, Path(folder) / "run", None)
        began = time.perf_counter()
        for _ in lm.stream(asked, TOKENS):
            pass
        took = time.perf_counter() - began
        lm.ledger.close()
    return passes / took


def queries(count: int, name: str) -> list[MaskedQuery]:
    """Return different queries."""
    texts = load_tickets().test.texts
    found = []
    for at in range(count):
        text = f"{texts[at % len(texts)]} {name} {at}"
        parts = (Part("input", text), Part("prompt", " It was "), Part("mask"))
        found.append(MaskedQuery(parts, digest(text), "<input> It was <mask>", Phase.PREDICT))
    return found


def simulate(given: argparse.Namespace) -> None:
    """Print days, money and ledgers for growing clusters, with one driver and with as many as it takes."""
    passes = given.texts * given.prompts
    print(f"{passes:,.0f} passes at {given.gpu_rate:,.0f} a second and GPU, {given.driver:,.0f} a second and driver")
    print(
        f"{'GPUs':>6} {'drivers':>8} {'passes/s':>10} {'GPUs busy':>10} {'days':>8} {'money':>11} {'TB in all':>10} {'GB a ledger':>12}"
    )
    for gpus in (1, 2, 10, 30, 100, 300, 1000):
        needed = max(1, round(4 * gpus * given.gpu_rate / given.driver))
        for drivers in sorted({1, min(gpus, needed)}):
            found = Cluster(gpus, 64, 64 / given.gpu_rate, 1 / given.driver, drivers)
            rate = found.rate()
            hours = passes / rate / 3600
            size = passes * given.bytes
            print(
                f"{gpus:>6,} {drivers:>8,} {rate:>10,.0f} {rate / gpus / given.gpu_rate:>10.0%} {hours / 24:>8,.1f} {hours * gpus * given.gpu_price:>11,.0f} "
                f"{size / 1e12:>10.1f} {size / drivers / 1e9:>12,.0f}"
            )


if __name__ == "__main__":
    main()
