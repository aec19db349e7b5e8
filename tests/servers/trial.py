"""What is done with each server, and what must be true of it.

A classifier is trained on support tickets (four departments) and tested on some that it hasn't seen. The server's own count of requests must be the
ledger's count of attempts, the ledger must verify, and training again must ask nothing. Two heads learn from the same answers: ours,
which decides whether the trial holds, and the paper's, for comparison.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pbsdk import PromptBoostingClassifier, connect
from pbsdk.backend import MaskedLMBackend
from pbsdk.data.tickets import load_tickets
from pbsdk.ledger.verifier import verify_run
from pbsdk.metering.meter import MeteredBackend
from pbsdk.queries.pools import load_pool
from servers.environment import Environment

MODEL = "smollm2"
POOL = load_pool("intent")
PLAIN, CONVERSATIONS = POOL.prompts_mask_last, POOL.prompts_turns


@dataclass(frozen=True)
class Running:
    """A server that answers."""

    url: str
    count: Callable[[], int]
    """Returns how many requests for an answer it has counted itself."""
    python: Path
    """The interpreter of its environment."""


@dataclass(frozen=True)
class Way:
    """A way of asking a server."""

    name: str
    adapter: str | Callable[[Running], MaskedLMBackend]
    """The adapter's name, or what makes a backend."""
    options: Mapping[str, Any] = field(default_factory=dict)
    prompts: Sequence[str] = tuple(PLAIN)
    least: float = 0.6
    """The accuracy below which something is wrong; chance is a quarter."""

    def connected(self, server: Running, run: Path) -> MeteredBackend:
        """Return the metered backend, with a budget of a pass per prompt and text."""
        if callable(self.adapter):
            return MeteredBackend(self.adapter(server), run, len(self.prompts))
        return connect(self.adapter, run=run, budget=len(self.prompts), url=server.url, **self.options)


@dataclass(frozen=True)
class Server:
    """A server that nobody here wrote."""

    name: str
    package: str
    """The package whose version is shown."""
    steps: Sequence[Sequence[str]]
    """What is installed: the arguments of one `pip install` each."""
    start: Callable[[Environment, Path], AbstractContextManager[Running]]
    """Starts it; its files go to the folder."""
    ways: Sequence[Way]
    finish: Callable[[Environment], None] = lambda _: None
    """Installs what the steps alone can't say."""


@dataclass(frozen=True)
class Size:
    """How much a trial asks."""

    labelled: int = 64
    tested: int = 60
    prompts: int = 10
    least: float = 1.0
    """What of each way's least accuracy must be reached: less where there is less to learn from."""


@dataclass(frozen=True)
class Row:
    """What came of one way of asking one server."""

    server: str
    way: str
    shown: str
    prompts: int
    accuracy: float
    boosting: float
    ledger: int
    counted: int
    seconds: float


def tried(name: str, way: Way, server: Running, run: Path, size: Size) -> Row:
    """Train, test, count, and train again."""
    tickets = load_tickets()
    labelled = tickets.train.texts[: size.labelled], tickets.train.labels[: size.labelled]
    test = tickets.test.texts[: size.tested], tickets.test.labels[: size.tested]
    prompts = list(way.prompts[: size.prompts])

    def trained(head: str) -> PromptBoostingClassifier:
        clf = PromptBoostingClassifier(lm, prompts, head=head, random_state=13, keep="whole", progress=False)
        return clf.fit(*labelled)

    began = time.monotonic()
    with way.connected(server, run) as lm:
        before = server.count()
        accuracy = trained("soft").score(*test)
        asked = _attempts(lm)
        boosting = trained("boosting").score(*test)
        assert trained("soft").score(*test) == accuracy
        assert _attempts(lm) == asked, "training again asked again"
        counted = server.count() - before
        assert counted == asked, f"the server counted {counted} requests, and the ledger {asked}"
        report = lm.audit()
        assert report.within_budget, report.verdict
        abilities = lm.abilities
        shown = "whole" if abilities.whole else f"top {abilities.top:,}"
    verify_run(run)
    row = Row(name, way.name, shown, len(prompts), accuracy, boosting, asked, counted, time.monotonic() - began)
    assert accuracy >= size.least * way.least, f"only {accuracy:.1%} of {size.tested} texts: {row}"
    return row


def _attempts(lm: MeteredBackend) -> int:
    return sum(phase.attempts for phase in lm.audit().phases)
