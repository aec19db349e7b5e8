"""`pbsdk parity`: two backends compared on a few texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pbsdk.cli import _completion
from pbsdk.cli._common import AsJson, read_options, show
from pbsdk.errors import InputError

__all__ = ["parity"]


def parity(  # noqa: PLR0913 - a command's options are its parameters
    first: Annotated[
        str, typer.Argument(help="A backend's name.", show_default=False, autocompletion=_completion.backend_names)
    ],
    second: Annotated[
        str,
        typer.Argument(
            help="The name of the backend to compare it with.",
            show_default=False,
            autocompletion=_completion.backend_names,
        ),
    ],
    *,
    first_option: Annotated[
        list[str] | None, typer.Option("--a", help="An option of the first: `--a model=...`.")
    ] = None,
    second_option: Annotated[
        list[str] | None, typer.Option("--b", help="An option of the second: `--b url=...`.")
    ] = None,
    texts: Annotated[
        Path | None, typer.Option(help="A file with one text per line; eight of the demo's tickets by default.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="A saved classifier; how it labels the texts on both decides.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare two backends on a few texts, before any money is spent on training.

    Shows differences in log-probability, the likeliest words, what is shown of the vocabulary, and a verdict. Takes a
    handful of passes on each; with --model, one more for each of the classifier's prompts.

    Examples:
        pbsdk parity smollm2 http --b url=http://127.0.0.1:8000
        pbsdk parity fake fake --b seed=1                   # exit code 1: different
        pbsdk parity smollm2 openai --b model=smollm2 --texts texts.txt --model model.json
    """
    from pbsdk.connecting import open_backend
    from pbsdk.data.tickets import load_tickets
    from pbsdk.parity import parity as compare

    lines = load_tickets().test.texts[:8]
    if texts is not None:
        try:
            lines = [line for line in texts.read_text("utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"can't read texts from {texts}: {error}") from error
    with (
        open_backend(first, **read_options(first_option)) as one,
        open_backend(second, **read_options(second_option)) as two,
    ):
        report = compare(one, two, lines, model=model)
    show(report, report.to_dict(), as_json=as_json)
    if report.verdict == "different":
        raise typer.Exit(1)
