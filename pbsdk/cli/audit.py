"""`pbsdk audit`: what a run asked, compared with its budget.

`pbsdk audit RUN` is short for `pbsdk audit show RUN`: whatever follows `audit` and isn't the name of one of
its commands is a run folder. A folder called `diff` is written `./diff`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from pbsdk.cli._common import AsJson, RunFolder, show
from pbsdk.cli._help import Command, Group, fancy, new_app
from pbsdk.errors import InputError

__all__ = ["audit"]

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
    """Show what a run asked, compared with its budget (`pbsdk audit RUN`); verify, compare or certify runs.

    The folder may be in use. `--html FILE` writes a page for whoever pays the bill.

    Examples:
        pbsdk audit runs/tickets
        pbsdk audit runs/tickets --html report.html
        pbsdk audit verify runs/tickets
    """


@audit.command("show", cls=Command)
def show_report(
    run: RunFolder,
    *,
    html: Annotated[
        Path | None, typer.Option(help="Write a self-contained HTML page here.", show_default=False)
    ] = None,
    markdown: AsMarkdown = False,
    as_json: AsJson = False,
) -> None:
    """Show the report; the word `show` may be left out.

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
def diff(a: RunFolder, b: RunFolder, *, markdown: AsMarkdown = False, as_json: AsJson = False) -> None:
    """Show two runs side by side: local against remote, before against after.

    Examples:
        pbsdk audit diff runs/tickets runs/other
    """
    from pbsdk.audit.diff import AuditDiff

    found = AuditDiff.read(a, b)
    show(found.to_markdown() if markdown else found, found.to_dict(), as_json=as_json)


@audit.command(cls=Command)
def verify(
    run: RunFolder,
    *,
    certificate: Annotated[
        Path | None, typer.Option(help="A certificate that was kept elsewhere.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Derive a run's chain, its answers' digests and its counts again; name the first record that doesn't match.

    Examples:
        pbsdk audit verify runs/tickets
        pbsdk audit verify runs/tickets --certificate certificate.json

    Exit codes:
        4    it doesn't verify
    """
    from pbsdk.audit.certificate import Certificate
    from pbsdk.ledger.verifier import verify_run

    checked = verify_run(run) if certificate is None else Certificate.load(certificate).check(run)
    text = f"{checked}" + ("" if certificate is None else "; the certificate matches")
    show(text, checked.to_dict(), as_json=as_json)


@audit.command(cls=Command)
def certify(
    run: RunFolder, file: Annotated[Path | None, typer.Argument(help="Where to write it.", show_default=False)] = None
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
def export(
    run: RunFolder, file: Annotated[Path, typer.Argument(help="Where to write it.", show_default=False)]
) -> None:
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


def _writing(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{file} can't be written: {error.strerror}") from error
