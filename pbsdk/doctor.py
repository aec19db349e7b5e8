"""The doctor: what is installed here, which backends work, what is on the disk.

It must say what is broken, so nothing that may be broken is imported here. The core and the adapters are tried in
another process, one after the other, and each reports in a line; one that takes the process down, or never comes
back, is named, and the next process goes on after it. Adapters describe their own setting, such as a device or
whether a key is there (`MaskedLMBackend.checkup`). Nothing is sent to anybody.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from pbsdk.plugins import BACKENDS
from pbsdk.version import __version__

__all__ = ["BackendHealth", "Doctor", "Extra", "Folder", "Health", "Package", "Storage", "examine", "report"]

PATIENCE = 120.0
"""Seconds that one part may take to be tried: torch takes some on a cold disk."""
_MARK = "pbsdk-doctor:"
_CORE = "the core"
_UNASKED = {"dev", "docs"}
"""Extras that are for work on pbsdk itself."""
_REQUIREMENT = re.compile(r"""^([A-Za-z0-9._-]+)(?:\[([^\]]*)\])?([^;]*)(?:;.*extra\s*==\s*['"]([^'"]+)['"])?""")
_SHARED = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "afs", "9p"}
"""File systems of other machines, where SQLite's locks can't be relied on."""


@dataclass(frozen=True)
class Package:
    """A package that pbsdk uses, and the version found; `problem` if it is missing or too old."""

    name: str
    version: str = ""
    problem: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, [self.name, self.version, f"({self.problem})" if self.problem else ""]))


@dataclass(frozen=True)
class Extra:
    """An extra of pbsdk, and its packages."""

    name: str
    packages: list[Package]

    @property
    def cure(self) -> str:
        """What to install; empty if nothing is missing."""
        return f'pip install "pbsdk[{self.name}]"' if any(package.problem for package in self.packages) else ""


@dataclass(frozen=True)
class BackendHealth:
    """An adapter: what it says of its setting, or what keeps it from working."""

    name: str
    about: str = ""
    problem: str = ""
    facts: dict[str, str] = field(default_factory=dict)
    folders: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Folder:
    """Something on the disk that can be made again, or a run folder."""

    what: str
    path: str
    bytes: int
    note: str = ""


@dataclass(frozen=True)
class Storage:
    """Where run folders go: the kind of file system, room, and whether its locks work."""

    path: str
    kind: str
    free: int
    locks: bool
    problem: str = ""


@dataclass(frozen=True)
class Health:
    """All that the doctor found."""

    pbsdk: str
    python: str
    machine: dict[str, str]
    core: list[Package]
    core_problem: str
    extras: list[Extra]
    backends: list[BackendHealth]
    folders: list[Folder]
    runs: list[Folder]
    storage: Storage

    @property
    def usable(self) -> bool:
        """Whether pbsdk works at all."""
        return not self.core_problem

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        extras = [{**asdict(extra), "cure": extra.cure} for extra in self.extras]
        return {"usable": self.usable, **asdict(self), "extras": extras}

    def __str__(self) -> str:
        return "\n".join(_lines(self))


class Doctor:
    """Looks at this machine; `run` is the folder where runs are, or will be, kept."""

    def __init__(self, run: str | os.PathLike[str] = "runs", *, patience: float = PATIENCE) -> None:
        self.run = Path(run)
        self.patience = patience

    def look(self) -> Health:
        """Return what was found; nothing that is broken stops it."""
        try:
            core, extras = packages()
            names = BACKENDS.names()
        except Exception as error:  # noqa: BLE001 - pbsdk may lie there without being installed
            core, extras, names = [Package("pbsdk", __version__, f"not installed ({error}): pip install pbsdk")], [], []
        (tried, *backends) = self._try([_CORE, *names])
        broken = [str(package) for package in core if package.problem]
        folders = {folder: what for backend in backends for what, folder in backend.folders.items()}
        return Health(
            pbsdk=f"{__version__} in {Path(__file__).parent}",
            python=f"{platform.python_version()} at {sys.executable}",
            machine=_machine(),
            core=core,
            core_problem="; ".join(filter(None, [tried.problem, *broken])),
            extras=extras,
            backends=backends,
            folders=[*_numba(), *(Folder(what, path, _size(path)) for path, what in folders.items())],
            runs=list(_runs(self.run)),
            storage=_storage(self.run),
        )

    def _try(self, names: Sequence[str]) -> list[BackendHealth]:
        """Have each tried in another process, and go on in a new one after a crash."""
        found: dict[str, BackendHealth] = {}
        left = list(names)
        while left:
            code = f"from pbsdk.doctor import examine; examine({left!r})"
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
                found[left[0]] = BackendHealth(left[0], problem=why or "ended without a word")
                left = left[1:]
        return [found[name] for name in names]


def report(run: str | os.PathLike[str] = "runs") -> Health:
    """Look at this machine."""
    return Doctor(run).look()


def examine(names: Iterable[str]) -> None:
    """Try the core and adapters by name, and print a line about each; called in another process."""
    for name in names:
        try:
            health = _try_core() if name == _CORE else _try_backend(name)
        except Exception as error:  # noqa: BLE001 - whatever is broken is what was asked for
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


# Packages


def packages() -> tuple[list[Package], list[Extra]]:
    """Return the packages of the core and of each extra, as the installed metadata lists them."""
    needs: dict[str, list[tuple[str, str, str]]] = {}
    for line in metadata.requires("pbsdk") or []:
        found = _REQUIREMENT.match(line)
        if found:
            name, extras, versions, extra = found.groups()
            needs.setdefault(extra or "", []).append((name, extras or "", versions.strip()))

    def of(extra: str) -> list[Package]:
        listed: dict[str, Package] = {}
        for name, extras, versions in needs.get(extra, []):
            inside = [package for one in extras.split(",") for package in of(one.strip())] if name == "pbsdk" else []
            for package in inside or [_package(name, versions)]:
                listed[package.name] = package
        return list(listed.values())

    return of(""), [Extra(extra, of(extra)) for extra in needs if extra and extra not in _UNASKED]


def _package(name: str, versions: str) -> Package:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Package(name, problem="missing")
    least = re.search(r">=\s*([\d.]+)", versions)
    if least and _numbers(version) < _numbers(least[1]):
        return Package(name, version, f"older than {least[1]}")
    return Package(name, version)


def _numbers(version: str) -> tuple[int, ...]:
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, numbers[0].split("."))) if numbers else ()


# The machine and its disk


def _machine() -> dict[str, str]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found = {"system": f"{platform.system()} {platform.machine()}", "threads": f"{usable} of {os.cpu_count()}"}
    with suppress(OSError, ValueError, AttributeError):
        page = os.sysconf("SC_PAGE_SIZE")
        memory = size_text(page * os.sysconf("SC_PHYS_PAGES"))
        found["memory"] = memory
        found["memory"] = f"{memory}, {size_text(page * os.sysconf('SC_AVPHYS_PAGES'))} unused"
    return found


def size_text(count: int) -> str:
    """Write a number of bytes.

    >>> size_text(538_090_408), size_text(12)
    ('538.1 MB', '12 bytes')
    """
    for unit, step in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if count >= step:
            return f"{count / step:.1f} {unit}"
    return f"{count} bytes"


def _size(path: str | Path) -> int:
    """Return the bytes in a folder; files that are linked to are counted where they lie, once."""
    total = 0
    for root, _, files in os.walk(path):
        for name in files:
            with suppress(OSError):
                total += os.lstat(os.path.join(root, name)).st_size
    return total


def _numba() -> list[Folder]:
    """Return the compiled loops: beside the code, or where NUMBA_CACHE_DIR says."""
    place = os.environ.get("NUMBA_CACHE_DIR")
    folder = Path(place) if place else Path(__file__).parent / "learning" / "__pycache__"
    files = [file for pattern in ("*.nbi", "*.nbc") for file in folder.rglob(pattern)] if folder.is_dir() else []
    note = "" if files else "not there yet: the first fit compiles for some seconds"
    return [Folder("compiled loops", str(folder), sum(file.stat().st_size for file in files), note)]


def _runs(folder: Path) -> Iterator[Folder]:
    """Yield the run folders: the folder itself, or what lies up to two levels below it."""
    for pattern in ("cache.db", "*/cache.db", "*/*/cache.db"):
        for database in sorted(folder.glob(pattern)):
            run = database.parent
            try:
                from pbsdk.ledger.reader import LedgerReader

                with LedgerReader(run) as reader:
                    totals, model = reader.totals(), reader.model().name
                note = f"{totals.passes} {'pass' if totals.passes == 1 else 'passes'} on {model}"
            except Exception as error:  # noqa: BLE001 - a broken run is told, and the next one looked at
                note = " ".join(str(error).split())
            yield Folder("run", str(run), _size(run), note)


def _storage(run: Path) -> Storage:
    """Try locks and SQLite's write-ahead log where run folders go."""
    place = run.absolute()
    while not place.is_dir():
        place = place.parent
    kind = _kind(place)
    try:
        free = shutil.disk_usage(place).free
        with tempfile.TemporaryDirectory(prefix=".pbsdk-doctor-", dir=place) as scratch:
            problem = _locks_problem(Path(scratch))
    except OSError as error:
        return Storage(str(place), kind, 0, locks=False, problem=f"can't be written: {error.strerror or error}")
    if not problem and kind in _SHARED:
        problem = f"{kind} is another machine's disk: its locks can't be relied on; keep run folders on a local one"
    return Storage(str(place), kind, free, locks=not problem, problem=problem)


