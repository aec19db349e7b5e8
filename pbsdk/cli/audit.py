"""`pbsdk audit`: what a run asked, compared with its budget.

`pbsdk audit RUN` is short for `pbsdk audit show RUN`: whatever follows `audit` and isn't the name of one of
its commands is a run folder. A folder called `diff` is written `./diff`.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pbsdk.cli import _completion
from pbsdk.cli._common import AsJson, RunFolder, say, show
from pbsdk.cli._help import Command, Group, fancy, new_app
from pbsdk.errors import InputError

if TYPE_CHECKING:
    from pbsdk.audit.certificate import Certificate
    from pbsdk.audit.signing import PublicKey

__all__ = ["audit"]

Key = Annotated[
    str | None, typer.Option(help="The public key, or its file, that must have signed it.", show_default=False)
]
Authorities = Annotated[
    Path | None,
    typer.Option(help="Certificates (PEM) of the time-stamping authorities to trust.", show_default=False),
]
Sign = Annotated[
    Path | None, typer.Option(help="A private key (`pbsdk keys new`) to sign it with.", show_default=False)
]
AsMarkdown = Annotated[bool, typer.Option("--markdown", help="Print Markdown.")]


class _RunGroup(Group):
    """A group whose bare argument is a run folder, for the command `show`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and (ctx.default_map or {}).get("show"):
            args = ["show"]
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
    model: Annotated[
        Path | None, typer.Option(help="A classifier that the run made, to say its accuracy too.", show_default=False)
    ] = None,
    markdown: AsMarkdown = False,
    as_json: AsJson = False,
) -> None:
    """Show the report; the word `show` may be left out.

    Examples:
        pbsdk audit runs/tickets --html report.html --model model.json
        pbsdk audit show runs/tickets --markdown
        pbsdk audit runs/tickets --json
    """
    from pbsdk.audit.report import AuditReport
    from pbsdk.learning.model_file import SavedClassifier

    report = AuditReport.read(run)
    estimate = None if model is None else SavedClassifier.load(model).facts.estimate
    if estimate is not None:
        report = report.with_accuracy(estimate)
    if html is not None:
        _writing(html, report.to_html())
        say(f"{html}: {report.verdict}", err=True)
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
def verify(  # noqa: PLR0913 - one parameter an option
    run: Annotated[
        str,
        typer.Argument(
            help="A run folder or postgresql:// address; with --since, or a newer certificate.",
            show_default=False,
            metavar="PATH",
            autocompletion=_completion.folders,
        ),
    ],
    *,
    certificate: Annotated[
        Path | None, typer.Option(help="A certificate that was kept elsewhere.", show_default=False)
    ] = None,
    since: Annotated[
        Path | None, typer.Option(help="An older certificate, to which records were only added.", show_default=False)
    ] = None,
    key: Key = None,
    tsa: Authorities = None,
    as_json: AsJson = False,
) -> None:
    """Derive a run's chain, its answers' digests and its counts again; name the first record that doesn't match.

    It also says whether all whole answers can come from one model. With --since, a certificate may stand in the run's
    place: the proof that it holds shows that nothing before was changed, without the ledger.

    Examples:
        pbsdk audit verify runs/tickets
        pbsdk audit verify runs/tickets --certificate certificate.json
        pbsdk audit verify certificate2.json --since certificate.json

    Exit codes:
        4    it doesn't verify
    """
    from pbsdk.audit.certificate import Certificate
    from pbsdk.ledger.drift import find_drift
    from pbsdk.ledger.verifier import verify_run

    old = None if since is None else Certificate.load(since)
    if Path(run).is_file():
        if old is None:
            raise InputError(
                f"{run} is a file; give the run folder, and a certificate with --certificate or --since; "
                f"a proof about one query is checked with: pbsdk audit check-proof {shlex.quote(run)}"
            )
        newer = Certificate.load(run)
        added = newer.check_growth(old)
        signed = {str(file): _vouched(each, key, tsa) for file, each in ((since, old), (run, newer))}
        text = [f"{run}: the {newer.records:,} records begin with the {old.records:,} of {since}; {added:,} were added"]
        text += [f"{file}: {told}" for file, told in signed.items()]
        show("\n".join(text), {"records": newer.records, "added": added, "certificates": signed}, as_json=as_json)
        return
    kept = [each for each in (None if certificate is None else Certificate.load(certificate), old) if each is not None]
    if not kept and (key is not None or tsa is not None):
        raise InputError("a key or an authority checks a certificate; give one with --certificate or --since")
    checked = [each.check(run) for each in kept][-1] if kept else verify_run(run)
    told, signed = f"{checked}", {}
    for file, each in ((certificate, kept[0] if kept else None), (since, old)):
        if file is not None and each is not None:
            signed[str(file)] = _vouched(each, key, tsa)
            added = checked.records - each.records
            told += (
                "; the certificate matches" if each is not old else f"; {added:,} records were only added since {since}"
            )
            told += f" ({signed[str(file)]})"
    drift = find_drift(run)
    show(
        f"{told}\n{drift}",
        {**checked.to_dict(), "certificates": signed, "drift": drift.to_dict()},
        as_json=as_json,
    )


