"""`pbsdk demo`: from labelled texts to an audited classifier on the embedded model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pbsdk.cli._common import AsJson, plainly, show

__all__ = ["demo"]


def demo(
    folder: Annotated[Path, typer.Option(help="Where the run and the model are kept.")] = Path("runs/demo"),
    *,
    as_json: AsJson = False,
) -> None:
    """Train a support-ticket classifier on the embedded model, and show what it cost.

    The first run takes a few minutes; a second one asks nothing and takes seconds.

    Examples:
        pbsdk demo
        pbsdk demo --folder runs/another --json
    """
    from pbsdk.demo import run_demo

    with plainly():
        result = run_demo(folder)
    show(result, result.to_dict(), as_json=as_json)
