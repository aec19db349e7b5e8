"""`pbsdk predict`: predict the labels of a table of texts.

It can be stopped at any time: predictions are written as they come, and the same command asks only for what is missing
and writes its file again. With `--out` it streams: many files, or files larger than memory, become a folder of predictions.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pbsdk.cli._answers import SUFFIXES, refuse_unholdable, refuse_unwritable, writer
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
    naming_rows,
    plainly,
    rows_of,
    say,
    sends,
    show,
    typed,
)
from pbsdk.cli._opening import connected, familiar, read_options
from pbsdk.cli._retry import beside, earlier_rows, merged
from pbsdk.cli._several import SEPARATOR, joined
from pbsdk.cli._verdicts import Verdicts, warn_of_known
from pbsdk.errors import InputError
from pbsdk.formatting import counted
from pbsdk.plugins import ENGINES
from pbsdk.visible import visible_json

if TYPE_CHECKING:
    from pbsdk.classifier import PromptBoostingClassifier
    from pbsdk.data.loading import LabelledTexts
    from pbsdk.failures import OnError
    from pbsdk.learning.model_file import SavedClassifier
    from pbsdk.metering.meter import MeteredBackend
    from pbsdk.predicting import Prediction
    from pbsdk.stopping import EarlyPredictions

__all__ = ["predict"]

SOME_FAILED = 5
"""The exit code when all is done but for rows that failed."""


def predict(  # noqa: PLR0913 - a command's options are its parameters
    ctx: typer.Context,
    model: Annotated[
        Path,
        typer.Argument(
            help="A classifier that `pbsdk fit` saved; may be left out where pbsdk.toml names it.", show_default=False
        ),
    ],
    data: Annotated[
        str | None,
        typer.Argument(
            help="Texts: CSV, TSV, JSON lines, Parquet, Excel, - for standard input, or a data set by its name; with --out also a pattern or a folder.",
            show_default=False,
        ),
    ] = None,
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
    out: Annotated[
        Path | None,
        typer.Option(
            help="A folder that gets a file of predictions for each file of DATA, which may be a pattern or a folder; files that are there already are skipped.",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="With --out: what reads the files and runs the model, such as ray, whose options `-o actors=4 -o gpus_per_actor=1` then are too.",
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
    on_error: Annotated[
        Literal["fail", "skip", "record"],
        typer.Option(
            help="What to do with a text that can't be read or that the model refuses: stop, leave it out, or keep the row and say why in a column `error`."
        ),
    ] = "fail",
    retry_failed: Annotated[
        bool,
        typer.Option(
            "--retry-failed", help="Ask again only about rows of --output with an `error`, and rows that it lacks."
        ),
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
    With --out, rows are read, asked about and written a chunk at a time, so memory doesn't grow with the files, and a budget is asked for a chunk at a time.
    With --on-error skip or record, one bad row doesn't end it: the summary says what failed, and the exit code is 5.

    Examples:
        pbsdk predict model.json new.csv --run runs/tickets --output predictions.csv
        pbsdk predict model.json new.csv --probabilities --output predictions.parquet
        pbsdk predict model.json 'new/*.csv' --run runs/tickets --out predictions/   # however long they are
        pbsdk predict model.json new.csv --abstain-below 0.9 --output sure.csv      # no label where it isn't sure
        pbsdk predict model.json dev.csv --label-column label > predictions.jsonl   # the accuracy on stderr
        pbsdk predict model.json new.csv --early-exit --output predictions.csv
        pbsdk predict model.json new.csv --on-error record --output predictions.csv
        pbsdk predict model.json new.csv --retry-failed --output predictions.csv     # only the rows with an error
        pbsdk predict model.json new.csv --output predictions.csv --spreadsheet      # labels stay labels
    """
    from pbsdk.cli._partitions import Partitions
    from pbsdk.data.loading import LabelledTexts, load_table
    from pbsdk.multilabel import load_classifier

    model, data = _model_and_data(ctx, model, data)
    stops = early_exit or max_changed is not None
    on_error = "record" if retry_failed and on_error == "fail" else on_error
    with plainly(missing="--on-error skip"):
        _refuse_engine(engine, out)
        _refuse_contradictions(
            output, out, on_error, spreadsheet=spreadsheet, retry=retry_failed, stops=stops, split=split is not None
        )
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
        saved = _saved(
            model, of_one_label=stops or any(x is not None for x in (label_column, precision, abstain_below))
        )
        reading: dict[str, Any] = {
            "text": text_column,
            "pair": pair_column,
            "label": label_column,
            "familiar": familiar(model),
            "labelled": label_column is not None,
            "labels": saved.classes if label_column is not None else None,
            "missing": "refuse" if on_error == "fail" else "keep",
            "encoding": encoding,
            "delimiter": delimiter,
        }
        files = None if out is None else Partitions.find(data, out, reading, engine)
        texts = LabelledTexts([], []) if files else load_table(data, split=split, **reading)
        verdicts = Verdicts(texts, saved.classes, several=saved.several, probabilities=probabilities, on_error=on_error)
        if files:
            columns = [text_column, pair_column, label_column]
            files.prepare(verdicts, model, columns=columns, abstain=[precision, abstain_below], spreadsheet=spreadsheet)
        table = verdicts.columns
        refuse_unholdable(output, texts.table)
        kept = earlier_rows(output, table, texts.table, spreadsheet=spreadsheet) if retry_failed else None
        verdicts.keep(kept.values() if kept else ())
        with (
            connected(model, backend, options, run=run, budget=limits, engine=engine) as lm,
            naming_rows(texts=None if files else rows_of(data, texts.take(_places(texts, kept or ())))),
        ):
            before = sends(lm.audit())
            # One bar for all files, not one for each chunk.
            clf = load_classifier(model, lm, markers=markers, progress=False if files else progress)
            warn_of_known(texts, lm.ledger.folder)
            verdicts.least = _least(clf, precision, abstain_below)
            early = clf.predict_early(texts.examples, max_changed=max_changed) if stops else None
            if files:
                asked = partial(_asked, clf, kept=(), on_error=on_error)
                files.write(verdicts, asked, spreadsheet=spreadsheet, progress=progress)
            else:
                found = _settled(early) if early else _asked(clf, texts, kept or (), on_error)
                _write(verdicts.rows(found), table, kept, len(texts), output, spreadsheet=spreadsheet)
            result = {**_summary(lm, verdicts, before), "output": None if output is None else str(output)}
    if early is not None:
        result |= {"passes_asked": early.saved.asked, "passes_saved": early.saved.saved}
    if files:
        result |= {"out": str(out), **files.counts}
    cure = "--retry-failed" if on_error == "record" and output is not None else "the same command"
    said = _told(
        verdicts, result, [files, early.saved if early else None], f"with its file deleted, {cure}" if files else cure
    )
    if output is not None or files:
        show(said, result, as_json=as_json)
    else:
        say(visible_json(result) if as_json else said, err=True)
    if verdicts.tally.failed:
        raise typer.Exit(SOME_FAILED)


