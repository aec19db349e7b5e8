"""`pbsdk plan`: what a fit and a prediction will take, before anything is sent."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pbsdk.cli import _completion
from pbsdk.cli._common import (
    AsJson,
    Attempts,
    Backend,
    Budget,
    Delimiter,
    Demonstrations,
    Encoding,
    LabelColumn,
    Markers,
    Missing,
    Money,
    Options,
    PairColumn,
    PricePer1kTokens,
    PricePerPass,
    Prompts,
    Run,
    Screen,
    Strict,
    TextColumn,
    Tokens,
    Total,
    budget_of,
    cure_of,
    naming_rows,
    plainly,
    rows_of,
    say,
    show,
    typed,
)
from pbsdk.cli._opening import column_facts, connected, familiar, read_options
from pbsdk.errors import InputError

if TYPE_CHECKING:
    from pbsdk.data.loading import LabelledTexts

__all__ = ["plan"]


def plan(  # noqa: PLR0913 - a command's options are its parameters
    ctx: typer.Context,
    train: Annotated[
        Path | None, typer.Argument(help="Labelled texts to fit: CSV, TSV, JSON lines, Parquet.", show_default=False)
    ] = None,
    *,
    validation: Annotated[Path | None, typer.Option(help="Labelled texts to validate on.", show_default=False)] = None,
    predict: Annotated[Path | None, typer.Option(help="Texts to predict.", show_default=False)] = None,
    model: Annotated[
        Path | None, typer.Option(help="A saved classifier; then only a prediction is planned.", show_default=False)
    ] = None,
    early_exit: Annotated[
        bool, typer.Option("--early-exit", help="Plan `predict --early-exit` of the saved classifier.")
    ] = False,
    max_changed: Annotated[
        float | None, typer.Option(help="Plan `predict --max-changed` of the saved classifier.", show_default=False)
    ] = None,
    prompts: Prompts = "topic",
    n_prompts: Annotated[
        int | None, typer.Option(min=1, help="Use only the first N prompts.", show_default=False)
    ] = None,
    demonstrations: Demonstrations = None,
    screen: Screen = None,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the draws, as fit has it.")] = 13,
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
    like: Annotated[
        str | None,
        typer.Option(
            help="A run to take the rate from.", show_default=False, metavar="PATH", autocompletion=_completion.folders
        ),
    ] = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    pair_column: PairColumn = None,
    missing: Missing = "refuse",
    encoding: Encoding = "utf-8",
    delimiter: Delimiter = None,
    markers: Markers = "refuse",
    as_json: AsJson = False,
) -> None:
    """Show what a fit and a prediction will take, and whether the budget allows it; nothing is sent.

    Examples:
        pbsdk plan tickets.csv --validation dev.csv --predict new.csv
        pbsdk plan tickets.csv --price-per-1k-tokens 0.02 --money 5
        pbsdk plan --model model.json --predict new.csv --run runs/tickets --max-changed 0.01

    Exit codes:
        3    the budget doesn't allow it
    """
    if sys.stderr.isatty():
        say("Opening the model and counting; this takes some seconds, and nothing is sent.", err=True)
    from pbsdk.classifier import PromptBoostingClassifier
    from pbsdk.data.loading import load_table
    from pbsdk.data.streaming import stream_table
    from pbsdk.metering.plan import plan_classifier
    from pbsdk.multilabel import load_classifier

    if model is not None and not typed(ctx, "train"):
        train = validation = None
    if model is not None and (train is not None or predict is None):
        raise InputError("a saved classifier needs no fit; give --model and --predict, and no labelled texts")
    with plainly(missing="--missing drop"):
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
        reading: dict[str, Any] = {"text": text_column, "pair": pair_column}
        reading |= {"missing": missing, "encoding": encoding, "delimiter": delimiter}
        sets = [
            None if file is None else load_table(file, label=label_column, **reading) for file in (train, validation)
        ]
        known = list(column_facts(sets[0]).values()) if sets[0] else familiar(model) if model else []
        asked = None
        if predict is not None:
            asked = _Streamed(predict, stream_table(predict, labelled=False, familiar=known, **reading))
        with connected(model, backend, read_options(option), run=run, budget=limits, asks=False) as lm:
            classifier = (
                PromptBoostingClassifier(
                    lm,
                    prompts,
                    n_prompts=n_prompts,
                    demonstrations=demonstrations,
                    screen=screen,
                    markers=markers,
                    random_state=seed,
                )
                if model is None
                else load_classifier(model, lm, markers=markers)
            )
            fit, held_out = [None if data is None else (data.examples, data.labels) for data in sets]
            early: dict[str, Any] = {"early_exit": early_exit, "max_changed": max_changed}
            whole, dev = [
                None if file is None or given is None else rows_of(file, given)
                for file, given in zip((train, validation), sets, strict=True)
            ]
            with naming_rows(texts=partial(_place, whole, asked), validation_texts=dev):
                found = plan_classifier(classifier, fit, validation=held_out, predict=asked, like=like, **early)
            found = found.worded(cure_of)
    show(found, found.to_dict(), as_json=as_json)
    if not found.allowed:
        raise typer.Exit(3)


class _Streamed(Iterator[Any]):
    """The texts of a long file, one after the other, which remembers where the last of them are."""

    def __init__(self, file: Path, chunks: Iterator[LabelledTexts]) -> None:
        self._file = file
        self._chunks = chunks
        self._last: list[tuple[int, LabelledTexts]] = []
        self._texts: Iterator[Any] = iter(())
        self.count = 0

    def __next__(self) -> Any:
        for text in self._texts:
            return text
        chunk = next(self._chunks)
        self._last = [*self._last[-1:], (self.count, chunk)]
        self.count += len(chunk)
        self._texts = iter(chunk.examples)
        return next(self)

    def place(self, at: int) -> str:
        """Say where one of the texts that were read last is."""
        start, chunk = next((start, chunk) for start, chunk in reversed(self._last) if start <= at)
        return rows_of(self._file, chunk)(at - start)


def _place(whole: Callable[[int], str] | None, asked: _Streamed | None, at: int) -> str:
    """Say where a text is that an error names: among those to predict, once these are read, or those to fit."""
    if asked is not None and (asked.count or whole is None):
        return asked.place(at)
    return f"texts[{at}]" if whole is None else whole(at)
