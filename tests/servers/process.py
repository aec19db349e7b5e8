"""A server as a process of its own: started on a free port of this machine, awaited, ended, and asked for its figures."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import requests

from servers.environment import LeftOut

ONE_THREAD = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
"""Threads that wait for each other on busy cores cost far more than they gain."""
PATIENCE = 600.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


@contextmanager
def running(
    command: Sequence[str | Path], ready: str, log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[Path]:
    """Run a server while the block runs; its words go to `log`, and it has begun when the address `ready` answers."""
    with log.open("wb") as words:
        # A session of its own, so that what it starts ends with it.
        process = subprocess.Popen(
            list(map(str, command)),
            stdout=words,
            stderr=words,
            env={**os.environ, **ONE_THREAD, **(environment or {})},
            cwd=log.parent,
            start_new_session=True,
        )
    try:
        _await(process, ready, log)
        yield log
    finally:
        _end(process)


def _await(process: subprocess.Popen[bytes], ready: str, log: Path) -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            if requests.get(ready, timeout=5).ok:
                return
        except requests.RequestException:
            pass
        if process.poll() is not None:
            break
        time.sleep(0.5)
    said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    why = "didn't answer" if process.poll() is None else "ended"
    raise LeftOut(f"the server {why} ({said[-1].strip() if said else 'it said nothing'}); its words are in {log}")


def _end(process: subprocess.Popen[bytes]) -> None:
    for signal in (15, 9):
        try:
            os.killpg(process.pid, signal)
            process.wait(30)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def figure(url: str, name: str, **labels: str) -> Callable[[], int]:
    """Return what reads a counter of a page of Prometheus's metrics: the sum of those with these labels, 0 if there are none yet."""

    def count() -> int:
        total = 0.0
        for line in requests.get(url, timeout=30).text.splitlines():
            found = re.fullmatch(rf"{re.escape(name)}(?:\{{(.*)\}})? (\S+)", line)
            if found and all(f'{label}="{value}"' in (found[1] or "") for label, value in labels.items()):
                total += float(found[2])
        return round(total)

    return count


def lines_in(log: Path, said: str) -> Callable[[], int]:
    """Return what counts the lines of a log that hold a pattern."""
    return lambda: len(re.findall(said, log.read_text(errors="replace")))
