"""`pbsdk fit`: train a classifier on a table of labelled texts.

It can be stopped at any time. What was answered is in the run folder, and the same command continues from there.
"""

from __future__ import annotations

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
    Progress,
    Prompts,
    Run,
    Screen,
    Split,
    Strict,
    TextColumn,
    Tokens,
    Total,
    budget_of,
    naming_rows,
    plainly,
    room_for,
    rows_of,
    sends,
    show,
)
from pbsdk.cli._opening import column_facts, read_options, remembered
from pbsdk.cli._several import fit_several, fitted_text, load_sets, result_of
from pbsdk.errors import InputError

if TYPE_CHECKING:
    from pbsdk.classifier import PromptBoostingClassifier
    from pbsdk.data.loading import LabelledTexts
    from pbsdk.learning.estimates import Estimate
    from pbsdk.learning.selection import Selection

__all__ = ["fit"]

SHARE = 0.2
"""The share of the data held out by default, for heads that a validation set tells something."""


def fit(  # noqa: PLR0913 - a command's options are its parameters
    data: Annotated[
        str,
        typer.Argument(
            help="Labelled texts: CSV, TSV, JSON lines, Parquet, Excel, - for standard input, or a data set by its name.",
            show_default=False,
        ),
    ],
    *,
    text_column: TextColumn = None,
    pair_column: PairColumn = None,
    label_column: LabelColumn = None,
    validation: Annotated[
        str | None,
        typer.Option(
            help="Further labelled texts: auto learns from them too, boosting chooses its rounds by them.",
            show_default=False,
        ),
    ] = None,
    validation_share: Annotated[
        float | None,
        typer.Option(
            help=f"Hold out this share of DATA instead; 0 for none. {SHARE} by default for heads that choose by it, 0 for auto, soft and knn.",
            show_default=False,
        ),
    ] = None,
    label_separator: Annotated[
        str | None,
        typer.Option(
            help="Texts may have several labels, or none: what separates them in a cell, such as ';'.",
            show_default=False,
        ),
    ] = None,
    balanced: Annotated[
        bool, typer.Option("--balanced", help="Let every class count the same in all, however many texts it has.")
    ] = False,
    missing: Missing = "refuse",
    split: Split = None,
    encoding: Encoding = "utf-8",
    delimiter: Delimiter = None,
    prompts: Prompts = "topic",
    n_prompts: Annotated[
        int | None, typer.Option(min=1, help="Use only the first N prompts.", show_default=False)
    ] = None,
    demonstrations: Demonstrations = None,
    screen: Screen = None,
    head: Annotated[
        str,
        typer.Option(
            help="What learns from the answers: auto, boosting, voting, best, soft, knn, or another registered head.",
            autocompletion=_completion.heads,
        ),
    ] = "auto",
    early_exit: Annotated[
        bool, typer.Option("--early-exit", help="Let soft and auto learn when to stop, for `predict --max-changed`.")
    ] = False,
    rounds: Annotated[int, typer.Option(min=1, help="The maximum number of boosting rounds.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the held-out texts and of random draws.")] = 13,
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
    output: Annotated[Path, typer.Option(help="Where the classifier is saved.")] = Path("model.json"),
    progress: Progress = None,
    as_json: AsJson = False,
) -> None:
    """Fit a classifier to labelled texts, save it, and show what it learned and what it cost.

    After Ctrl-C the same command continues where it stopped.

    Examples:
        pbsdk fit tickets.csv                               # columns found by name
        pbsdk fit tickets.csv --prompts intent --validation dev.csv --run runs/tickets --output model.json
        pbsdk fit tickets.csv --text-column text --label-column label --json
        pbsdk fit ag_news --split train                     # a data set of the Hugging Face hub
        pbsdk fit tickets.csv --label-separator ';' --output several.json   # "billing;shipping" is two labels
        pbsdk fit tickets.csv --price-per-1k-tokens 0.02 --money 5   # never more than that
        pbsdk fit tickets.csv --prompts topic-shown --run runs/shown --output shown.json   # prompts show labelled texts
    """
    from pbsdk.classifier import PromptBoostingClassifier
    from pbsdk.connecting import connect
    from pbsdk.data.loading import load_table
    from pbsdk.learning.heads import head_named
    from pbsdk.queries.examples import read_examples
    from pbsdk.queries.pools import choosers
    from pbsdk.queries.reuse import warn_of_reuse

    with plainly(missing="--missing drop"):
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
        loading: dict[str, Any] = {"encoding": encoding, "delimiter": delimiter, "split": split, "missing": missing}
        loading |= {"text": text_column, "pair": pair_column, "label": label_column}
        settings: dict[str, Any] = {
            "head": head,
            "early_exit": early_exit,
            "rounds": rounds,
            "n_prompts": n_prompts,
            "demonstrations": demonstrations,
            "screen": screen,
            "class_weight": "balanced" if balanced else None,
            "markers": markers,
            "random_state": seed,
            "progress": progress,
        }
        if label_separator is not None:
            if validation_share is not None:
                raise InputError(
                    "--validation-share holds out texts of one label each; leave it out, or --label-separator"
                )
            sets = [load_sets(file, label_separator, loading) for file in (data, validation) if file is not None]
            room_for(output)
            with connect(backend, run=run, budget=limits, **options) as lm:
                clf = fit_several(lm, prompts, settings, sets, label_separator)
                clf.save(output, backend=remembered(backend, options))
                result = result_of(clf, lm, str(output))
            show(fitted_text(clf, result), result, as_json=as_json)
            return
        whole = load_table(data, **loading)
        if validation is not None and validation_share is not None:
            raise InputError("--validation and --validation-share exclude each other; give only one of them")
        given = None if validation is None else load_table(validation, **loading, labels=whole.classes)
        share = SHARE if validation_share is None and head_named(head).validates else validation_share or 0.0
        train, dev = _divided(whole, given, share, seed)
        room_for(output)
        with connect(backend, run=run, budget=limits, **options) as lm:
            before = sends(lm.audit())
            clf = PromptBoostingClassifier(lm, prompts, **settings)
            held_out = None if dev is None else (dev.examples, dev.labels)
            checked = None if dev is None else rows_of(validation or data, dev)
            with naming_rows(texts=rows_of(data, train), validation_texts=checked):
                clf.fit(train.examples, train.labels, validation=held_out)
            clf.facts_ = clf.facts_.model_copy(update=column_facts(whole))
            clf.save(output, backend=remembered(backend, options))
            if dev is not None:  # they chose the number of rounds, and their accuracy is reported
                warn_of_reuse(read_examples(dev.examples), choosers(prompts))
            report, estimate = lm.audit(), clf.estimate_
            selection: Selection | None = getattr(clf.fitted_, "selection", None)
            result = {
                "model": lm.identity.name,
                "saved": str(output),
                "run": str(lm.ledger.folder),
                "train": len(train),
                "left_out": [place for each in (whole, given) if each is not None for place in each.left_out],
                "validation": 0 if dev is None else len(dev),
                "head": clf.head_name_,
                "learners": clf.fitted_.size,
                "validation_accuracy": clf.facts_.validation_accuracy,
                **_cross_validated(clf, train, dev, seed),
                "selection": None if selection is None else selection.to_dict(),
                "screen": None if clf.screen_ is None else clf.screen_.to_dict(),
                "estimate": None if estimate is None else estimate.to_dict(),
                "words": {str(label): clf.explain().words(label) for label in clf.classes_.tolist()},
                "sent_now": sends(report) - before,
                "audit": report.to_dict(),
            }
    screened = "" if clf.screen_ is None else f"\n{clf.screen_}"
    show(_fit_text(result, estimate, selection, screened), result, as_json=as_json)


