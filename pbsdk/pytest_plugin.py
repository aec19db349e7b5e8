"""Fixtures for tests of code that uses pbsdk; pytest discovers them automatically.

`fake_lm` is a metered `FakeBackend` with its own run folder. `replay_lm` replays a real model that was recorded once:

    @pytest.mark.pbsdk_recording("tickets.pbrec", backend="smollm2")
    def test_tickets_are_routed(replay_lm):
        ...

`pytest --pbsdk-record` runs such tests on the model and writes their files; without it they replay, and refuse what
is not recorded. No part of pbsdk is imported before a test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pbsdk.backend import MaskedLMBackend
    from pbsdk.metering.meter import MeteredBackend
    from pbsdk.testing.recording import Recording

__all__ = ["fake_lm", "make_fake_lm", "replay_lm"]

_MARKERS = (
    "fake_lm(budget=10, **options): how the fixture fake_lm is made; the options are FakeBackend's",
    "pbsdk_recording(file, backend=None, top=None, budget=10, **options): which file replay_lm replays, and which model it records",
)
_RECORDED = pytest.StashKey[dict[Path, "Recording"]]()
_NOTES = pytest.StashKey[list[str]]()
_PASSED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("pbsdk").addoption(
        "--pbsdk-record",
        action="store_true",
        help="run tests that use replay_lm on the model itself, and write its answers to their files",
    )


def pytest_configure(config: pytest.Config) -> None:
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)
    config.stash[_RECORDED], config.stash[_NOTES] = {}, []
    if config.getoption("pbsdk_record") and (hasattr(config, "workerinput") or config.getoption("numprocesses", None)):
        raise pytest.UsageError("--pbsdk-record writes files that tests share; run it in a single process, with -n 0")


@pytest.fixture
def make_fake_lm(tmp_path: Path) -> Iterator[Callable[..., MeteredBackend]]:
    """A function that makes metered fake models, each with its own run folder.

    It takes `budget` and the options of `FakeBackend`. Retries after a failure don't wait.
    """
    from pbsdk.connecting import open_backend
    from pbsdk.metering.meter import MeteredBackend

    with ExitStack() as opened:

        def make(*, budget: Any = 10, **options: Any) -> MeteredBackend:
            number = len(list(tmp_path.glob("fake-run-*")))
            fake = open_backend("fake", **options)
            return opened.enter_context(
                MeteredBackend(fake, tmp_path / f"fake-run-{number}", budget, sleep=lambda _: None)
            )

        yield make


@pytest.fixture
def fake_lm(request: pytest.FixtureRequest, make_fake_lm: Callable[..., MeteredBackend]) -> MeteredBackend:
    """A metered fake model; `@pytest.mark.fake_lm(signal=0, top=20, budget=3)` configures it.

    `fake_lm.backend.asked` lists what it was asked, and `fake_lm.audit()` is the bill.
    """
    marker = request.node.get_closest_marker("fake_lm")
    if marker is not None and marker.args:
        raise pytest.UsageError(f"the marker fake_lm takes keyword options only, not {marker.args!r}")
    return make_fake_lm(**({} if marker is None else marker.kwargs))


@pytest.fixture
def replay_lm(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MeteredBackend]:
    """A recorded model, metered; `@pytest.mark.pbsdk_recording(FILE, ...)` names a file beside the test module."""
    from pbsdk.metering.meter import MeteredBackend
    from pbsdk.testing.recording import Recording

    file, how = _asked_for(request.node)
    recording = bool(request.config.getoption("pbsdk_record"))
    budget = how.pop("budget", 10)
    if not recording and not file.is_file():
        raise pytest.UsageError(
            f"{file} doesn't exist; record it on a machine that has the model: pytest --pbsdk-record {request.node.nodeid}"
        )
    backend = _model(**how) if recording else _replay(file)
    try:
        lm = MeteredBackend(backend, tmp_path / "replay-run", budget)
    except BaseException:
        backend.close()
        raise
    with lm:
        yield lm
        if not recording:
            return
        if not request.node.stash.get(_PASSED, False):
            request.config.stash[_NOTES].append(f"{file} is left as it was: {request.node.nodeid} didn't pass")
            return
        new, kept = Recording.of(lm), request.config.stash[_RECORDED]
        kept[file] = kept[file].merged(new) if file in kept else new


def _asked_for(item: pytest.Item) -> tuple[Path, dict[str, Any]]:
    marker = item.get_closest_marker("pbsdk_recording")
    if marker is None or len(marker.args) != 1:
        raise pytest.UsageError(
            'replay_lm needs a file: @pytest.mark.pbsdk_recording("answers.pbrec", backend="smollm2")'
        )
    return item.path.parent / marker.args[0], dict(marker.kwargs)


def _replay(file: Path) -> MaskedLMBackend:
    from pbsdk.testing import ReplayBackend

    return ReplayBackend(file)


def _model(backend: str | None = None, top: int | None = None, **options: Any) -> MaskedLMBackend:
    from pbsdk.connecting import default_name, open_backend
    from pbsdk.testing import TopOnly

    model = open_backend(backend or default_name(), **options)
    return model if top is None else TopOnly(model, top)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "call":
        item.stash[_PASSED] = report.passed
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    for file, recording in session.config.stash[_RECORDED].items():
        recording.save(file)
        session.config.stash[_NOTES].append(
            f"{file} holds {len(recording.answers)} answers of {recording.identity.name}, {file.stat().st_size:,} bytes"
        )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.stash[_NOTES]:
        terminalreporter.section("pbsdk recordings")
        for note in config.stash[_NOTES]:
            terminalreporter.write_line(note)
