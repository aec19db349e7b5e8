"""`pbsdk prompts`: list the pools, show one, check one, write new ones, choose the best of many."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pbsdk.cli import _completion
from pbsdk.cli._common import (
    AsJson,
    Backend,
    Budget,
    Delimiter,
    Encoding,
    LabelColumn,
    Markers,
    Options,
    PairColumn,
    Run,
    Split,
    TextColumn,
    plainly,
    room_for,
    say,
    show,
)
from pbsdk.cli._help import Command, new_app
from pbsdk.cli._opening import read_options
from pbsdk.errors import InputError, TemplateError

if TYPE_CHECKING:
    from pbsdk.prompting.generation import PromptWriter
    from pbsdk.queries.pools import PromptPool
    from pbsdk.queries.templates import Template

__all__ = ["prompts"]

prompts = new_app(name="prompts")

Pool = Annotated[
    str,
    typer.Argument(help="A pool's name or JSON file.", show_default=False, autocompletion=_completion.pools),
]
Causal = Annotated[bool, typer.Option("--causal", help="As a causal model reads them: the mask comes last.")]
Chat = Annotated[bool, typer.Option("--chat", help="As a model that is asked in conversations is asked.")]


@prompts.callback()
def _about() -> None:
    """List, show, check, write and choose prompts.

    Examples:
        pbsdk prompts list
        pbsdk prompts show topic
    """


@prompts.command("list", cls=Command)
def list_pools(*, as_json: AsJson = False) -> None:
    """List the pools that come with pbsdk; `--prompts` takes each name.

    Examples:
        pbsdk prompts list
    """
    from pbsdk.queries.pools import load_pool, pool_names
    from pbsdk.queries.templates import Template

    rows = []
    for name in pool_names():
        pool = load_pool(name)
        pairs = Template(pool.prompts[0]).is_pair
        rows.append({"name": name, "texts": "pairs" if pairs else "single", "about": pool.about})
    show("\n".join(f"{row['name']:<21}{row['texts']:<8}{row['about']}" for row in rows), rows, as_json=as_json)


@prompts.command("show", cls=Command)
def show_pool(name: Pool, *, causal: Causal = False, chat: Chat = False, as_json: AsJson = False) -> None:
    """Show the prompts of a pool, one per line; a line break within a prompt is shown as \\n.

    Examples:
        pbsdk prompts show topic
        pbsdk prompts show topic --causal
        pbsdk prompts show topic --chat
    """  # noqa: D301 - shown
    from pbsdk.queries.pools import load_pool

    with plainly():
        pool = load_pool(name)
    chosen = (pool.prompts_turns if chat else []) or _prompts(pool, causal=causal or chat)
    text = "\n".join(prompt.replace("\n", "\\n") for prompt in chosen)
    show(text, pool.model_dump(exclude_none=True), as_json=as_json)


@prompts.command(cls=Command)
def check(name: Pool, *, causal: Causal = False, as_json: AsJson = False) -> None:
    """Check a pool before a model is asked: prompts that can't work are errors, and wasteful ones are noted.

    Examples:
        pbsdk prompts check prompts.json --causal

    Exit codes:
        1    a prompt can't work
    """
    from pbsdk.queries.pools import load_pool

    with plainly():
        pool = load_pool(name)
    errors, notes, usable = _checked(_prompts(pool, causal=causal), causal=causal)
    verdict = f"{usable} prompts can be used" + (" with a causal model" if causal else "")
    lines = [*(f"error: {error}" for error in errors), *(f"note: {note}" for note in notes), verdict]
    found = {"usable": usable, "errors": errors, "notes": notes}
    show("\n".join(line.replace("\n", "\\n") for line in lines), found, as_json=as_json)
    if errors:
        raise typer.Exit(1)


def _prompts(pool: PromptPool, *, causal: bool) -> list[str]:
    return pool.prompts_mask_last or pool.prompts if causal else pool.prompts or pool.prompts_mask_last


def _checked(prompts: Sequence[str], *, causal: bool) -> tuple[list[str], list[str], int]:
    """Return errors, notes, and how many prompts can be used."""
    from pbsdk.backend import Abilities
    from pbsdk.prompting.generation import distinct
    from pbsdk.queries.pools import fit_templates
    from pbsdk.queries.templates import Template

    errors: list[str] = []
    templates: list[Template] = []
    if not prompts:
        errors.append("the pool has no prompts")
    for prompt in prompts:
        try:
            template = Template(prompt)
            if causal:
                template.ending_at_mask()
        except TemplateError as error:
            errors.append(str(error))
            continue
        if template in templates:
            errors.append(f"the prompt {template.source!r} is in the pool twice; leave one out")
        elif templates and template.is_pair != templates[0].is_pair:
            errors.append(f"the prompt {template.source!r} takes a different number of texts than the first prompt")
        else:
            templates.append(template)
    if not templates:
        return errors, [], 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        abilities = Abilities(mask="last" if causal else "anywhere")
        usable = fit_templates(templates, abilities, pairs=templates[0].is_pair)
    notes = [str(warning.message) for warning in caught]
    sources = [template.source for template in usable if not template.has_examples]  # these show different texts
    near = [source for source in sources if source not in distinct(sources)]
    notes += [f"the prompt {source!r} says nearly the same as one before it" for source in near]
    return errors, notes, len(usable)


@prompts.command(cls=Command)
def generate(  # noqa: PLR0913 - a command's options are its parameters
    data: Annotated[
        str, typer.Argument(help="The few-shot training set: CSV, TSV, JSON lines, Parquet.", show_default=False)
    ],
    *,
    text_column: TextColumn = None,
    pair_column: PairColumn = None,
    label_column: LabelColumn = None,
    label_words: Annotated[
        str | None,
        typer.Option(
            help="LABEL=WORD,... such as 0=terrible,1=great; the labels themselves by default.", show_default=False
        ),
    ] = None,
    split: Split = None,
    encoding: Encoding = "utf-8",
    delimiter: Delimiter = None,
    method: Annotated[
        Literal["causal", "t5"], typer.Option(help="A causal backend continues the text, or a T5 fills gaps.")
    ] = "causal",
    count: Annotated[int, typer.Option(help="The maximum number of prompts to keep.")] = 10,
    beam: Annotated[int | None, typer.Option(help="How wide the search is.", show_default=False)] = None,
    max_tokens: Annotated[int | None, typer.Option(help="How long a prompt may be.", show_default=False)] = None,
    per_class: Annotated[
        int | None, typer.Option(help="Use only this many texts per class.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of that draw.")] = 13,
    backend: Backend = None,
    option: Options = None,
    run: Run = None,
    budget: Budget = 10,
    output: Annotated[Path, typer.Option(help="Where the pool is written.")] = Path("prompts.json"),
    as_json: AsJson = False,
) -> None:
    """Write prompts for labelled texts, without gradients, and save them as a pool.

    With `causal`, --backend, --option and --run say which model writes, and its passes are counted in the
    phase `generate`. With `t5`, --option is the writer's: `-o model=google/t5-v1_1-large`.

    Examples:
        pbsdk prompts generate tickets.csv --per-class 4 --count 3 --beam 4 --max-tokens 3 --budget 500
        pbsdk prompts generate tickets.csv --method t5 -o model=google/t5-v1_1-large --output prompts.json
    """
    from pbsdk.connecting import connect
    from pbsdk.data.loading import load_table
    from pbsdk.prompting.causal_writer import CausalWriter
    from pbsdk.prompting.generation import generate_pool, open_writer, write_pool

    with plainly():
        options = read_options(option)
        if method == "t5" and (backend is not None or run is not None):
            raise InputError("--backend and --run are for --method causal; a T5 is chosen with -o model=...")
        texts = load_table(
            data,
            text=text_column,
            pair=pair_column,
            label=label_column,
            split=split,
            encoding=encoding,
            delimiter=delimiter,
        )
        words = None if label_words is None else _words(label_words, texts.classes)
        room_for(output)

        def written(writer: PromptWriter) -> PromptPool:
            return generate_pool(
                writer,
                texts.examples,
                texts.labels,
                label_words=words,
                count=count,
                beam=beam,
                max_tokens=max_tokens,
                per_class=per_class,
                seed=seed,
                name=output.stem,
            )

        if method == "t5":
            pool = written(open_writer("t5", **options))
        else:
            with connect(backend, run=run, budget=budget, **options) as lm:
                pool = written(CausalWriter(lm))
        write_pool(pool, output)
    forwards = pool.made.forwards if pool.made else 0
    lines = [prompt.replace("\n", "\\n") for prompt in pool.prompts or pool.prompts_mask_last]
    text = "\n".join([*lines, "", f"{forwards} forward passes; the pool is in {output} (use it: --prompts {output})"])
    show(text, pool.model_dump(exclude_none=True), as_json=as_json)


@prompts.command(cls=Command)
def refine(  # noqa: PLR0913 - a command's options are its parameters
    pool: Pool,
    data: Annotated[
        str, typer.Argument(help="Labelled texts to train on: CSV, TSV, JSON lines, Parquet.", show_default=False)
    ],
    *,
    validation: Annotated[str, typer.Option(help="Labelled texts to score the prompts on.", show_default=False)],
    text_column: TextColumn = None,
    pair_column: PairColumn = None,
    label_column: LabelColumn = None,
    split: Split = None,
    encoding: Encoding = "utf-8",
    delimiter: Delimiter = None,
    method: Annotated[
        Literal["paper", "halving"], typer.Option(help="All prompts on all texts, or a fraction of that.")
    ] = "halving",
    keep: Annotated[int, typer.Option(help="How many prompts to keep.")] = 10,
    seed: Annotated[int, typer.Option(help="The seed of halving's draws.")] = 13,
    markers: Markers = "refuse",
    backend: Backend = None,
    option: Options = None,
    run: Run = None,
    budget: Budget = 10,
    output: Annotated[Path, typer.Option(help="Where the chosen pool is written.")] = Path("refined.json"),
    as_json: AsJson = False,
) -> None:
    """Choose the best prompts of a large pool by one weak learner each, and save them as a pool.

    The passes that each method needs are shown first; --budget must allow one example as many passes as there
    are prompts, or nothing is sent.

    Examples:
        pbsdk prompts refine topic tickets.csv --validation dev.csv --keep 3 --run runs/refining --output refined.json
    """
    from pbsdk.connecting import connect
    from pbsdk.data.loading import load_table
    from pbsdk.prompting.generation import write_pool
    from pbsdk.prompting.refinement import REFINEMENT_METHODS, passes_needed
    from pbsdk.prompting.refinement import refine as choose
    from pbsdk.queries.pools import fit_templates, load_pool

    with plainly():
        options = read_options(option)
        loading: dict[str, Any] = {"text": text_column, "pair": pair_column, "label": label_column}
        loading |= {"split": split, "encoding": encoding, "delimiter": delimiter}
        train = load_table(data, **loading)
        dev = load_table(validation, **loading, labels=train.classes)
        room_for(output)
        with connect(backend, run=run, budget=budget, **options) as lm:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about prompts that this model can't tell apart: refine warns too
                count = len(fit_templates(load_pool(pool).templates(lm.abilities), lm.abilities, pairs=train.pairs))
            for way in REFINEMENT_METHODS:
                say(passes_needed(count, train.labels, dev.labels, keep=keep, method=way), err=True)
            refined = choose(
                lm,
                pool,
                (train.examples, train.labels),
                (dev.examples, dev.labels),
                keep=keep,
                method=method,
                seed=seed,
                markers=markers,
            )
        write_pool(refined.pool, output)
    lines = [f"{score.validation_accuracy:6.1%}  {score.prompt}" for score in refined.scores[:keep]]
    text = "\n".join(line.replace("\n", "\\n") for line in lines)
    show(
        f"{text}\n\nthe pool is in {output} (use it: --prompts {output})",
        refined.pool.model_dump(exclude_none=True),
        as_json=as_json,
    )


def _words(given: str, classes: Sequence[Any]) -> dict[Any, str]:
    """Read LABEL=WORD,... for labels that are words or numbers."""
    by_name = {str(label): label for label in classes}
    words: dict[Any, str] = {}
    for item in given.split(","):
        name, equals, word = (piece.strip() for piece in item.partition("="))
        if not equals or not word or name not in by_name:
            raise InputError(
                f"--label-words is LABEL=WORD,... for the labels {', '.join(by_name)}; {item.strip()!r} doesn't fit"
            )
        words[by_name[name]] = word
    return words
