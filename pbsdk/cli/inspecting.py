"""Commands that look and ask no model: explain, backends."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pbsdk.cli.common import AsJson, show

__all__ = ["backends", "explain"]

Model = Annotated[Path, typer.Argument(help="A classifier that was saved as JSON.", show_default=False)]


def explain(model: Model, *, as_json: AsJson = False) -> None:
    """Show a saved classifier: its prompts, the word for each class, and the weights.

    Examples:
        pbsdk explain model.json
    """
    from pbsdk.learning.model_file import SavedClassifier

    explanation = SavedClassifier.load(model).explain()
    show(explanation, explanation.to_dict(), as_json=as_json)


def backends(*, as_json: AsJson = False) -> None:
    """List the backends that connect() knows, and what keeps any of them from working.

    Examples:
        pbsdk backends
        pbsdk backends --json
    """
    from pbsdk.connecting import available

    found = available()
    text = "\n".join(f"{backend.name:<14}{backend.problem or backend.about}" for backend in found)
    show(text, [asdict(backend) for backend in found], as_json=as_json)
