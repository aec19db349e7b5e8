"""What several commands share: options, printing as text or JSON, and errors in the command line's terms.

The library's errors name the cure as a Python parameter (`text=`, `QueryBudget(passes=...)`), and its
warnings come with a line of source. `plainly` rewrites both for the command line.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

import typer

from pbsdk.cli import _completion
from pbsdk.errors import BackendError, BudgetExceeded, InputError, PbsdkError, SetupError
from pbsdk.foreign import bounded_json
from pbsdk.visible import visible, visible_json

if TYPE_CHECKING:
    from pbsdk.audit.report import AuditReport
    from pbsdk.data.loading import LabelledTexts
    from pbsdk.ledger.budget import QueryBudget
    from pbsdk.metering.meter import MeteredBackend

__all__ = [
    "SECRET",
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
    "connected",
    "cure_of",
    "naming_rows",
    "plain",
    "plainly",
    "read_options",
    "remembered",
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
    "missing": "--missing drop, which fit has",
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
            read[name.replace("-", "_")] = bounded_json(value)
        except ValueError:
            read[name.replace("-", "_")] = value
    return read


def remembered(backend: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """Return what a model file keeps of how its backend was opened: plain values, and no address that holds a secret."""
    from pbsdk.connecting import default_name

    def plain(value: Any) -> bool:
        address = urlsplit(value) if isinstance(value, str) and "://" in value else None
        secret = address is not None and ("@" in address.netloc or bool(address.query))
        return isinstance(value, str | int | float | bool | None) and not secret

    return {"name": backend or default_name(), "options": {key: kept for key, kept in options.items() if plain(kept)}}


def connected(  # noqa: PLR0913 - a command's options
    model: Path | None,
    backend: str | None,
    options: dict[str, Any],
    *,
    run: str | None,
    budget: QueryBudget,
    engine: str | None = None,
    asks: bool = True,
) -> MeteredBackend:
    """Connect to the backend that is named, or else to the one that a classifier was trained on, inside an engine's if one is named.

    Options that are given go before those that the model file remembers. An address elsewhere has to be typed: a file from
    a stranger must not choose who reads the texts. A remembered backend that can't be opened, or
    that is another model by now, is an error that says what to type. A model that nobody `asks` needs no weights.
    """
    from pbsdk.connecting import connect, connect_to_plan, default_name
    from pbsdk.learning.model_file import SavedClassifier

    opened = connect if asks else connect_to_plan
    if model is None or backend is not None:
        outer, told = _within(engine, backend or default_name(), options)
        return opened(outer, run=run, budget=budget, **told)
    saved = SavedClassifier.load(model)
    name = saved.backend.name if saved.backend else None
    kept: dict[str, Any] = {**saved.backend.options} if saved.backend else {}
    elsewhere = next((value for key, value in kept.items() if key not in options and _leaves(key, value)), None)
    if elsewhere is not None:
        raise SetupError(
            f"{model} says to send the texts, and the key for it, to {elsewhere}; if you trust that, type {_typed(name, kept)}"
        )
    kept |= options
    try:
        outer, told = _within(engine, name or default_name(), kept)
        lm = opened(outer, run=run, budget=budget, **told)
    except (SetupError, InputError, BackendError) as error:
        if saved.backend is None:
            raise
        raise SetupError(
            f"{error}. {model} was trained with `{_typed(name, kept)}`; if that is elsewhere now, say so with --backend and -o"
        ) from error
    difference = "" if options else lm.identity.differences(saved.identity)
    if difference:
        lm.close()
        raise SetupError(
            f"{model} was trained on another model than the one that answers now ({difference}); name the right one with "
            f"--backend and -o, or use this one with `{_typed(name or default_name(), kept)}`"
        )
    return lm


def _within(engine: str | None, name: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the backend that runs another inside an engine; it has the engine's name."""
    return (name, options) if engine in {None, name} else (str(engine), {"inner": name, **options})


_BARE_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[\w.-]+):\d+")


def _leaves(name: str, value: Any) -> bool:
    """Return whether an option chooses another machine, as an address or by a provider's name, which no file alone may do."""
    if name == "provider" and value is not None:
        return True
    if not isinstance(value, str):
        return False
    bare = _BARE_ADDRESS.fullmatch(value)
    address = urlsplit(value if "://" in value else f"//{value}") if bare or "://" in value else None
    return address is not None and address.hostname not in {"127.0.0.1", "::1", "localhost"}


def _typed(name: str | None, options: dict[str, Any]) -> str:
    """Return what somebody types to open a backend."""
    said = [
        f"-o {shlex.quote(f'{key}={value if isinstance(value, str) else json.dumps(value)}')}"
        for key, value in options.items()
    ]
    return " ".join(["--backend", shlex.quote(name or "NAME"), *said])


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
    value = f" {error.value}" if error.setting in {"delimiter", "encoding"} else ""
    return f"{error.problem} {(names or {}).get(error.setting) or _OPTIONS[error.setting]}{value}"


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
