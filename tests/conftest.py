"""Shared set-up: Hypothesis draws the same examples every time, and benchmark data beside the checkout are found."""

import os
import signal
import sys
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repeatable")

# A shell has its background jobs ignore Ctrl-C, and so would every process that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

collect_ignore = ["servers/inside"]
"""Scripts for other environments; to import one is to start a server."""

_LONGEST = ("test_demo.py", "test_snippets.py", "test_notebooks.py")
"""They ask the embedded model a few thousand times."""


_EVERYTHING = bool(os.environ.get("PBSDK_TEST_POSTGRES"))
"""Whether every test of a ledger is done in PostgreSQL too, as `make test-postgres` does, or only those marked for it."""


def pytest_collection_modifyitems(items):
    """Begin with the files that take longest: with several workers, whichever came last would be waited for."""
    rank = {name: place for place, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.name, len(rank)))
    items[:] = [item for item in items if _EVERYTHING or _in_a_folder(item) or item.get_closest_marker("in_postgres")]


def _in_a_folder(item):
    return not hasattr(item, "callspec") or item.callspec.params.get("run") != "postgres"


# The package itself looks nowhere but where PBSDK_DATA says; commands that tests start inherit it.
_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
if _DATA.is_dir():
    os.environ.setdefault("PBSDK_DATA", str(_DATA))


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory):
    """Return a function that gives the folder of a family's tiny model, built once."""
    from helpers.tiny_models import CAUSAL, build  # it imports torch, which most tests do without

    @cache
    def make(family: str) -> Path:
        causal = family in {*CAUSAL, "bloom", "mistral"}
        return build(tmp_path_factory.mktemp(family) / f"tiny-{family}", family, causal=causal)

    return make


@pytest.fixture(scope="session")
def benchmarks(tmp_path_factory):
    """A folder of benchmark data: `desk`, `mrpc`, and a pool of prompts."""
    from helpers.benchmarks import write_benchmarks

    return write_benchmarks(tmp_path_factory.mktemp("data"))


@pytest.fixture
def pool(benchmarks, monkeypatch):
    """The pool of prompts beside the benchmark data, which are the ones that are found."""
    monkeypatch.setenv("PBSDK_DATA", str(benchmarks))
    return str(benchmarks / "pool.json")


@pytest.fixture
def hub(monkeypatch):
    """A `datasets` library that answers from memory, and remembers what it was asked for."""
    from helpers.hub import datasets_library

    library = datasets_library()
    monkeypatch.setitem(sys.modules, "datasets", library)
    return library


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL server of the tests' own; where there is none, or no driver, the test is skipped."""
    from helpers.postgres import MISSING, cluster

    if MISSING:
        pytest.skip(MISSING)
    pytest.importorskip("pg8000", reason="the driver is not installed (pbsdk[postgres])")
    with cluster() as started:
        yield started


@pytest.fixture(params=["folder", "postgres"])
def run(request, tmp_path):
    """Where a ledger is kept: a folder, or a schema of a database. What holds in one holds in the other."""
    return tmp_path / "run" if request.param == "folder" else request.getfixturevalue("postgres").nearby()
