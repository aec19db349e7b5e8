"""The promises about a run folder, put to the test for as long as one likes: `make soak`, and briefly in the tests.

Each module is one kind of trouble, and its `run` raises `Broken` at the first promise that isn't kept.
"""

import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_MEMORY = Path("/dev/shm")  # where syncing takes no time


class Broken(Exception):
    """A promise that was not kept."""


def promise(kept: bool, text: str) -> None:
    if not kept:
        raise Broken(text)


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder in memory, if there is such a place: a process that is killed loses nothing of it either."""
    folder = Path(tempfile.mkdtemp(prefix="pbsdk-soak-", dir=_MEMORY if _MEMORY.is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def forked(work: Callable[..., None], *arguments: Any) -> int:
    """Do something in a child process; return its id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work(*arguments)
        code = 0
    except BaseException as error:  # noqa: BLE001 - the parent judges
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def join(children: Iterable[int], *, stop: bool = False) -> list[int]:
    """Wait for child processes, or tell them to stop; return how they ended."""
    waited = list(children)
    for child in waited if stop else ():
        os.kill(child, signal.SIGTERM)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in waited]


def counted(file: Path) -> Counter[str]:
    """Return what a `Counting` model was asked, and how often."""
    return Counter(file.read_text("ascii").split())
