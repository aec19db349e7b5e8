"""What several commands share: options, printing as text or JSON, and errors in the command line's terms.

The library's errors name the cure as a Python parameter (`text=`, `QueryBudget(passes=...)`), and its
warnings come with a line of source. `plainly` rewrites both for the command line.
"""

from __future__ import annotations

import ast
import math
import re
import shlex
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pbsdk.cli import _completion
from pbsdk.errors import BudgetExceeded, InputError, PbsdkError
from pbsdk.visible import visible, visible_json

if TYPE_CHECKING:
    from pbsdk.audit.report import AuditReport
    from pbsdk.data.loading import LabelledTexts
    from pbsdk.ledger.budget import QueryBudget

__all__ = [
    "AsJson",
    "Attempts",
    "Backend",
    "Budget",
    "Delimiter",
    "Demonstrations",
    "Encoding",
    "Markers",
    "Missing",
    "Money",
    "Options",
    "PairColumn",
    "PricePer1kTokens",
    "PricePerPass",
    "Progress",
    "Prompts",
    "Run",
    "RunFolder",
    "Split",
    "Strict",
    "TextColumn",
    "Tokens",
    "Total",
    "amount",
    "budget_of",
    "cure_of",
    "naming_rows",
    "plain",
    "plainly",
    "room_for",
    "rows_of",
    "say",
    "sends",
    "show",
    "typed",
]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Backend = Annotated[
    str | None,
    typer.Option(
        help="A backend's name, as for connect(); by default the model file's, or else the embedded model.",
        show_default=False,
        autocompletion=_completion.backend_names,
    ),
]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", help="An option of the backend, such as `-o model=roberta-large`; may be repeated."),
]
Run = Annotated[
    str | None,
    typer.Option(
        help="The folder (or postgresql:// address) that records every query; one under runs/ by default.",
        show_default=False,
        metavar="PATH",  # but text: a Path would lose one of an address's slashes
        autocompletion=_completion.folders,
    ),
]
RunFolder = Annotated[
    str,
    typer.Argument(
        help="A run folder or postgresql:// address, as given to connect(run=...).",
        show_default=False,
        metavar="PATH",
        autocompletion=_completion.folders,
    ),
]


def amount(value: float | None) -> float | None:
    """Refuse what is no number."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is no amount.")
    return value


Budget = Annotated[int, typer.Option(min=0, help="How many passes an example may have.")]
Total = Annotated[
    int | None,
    typer.Option(min=0, help="Passes in all, over the whole run folder.", show_default=False),
]
Attempts = Annotated[
    int | None,
    typer.Option(min=0, help="Queries sent in all, retries included.", show_default=False),
]
Tokens = Annotated[int | None, typer.Option(min=0, help="Tokens read in all.", show_default=False)]
Money = Annotated[
    float | None,
    typer.Option(min=0, callback=amount, help="Money in all; needs a price.", show_default=False),
]
PricePerPass = Annotated[float, typer.Option(min=0, callback=amount, help="What a pass costs.")]
PricePer1kTokens = Annotated[
    float,
    typer.Option("--price-per-1k-tokens", min=0, callback=amount, help="What 1,000 tokens cost."),
]
Strict = Annotated[bool, typer.Option("--strict", help="Count every attempt as a pass, retries too.")]
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
Screen = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="How many texts to ask about in full; of the others, only tokens that are likely there are kept. 0: all. "
        "By default 1,000 where whole answers would take more than 10 GB, else 0.",
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
    typer.Option(help="What separates a file's fields; found by default.", show_default=False),
]
Missing = Annotated[Literal["refuse", "drop"], typer.Option(help="What to do with rows that lack a text or a label.")]
Markers = Annotated[Literal["refuse", "escape"], typer.Option(help="What to do with texts that contain a mask.")]

_OPTIONS = {
    "text": "--text-column",
    "label": "--label-column",
    "delimiter": "--delimiter",
    "encoding": "--encoding",
    "split": "--split",
    "missing": "--missing drop, which fit and plan have",
    "markers": "--markers escape",
    "demonstrations": "--demonstrations 0",
    "screen": "--screen 0",
    "label_names": "label_names in Python, or change the labels in the table",
    "label_words": "--label-words LABEL=WORD,...",
    "price_per_1k_tokens": "--price-per-1k-tokens or --price-per-pass",
}
"""What the command line calls the settings that an error may name."""


def show(text: object, data: Any, *, as_json: bool) -> None:
    """Print a result on standard output."""
    say(visible_json(data, indent=2) if as_json else text)


def say(text: object, *, err: bool = False) -> None:
    """Print on standard output or standard error; what would steer the terminal is shown."""
    typer.echo(visible(str(text)), err=err)


def typed(ctx: typer.Context, name: str) -> bool:
    """Return whether an option or argument comes from somewhere else than `pbsdk.toml`."""
    source = ctx.get_parameter_source(name)
    return source is None or source.name != "DEFAULT_MAP"


def budget_of(passes: int, **limits: Any) -> QueryBudget:
    """Return the budget that a command's limits make; passes are per example, for a fit and for a prediction."""
    from pbsdk.ledger.budget import QueryBudget

    return QueryBudget(passes=passes, predict=passes, **limits)


