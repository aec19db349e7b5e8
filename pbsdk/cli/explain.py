"""`pbsdk explain`: what a saved classifier has learned."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pbsdk.cli._common import AsJson, show

__all__ = ["explain"]

Model = Annotated[Path, typer.Argument(help="A classifier that was saved as JSON.", show_default=False)]


def explain(model: Model, *, as_json: AsJson = False) -> None:
    """Show a saved classifier: its prompts, the word for each class, and the weights.

    Examples:
        pbsdk explain model.json
    """
    from pbsdk.learning.model_file import SavedClassifier

    explanation = SavedClassifier.load(model).explain()
    show(explanation, explanation.to_dict(), as_json=as_json)