def _locks_problem(folder: Path) -> str:
    try:
        with (folder / "lock").open("w") as one, (folder / "lock").open("w") as other:
            fcntl.flock(one, fcntl.LOCK_EX)
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pass
            else:
                return "locks don't lock here; keep run folders on another disk"
        path = folder / "test.db"
        with closing(sqlite3.connect(path, timeout=0)) as one_db, closing(sqlite3.connect(path, timeout=0)) as other_db:
            if one_db.execute("PRAGMA journal_mode = wal").fetchone()[0] != "wal":
                return "SQLite can't keep a write-ahead log here; keep run folders on another disk"
            one_db.execute("BEGIN IMMEDIATE")
            try:
                other_db.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return ""
            return "SQLite's locks don't lock here; keep run folders on another disk"
    except sqlite3.Error as error:
        return f"SQLite doesn't work here ({error}); keep run folders on another disk"


def _kind(place: Path) -> str:
    """Return the kind of file system, where the system tells."""
    best, kind = "", "unknown"
    with suppress(OSError):
        for line in Path("/proc/self/mounts").read_text("utf-8", "replace").splitlines():
            _, mount, name, *_ = line.split(" ")
            mount = mount.replace("\\040", " ")
            if len(mount) >= len(best) and (place == Path(mount) or Path(mount) in place.parents):
                best, kind = mount, name
    return kind


