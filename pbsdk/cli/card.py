"""`pbsdk card`: a saved classifier described for whoever has to approve of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pbsdk.cli._common import plainly, room_for, say
from pbsdk.errors import InputError

__all__ = ["card"]


def card(
    model: Annotated[Path, typer.Argument(help="A classifier that `pbsdk fit` saved.", show_default=False)],
    *,
    run: Annotated[
        Path | None,
        typer.Option(
            help="The run folder that it was trained in, for its counts and a certificate.", show_default=False
        ),
    ] = None,
    title: Annotated[str, typer.Option(help="The card's heading.", show_default=False)] = "",
    notes: Annotated[
        Path | None,
        typer.Option(
            help="A Markdown file to stand under it: what the classifier is for, for example.", show_default=False
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Where the card is written; standard output by default.", show_default=False)
    ] = None,
) -> None:
    """Write a model card in Markdown: data, accuracy, confusions, calibration, prompts, passes and a certificate.

    It holds no texts but the prompts' own. The run folder is verified for it.

    Examples:
        pbsdk card model.json
        pbsdk card model.json --run runs/tickets --title "Tickets to teams" --output card.md
    """
    from pbsdk.card import ModelCard
    from pbsdk.learning.model_file import SavedClassifier

    with plainly():
        said = ""
        if notes is not None:
            try:
                said = notes.read_text("utf-8")
            except (OSError, UnicodeError) as error:
                raise InputError(f"{notes} can't be read: {error}") from error
        text = ModelCard.of(SavedClassifier.load(model), run, title=title, notes=said).to_markdown()
        if output is None:
            say(text.rstrip())
            return
        try:
            room_for(output).write_text(text, encoding="utf-8")
        except OSError as error:
            raise InputError(f"{output} can't be written: {error.strerror}; choose another place") from error
    say(f"The card is in {output}.")
