"""What several commands share: options, printing as text or JSON, and errors in the command line's terms.

The library's errors name the cure as a Python parameter (`text=`, `QueryBudget(passes=...)`), and its
warnings come with a line of source. `plainly` rewrites both for the command line.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pbsdk.cli import _completion
from pbsdk.errors import BudgetExceeded, InputError

if TYPE_CHECKING:
    from pbsdk.audit.report import AuditReport

__all__ = [
    "AsJson",
    "Backend",
    "Budget",
    "Delimiter",
    "Demonstrations",
    "Encoding",
    "Markers",
    "Options",
    "PairColumn",
    "Progress",
    "Prompts",
    "Run",
    "RunFolder",
    "Split",
    "TextColumn",
    "plainly",
    "read_options",
    "room_for",
    "sends",
    "show",
]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Backend = Annotated[
    str | None,
    typer.Option(
        help="A backend's name, as for connect(); the embedded model by default.",
        show_default=False,
        autocompletion=_completion.backend_names,
    ),
]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", help="An option of the backend, such as `-o model=roberta-large`; may be repeated."),
]
Run = Annotated[
    Path | None,
    typer.Option(help="The folder that records every query; one under runs/ by default.", show_default=False),
]
RunFolder = Annotated[Path, typer.Argument(help="A run folder, as given to connect(run=...).", show_default=False)]
Budget = Annotated[int, typer.Option(min=0, help="How many passes an example may have.")]
Prompts = Annotated[
    str, typer.Option(help="A pool's name or file; see `pbsdk prompts list`.", autocompletion=_completion.pools)
]
Demonstrations = Annotated[
    int | None,
    typer.Option(
        help="How many labelled texts per class each prompt shows; 1 where a prompt has <examples> if left out.",
        show_default=False,
    ),
]
Progress = Annotated[
    bool | None,
    typer.Option(
        "--progress/--no-progress", help="Show progress bars; by default only in a terminal.", show_default=False
    ),
]
TextColumn = Annotated[
    str | None,
    typer.Option(help="The column of texts; found automatically if it has a usual name.", show_default=False),
]
LabelColumn = Annotated[
    str | None,
    typer.Option(help="The column of labels; found automatically if it has a usual name.", show_default=False),
]
PairColumn = Annotated[str | None, typer.Option(help="The column of second texts, for pairs.", show_default=False)]
Split = Annotated[
    str | None, typer.Option(help="Which part of a Hugging Face data set, such as train.", show_default=False)
]
Encoding = Annotated[str, typer.Option(help="How a text file is encoded.")]
Delimiter = Annotated[
    str | None,
    typer.Option(help="What separates a file's fields; inferred from its suffix by default.", show_default=False),
]
Markers = Annotated[Literal["refuse", "escape"], typer.Option(help="What to do with texts that contain a mask.")]

_OPTIONS = {
    "text": "--text-column",
    "label": "--label-column",
    "delimiter": "--delimiter",
    "split": "--split",
    "missing": "--missing drop, which fit has",
    "markers": "--markers escape",
    "demonstrations": "--demonstrations 0",
    "label_names": "label_names in Python, or change the labels in the table",
    "label_words": "--label-words LABEL=WORD,...",
}
"""What the command line calls the settings that an error may name."""


def show(text: object, data: Any, *, as_json: bool) -> None:
    """Print a result on standard output."""
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False) if as_json else str(text))


SECRET = re.compile(r"(^|[_-])(key|token|secret|password)$", re.IGNORECASE)
"""Names of options that hold what nobody else should see."""


def read_options(options: list[str] | None) -> dict[str, Any]:
    """Read `name=value`; a value that is JSON (a number, true, null) is read as such."""
    read: dict[str, Any] = {}
    for option in options or []:
        name, equals, value = option.partition("=")
        if not equals or not name:
            raise InputError(f"an option must be name=value, such as model=roberta-large; not {option!r}")
        if SECRET.search(name):
            raise InputError(
                f"-o {name}=... would show a secret to everyone who lists this machine's processes; set PBSDK_API_KEY, or the provider's "
                "own variable such as OPENAI_API_KEY, in the environment"
            )
        try:
            read[name.replace("-", "_")] = json.loads(value)
        except json.JSONDecodeError:
            read[name.replace("-", "_")] = value
    return read


def sends(report: AuditReport) -> int:
    """Return how many queries a run has sent so far, repeated ones included."""
    return sum(phase.attempts for phase in report.phases)


def room_for(file: Path) -> Path:
    """Create the folder of a file to be written, or refuse the file before anything is spent."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{file} can't be written: {error.strerror}; choose another place") from error
    if file.is_dir():
        raise InputError(f"{file} is a folder; give the name of a file")
    return file


@contextmanager
def plainly() -> Iterator[None]:
    """Print warnings on one line, name cures as options, and say what an interrupt leaves behind."""
    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = _one_line
        try:
            yield
        except BudgetExceeded as error:
            if not error.per_example:
                raise
            raise BudgetExceeded(error.with_cure(f"--budget {error.needed}")) from error
        except InputError as error:
            if error.setting not in _OPTIONS:
                raise
            value = f" {error.value}" if error.setting == "delimiter" else ""
            raise type(error)(f"{error.problem} {_OPTIONS[error.setting]}{value}") from error
        except KeyboardInterrupt as interrupt:
            interrupt.add_note("what was answered is kept, and the same command continues from there")
            raise


def _one_line(message: Warning | str, *_: object, **__: object) -> None:
    typer.echo(f"warning: {message}", err=True)
