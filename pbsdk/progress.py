"""Progress on standard error: in a terminal or a notebook, and nowhere else unless asked for."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from typing import TypeVar

with warnings.catch_warnings():
    # Where a notebook has no ipywidgets, tqdm warns at once and then draws its bars as text, which will do.
    warnings.simplefilter("ignore")
    from tqdm.auto import tqdm

__all__ = ["progress_bar"]

Item = TypeVar("Item")


def progress_bar(
    items: Iterable[Item], *, total: int, what: str, unit: str = "pass", show: bool | None = None
) -> Iterator[Item]:
    """Pass the items on, showing how many a second, and the time left.

    `show` None means: where somebody is looking, unless tqdm's own variable TQDM_DISABLE is set.
    """
    if show is None:
        # A notebook's standard error is no terminal, but somebody looks at it.
        show = (sys.stderr.isatty() or "ipykernel" in sys.modules) and not os.environ.get("TQDM_DISABLE")
    yield from tqdm(items, total=total, desc=what, unit=f" {unit}", disable=not show, leave=False)