@audit.command(cls=Command)
def certify(
    run: RunFolder,
    file: Annotated[Path | None, typer.Argument(help="Where to write it.", show_default=False)] = None,
    *,
    sign: Sign = None,
    since: Annotated[
        Path | None, typer.Option(help="An older certificate; prove that records were only added.", show_default=False)
    ] = None,
    timestamp: Annotated[
        str | None, typer.Option(help="The address of a time-stamping authority (RFC 3161).", show_default=False)
    ] = None,
) -> None:
    """Verify a run and print, or write, its certificate: a checkpoint and the counts.

    Examples:
        pbsdk audit certify runs/tickets certificate.json
        pbsdk audit certify runs/tickets --since certificate.json certificate2.json
    """
    from pbsdk.audit.certificate import Certificate
    from pbsdk.audit.signing import PrivateKey
    from pbsdk.ledger.places import locate

    signer = None if sign is None else PrivateKey.load(sign)
    certificate = Certificate.of(run, since=None if since is None else Certificate.load(since))
    if signer is not None:
        certificate = certificate.signed(signer)
    if timestamp is not None:
        certificate = certificate.stamped(timestamp)
    _put(file, certificate.to_json())
    if file is not None:
        place = shlex.quote(str(locate(run)))  # an address loses its password
        check = f"pbsdk audit verify {place} --certificate {shlex.quote(str(file))}"
        say(f"{file} certifies {certificate.records:,} records; later: {check}")


@audit.command(cls=Command)
def prove(
    run: RunFolder,
    file: Annotated[Path | None, typer.Argument(help="Where to write it.", show_default=False)] = None,
    *,
    query: Annotated[
        str, typer.Option(help="The record's number, or the key of an answered query.", show_default=False)
    ],
    certificate: Annotated[
        Path | None, typer.Option(help="The certificate to prove it against; a new one by default.", show_default=False)
    ] = None,
    sign: Sign = None,
) -> None:
    """Prove that one query is in a run's record, and show nothing of the others: its record, and a path to a checkpoint.

    Examples:
        pbsdk audit prove runs/tickets --query 7 --certificate certificate.json proof.json
        pbsdk audit prove runs/tickets --query 7
    """
    from pbsdk.audit.certificate import Certificate
    from pbsdk.audit.inclusion import InclusionProof
    from pbsdk.audit.signing import PrivateKey

    if certificate is not None and sign is not None:
        raise InputError("a proof has its certificate's signatures; leave out --sign, or --certificate")
    signer = None if sign is None else PrivateKey.load(sign)
    against = Certificate.of(run) if certificate is None else Certificate.load(certificate)
    against = against if signer is None else against.signed(signer)
    asked = int(query) if query.isdecimal() and len(query) < 20 else query
    _put(file, InclusionProof.of(run, asked, against).to_json())
    if file is not None:
        say(
            f"{file} proves that this query is in the record; anyone can check it: pbsdk audit check-proof {shlex.quote(str(file))}"
        )


@audit.command("check-proof", cls=Command)
def check_proof(
    file: Annotated[Path, typer.Argument(help="What `pbsdk audit prove` wrote.", show_default=False)],
    *,
    certificate: Annotated[
        Path | None, typer.Option(help="The certificate whose checkpoint it must lead to.", show_default=False)
    ] = None,
    key: Key = None,
    tsa: Authorities = None,
    as_json: AsJson = False,
) -> None:
    """Check a proof about one query, without the ledger.

    Examples:
        pbsdk audit check-proof proof.json
        pbsdk audit check-proof proof.json --certificate certificate.json

    Exit codes:
        4    it proves nothing
    """
    from pbsdk.audit.certificate import Certificate
    from pbsdk.audit.inclusion import InclusionProof

    proof = InclusionProof.load(file)
    signed = proof.check(None if certificate is None else Certificate.load(certificate), _public(key))
    signed = "; ".join(filter(None, (signed, proof.check_timestamp(tsa))))
    told = proof.read_checkpoint()
    fields = "".join(f"\n  {name:<8} {value}" for name, value in proof.record.items() if value != "")
    text = f"{file}: record {proof.record['seq']:,} of {told.size:,} of {told.origin}, as of {told.time} ({signed}){fields}"
    if certificate is None and key is None:
        text += (
            "\nwho made this checkpoint is not known: compare it with a certificate (--certificate), or give a --key"
        )
    data = {"record": proof.record, "origin": told.origin, "records": told.size, "root": told.root.hex()}
    show(text, {**data, "time": told.time, "checkpoint": signed}, as_json=as_json)


@audit.command(cls=Command)
def export(
    run: RunFolder,
    file: Annotated[Path, typer.Argument(help="Where to write it.", show_default=False)],
    *,
    answers: Annotated[
        bool, typer.Option("--answers", help="Write the answers too, so that they can be checked.")
    ] = False,
) -> None:
    """Write the records as JSON lines; `docs/verify_ledger.py` checks and recounts them without pbsdk.

    Examples:
        pbsdk audit export runs/tickets ledger.jsonl
        pbsdk audit export runs/tickets ledger.jsonl --answers
    """
    from pbsdk.ledger.reader import LedgerReader

    with LedgerReader(run) as reader:
        try:
            reader.export(file, answers=answers)
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


def _public(key: str | None) -> PublicKey | None:
    from pbsdk.audit.signing import PublicKey

    return None if key is None else PublicKey.read(key)


def _vouched(certificate: Certificate, key: str | None, tsa: Path | None) -> str:
    """Return who signed a certificate and when it was time-stamped."""
    return "; ".join(filter(None, (certificate.check_signature(_public(key)), certificate.check_timestamp(tsa))))


def _put(file: Path | None, text: str) -> None:
    if file is None:
        typer.echo(text, nl=False)
    else:
        _writing(file, text)


def _writing(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{file} can't be written: {error.strerror}") from error
