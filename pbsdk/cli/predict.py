"""`pbsdk predict`: predict the labels of a table of texts.

It can be stopped at any time: predictions are written as they come, and the same command asks only for what is missing
and writes its file again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pbsdk.cli._answers import SUFFIXES, refuse_unwritable, writer
from pbsdk.cli._common import (
    AsJson,
    Attempts,
    Backend,
    Budget,
    Delimiter,
    Encoding,
    Markers,
    Money,
    Options,
    PairColumn,
    PricePer1kTokens,
    PricePerPass,
    Progress,
    Run,
    Split,
    Strict,
    TextColumn,
    Tokens,
    Total,
    budget_of,
    connected,
    plainly,
    read_options,
    say,
    sends,
    show,
)
from pbsdk.errors import InputError
from pbsdk.visible import visible_json

if TYPE_CHECKING:
    from pbsdk.backend import Floats
    from pbsdk.classifier import PromptBoostingClassifier
    from pbsdk.data.loading import LabelledTexts

__all__ = ["predict"]


def predict(  # noqa: PLR0913 - a command's options are its parameters
    model: Annotated[Path, typer.Argument(help="A classifier that `pbsdk fit` saved.", show_default=False)],
    data: Annotated[
        str, typer.Argument(help="Texts: CSV, TSV, JSON lines, Parquet, or a data set.", show_default=False)
    ],
    *,
    text_column: TextColumn = None,
    pair_column: PairColumn = None,
    label_column: Annotated[
        str | None, typer.Option(help="The column of true labels, to score against.", show_default=False)
    ] = None,
    split: Split = None,
    encoding: Encoding = "utf-8",
    delimiter: Delimiter = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help=f"The file to write ({', '.join(SUFFIXES)}); JSON lines on standard output by default.",
            show_default=False,
        ),
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Add the probability of each class, in a column each.")
    ] = False,
    precision: Annotated[
        float | None,
        typer.Option(
            help="Answer only where cross-validation promises to be right this often, such as 0.95.", show_default=False
        ),
    ] = None,
    abstain_below: Annotated[
        float | None,
        typer.Option(help="Answer only where the likeliest class has at least this probability.", show_default=False),
    ] = None,
    early_exit: Annotated[
        bool, typer.Option("--early-exit", help="Ask each text only until no vote can change its label.")
    ] = False,
    max_changed: Annotated[
        float | None,
        typer.Option(help="Stop early where at most this share of labels changes, such as 0.01.", show_default=False),
    ] = None,
    spreadsheet: Annotated[
        bool,
        typer.Option("--spreadsheet", help="In a .csv, put ' before cells that a spreadsheet takes for formulas."),
    ] = False,
    markers: Markers = "refuse",
    backend: Backend = None,
    option: Options = None,
    run: Run = None,
    budget: Budget = 10,
    total: Total = None,
    attempts: Attempts = None,
    tokens: Tokens = None,
    money: Money = None,
    price_per_pass: PricePerPass = 0.0,
    price_per_1k_tokens: PricePer1kTokens = 0.0,
    strict: Strict = False,
    progress: Progress = None,
    as_json: AsJson = False,
) -> None:
    """Predict the label of each text, and say how sure it is.

    One row per text, in the order of DATA: its columns, `predicted` and `confidence`, the probability of the likeliest
    class; with --label-column also `right`. The model is asked as MODEL remembers, unless --backend names another. After Ctrl-C the same command continues: it asks
    only for what is missing. A summary is printed with --output; without, it goes to standard error.
    With --early-exit or --max-changed, lines come at the end, and probabilities are those when the label was settled.

    Examples:
        pbsdk predict model.json new.csv --run runs/tickets --output predictions.csv
        pbsdk predict model.json new.csv --probabilities --output predictions.parquet
        pbsdk predict model.json new.csv --abstain-below 0.9 --output sure.csv      # no label where it isn't sure
        pbsdk predict model.json dev.csv --label-column label > predictions.jsonl   # the accuracy on stderr
        pbsdk predict model.json new.csv --early-exit --output predictions.csv
        pbsdk predict model.json new.csv --output predictions.csv --spreadsheet      # labels stay labels
    """
    from pbsdk.classifier import PromptBoostingClassifier
    from pbsdk.data.loading import load_table
    from pbsdk.learning.model_file import SavedClassifier

    stops = early_exit or max_changed is not None
    with plainly():
        if spreadsheet and (output is None or output.suffix.lower() != ".csv"):
            raise InputError("--spreadsheet is about the cells of a .csv file; give --output FILE.csv")
        refuse_unwritable(output)
        options = read_options(option)
        limits = budget_of(
            budget,
            total=total,
            attempts=attempts,
            tokens=tokens,
            money=money,
            price_per_pass=price_per_pass,
            price_per_1k_tokens=price_per_1k_tokens,
            strict=strict,
        )
        saved = SavedClassifier.load(model)
        texts = load_table(
            data,
            text=text_column,
            pair=pair_column,
            label=label_column,
            labelled=label_column is not None,
            labels=saved.classes if label_column is not None else None,
            split=split,
            encoding=encoding,
            delimiter=delimiter,
        )
        added = _added(texts, saved.classes if probabilities else ())
        with connected(model, backend, options, run=run, budget=limits) as lm:
            before = sends(lm.audit())
            clf = PromptBoostingClassifier.load(model, lm, markers=markers, progress=progress)
            least = 0.0
            if precision is not None or abstain_below is not None:
                least = clf.threshold(precision=precision, abstain_below=abstain_below).value
            early = clf.predict_early(texts.examples, max_changed=max_changed) if stops else None
            verdicts = (
                _verdicts(clf, texts) if early is None else zip(early.labels.tolist(), early.probabilities, strict=True)
            )
            rows = _rows(clf, texts, verdicts, least, probabilities=probabilities)
            first = next(rows)  # if the budget or the model refuses, an older file is left alone
            right = answered = 0
            with writer(output, [*texts.table, *added], spreadsheet=spreadsheet) as write:
                for row in _again(first, rows):
                    write(row)
                    right += row.get("right", False)
                    answered += row["predicted"] is not None
            report = lm.audit()
            result = {
                "model": lm.identity.name,
                "predicted": len(texts),
                "answered": answered,
                "accuracy": right / answered if texts.labels and answered else None,
                "output": None if output is None else str(output),
                "run": str(lm.ledger.folder),
                "sent_now": sends(report) - before,
                "verdict": report.verdict,
            }
            if early is not None:
                result |= {"passes_asked": early.saved.asked, "passes_saved": early.saved.saved}
    said = f"{len(texts)} texts predicted, {result['sent_now']} queries sent this time; {report.verdict}"
    if texts.labels:
        said = f"accuracy {right / max(answered, 1):.1%} ({right} of {answered})\n{said}"
    if least > 0:
        said = f"{answered} of {len(texts)} answered ({answered / len(texts):.1%}), where the probability is at least {least:.3f}\n{said}"
    if early is not None:
        said = f"{said}\n{early.saved}"
    if output is not None:
        show(said, result, as_json=as_json)
    else:
        say(visible_json(result) if as_json else said, err=True)


def _added(texts: LabelledTexts, classes: Iterable[Any]) -> list[str]:
    """Return the columns that predictions add, or refuse a table that has one of them."""
    added = ["predicted", "confidence", *(["right"] if texts.labels else []), *map(_share_of, classes)]
    for name in added:
        if name in texts.table:
            raise InputError(f"the table has a column {name!r} already, where predictions are to stand; rename it")
    return added


def _share_of(label: Any) -> str:
    return f"probability of {label}"


def _rows(
    clf: PromptBoostingClassifier,
    texts: LabelledTexts,
    verdicts: Iterable[tuple[Any, Floats]],
    least: float,
    *,
    probabilities: bool,
) -> Iterator[dict[str, Any]]:
    """Yield each row and what is predicted of it, as answers come; no label where none is at least so probable."""
    for at, (said, shares) in enumerate(verdicts):
        row = {name: values[texts.rows[at]] for name, values in texts.table.items()}
        row["predicted"] = said if shares.max() >= least else None
        row["confidence"] = round(float(shares.max()), 6)
        if texts.labels:
            row["right"] = row["predicted"] == texts.labels[at]
        if probabilities:
            row |= zip(map(_share_of, clf.classes_.tolist()), shares.round(6).tolist(), strict=True)
        yield row


def _verdicts(clf: PromptBoostingClassifier, texts: LabelledTexts) -> Iterator[tuple[Any, Floats]]:
    """Yield labels and probabilities as answers come; the budget is checked for all of them before the first."""
    for verdict in clf.predict_iter(texts.examples):
        yield verdict.label, verdict.probabilities


def _again(first: dict[str, Any], rest: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    yield first
    yield from rest
