"""`pbsdk parity`: two backends compared on a few texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pbsdk.cli import _completion
from pbsdk.cli._common import AsJson, Delimiter, Encoding, TextColumn, plainly, show
from pbsdk.cli._opening import familiar, read_options
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
        Path | None,
        typer.Option(
            help="A table of texts, or a .txt file with one a line; eight of the demo's tickets by default.",
            show_default=False,
        ),
    ] = None,
    text_column: TextColumn = None,
    encoding: Encoding = "utf-8",
    delimiter: Delimiter = None,
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
        pbsdk parity smollm2 openai --b model=smollm2 --texts new.csv --model model.json
    """
    from pbsdk.connecting import open_backend
    from pbsdk.data.tickets import load_tickets
    from pbsdk.parity import parity as compare

    with plainly():
        lines: Any = load_tickets().test.texts[:8]
        if texts is not None:
            known = familiar(model) if model else []
            lines = _texts(texts, text=text_column, familiar=known, encoding=encoding, delimiter=delimiter)
    with (
        open_backend(first, **read_options(first_option)) as one,
        open_backend(second, **read_options(second_option)) as two,
    ):
        report = compare(one, two, lines, model=model)
    show(report, report.to_dict(), as_json=as_json)
    if report.verdict == "different":
        raise typer.Exit(1)


def _texts(file: Path, **reading: Any) -> list[Any]:
    """Return the texts of a table, or the lines of a file that is none."""
    from pbsdk.data.files import SUFFIXES
    from pbsdk.data.loading import load_table

    if file.suffix.lower() in SUFFIXES or reading["delimiter"] is not None:
        return load_table(file, labelled=False, **reading).examples
    try:
        return [line for line in file.read_text(reading["encoding"]).splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError, LookupError) as error:
        raise InputError(f"the texts of {file} can't be read: {error}") from error
