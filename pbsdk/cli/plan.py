"""`pbsdk plan`: what a fit and a prediction will take, before anything is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pbsdk.cli._common import (
    AsJson,
    Attempts,
    Backend,
    Budget,
    Demonstrations,
    LabelColumn,
    Money,
    Options,
    PairColumn,
    PricePer1kTokens,
    PricePerPass,
    Prompts,
    Run,
    Strict,
    TextColumn,
    Tokens,
    Total,
    budget_of,
    connected,
    cure_of,
    plainly,
    read_options,
    show,
    typed,
)
from pbsdk.errors import InputError

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
    like: Annotated[Path | None, typer.Option(help="A run folder to take the rate from.", show_default=False)] = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    pair_column: PairColumn = None,
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
    from pbsdk.classifier import PromptBoostingClassifier
    from pbsdk.data.loading import load_table
    from pbsdk.data.streaming import stream_table
    from pbsdk.metering.plan import plan_classifier
    from pbsdk.multilabel import load_classifier

    if model is not None and not typed(ctx, "train"):
        train = validation = None
    if model is not None and (train is not None or predict is None):
        raise InputError("a saved classifier needs no fit; give --model and --predict, and no labelled texts")
    with plainly():
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
        sets = [
            None if file is None else load_table(file, text=text_column, label=label_column, pair=pair_column)
            for file in (train, validation)
        ]
        asked = None if predict is None else stream_table(predict, text=text_column, pair=pair_column, labelled=False)
        with connected(model, backend, read_options(option), run=run, budget=limits) as lm:
            classifier = (
                PromptBoostingClassifier(
                    lm, prompts, n_prompts=n_prompts, demonstrations=demonstrations, random_state=seed
                )
                if model is None
                else load_classifier(model, lm)
            )
            fit, held_out = [None if data is None else (data.examples, data.labels) for data in sets]
            texts = None if asked is None else (text for chunk in asked for text in chunk.examples)
            early: dict[str, Any] = {"early_exit": early_exit, "max_changed": max_changed}
            found = plan_classifier(classifier, fit, validation=held_out, predict=texts, like=like, **early).worded(
                cure_of
            )
    show(found, found.to_dict(), as_json=as_json)
    if not found.allowed:
        raise typer.Exit(3)
