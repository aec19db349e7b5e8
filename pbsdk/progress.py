"""Progress bars on standard error: in a terminal or a notebook, and elsewhere only on request."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

with warnings.catch_warnings():
    # In a notebook without ipywidgets, tqdm warns on import and then draws its bars as text, which is good enough.
    warnings.simplefilter("ignore")
    from tqdm.auto import tqdm

__all__ = ["progress_bar", "progress_steps"]

Item = TypeVar("Item")


def progress_bar(
    items: Iterable[Item], *, total: int, what: str, unit: str = "pass", show: bool | None = None
) -> Iterator[Item]:
    """Yield the items, showing the rate and the time left.

    If `show` is None, the bar is shown where somebody is looking, unless tqdm's own variable TQDM_DISABLE is set.
    """
    yield from tqdm(items, total=total, desc=what, unit=f" {unit}", disable=not _shown(show), leave=False)


@contextmanager
def progress_steps(total: int, *, what: str, unit: str, show: bool | None = None) -> Iterator[Callable[[], None]]:
    """Yield a function to call after each step, for work that isn't an iteration; `show` as for `progress_bar`."""
    with tqdm(total=total, desc=what, unit=f" {unit}", disable=not (total and _shown(show)), leave=False) as bar:

        def step() -> None:
            bar.update()

        yield step


def _shown(show: bool | None) -> bool:
    if show is not None:
        return show
    # A notebook's standard error is not a terminal, but somebody is looking at it.
    return (sys.stderr.isatty() or "ipykernel" in sys.modules) and not os.environ.get("TQDM_DISABLE")