def _model_and_data(ctx: typer.Context, model: Path, data: str | None) -> tuple[Path, str]:
    """Return both, where the only one that was typed is the data."""
    if data is not None:
        return model, data
    named = (ctx.default_map or {}).get("model")
    if named is None or not typed(ctx, "model"):
        raise typer.BadParameter("give the texts, as in: pbsdk predict model.json new.csv", param_hint="'DATA'")
    return Path(named), str(model)


def _saved(model: Path, *, of_one_label: bool) -> SavedClassifier:
    """Read the model file; some options are for texts of one label each."""
    from pbsdk.learning.model_file import SavedClassifier

    saved = SavedClassifier.load(model)
    if saved.several and of_one_label:
        raise InputError(
            f"{model} gives texts several labels; leave out --label-column, thresholds and early exits, which are about one label per text"
        )
    return saved


def _least(clf: PromptBoostingClassifier, precision: float | None, abstain_below: float | None) -> float:
    """Return below which confidence a row gets no label."""
    if precision is None and abstain_below is None:
        return 0.0
    return clf.threshold(precision=precision, abstain_below=abstain_below).value


def _summary(lm: MeteredBackend, verdicts: Verdicts, before: int) -> dict[str, Any]:
    """Return what a script wants to know of a prediction, after `before` queries had been sent."""
    report, tally = lm.audit(), verdicts.tally
    return {
        "model": lm.identity.name,
        "predicted": tally[""],
        "failed": tally.failed,
        "errors": {said: count for said, count in tally.most_common() if said},
        "answered": verdicts.answered,
        "accuracy": verdicts.accuracy,
        "run": str(lm.ledger.folder),
        "sent_now": sends(report) - before,
        "verdict": report.verdict,
    }


