"""Progress on standard error: in a terminal or a notebook, and nowhere else unless asked for."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm.auto import tqdm

__all__ = ["progress_bar"]

Item = TypeVar("Item")


def progress_bar(
    items: Iterable[Item], *, total: int, what: str, unit: str = "pass", show: bool | None = None
) -> Iterator[Item]:
    """Pass the items on, showing how many a second, and the time left.

    `show` None means: where somebody is looking.
    """
    if show is None:
        # A notebook's standard error is no terminal, but somebody looks at it.
        show = sys.stderr.isatty() or "ipykernel" in sys.modules
    yield from tqdm(items, total=total, desc=what, unit=f" {unit}", disable=not show, leave=False)
