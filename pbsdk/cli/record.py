"""`pbsdk record`: save a run's answers to a file, for tests that replay them elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pbsdk.cli._common import AsJson, Backend, Options, RunFolder, plainly, room_for, show
from pbsdk.cli._opening import read_options

__all__ = ["record"]


def record(  # noqa: PLR0913 - a command's options are its parameters
    run: RunFolder,
    file: Annotated[Path, typer.Argument(help="The recording to write, such as answers.pbrec.", show_default=False)],
    *,
    phase: Annotated[
        list[str] | None,
        typer.Option(help="Only answers of this phase, such as predict; may be repeated.", show_default=False),
    ] = None,
    backend: Backend = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Save a run's answers to a file that tests replay without the model; nothing is asked.

    The run's own backend is opened for its vocabulary. Whole answers, as training needs them, take about 85 KB
    each for 49,152 tokens; predictions about a hundred bytes. Replay with `connect("replay", file=...)`.

    Examples:
        pbsdk record runs/tickets answers.pbrec
        pbsdk record runs/tickets predictions.pbrec --phase predict
        pbsdk predict model.json new.csv --backend replay -o file=predictions.pbrec --run runs/replayed
    """
    from pbsdk.connecting import default_name, open_backend
    from pbsdk.testing.recording import Recording

    with plainly():
        options = read_options(option)
        room_for(file)
        with open_backend(backend or default_name(), **options) as model:
            recording = Recording.of_run(run, model, phase)
        recording.save(file)
    result = {
        "saved": str(file),
        "model": recording.identity.name,
        "answers": len(recording.answers),
        "bytes": file.stat().st_size,
    }
    said = f"{result['answers']} answers of {result['model']} in {file}, {result['bytes']:,} bytes"
    show(f'{said} (use it: connect("replay", file="{file}"))', result, as_json=as_json)
