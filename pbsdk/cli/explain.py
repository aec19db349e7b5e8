"""`pbsdk explain`: what a saved classifier has learned."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from pbsdk.cli._common import AsJson, show
from pbsdk.visible import visible

__all__ = ["explain"]

Model = Annotated[Path, typer.Argument(help="A classifier that was saved as JSON.", show_default=False)]


def explain(
    model: Model,
    *,
    classes: Annotated[
        list[str] | None, typer.Option("--class", help="Show this class alone; may be repeated.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a saved classifier: its prompts, the word for each class, and the weights.

    In a terminal it is as wide as the terminal, and paged (by PAGER, if that is set) where it is longer.

    Examples:
        pbsdk explain model.json
        pbsdk explain model.json --class billing --class shipping
    """
    import pydoc

    from pbsdk.learning.model_file import SavedClassifier

    explanation = SavedClassifier.load(model).explain()
    if classes:
        explanation = explanation.only(classes)
    if sys.stdout.isatty() and not as_json:
        size = shutil.get_terminal_size()
        text = visible(explanation.fitted_to(size.columns))
        if text.count("\n") >= size.lines - 1:
            pydoc.pager(text)
        else:
            typer.echo(text)
        return
    show(explanation, explanation.to_dict(), as_json=as_json)
