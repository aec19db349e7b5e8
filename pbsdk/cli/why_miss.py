"""`pbsdk why-miss`: why a run asked again for answers that seemed to be known."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pbsdk.cli._common import AsJson, RunFolder, show

__all__ = ["why_miss"]


def why_miss(
    run: RunFolder,
    *,
    against: Annotated[
        Path | None, typer.Option(help="Another run folder to compare with.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show which part of the key kept queries from being recalled.

    Examples:
        pbsdk why-miss runs/tickets
        pbsdk why-miss runs/tickets --against runs/other
    """
    from pbsdk.audit.misses import why_miss as explain

    report = explain(run, against)
    show(report, report.to_dict(), as_json=as_json)
