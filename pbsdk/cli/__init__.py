"""The command line: `pbsdk --help` shows what it can do.

Results go to standard output, progress and errors to standard error. A pbsdk error is one line; `--debug`, before
or after the command, shows where it came from. What a command needs is imported when it runs, so that help and
completion are instant.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from pbsdk.cli import (
    audit,
    backends,
    card,
    demo,
    doctor,
    explain,
    fit,
    init,
    keys,
    members,
    parity,
    plan,
    predict,
    prompts,
    record,
    reproduce,
    serve,
    why_miss,
)
from pbsdk.cli._help import Command, Group, new_app
from pbsdk.errors import BudgetExceeded, LedgerCorrupted, PbsdkError
from pbsdk.version import __version__
from pbsdk.visible import visible

__all__ = ["app", "main"]

_PANELS: dict[str, tuple[Any, ...]] = {
    "Start here": (demo.demo, init.init),
    "Train and predict": (fit.fit, predict.predict, explain.explain, card.card),
    "Prompts": (prompts.prompts,),
    "Budget and proof": (plan.plan, audit.audit, keys.keys, why_miss.why_miss),
    "Models and servers": (backends.backends, serve.serve, members.members, parity.parity, record.record),
    "Research": (reproduce.reproduce,),
    "Help": (doctor.doctor,),
}


_SETTLED = ("fit", "predict", "explain", "card", "plan", "audit")
"""The commands that read `pbsdk.toml`."""


class _InOrder(Group):
    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands panel by panel; typer puts groups last."""
        panels = list(_PANELS)
        return sorted(
            super().list_commands(ctx),
            key=lambda name: panels.index(getattr(self.commands[name], "rich_help_panel", "")),
        )


app = new_app(
    name="pbsdk", cls=_InOrder, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def pbsdk(
    ctx: typer.Context,
    *,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; may also follow the command.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Few-shot text classifiers from any language model that shows token probabilities, with a record of every query.

    Results go to standard output, progress and errors to standard error. Each command has examples: `pbsdk fit --help`.

    Examples:
        # Paste this. The fake model costs nothing; leave out `--backend fake` to use the embedded model.
        printf '%s\\n' text,label 'Charged twice,billing' 'Refund my card,billing' 'Parcel is late,shipping' \\
            'The courier never came,shipping' > mine.csv
        pbsdk plan mine.csv --backend fake                  # what a fit will take; nothing is sent
        pbsdk fit mine.csv --backend fake --run runs/mine --validation-share 0 --output mine.json
        pbsdk explain mine.json                             # the prompts, and a word for each class
        pbsdk predict mine.json mine.csv --backend fake --run runs/mine
        pbsdk audit runs/mine                               # what was asked, against the budget

    Exit codes:
        0    done
        1    an error, in one line; also if parity finds a difference, prompts check an error, doctor a broken core
        2    the command line was not understood
        3    the budget doesn't allow it; nothing was sent
        4    a ledger doesn't verify
        5    predict is done, but for rows that failed
        70   a bug in pbsdk; --debug shows where
        130  interrupted; what was answered is kept
    """  # noqa: D301 - shown
    del debug, version  # main looks for --debug itself
    if ctx.invoked_subcommand in _SETTLED and not ctx.resilient_parsing:
        from pbsdk.cli._settings import FILE, read_settings

        settings = read_settings()
        if settings is not None:
            ctx.default_map = settings.for_commands()
            typer.echo(f"what isn't typed is taken from {FILE}", err=True)


for _panel, _commands in _PANELS.items():
    for _command in _commands:
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, rich_help_panel=_panel)
        else:
            app.command(cls=Command, rich_help_panel=_panel)(_command)

_EXIT_CODES: tuple[tuple[type[PbsdkError], int], ...] = ((BudgetExceeded, 3), (LedgerCorrupted, 4), (PbsdkError, 1))
_BUG, _INTERRUPTED = 70, 130


def main() -> None:
    """Run the command line."""
    arguments = sys.argv[1:]
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    debug = "--debug" in options
    arguments = [word for word in options if word != "--debug"] + arguments[len(options) :]
    try:
        _run(arguments)
    except KeyboardInterrupt as interrupt:
        if debug:
            raise
        sys.stderr.write("\n" + "; ".join(["interrupted", *getattr(interrupt, "__notes__", [])]) + "\n")
        sys.exit(_INTERRUPTED)
    except PbsdkError as error:
        if debug:
            raise
        sys.stderr.write(f"error: {error}\n")
        sys.exit(next(code for kind, code in _EXIT_CODES if isinstance(error, kind)))
    except Exception as error:
        if debug:
            raise
        said = visible(" ".join(f"{type(error).__name__}: {error}".split()))
        sys.stderr.write(
            f"error: this is a bug in pbsdk, or in a backend ({said}); the same command with --debug shows where\n"
        )
        sys.exit(_BUG)


def _run(arguments: list[str]) -> None:
    """Let typer run the command; an interrupt is raised again, with its notes."""
    try:
        app(arguments, prog_name="pbsdk")
    except SystemExit as ended:
        cause = ended.__context__.__cause__ if ended.__context__ else None
        if isinstance(cause, KeyboardInterrupt):
            raise cause from None
        raise