def cure_of(error: BudgetExceeded) -> str:
    """Return the error's message, with the option that would allow what it refuses."""
    if not error.limit:
        return str(error)
    return error.with_cure(f"--{'budget' if error.per_example else error.limit} {error.needed}")


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


def plain(error: PbsdkError, names: Mapping[str, str] | None = None) -> str:
    """Return what an error says, with the option that would cure it, which a command may have other `names` for."""
    if not isinstance(error, InputError) or error.setting not in _OPTIONS:
        return str(error)
    option = (names or {}).get(error.setting) or _OPTIONS[error.setting]
    return f"{error.problem} {option}{_as_typed(error)}"


def _as_typed(error: InputError) -> str:
    """Return the value that an option should have, after a space, as a shell takes it."""
    if not error.value or error.setting not in {"delimiter", "encoding", "text", "label"}:
        return ""
    value: str = ast.literal_eval(error.value)
    return f" {shlex.quote(value) if value.isprintable() else f'${error.value}'}"


@contextmanager
def plainly(**names: str) -> Iterator[None]:
    """Print warnings on one line, name cures as options, and say what an interrupt leaves behind."""
    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = _one_line
        try:
            yield
        except BudgetExceeded as error:
            if not error.limit:
                raise
            raise BudgetExceeded(cure_of(error)) from error
        except InputError as error:
            if error.setting not in _OPTIONS:
                raise
            raise type(error)(plain(error, names)) from error
        except KeyboardInterrupt as interrupt:
            interrupt.add_note("what was answered is kept, and the same command continues from there")
            raise


_NUMBERED = re.compile(r"((?:validation )?texts)\[(\d+)\]")


@contextmanager
def naming_rows(**places: Callable[[int], str] | None) -> Iterator[None]:
    """Where an error names a text by its number, say where it is instead, as `texts` and `validation_texts` tell."""
    try:
        yield
    except InputError as error:
        found = _NUMBERED.match(error.problem)
        place = places.get(found[1].replace(" ", "_")) if found else None
        if found is None or place is None:
            raise
        problem = place(int(found[2])) + error.problem[found.end() :]
        raise type(error)(problem, setting=error.setting, value=error.value) from error


def rows_of(file: Path | str, texts: LabelledTexts) -> Callable[[int], str]:
    """Return what says in which row of a file a text is."""
    return lambda at: f"{texts.place(at)} of {Path(file).name}"


def _one_line(message: Warning | str, *_: object, **__: object) -> None:
    say(f"warning: {message}", err=True)
