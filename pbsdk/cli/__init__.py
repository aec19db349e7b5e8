"""The command line: `pbsdk --help` lists what it can do.

Results go to standard output, progress and complaints to standard error. A pbsdk error is one line
and exit code 1 (3 if a budget didn't allow the work, 4 if a ledger doesn't verify); `--debug`
shows where it came from.
"""

from __future__ import annotations

import sys

import typer

from pbsdk.cli import auditing, fitting, inspecting, prompting, reproducing, serving, training
from pbsdk.cli.common import main_options
from pbsdk.errors import BudgetExceeded, LedgerCorrupted, PbsdkError

__all__ = ["app", "main"]

app = typer.Typer(
    name="pbsdk",
    help="Few-shot text classifiers from any language model that shows token probabilities, "
    "with a record of every query.\n\nStart with `pbsdk demo`.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    pretty_exceptions_show_locals=False,  # a key may be among them
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.callback()(main_options)
training.add_to(app)
fitting.add_to(app)
prompting.add_to(app)
reproducing.add_to(app)
serving.add_to(app)
auditing.add_to(app)
inspecting.add_to(app)

_EXIT_CODES: tuple[tuple[type[PbsdkError], int], ...] = ((BudgetExceeded, 3), (LedgerCorrupted, 4), (PbsdkError, 1))


def main() -> None:
    """Run the command line."""
    debug = "--debug" in sys.argv
    try:
        app()
    except PbsdkError as error:
        if debug:
            raise
        sys.stderr.write(f"error: {error}\n")
        sys.exit(next(code for kind, code in _EXIT_CODES if isinstance(error, kind)))