# In words


def _lines(health: Health) -> Iterator[str]:
    def row(name: str, text: str) -> str:
        return f"  {name:<15}{text}"

    yield row("pbsdk", health.pbsdk)[2:]
    yield row("python", health.python)[2:]
    for name, text in health.machine.items():
        yield row(name, text)[2:]
    yield from ("", f"Core: {'BROKEN: ' + health.core_problem if health.core_problem else 'works'}")
    yield "  " + ", ".join(map(str, health.core))
    yield from ("", "Extras")
    for extra in health.extras:
        yield row(extra.name, ", ".join(map(str, extra.packages)))
        if extra.cure:
            yield row("", f"to install: {extra.cure}")
    yield from ("", "Backends (nothing was sent; `pbsdk doctor --connect NAME` asks one a question)")
    for backend in health.backends:
        yield row(backend.name, f"no: {backend.problem}" if backend.problem else f"ok: {backend.about}")
        for name, text in backend.facts.items():
            yield row("", f"{name}: {text}")
    yield from ("", "On the disk")
    for folder in health.folders:
        yield row(size_text(folder.bytes), f"{folder.what}: {folder.path}{f' ({folder.note})' if folder.note else ''}")
    for run in health.runs:
        yield row(size_text(run.bytes), f"run {run.path}: {run.note}")
    storage = health.storage
    locks = storage.problem or "locks work"
    yield row(size_text(storage.free), f"free for run folders in {storage.path} ({storage.kind}): {locks}")
