"""Commands about what a run asks and asked: plan, audit and its parts, why-miss.

`pbsdk audit RUN` needs no word in between: whatever follows `audit` and isn't the name of one of its
commands is a run folder. A folder called `diff` is written `./diff`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from pbsdk.cli.common import (
    AsJson,
    Backend,
    Budget,
    Options,
    PairColumn,
    Prompts,
    TextColumn,
    plainly,
    read_options,
    show,
)
from pbsdk.cli.common import Run as RunOption
from pbsdk.cli.teaching import Command, Group, fancy, new_app
from pbsdk.errors import InputError

__all__ = ["audit", "plan", "why_miss"]

Run = Annotated[Path, typer.Argument(help="A run folder, as given to connect(run=...).", show_default=False)]
AsMarkdown = Annotated[bool, typer.Option("--markdown", help="Print Markdown.")]


class _RunGroup(Group):
    """A group whose bare argument is a run folder, for the command `show`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, "-h", "--help"}:
            args = ["show", *args]
        return super().parse_args(ctx, args)


audit = new_app(name="audit", cls=_RunGroup)


@audit.callback()
def _about() -> None:
    """Show what a run asked, against its budget: `pbsdk audit RUN`; verify it, compare two, certify.

    The folder may be in use. `--html FILE` writes a page for whoever pays the bill.

    Examples:
        pbsdk audit runs/tickets
        pbsdk audit runs/tickets --html report.html
        pbsdk audit verify runs/tickets
    """


@audit.command("show", cls=Command)
def show_report(
    run: Run,
    *,
    html: Annotated[
        Path | None, typer.Option(help="Write a self-contained HTML page here.", show_default=False)
    ] = None,
    markdown: AsMarkdown = False,
    as_json: AsJson = False,
) -> None:
    """The report; the word `show` may be left out.

    Examples:
        pbsdk audit show runs/tickets --markdown
        pbsdk audit runs/tickets --json
    """
    from pbsdk.audit.report import AuditReport

    report = AuditReport.read(run)
    if html is not None:
        _writing(html, report.to_html())
        typer.echo(f"{html}: {report.verdict}", err=True)
        if not (markdown or as_json):
            return
    if not as_json and not markdown and fancy():
        from rich.console import Console

        Console(force_terminal=True).print(report)
        return
    show(report.to_markdown() if markdown else report, report.to_dict(), as_json=as_json)


@audit.command(cls=Command)
def diff(a: Run, b: Run, *, markdown: AsMarkdown = False, as_json: AsJson = False) -> None:
    """Show two runs side by side: local against remote, before against after.

    Examples:
        pbsdk audit diff runs/tickets runs/other
    """
    from pbsdk.audit.diff import AuditDiff

    found = AuditDiff.read(a, b)
    show(found.to_markdown() if markdown else found, found.to_dict(), as_json=as_json)


@audit.command(cls=Command)
def verify(
    run: Run,
    *,
    certificate: Annotated[
        Path | None, typer.Option(help="A certificate that was kept elsewhere.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Derive a run's chain, its answers' digests and its counts again; name the first record that doesn't fit.

    Examples:
        pbsdk audit verify runs/tickets
        pbsdk audit verify runs/tickets --certificate certificate.json

    Exit codes:
        4    it doesn't verify
    """
    from pbsdk.audit.certificate import Certificate
    from pbsdk.ledger.verifier import verify_run

    checked = verify_run(run) if certificate is None else Certificate.load(certificate).check(run)
    text = f"{checked}" + ("" if certificate is None else "; the certificate fits")
    show(text, checked.to_dict(), as_json=as_json)


@audit.command(cls=Command)
def certify(
    run: Run, file: Annotated[Path | None, typer.Argument(help="Where to write it.", show_default=False)] = None
) -> None:
    """Verify a run and print, or write, its certificate: the head of the chain and the counts.

    Examples:
        pbsdk audit certify runs/tickets certificate.json
    """
    from pbsdk.audit.certificate import Certificate

    certificate = Certificate.of(run)
    if file is None:
        typer.echo(certificate.to_json(), nl=False)
    else:
        _writing(file, certificate.to_json())


@audit.command(cls=Command)
def export(run: Run, file: Annotated[Path, typer.Argument(help="Where to write it.", show_default=False)]) -> None:
    """Write the records as JSON lines; `docs/verify_ledger.py` recounts them without pbsdk.

    Examples:
        pbsdk audit export runs/tickets ledger.jsonl
    """
    from pbsdk.ledger.reader import LedgerReader

    with LedgerReader(run) as reader:
        try:
            reader.export(file)
        except OSError as error:
            raise InputError(f"{file} can't be written: {error.strerror}") from error


@audit.command(cls=Command)
def schema() -> None:
    """Print the JSON schema of the report's JSON form.

    Examples:
        pbsdk audit schema > audit.schema.json
    """
    from pbsdk.audit.report import AuditReport

    typer.echo(json.dumps(AuditReport.model_json_schema(), indent=2))


def why_miss(
    run: Run,
    *,
    against: Annotated[
        Path | None, typer.Option(help="Another run folder, to compare with.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say which part of the key kept queries from being recalled.

    Examples:
        pbsdk why-miss runs/tickets
        pbsdk why-miss runs/tickets --against runs/other
    """
    from pbsdk.audit.misses import why_miss as explain

    report = explain(run, against)
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
    prompts: Prompts = "topic",
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
    """Say what a fit and a prediction will take, and whether the budget allows it; nothing is sent.

    Examples:
        pbsdk plan tickets.csv --validation dev.csv --predict new.csv
        pbsdk plan tickets.csv --price-per-1k-tokens 0.02 --money 5
        pbsdk plan --model model.json --predict new.csv --run runs/tickets

    Exit codes:
        3    the budget doesn't allow it
    """
    from pbsdk.classifier import PromptBoostingClassifier
    from pbsdk.connecting import connect
    from pbsdk.data.loading import load_table
    from pbsdk.ledger.budget import QueryBudget
    from pbsdk.metering.plan import plan_classifier

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
