"""`pbsdk serve`: a backend offered to others over HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

from pbsdk.cli import _completion
from pbsdk.cli._common import Options, read_options, say
from pbsdk.plugins import SERVERS

__all__ = ["serve"]


def serve(  # noqa: PLR0913 - a command's options are its parameters
    backend: Annotated[
        str, typer.Argument(help="A backend's name, as for connect().", autocompletion=_completion.backend_names)
    ] = "smollm2",
    *,
    option: Options = None,
    host: Annotated[str, typer.Option(help="The address to listen on; a public one needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 for any free one.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(envvar="PBSDK_SERVE_TOKEN", help="What clients must show; better in the environment than here."),
    ] = None,
    max_batch: Annotated[int, typer.Option(help="How many queries one request may hold.")] = 256,
    queue: Annotated[int, typer.Option(help="How many requests may wait before more are rejected.")] = 64,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="A name that it answers to, besides localhost and addresses in digits; '*' for any. Repeatable."
        ),
    ] = None,
    max_connections: Annotated[int, typer.Option(help="How many connections one address may have.")] = 256,
    grace: Annotated[float, typer.Option(help="Seconds for requests under way once it is told to stop.")] = 30.0,
) -> None:
    """Serve a backend over HTTP: pbsdk's own protocol, Hugging Face fill-mask, and Open Inference v2.

    In another terminal, or on another machine: `connect("http", url="http://127.0.0.1:8000")`.

    Examples:
        pbsdk serve smollm2
        pbsdk serve local -o model=roberta-large --port 8001
    """
    from pbsdk.connecting import open_backend

    server = SERVERS.load("http")
    with open_backend(backend, **read_options(option)) as model:

        def ready(address: str) -> None:
            say(f"serving {model.identity.name} at {address} (OpenAPI page: {address}/docs); Ctrl-C stops it", err=True)

        server(
            model,
            host=host,
            port=port,
            token=token,
            max_batch=max_batch,
            queue=queue,
            allow_hosts=allow_host or (),
            max_connections=max_connections,
            grace=grace,
            ready=ready,
        )