def _divided(
    whole: LabelledTexts, given: LabelledTexts | None, share: float, seed: int
) -> tuple[LabelledTexts, LabelledTexts | None]:
    """Return what to train on and what to validate on."""
    from pbsdk.data.sampling import held_out

    if given is not None or share == 0:
        return whole, given
    if not 0 < share < 1:
        raise InputError(f"--validation-share is {share:g}; it must be at least 0 and below 1, such as {SHARE}")
    try:
        parts = held_out(whole, seed=seed, part=share)
    except InputError as error:
        raise InputError(f"{error}; add rows, or train on all of them with --validation-share 0") from error
    return parts.train, parts.validation


def _cross_validated(
    clf: PromptBoostingClassifier, train: LabelledTexts, dev: LabelledTexts | None, seed: int
) -> dict[str, float | None]:
    """Return how well the classifier does on texts left out, if its head knows, and how well a simpler tool does."""
    from numpy import searchsorted

    from pbsdk.learning.texts import text_accuracy
    from pbsdk.queries.examples import read_examples

    own = getattr(clf.facts_, "cross_validated_accuracy", None)
    simpler = getattr(clf.facts_, "text_accuracy", None)
    if simpler is None:
        texts, labels = [*train.examples], [*train.labels]
        if dev is not None:
            texts, labels = [*texts, *dev.examples], [*labels, *dev.labels]
        simpler = text_accuracy(read_examples(texts), searchsorted(clf.classes_, labels), seed)
    return {"cross_validated_accuracy": own, "text_accuracy": simpler}


