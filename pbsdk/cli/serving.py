"""Commands about backends: serve one to others, compare two."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pbsdk.cli import completing
from pbsdk.cli.common import AsJson, Options, read_options, show
from pbsdk.errors import InputError
from pbsdk.plugins import PluginGroup

__all__ = ["parity", "serve"]

_SERVERS = PluginGroup("pbsdk.servers", "server", {"http": "serve"})


def serve(
    backend: Annotated[
        str, typer.Argument(help="A backend's name, as for connect().", autocompletion=completing.backend_names)
    ] = "smollm2",
    *,
    option: Options = None,
    host: Annotated[str, typer.Option(help="The address to listen on; a public one needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 for any that is free.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(envvar="PBSDK_SERVE_TOKEN", help="What clients must show; better in the environment than here."),
    ] = None,
    max_batch: Annotated[int, typer.Option(help="How many queries one request may hold.")] = 256,
    queue: Annotated[int, typer.Option(help="How many requests may wait before others are sent away.")] = 64,
) -> None:
    """Serve a backend over HTTP: pbsdk's own protocol, Hugging Face fill-mask, and Open Inference v2.

    In another terminal, or on another machine: `connect("http", url="http://127.0.0.1:8000")`.

    Examples:
        pbsdk serve smollm2
        pbsdk serve local -o model=roberta-large --port 8001
    """
    from pbsdk.connecting import open_backend

    server = _SERVERS.load("http")
    with open_backend(backend, **read_options(option)) as model:

        def ready(address: str) -> None:
            typer.echo(
                f"serving {model.identity.name} at {address} (OpenAPI page: {address}/docs); Ctrl-C ends", err=True
            )

        server(model, host=host, port=port, token=token, max_batch=max_batch, queue=queue, ready=ready)


def parity(
    first: Annotated[
        str, typer.Argument(help="A backend's name.", show_default=False, autocompletion=completing.backend_names)
    ],
    second: Annotated[
        str, typer.Argument(help="Another's.", show_default=False, autocompletion=completing.backend_names)
    ],
    *,
    first_option: Annotated[
        list[str] | None, typer.Option("--a", help="An option of the first: `--a model=...`.")
    ] = None,
    second_option: Annotated[
        list[str] | None, typer.Option("--b", help="An option of the second: `--b url=...`.")
    ] = None,
    texts: Annotated[
        Path | None, typer.Option(help="A file with a text a line; else eight of the demo's tickets.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare two backends on a few texts, before any money goes into training.

    Shows differences in log-probability, the likeliest words, and a verdict. A handful of passes on each.

    Examples:
        pbsdk parity smollm2 http --b url=http://127.0.0.1:8000
        pbsdk parity fake fake --b seed=1                   # exit code 1: different
    """
    from pbsdk.connecting import open_backend
    from pbsdk.data.tickets import load_tickets
    from pbsdk.parity import parity as compare

    lines = load_tickets().test.texts[:8]
    if texts is not None:
        try:
            lines = [line for line in texts.read_text("utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"can't read texts from {texts}: {error}") from error
    with (
        open_backend(first, **read_options(first_option)) as one,
        open_backend(second, **read_options(second_option)) as two,
    ):
        report = compare(one, two, lines)
    show(report, report.to_dict(), as_json=as_json)
    if report.verdict == "different":
        raise typer.Exit(1)
