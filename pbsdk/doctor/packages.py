"""Which packages pbsdk needs, according to the installed metadata, and which of them are installed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata

__all__ = ["Extra", "Package", "packages"]

_UNASKED = {"dev", "docs"}
"""Extras for developing pbsdk itself."""
_REQUIREMENT = re.compile(r"""^([A-Za-z0-9._-]+)(?:\[([^\]]*)\])?([^;]*)(?:;.*extra\s*==\s*['"]([^'"]+)['"])?""")


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
