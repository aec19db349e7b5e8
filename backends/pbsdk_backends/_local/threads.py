"""How many threads torch gets: as many as there are cores that this process may use and that are free.

torch takes a thread for each core and lets the threads wait for each other many times in a pass. If one of them has to
share its core, all wait, and two threads can be ten times slower than one. So cores are counted once when a model is
opened: those that the process may run on, as siblings on one physical core count once, as far as a container's limit allows,
and as far as nobody else keeps them busy. Whoever set a number, by option, in the environment or in torch, keeps it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

import torch

from pbsdk.errors import InputError

__all__ = ["Cores", "count_cores", "settle_threads"]

ENVIRONMENT = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
LOOK = 0.1
"""Seconds in which the cores are watched."""
_torchs_own = torch.get_num_threads()
_ours = _torchs_own


class Cores(NamedTuple):
    """The cores of this process."""

    usable: int
    """Physical cores that it may run on."""
    limit: float
    """How many cores' time the container gets, at most as many as there are."""
    free: float
    """How many cores' time nobody else used just now."""

    @property
    def threads(self) -> int:
        """How many threads find a core of their own."""
        return max(1, min(self.usable, int(self.limit + 0.01), round(self.free)))


def settle_threads(threads: int | None) -> None:
    """Set torch's threads to what is asked for, else to what suits the machine now, unless somebody has set them."""
    global _ours  # noqa: PLW0603 - torch's number is one for the whole process, and so is what was last made of it
    if threads is not None:
        if threads < 1:
            raise InputError(f"threads={threads} must be at least 1")
        torch.set_num_threads(threads)
    elif not any(os.environ.get(name) for name in ENVIRONMENT) and torch.get_num_threads() == _ours:
        _ours = min(_torchs_own, count_cores().threads)
        torch.set_num_threads(_ours)


def count_cores(root: Path = Path("/"), look: float = LOOK) -> Cores:
    """Count the cores of this process; what a system doesn't tell limits nothing."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    siblings = {_read(root / f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list") for core in allowed}
    usable = len(allowed) if "" in siblings else len(siblings)
    before = _idle(root, allowed)
    time.sleep(look)
    after = _idle(root, allowed)
    watched = [
        (after[core][0] - before[core][0]) / (after[core][1] - before[core][1])
        for core in after.keys() & before.keys()
        if after[core][1] > before[core][1]
    ]
    free = sum(watched) * usable / len(watched) if watched else float(usable)
    return Cores(usable, min(_limit(root), float(len(allowed))), free)


def _idle(root: Path, allowed: set[int]) -> dict[int, tuple[int, int]]:
    """Return each core's idle and whole time so far."""
    times = {}
    for line in _read(root / "proc/stat").splitlines():
        name, *fields = line.split()
        if name[:3] == "cpu" and name[3:].isdigit() and int(name[3:]) in allowed:
            ticks = [int(field) for field in fields[:8]]
            times[int(name[3:])] = (sum(ticks[3:5]), sum(ticks))
    return times


def _limit(root: Path) -> float:
    """Return how many cores' time the container may use, by control groups of either version."""
    limits = [float("inf")]
    groups = root / "sys/fs/cgroup"
    own = next((line[3:] for line in _read(root / "proc/self/cgroup").splitlines() if line.startswith("0::")), "/")
    place = groups / own.strip("/")
    for folder in (place, *place.parents):
        quota, _, period = _read(folder / "cpu.max").partition(" ")
        limits += _part(quota, period)
        if folder == groups:
            break
    limits += _part(_read(groups / "cpu/cpu.cfs_quota_us"), _read(groups / "cpu/cpu.cfs_period_us"))
    return min(limits)


def _part(quota: str, period: str) -> list[float]:
    return [int(quota) / int(period)] if quota.isdigit() and period.isdigit() and int(period) else []


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""
