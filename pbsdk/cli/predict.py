"""`pbsdk predict`: predict the labels of a table of texts.

It can be stopped at any time: predictions are written as they come, and the same command asks only for what is missing
and writes its file again.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from pbsdk.cli._common import (
    AsJson,
    Backend,
    Budget,
    Delimiter,
    Encoding,
    Markers,
    Options,
    PairColumn,
    Progress,
    Run,
    Split,
    TextColumn,
    plainly,
    read_options,
    room_for,
    sends,
    show,
)
from pbsdk.errors import InputError

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
        typer.Option(help="A .csv or .jsonl file; JSON lines on standard output by default.", show_default=False),
    ] = None,
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
    markers: Markers = "refuse",
    backend: Backend = None,
    option: Options = None,
    run: Run = None,
    budget: Budget = 10,
    progress: Progress = None,
    as_json: AsJson = False,
) -> None:
    """Predict the label of each text, with the probability of each class.

    One line per text, in the order of DATA; rows count from 1. After Ctrl-C the same command continues: it asks
    only for what is missing. A summary is printed with --output; without, it goes to standard error.
    With --early-exit or --max-changed, lines come at the end, and probabilities are those when the label was settled.

    Examples:
        pbsdk predict model.json new.csv --run runs/tickets --output predictions.csv
        pbsdk predict model.json new.csv --abstain-below 0.9 --output sure.csv      # no label where it isn't sure
        pbsdk predict model.json dev.csv --label-column label > predictions.jsonl   # the accuracy on stderr
        pbsdk predict model.json new.csv --early-exit --output predictions.csv
    """
    from pbsdk.classifier import PromptBoostingClassifier
    from pbsdk.connecting import connect
    from pbsdk.data.loading import load_table
    from pbsdk.learning.model_file import SavedClassifier

    stops = early_exit or max_changed is not None
    with plainly():
        options = read_options(option)
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
        with connect(backend, run=run, budget=budget, **options) as lm:
            before = sends(lm.audit())
            clf = PromptBoostingClassifier.load(model, lm, markers=markers, progress=progress)
            least = 0.0
            if precision is not None or abstain_below is not None:
                least = clf.threshold(precision=precision, abstain_below=abstain_below).value
            early = clf.predict_early(texts.examples, max_changed=max_changed) if stops else None
            verdicts = (
                _verdicts(clf, texts) if early is None else zip(early.labels.tolist(), early.probabilities, strict=True)
            )
            rows = _rows(clf, texts, verdicts, least)
            first = next(rows)  # if the budget or the model refuses, an older file is left alone
            right = answered = 0
            with _writer(output, clf.classes_.tolist()) as write:
                for row in _again(first, rows):
                    write(row)
                    right += row.get("right", False)
                    answered += row["label"] is not None
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
        typer.echo(json.dumps(result, ensure_ascii=False) if as_json else said, err=True)


def _rows(
    clf: PromptBoostingClassifier, texts: LabelledTexts, verdicts: Iterable[tuple[Any, Floats]], least: float
) -> Iterator[dict[str, Any]]:
    """Yield a row per text as its label and probabilities come; without a label where none is at least so probable."""
    classes = clf.classes_.tolist()
    for at, (said, probabilities) in enumerate(verdicts):
        rounded = probabilities.round(6).tolist()
        label = said if probabilities.max() >= least else None
        row = {"row": at + 1, "label": label, "probabilities": dict(zip(map(str, classes), rounded, strict=True))}
        if texts.labels:
            row |= {"expected": texts.labels[at], "right": label == texts.labels[at]}
        yield row


def _verdicts(clf: PromptBoostingClassifier, texts: LabelledTexts) -> Iterator[tuple[Any, Floats]]:
    """Yield labels and probabilities as answers come; the budget is checked for all of them before the first."""
    for verdict in clf.predict_iter(texts.examples):
        yield verdict.label, verdict.probabilities


def _again(first: dict[str, Any], rest: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    yield first
    yield from rest


@contextmanager
def _writer(output: Path | None, classes: list[Any]) -> Iterator[Any]:
    """Yield a function that writes a row immediately, in the format that the file's name asks for."""
    if output is None:
        yield lambda row: _write_json(sys.stdout, row)
        return
    try:
        with room_for(output).open("w", encoding="utf-8", newline="") as file:
            if output.suffix.lower() != ".csv":
                yield lambda row: _write_json(file, row)
                return
            table = csv.writer(file)
            heads = ["row", "label", *(f"probability of {label}" for label in classes)]
            begun = False

            def write(row: dict[str, Any]) -> None:
                nonlocal begun
                extra = [name for name in ("expected", "right") if name in row]
                if not begun:
                    table.writerow([*heads, *extra])
                    begun = True
                table.writerow(
                    [row["row"], row["label"], *row["probabilities"].values(), *(row[name] for name in extra)]
                )
                file.flush()

            yield write
    except OSError as error:
        raise InputError(f"{output} can't be written: {error.strerror}; choose another place") from error


def _write_json(file: TextIO, row: dict[str, Any]) -> None:
    file.write(json.dumps(row, ensure_ascii=False) + "\n")
    file.flush()
