"""The examination: everything is tried, and nothing that is broken stops it.

It must report what is broken, so nothing that may be broken is imported here. The core and the adapters are tried in
another process, one after the other, and each reports in one line; one that crashes the process or hangs is named,
and a new process continues with the next. Adapters describe their own setup, such as the device or
whether a key is set (`MaskedLMBackend.checkup`). Nothing is sent to anybody.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from pbsdk.doctor.disk import Folder, bytes_in, compiled_loops, run_folders, storage_for
from pbsdk.doctor.health import BackendHealth, Health
from pbsdk.doctor.packages import Package, packages
from pbsdk.formatting import size_text
from pbsdk.plugins import BACKENDS
from pbsdk.version import __version__

__all__ = ["Doctor", "examine", "report"]

PATIENCE = 120.0
"""Seconds that trying one part may take: importing torch is slow on a cold disk."""
_MARK = "pbsdk-doctor:"
_CORE = "the core"


class Doctor:
    """Examines this machine; `run` is the folder where runs are, or will be, kept."""

    def __init__(self, run: str | os.PathLike[str] = "runs", *, patience: float = PATIENCE) -> None:
        self.run = Path(run)
        self.patience = patience

    def look(self) -> Health:
        """Return what was found; nothing that is broken stops it."""
        try:
            core, extras = packages()
            names = BACKENDS.names()
        except Exception as error:  # noqa: BLE001 - pbsdk may be on the path without being installed
            core, extras, names = [Package("pbsdk", __version__, f"not installed ({error}): pip install pbsdk")], [], []
        with ThreadPoolExecutor(
            2
        ) as both:  # nearly all of the time goes into importing numba for the one, torch for the others
            (tried,), backends = both.map(self._try, ([_CORE], names))
        broken = [str(package) for package in core if package.problem]
        folders = {folder: what for backend in backends for what, folder in backend.folders.items()}
        return Health(
            pbsdk=f"{__version__} in {Path(__file__).parents[1]}",
            python=f"{platform.python_version()} at {sys.executable}",
            machine=_machine(),
            core=core,
            core_problem="; ".join(filter(None, [tried.problem, *broken])),
            extras=extras,
            backends=backends,
            folders=[*compiled_loops(), *(Folder(what, path, bytes_in(path)) for path, what in folders.items())],
            runs=list(run_folders(self.run)),
            storage=storage_for(self.run),
        )

    def _try(self, names: Sequence[str]) -> list[BackendHealth]:
        """Try each in another process, and continue in a new one after a crash."""
        found: dict[str, BackendHealth] = {}
        left = list(names)
        while left:
            code = f"from pbsdk.doctor.examination import examine; examine({left!r})"
            try:
                done = subprocess.run(  # noqa: S603 - ourselves
                    [sys.executable, "-P", "-c", code], capture_output=True, timeout=self.patience, check=False
                )
                out, err = done.stdout, done.stderr
                why = f"crashed (signal {-done.returncode})" if done.returncode < 0 else _last_line(err)
            except subprocess.TimeoutExpired as late:
                out, why = late.stdout or b"", f"took longer than {self.patience:g} s to be imported"
            for line in out.decode("utf-8", "replace").splitlines():
                if line.startswith(_MARK):
                    health = BackendHealth(**json.loads(line[len(_MARK) :]))
                    found[health.name] = health
            left = [name for name in left if name not in found]
            if left:
                found[left[0]] = BackendHealth(left[0], problem=why or "ended without a report")
                left = left[1:]
        return [found[name] for name in names]


def report(run: str | os.PathLike[str] = "runs") -> Health:
    """Examine this machine."""
    return Doctor(run).look()


def examine(names: Iterable[str]) -> None:
    """Try the core and adapters by name, and print a line about each; called in another process."""
    for name in names:
        try:
            health = _try_core() if name == _CORE else _try_backend(name)
        except Exception as error:  # noqa: BLE001 - the doctor is here to report whatever is broken
            health = BackendHealth(name, problem=" ".join(f"{type(error).__name__}: {error}".split()))
        sys.stdout.write(f"\n{_MARK}{json.dumps(asdict(health))}\n")
        sys.stdout.flush()


def _try_core() -> BackendHealth:
    """Import all of it, and have a metered fake model answer once."""
    from pbsdk.classifier import PromptBoostingClassifier
    from pbsdk.metering.meter import MeteredBackend
    from pbsdk.testing import FakeBackend

    with tempfile.TemporaryDirectory() as folder, MeteredBackend(FakeBackend(), Path(folder) / "run") as lm:
        clf = PromptBoostingClassifier(lm, ["<input> It was <mask>."])
        queries, _ = clf.predict_queries(["The weather is fine today."], fitted=False)
        lm.fill(queries)
    return BackendHealth(_CORE)


def _try_backend(name: str) -> BackendHealth:
    from pbsdk.connecting import find

    adapter = find(name)
    told = adapter.checkup()
    about = (adapter.__doc__ or "").strip().partition("\n")[0]
    return BackendHealth(name, about, told.problem, dict(told.facts), dict(told.folders))


def _last_line(data: bytes) -> str:
    lines = data.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""


def _machine() -> dict[str, str]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found = {"system": f"{platform.system()} {platform.machine()}", "threads": f"{usable} of {os.cpu_count()}"}
    with suppress(OSError, ValueError, AttributeError):
        page = os.sysconf("SC_PAGE_SIZE")
        memory = size_text(page * os.sysconf("SC_PHYS_PAGES"))
        found["memory"] = memory
        found["memory"] = f"{memory}, {size_text(page * os.sysconf('SC_AVPHYS_PAGES'))} unused"
    return found
