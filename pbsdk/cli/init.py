"""`pbsdk init`: from a table to a plan and a `pbsdk.toml`, in a few questions or none."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pbsdk.cli._common import (
    Backend,
    Delimiter,
    Encoding,
    LabelColumn,
    Missing,
    Options,
    PairColumn,
    TextColumn,
    amount,
    budget_of,
    cure_of,
    plainly,
    say,
)
from pbsdk.cli._opening import read_options
from pbsdk.cli._settings import FILE, Settings
from pbsdk.errors import BackendError, InputError, SetupError
from pbsdk.formatting import aligned

if TYPE_CHECKING:
    from pbsdk.data.columns import Roles
    from pbsdk.data.loading import LabelledTexts
    from pbsdk.metering.plan import Plan

__all__ = ["init"]


def init(  # noqa: PLR0913 - a command's options are its parameters
    data: Annotated[
        str | None,
        typer.Argument(help="Labelled texts: CSV, TSV, JSON lines, Parquet or Excel.", show_default=False),
    ] = None,
    *,
    text_column: TextColumn = None,
    pair_column: PairColumn = None,
    label_column: LabelColumn = None,
    missing: Missing = "refuse",
    encoding: Encoding = "utf-8",
    delimiter: Delimiter = None,
    backend: Backend = None,
    option: Options = None,
    prompts: Annotated[
        str | None, typer.Option(help="A pool's name or file; topic by default.", show_default=False)
    ] = None,
    budget: Annotated[
        int | None, typer.Option(min=0, help="How many passes an example may have; 10 by default.", show_default=False)
    ] = None,
    money: Annotated[
        float | None, typer.Option(min=0, callback=amount, help="Money in all; needs a price.", show_default=False)
    ] = None,
    price_per_pass: Annotated[
        float | None, typer.Option(min=0, callback=amount, help="What a pass costs.", show_default=False)
    ] = None,
    price_per_1k_tokens: Annotated[
        float | None,
        typer.Option(
            "--price-per-1k-tokens", min=0, callback=amount, help="What 1,000 tokens cost.", show_default=False
        ),
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="The folder that records every query; runs/NAME by default.", show_default=False)
    ] = None,
    output: Annotated[Path, typer.Option(help="Where `fit` saves the classifier.")] = Path("model.json"),
    ask: Annotated[
        bool | None,
        typer.Option(
            "--ask/--no-ask", help="Ask for what isn't given; by default only in a terminal.", show_default=False
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help=f"Replace a {FILE} that is there.")] = False,
) -> None:
    """Look at a table, show what a classifier will take, and write pbsdk.toml, which the other commands read.

    In a terminal it asks for what isn't given; everything can be given as options. Nothing is sent to the model.

    Examples:
        pbsdk init tickets.csv --no-ask --force
        pbsdk init tickets.csv --backend fake --money 5 --price-per-1k-tokens 0.02 --no-ask --force
    """
    asks = sys.stdin.isatty() if ask is None else ask
    with plainly(missing="--missing drop"):
        if FILE.exists() and not force and not (asks and typer.confirm(f"{FILE} is there already. Replace it?")):
            raise InputError(f"{FILE} is there already; give --force to replace it")
        names = {"text": text_column, "pair": pair_column, "label": label_column}
        form = {"missing": missing, "encoding": encoding, "delimiter": delimiter}
        file, texts = _table(data, names, form, ask=asks)
        name = backend or _backend(ask=asks)
        pool = prompts or (_ask("Prompts (a pool's name or file)", default="topic") if asks else "topic")
        passes = budget if budget is not None else (_ask("Passes per text", default=10, type=int) if asks else 10)
        prices = {"price_per_pass": price_per_pass, "price_per_1k_tokens": price_per_1k_tokens}
        if money is None and asks:
            money, prices = _money(prices)
        settings = Settings.model_validate(
            {
                "data": {"file": file, **_reading(texts.roles, form)},
                "model": {"backend": name, "options": read_options(option)},
                "fit": {"prompts": pool, "output": str(output)},
                "run": {"folder": str(run or Path("runs") / Path(file).stem)},
                "budget": {"passes": passes, "money": money, **prices},
            }
        )
        limits = budget_of(passes, money=money, **{key: value or 0.0 for key, value in prices.items()})
        found = _plan(settings, texts, limits)
        try:
            FILE.write_text(settings.to_toml(), encoding="utf-8")
        except OSError as error:
            raise InputError(f"{FILE} can't be written: {error.strerror}") from error
    say(f"{_counted(texts)}\n\n{found}\n\n{FILE} is written. Next: pbsdk fit")


def _counted(texts: LabelledTexts) -> str:
    """Return the classes with their counts, on a line each if there are many."""
    counts = Counter(texts.labels)
    said = f"{len(texts)} texts of {len(counts)} classes"
    few = ", ".join(f"{label} ({count})" for label, count in counts.items())
    if len(few) <= _LINE:
        return f"{said}: {few}"
    return f"{said}\n{aligned([(f'  {label}', str(count)) for label, count in counts.most_common()])}"


_LINE = 80


def _reading(roles: Roles | None, form: dict[str, Any]) -> dict[str, Any]:
    """Return how the table is read, as the file says it: columns by name, since a table of new texts may have others too."""
    names = {} if roles is None else {f"{key}_column": value for key, value in asdict(roles).items()}
    return names | {key: value for key, value in form.items() if value != _USUAL[key]}


_USUAL = {"missing": "refuse", "encoding": "utf-8", "delimiter": None}


def _table(given: str | None, names: dict[str, Any], form: dict[str, Any], *, ask: bool) -> tuple[str, LabelledTexts]:
    """Return the file and its texts."""
    from pbsdk.data.loading import load_table

    if given is None and not ask:
        raise InputError("name the file that holds your labelled texts, as in: pbsdk init tickets.csv")
    file = given or _ask("Which file holds your labelled texts?")
    while True:
        try:
            texts = load_table(file, **names, **form)
        except InputError as error:
            if not ask or error.setting not in names or names[error.setting] is not None:
                raise
            say(f"{error.problem.rpartition(';')[0]}.")
            likely = ast.literal_eval(error.value) if error.value else None
            names[error.setting] = _ask(f"Which column holds the {error.setting}?", likely)
        else:
            return file, texts


def _backend(*, ask: bool) -> str:
    from pbsdk.connecting import available, default_name

    if not ask:
        return default_name()
    for one in available():
        say(f"  {one.name:<14}{one.problem or one.about}")
    answer: str = _ask("Which model's backend?", default=default_name())
    return answer


def _ask(question: str, default: Any = None, **settings: Any) -> Any:
    """Ask; a question mark ends a question."""
    return typer.prompt(question, default=default, prompt_suffix=" " if question.endswith("?") else ": ", **settings)


def _money(prices: dict[str, float | None]) -> tuple[float | None, dict[str, float | None]]:
    """Ask for the limit and, if there is one and no price, for what tokens cost."""
    answer = _ask("The most that it may cost (leave empty for no limit)", default="", show_default=False)
    if not answer:
        return None, prices
    try:
        money = float(answer)
    except ValueError as error:
        raise InputError(f"{answer!r} is no amount; give a number, such as 5") from error
    if not any(prices.values()):
        prices = {**prices, "price_per_1k_tokens": _ask("What do 1,000 tokens cost?", type=float)}
    return money, prices


def _plan(settings: Settings, texts: LabelledTexts, limits: Any) -> Plan | str:
    """Return what a fit will take, or what keeps the model from being opened."""
    from pbsdk.classifier import PromptBoostingClassifier
    from pbsdk.connecting import connect
    from pbsdk.metering.plan import plan_classifier

    options: dict[str, Any] = settings.model.options
    try:
        with connect(settings.model.backend, run=settings.run.folder, budget=limits, **options) as lm:
            clf = PromptBoostingClassifier(lm, settings.fit.prompts)
            return plan_classifier(clf, (texts.examples, texts.labels)).worded(cure_of)
    except (SetupError, BackendError) as error:
        return f"No plan yet, since the model can't be opened: {error}"
