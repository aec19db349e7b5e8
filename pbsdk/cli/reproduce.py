"""`pbsdk reproduce`: the paper's tables on any model."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pbsdk.cli import _completion
from pbsdk.cli._common import AsJson, Options, Progress, plainly, say, show
from pbsdk.cli._opening import read_options
from pbsdk.errors import InputError, MissingExtra, UnknownBackend
from pbsdk.formatting import number
from pbsdk.reproduce.figures import ROWS

if TYPE_CHECKING:
    from pbsdk.backend import MaskedLMBackend
    from pbsdk.reproduce.results import Results

__all__ = ["reproduce"]


def reproduce(  # noqa: PLR0913 - a command's options are its parameters
    *,
    datasets: Annotated[
        str,
        typer.Option(
            help="Data sets, such as sst2,trec; from PBSDK_DATA or the `datasets` library.",
            autocompletion=_completion.data_sets,
        ),
    ],
    methods: Annotated[
        str | None,
        typer.Option(
            help=f"Rows of the tables: {', '.join(ROWS)}, and what packages have registered; or all, without those that look into the "
            "model. By default, six of the paper's that cost ten passes per example.",
            show_default=False,
            autocompletion=_completion.methods,
        ),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="The draws; the five published ones by default.", show_default=False)
    ] = None,
    prompts: Annotated[
        str,
        typer.Option(
            help="Sets of prompts: paper, own, shown, generated; or pools by name or file.",
            autocompletion=_completion.pools,
        ),
    ] = "paper",
    model: Annotated[
        str | None,
        typer.Option(
            help="A backend's name, or a Hugging Face model's name or folder; the embedded model by default.",
            show_default=False,
            autocompletion=_completion.backend_names,
        ),
    ] = None,
    option: Options = None,
    test_rows: Annotated[
        int | None, typer.Option(help="How many test rows, drawn at random; all by default.", show_default=False)
    ] = None,
    rounds: Annotated[int, typer.Option(help="The maximum number of boosting rounds.")] = 200,
    on_perfect: Annotated[
        Literal["best", "vote"],
        typer.Option(help="What to do when a learner makes no error; the paper takes the best."),
    ] = "best",
    style: Annotated[
        Literal["auto", "paper", "plain"], typer.Option(help="How texts and prompts are joined.")
    ] = "auto",
    t5: Annotated[
        str | None,
        typer.Option(help="The T5 that writes generated prompts; the model itself by default.", show_default=False),
    ] = None,
    per_class: Annotated[
        int | None,
        typer.Option(
            help="How many texts per class to write generated prompts from; all by default.", show_default=False
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="METHOD.SETTING=VALUE",
            help="A rival's setting, in place of the published one; may be repeated: --set bbt.evaluations=400.",
            show_default=False,
        ),
    ] = None,
    folder: Annotated[Path, typer.Option(help="Where answers, cells and tables are kept.")] = Path("runs/reproduce"),
    budget: Annotated[
        int | None,
        typer.Option(help="How many passes an example may have; what is needed by default.", show_default=False),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Show what is left to ask, and stop.")] = False,
    progress: Progress = None,
    as_json: AsJson = False,
) -> None:
    """Reproduce the paper's tables on any model, and show its figures beside the paper's.

    All methods share the answers, so together they cost the passes of the largest. After Ctrl-C the same
    command continues where it stopped, and a method that is added later asks for nothing new. The folder gets
    results.md, results.json and, where methods differ in training size or number of prompts, results.png.

    Examples:
        pbsdk reproduce --datasets sst2,trec --seeds 13,21,42 --test-rows 500
        pbsdk reproduce --datasets sst2 --methods all --plan         # what that would take; nothing is sent
        pbsdk reproduce --datasets rte --model roberta-large -o device=cuda --prompts paper,own
    """
    from pbsdk.data.sampling import SEEDS
    from pbsdk.prompting.generation import open_writer
    from pbsdk.reproduce.methods import BLACK_BOX, DEFAULT_METHODS
    from pbsdk.reproduce.results import Results
    from pbsdk.reproduce.runner import Reproduction
    from pbsdk.reproduce.settings import Settings

    with plainly():
        settings = Settings(
            datasets=_names(datasets),
            methods=DEFAULT_METHODS if methods is None else BLACK_BOX if methods == "all" else _names(methods),
            seeds=SEEDS if seeds is None else _seeds(seeds),
            prompts=_names(prompts),
            test_rows=test_rows,
            rounds=rounds,
            on_perfect=on_perfect,
            style=None if style == "auto" else style,
            per_class=per_class,
            changes=_changes(changes or ()),
        )
        writer = None if t5 is None else open_writer("t5", model=t5)
        backend = _open(model, read_options(option))
        with Reproduction(backend, folder, settings, budget=budget, writer=writer, progress=progress) as work:
            inside = {"forward": work.inside.forward.total(), "backward": work.inside.backward.total()}
            planned, plain = str(work.plan), work.plan.to_dict()
            if any(inside.values()):
                planned += "\nand inside the model: " + ", ".join(f"{number(n)} {name}" for name, n in inside.items())
                plain["inside"] = inside
            if plan:
                show(planned, plain, as_json=as_json)
                return
            say(f"{planned}\n", err=True)
            work.plan.check()
            cells = []
            for cell in work.cells():
                said = f"{cell.dataset} {cell.seed} {cell.prompts}: {cell.method} {cell.measure} {cell.score:.1%}"
                say(said, err=True)
                cells.append(cell)
            results = Results(tuple(cells), backend.identity.name)
            verdict = work.backend.audit().verdict
        written = _write(results, folder)
    say(f"\n{verdict}\nwritten: {', '.join(map(str, written))}", err=True)
    show(results.to_markdown(), results.to_dict(), as_json=as_json)


def _write(results: Results, folder: Path) -> list[Path]:
    tables, data = (folder / f"results.{kind}" for kind in ("md", "json"))
    tables.write_text(results.to_markdown(), "utf-8")
    data.write_text(json.dumps(results.to_dict(), indent=2, ensure_ascii=False) + "\n", "utf-8")
    try:
        drawn = {"results.png": results.plot(), "results-passes.png": results.plot_passes()}
    except MissingExtra as error:
        say(f"warning: no picture: {error}", err=True)
        return [tables, data]
    for name, picture in drawn.items():
        if picture is not None:
            picture.savefig(folder / name, dpi=120)
    return [tables, data, *(folder / name for name, picture in drawn.items() if picture is not None)]


def _open(model: str | None, options: dict[str, Any]) -> MaskedLMBackend:
    """Open a backend by its name, or else a local model by its own."""
    from pbsdk.connecting import default_name, open_backend

    try:
        return open_backend(model or default_name(), **options)
    except UnknownBackend:
        return open_backend("local", model=model, **options)


def _changes(given: Iterable[str]) -> dict[str, dict[str, str]]:
    """Read settings of rivals."""
    found: dict[str, dict[str, str]] = {}
    for one in given:
        name, dot, rest = one.partition(".")
        setting, equals, value = rest.partition("=")
        if not (dot and equals and name and setting):
            raise InputError(f"--set takes METHOD.SETTING=VALUE, such as bbt.evaluations=400; not {one!r}")
        found.setdefault(name, {})[setting] = value
    return found


def _names(given: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in given.split(",") if name.strip())


def _seeds(given: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, _names(given)))
    except ValueError as error:
        raise InputError(f"seeds must be whole numbers, such as 13,21; not {given!r}") from error
