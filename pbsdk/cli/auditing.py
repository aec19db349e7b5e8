"""Commands about what a run asks and asked: plan, audit and its parts, why-miss.

`pbsdk audit RUN` needs no word in between: whatever follows `audit` and isn't the name of one of its
commands is a run folder. A folder called `diff` is written `./diff`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from pbsdk.audit import AuditReport
from pbsdk.budget import QueryBudget
from pbsdk.certificate import Certificate
from pbsdk.classifier import PromptBoostingClassifier
from pbsdk.cli.common import AsJson, Backend, Budget, Options, PairColumn, TextColumn, plainly, read_options, show
from pbsdk.cli.common import Run as RunOption
from pbsdk.comparing import AuditDiff
from pbsdk.errors import InputError
from pbsdk.ledger import verify_run
from pbsdk.loading import load_table
from pbsdk.misses import why_miss
from pbsdk.planning import plan_classifier
from pbsdk.reading import LedgerReader
from pbsdk.registry import connect

__all__ = ["add_to"]

Run = Annotated[Path, typer.Argument(help="A run folder, as given to connect(run=...).", show_default=False)]
AsMarkdown = Annotated[bool, typer.Option("--markdown", help="Print Markdown.")]


class _RunGroup(TyperGroup):
    """A group whose bare argument is a run folder, for the command `show`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, "-h", "--help"}:
            args = ["show", *args]
        return super().parse_args(ctx, args)


group = typer.Typer(cls=_RunGroup, no_args_is_help=True, rich_markup_mode="markdown")


@group.callback()
def audit() -> None:
    """Show what a run asked, against its budget: `pbsdk audit RUN`.

    The folder may be in use. `--html FILE` writes a page for whoever pays the bill.
    """


@group.command("show")
def show_report(
    run: Run,
    *,
    html: Annotated[
        Path | None, typer.Option(help="Write a self-contained HTML page here.", show_default=False)
    ] = None,
    markdown: AsMarkdown = False,
    as_json: AsJson = False,
) -> None:
    """The report; the word `show` may be left out."""
    report = AuditReport.read(run)
    if html is not None:
        _writing(html, report.to_html())
        typer.echo(f"{html}: {report.verdict}", err=True)
        if not (markdown or as_json):
            return
    if not as_json and not markdown and sys.stdout.isatty():
        Console().print(report)
        return
    show(report.to_markdown() if markdown else report, report.to_dict(), as_json=as_json)


@group.command()
def diff(a: Run, b: Run, *, markdown: AsMarkdown = False, as_json: AsJson = False) -> None:
    """Show two runs side by side: local against remote, before against after."""
    found = AuditDiff.read(a, b)
    show(found.to_markdown() if markdown else found, found.to_dict(), as_json=as_json)


@group.command()
def verify(
    run: Run,
    *,
    certificate: Annotated[
        Path | None, typer.Option(help="A certificate that was kept elsewhere.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Derive a run's chain, its answers' digests and its counts again; name the first record that doesn't fit."""
    checked = verify_run(run) if certificate is None else Certificate.load(certificate).check(run)
    text = f"{checked}" + ("" if certificate is None else "; the certificate fits")
    show(text, checked.to_dict(), as_json=as_json)


@group.command()
def certify(
    run: Run, file: Annotated[Path | None, typer.Argument(help="Where to write it.", show_default=False)] = None
) -> None:
    """Verify a run and print, or write, its certificate: the head of the chain and the counts."""
    certificate = Certificate.of(run)
    if file is None:
        typer.echo(certificate.to_json(), nl=False)
    else:
        _writing(file, certificate.to_json())


@group.command()
def export(run: Run, file: Annotated[Path, typer.Argument(help="Where to write it.", show_default=False)]) -> None:
    """Write the records as JSON lines; `docs/verify_ledger.py` recounts them without pbsdk."""
    with LedgerReader(run) as reader:
        try:
            reader.export(file)
        except OSError as error:
            raise InputError(f"{file} can't be written: {error.strerror}") from error


@group.command()
def schema() -> None:
    """Print the JSON schema of the report's JSON form."""
    typer.echo(json.dumps(AuditReport.model_json_schema(), indent=2))


def why_miss_command(
    run: Run,
    *,
    against: Annotated[
        Path | None, typer.Option(help="Another run folder, to compare with.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say which part of the key kept queries from being recalled."""
    report = why_miss(run, against)
    show(report, report.to_dict(), as_json=as_json)


def plan(
    train: Annotated[
        Path | None, typer.Argument(help="Labelled texts to fit: CSV, TSV, JSON lines, Parquet.", show_default=False)
    ] = None,
    *,
    validation: Annotated[Path | None, typer.Option(help="Labelled texts to validate on.", show_default=False)] = None,
    predict: Annotated[Path | None, typer.Option(help="Texts to predict.", show_default=False)] = None,
    model: Annotated[
        Path | None, typer.Option(help="A saved classifier; then only a prediction is planned.", show_default=False)
    ] = None,
    prompts: Annotated[str, typer.Option(help="A pool's name or file.")] = "topic",
    n_prompts: Annotated[int | None, typer.Option(help="Only the first so many.", show_default=False)] = None,
    backend: Backend = None,
    option: Options = None,
    run: RunOption = None,
    budget: Budget = 10,
    total: Annotated[int | None, typer.Option(help="Passes in all.", show_default=False)] = None,
    money: Annotated[float | None, typer.Option(help="Money in all.", show_default=False)] = None,
    price_per_pass: Annotated[float, typer.Option(help="What a pass costs.")] = 0.0,
    price_per_1k_tokens: Annotated[float, typer.Option(help="What 1,000 tokens cost.")] = 0.0,
    like: Annotated[Path | None, typer.Option(help="A run folder whose rate to go by.", show_default=False)] = None,
    text_column: TextColumn = None,
    label_column: Annotated[str | None, typer.Option(help="The column of labels.", show_default=False)] = None,
    pair_column: PairColumn = None,
    as_json: AsJson = False,
) -> None:
    """Say what a fit and a prediction will take, and whether the budget allows it; nothing is sent."""
    limits = QueryBudget(
        passes=budget,
        predict=budget,
        total=total,
        money=money,
        price_per_pass=price_per_pass,
        price_per_1k_tokens=price_per_1k_tokens,
    )
    if model is not None and (train is not None or predict is None):
        raise InputError("a saved classifier needs no fit; give --model and --predict, and no labelled texts")
    with plainly():
        sets = [
            None if file is None else load_table(file, text=text_column, label=label_column, pair=pair_column)
            for file in (train, validation)
        ]
        asked = None if predict is None else load_table(predict, text=text_column, pair=pair_column, labelled=False)
        with connect(backend, run=run, budget=limits, **read_options(option)) as lm:
            classifier = (
                PromptBoostingClassifier(lm, prompts, n_prompts=n_prompts)
                if model is None
                else PromptBoostingClassifier.load(model, lm)
            )
            fit, held_out = [None if data is None else (data.examples, data.labels) for data in sets]
            texts = None if asked is None else asked.examples
            found = plan_classifier(classifier, fit, validation=held_out, predict=texts, like=like)
    show(found, found.to_dict(), as_json=as_json)
    if not found.allowed:
        raise typer.Exit(3)


def _writing(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{file} can't be written: {error.strerror}") from error


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(group, name="audit")
    app.command()(plan)
    app.command("why-miss")(why_miss_command)