def _told(verdicts: Verdicts, result: Mapping[str, Any], more: Iterable[object], cure: str) -> str:
    """Return what a person wants to know of a prediction, with a line for each of what else there is to say."""
    tally = verdicts.tally
    predicted, sent = counted(tally[""], "text"), counted(result["sent_now"], "query", "queries")
    counts = f"{predicted} predicted, {sent} sent this time; {result['verdict']}"
    complaint = f"{tally}; {cure} asks about them again" if tally.failed else ""
    return "\n".join(filter(None, [str(verdicts), counts, *(str(line) for line in more if line), complaint]))


def _refuse_engine(engine: str | None, out: Path | None) -> None:
    """Refuse an engine that isn't there, or has nothing to do."""
    if engine is not None:
        ENGINES.load(engine)
        if out is None:
            raise InputError("--engine is about files that stream into a folder; name it with --out")


def _refuse_contradictions(  # noqa: PLR0913 - a command's options
    output: Path | None,
    out: Path | None,
    on_error: OnError,
    *,
    spreadsheet: bool,
    retry: bool,
    stops: bool,
    split: bool,
) -> None:
    """Refuse options that exclude each other."""
    if out is not None:
        excluded = {"--output": output is not None, "--retry-failed": retry, "an early exit": stops, "--split": split}
        both = next((name for name, given in excluded.items() if given), None)
        if both is not None:
            raise InputError(
                f"--out writes a folder of predictions a chunk at a time, which excludes {both}; give one of them"
            )
    if spreadsheet and out is None and (output is None or output.suffix.lower() != ".csv"):
        raise InputError("--spreadsheet is about the cells of a .csv file; give --output FILE.csv")
    if retry and on_error == "skip":
        raise InputError("--retry-failed needs --on-error record: rows that were left out have no place in the file")
    if stops and on_error != "fail":
        raise InputError("an early exit asks for all texts together; leave --on-error out, or the early exit")


def _asked(
    clf: PromptBoostingClassifier, texts: LabelledTexts, kept: Container[int], on_error: OnError
) -> Iterator[Prediction]:
    """Yield what the classifier says of each text that has no prediction yet."""
    places = _places(texts, kept)
    on_error = "fail" if on_error == "fail" else "record"  # what is skipped is counted
    separator = getattr(clf.facts_, SEPARATOR, ";")
    for one in clf.predict_iter([texts.examples[at] for at in places], on_error=on_error):
        yield replace(one, row=places[one.row], label=joined(one.label, separator))


def _places(texts: LabelledTexts, kept: Container[int]) -> list[int]:
    """Return which texts have no prediction yet."""
    return [at for at in range(len(texts)) if at not in kept]


def _settled(early: EarlyPredictions) -> Iterator[Prediction]:
    """Yield what an early exit found."""
    from pbsdk.predicting import Prediction

    for row, (label, shares) in enumerate(zip(early.labels.tolist(), early.probabilities, strict=True)):
        yield Prediction(row, label, shares)


def _write(  # noqa: PLR0913 - what is written where
    rows: Iterator[dict[str, Any]],
    table: Sequence[str],
    kept: Mapping[int, dict[str, Any]] | None,
    count: int,
    output: Path | None,
    *,
    spreadsheet: bool,
) -> None:
    """Write rows as they come, or between those that were kept, as a whole."""
    first = next(rows, None)  # if the budget or the model refuses, an older file is left alone
    fresh = chain([] if first is None else [first], rows)
    with (
        beside(output) if kept is not None and output else nullcontext(output) as target,
        writer(target, table, spreadsheet=spreadsheet) as write,
    ):
        for row in merged(kept, fresh, count) if kept else fresh:
            write(row)
