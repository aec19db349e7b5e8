"""`pbsdk doctor`: what works here, and what doesn't."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pbsdk.cli import _completion
from pbsdk.cli._common import AsJson, Options, show
from pbsdk.cli._opening import read_options
from pbsdk.errors import InputError

__all__ = ["doctor"]


def doctor(
    *,
    run: Annotated[Path, typer.Option(help="Where run folders are, or will be, kept.")] = Path("runs"),
    connect: Annotated[
        str | None,
        typer.Option(
            help="Also open this backend and ask it one question: one pass, outside any budget.",
            show_default=False,
            autocompletion=_completion.backend_names,
        ),
    ] = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Report what is installed, which device and backends work, and what is on disk.

    Nothing is sent unless --connect says so, and no key is ever shown.

    Examples:
        pbsdk doctor
        pbsdk doctor --json
        pbsdk doctor --connect openai -o model=gpt-4o-mini
        pbsdk doctor --connect fake

    Exit codes:
        0    pbsdk works, even if some backends lack their packages
        1    the core is broken, or the backend of --connect didn't answer
    """
    from pbsdk.doctor.examination import report

    options = read_options(option)
    if options and connect is None:
        raise InputError("--option is for the backend of --connect; name one")
    if sys.stderr.isatty():
        typer.echo("trying the core and each backend; importing torch takes some seconds", err=True)
    health = report(run)
    found = health.to_dict()
    asked = None
    if connect is not None and health.usable:
        asked = _asked(connect, options)
        found["asked"] = asked
    show(health if asked is None else f"{health}\n\n{_said(asked)}", found, as_json=as_json)
    if not health.usable or (asked is not None and asked["problem"]):
        raise typer.Exit(1)


def _asked(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Open a backend, ask it one question, and return what came."""
    import time

    from pbsdk.backend import MaskedQuery, Part, Phase
    from pbsdk.connecting import open_backend
    from pbsdk.errors import PbsdkError

    query = MaskedQuery((Part("prompt", "The capital of France is "), Part("mask")), "doctor", "doctor", Phase.PROBE)
    try:
        with open_backend(name, **options) as model:
            began = time.monotonic()
            (answer,) = model.fill([query])
            best = int(answer.codes.argmin())
            token = best if answer.tokens is None else int(answer.tokens[best])
            return {
                "backend": name,
                "model": model.identity.name,
                "question": query.text(),
                "word": model.vocabulary[token],
                "seconds": round(time.monotonic() - began, 3),
                "problem": "",
            }
    except PbsdkError as error:
        return {"backend": name, "problem": " ".join(str(error).split())}


def _said(asked: dict[str, Any]) -> str:
    if asked["problem"]:
        return f"{asked['backend']} didn't answer: {asked['problem']}"
    return (
        f"{asked['backend']} answered for {asked['model']} in {asked['seconds']:.2f} s: "
        f"{asked['question']!r} continues with {asked['word']!r}"
    )
