"""`pbsdk why-miss`: why a run asked again for answers that seemed to be known."""

from __future__ import annotations

from typing import Annotated

import typer

from pbsdk.cli import _completion
from pbsdk.cli._common import AsJson, RunFolder, show

__all__ = ["why_miss"]


def why_miss(
    run: RunFolder,
    *,
    against: Annotated[
        str | None,
        typer.Option(
            help="Another run to compare with.", show_default=False, metavar="PATH", autocompletion=_completion.folders
        ),
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
