"""A virtual environment for each server, since what one of them needs doesn't suit another."""

from __future__ import annotations

import subprocess
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

from pbsdk.backend import digest

TORCH = ("torch==2.13.0",)
"""First and pinned: a bare "torch" may pull in gigabytes of CUDA packages."""


class LeftOut(Exception):
    """A server can't be tried here, and why."""


class Environment:
    """A virtual environment, made and filled when it is first needed.

    Args:
        folder: where it is; what is there already is used again if it was filled by the same steps.
        steps: the arguments of one `pip install` each, in order.
        finish: installs what steps alone can't say.
    """

    def __init__(
        self, folder: Path, steps: Sequence[Sequence[str]], finish: Callable[[Environment], None] = lambda _: None
    ) -> None:
        self.folder, self._steps, self._finish = folder, steps, finish
        self.python = folder / "bin" / "python"

    def fill(self) -> None:
        """Install what it takes, unless that was done."""
        stamp, wanted = self.folder / "filled", digest(*(word for step in self._steps for word in (*step, "")))
        if stamp.is_file() and stamp.read_text() == wanted:
            return
        venv.create(self.folder, with_pip=True, clear=True)
        for step in self._steps:
            self.install(step)
        self._finish(self)
        stamp.write_text(wanted)

    def install(self, arguments: Sequence[str]) -> None:
        """Run one `pip install`."""
        done = subprocess.run(
            [self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
            raise LeftOut(f"pip install {' '.join(arguments)} failed: {said[-1] if said else 'it said nothing'}")

    def version(self, package: str) -> str:
        """Return which version of a package it holds."""
        return self.run(f"from importlib.metadata import version; print(version({package!r}))")

    def run(self, code: str) -> str:
        """Run a few lines in it, and return what they print."""
        return subprocess.run([self.python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
