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

Model = Annotated[
    Path,
    typer.Argument(
        help="A classifier that was saved as JSON; may be left out where pbsdk.toml names it.", show_default=False
    ),
]


def explain(
    model: Model,
    *,
    classes: Annotated[
        list[str] | None, typer.Option("--class", help="Show this class alone; may be repeated.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a saved classifier: its prompts, the word for each class, and the weights.

    It is as wide as the terminal, and paged (by PAGER, if that is set) where it is longer; in a pipe or a file as wide as COLUMNS says, or 100.

    Examples:
        pbsdk explain model.json
        pbsdk explain model.json --class billing --class shipping
    """
    import pydoc

    from pbsdk.learning.model_file import SavedClassifier

    explanation = SavedClassifier.load(model).explain()
    if classes:
        explanation = explanation.only(classes)
    size = shutil.get_terminal_size(_IN_A_PIPE)
    text = visible(explanation.fitted_to(size.columns))
    if sys.stdout.isatty() and not as_json and text.count("\n") >= size.lines - 1:
        pydoc.pager(text)
    else:
        show(text, explanation.to_dict(), as_json=as_json)


_IN_A_PIPE = (100, 24)
"""Columns and lines where no terminal says how many it has."""