def _accuracy_text(result: dict[str, Any], estimate: Estimate | None) -> str:
    """Say how good the classifier is, and whether a simpler tool would do."""
    own, simpler = None if estimate is None else estimate.accuracy, result["text_accuracy"]
    if estimate is not None:
        said = str(estimate)
        if estimate.kind == "validation":
            said += "\nThese texts chose the number of rounds; texts that chose nothing tell more."
    else:
        said = "no validation set: measure its accuracy with pbsdk predict --label-column on texts it hasn't seen"
    said += f"\nTF-IDF and a linear model on the same texts, at no pass: {simpler:.1%} (cross-validated)"
    if own is not None and simpler >= own:
        said += "\nA simpler tool does as well here: TF-IDF with a linear model needs no language model."
    return said


def _origin(result: dict[str, Any]) -> str:
    from pbsdk.learning.heads import head_named

    if not head_named(result["head"]).validates:
        return f"learned from {result['train'] + result['validation']} texts"
    return f"{result['learners']} learners from {result['train']} texts, {result['validation']} for validation"


def _without(left_out: list[str]) -> str:
    if not left_out:
        return ""
    said = ", ".join(left_out[:_SHOWN]) + (", ..." if len(left_out) > _SHOWN else "")
    return f" ({len(left_out)} without a text or a label left out: {said})"


_SHOWN = 5
"""How many rows that were left out are named."""


def _tried_text(selection: Selection | None, saved: str) -> str:
    """Say what `auto` tried, and why it chose as it did."""
    if selection is None:
        return ""
    return f"\n\nWhat it tried: the best of {len(selection.tried)} (pbsdk explain {saved} has all)\n{selection.brief()}"


def _fit_text(result: dict[str, Any], estimate: Estimate | None, selection: Selection | None, screened: str) -> str:
    column = max(15, *map(len, result["words"])) + 1
    words = "\n".join(f"  {label:<{column}}{', '.join(said)}" for label, said in result["words"].items())
    return f"""\
{result["head"]}: {_origin(result)}{_without(result["left_out"])}, on {result["model"]}{screened}
{_accuracy_text(result, estimate)}{_tried_text(selection, result["saved"])}

Words by which a class is recognised
{words}

{result["audit"]["verdict"]}; {result["sent_now"]:,} queries sent this time
The classifier is in {result["saved"]} (try: pbsdk explain {result["saved"]}),
the record of every query in {result["run"]} (try: pbsdk audit {result["run"]})."""
