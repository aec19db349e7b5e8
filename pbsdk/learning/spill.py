"""Room on disk for what doesn't fit into memory.

A spill is a temporary file without a name: it is gone when its owner is, even if the process is
killed, and nobody else can open it.
"""

from __future__ import annotations

import tempfile
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pbsdk.errors import InputError

__all__ = ["Spill"]


class Spill:
    """A temporary file without a name, written and read at offsets."""

    def __init__(self, folder: Path | str | None) -> None:
        self._folder = folder or tempfile.gettempdir()
        try:
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - closed by `close`
        except OSError as error:
            raise self._trouble(error) from error
        self.close = weakref.finalize(self, self._file.close)

    def _trouble(self, error: OSError) -> InputError:
        return InputError(
            f"the answers are too many for memory and can't be kept in {self._folder} for the time of training "
            f"({error.strerror or error}); make room there, choose another folder, or raise max_memory"
        )

    def write(self, offset: int, values: npt.NDArray[Any]) -> None:
        """Write all bytes of an array from `offset` on."""
        left = np.ascontiguousarray(values).data.cast("B")
        try:
            self._file.seek(offset)
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise self._trouble(error) from error

    def read(self, offset: int, out: npt.NDArray[Any]) -> None:
        """Fill an array with the bytes from `offset` on."""
        left = out.data.cast("B")
        self._file.seek(offset)
        while left:
            left = left[self._file.readinto(left) :]
