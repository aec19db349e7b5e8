"""The promises about a run folder, put to the test for as long as one likes: `make soak`, and briefly in the tests.

Each module is one kind of trouble, and its `run` raises `Broken` at the first promise that isn't kept.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
