"""What the doctor found, as data and in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from pbsdk.doctor.disk import Folder, Storage
from pbsdk.doctor.packages import Extra, Package
from pbsdk.formatting import size_text

__all__ = ["BackendHealth", "Health"]


@dataclass(frozen=True)
class BackendHealth:
    """An adapter: what it says about its setup, or what keeps it from working."""

    name: str
    about: str = ""
    problem: str = ""
    facts: dict[str, str] = field(default_factory=dict)
    folders: dict[str, str] = field(default_factory=dict)


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
    yield from ("", "On disk")
    for folder in health.folders:
        yield row(size_text(folder.bytes), f"{folder.what}: {folder.path}{f' ({folder.note})' if folder.note else ''}")
    for run in health.runs:
        yield row(size_text(run.bytes), f"run {run.path}: {run.note}")
    storage = health.storage
    locks = storage.problem or "locks work"
    yield row(size_text(storage.free), f"free for run folders in {storage.path} ({storage.kind}): {locks}")
