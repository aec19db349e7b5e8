"""`pbsdk serve`: a backend offered to others over HTTP."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from pbsdk.cli import _completion
from pbsdk.cli._common import Money, Options, PricePer1kTokens, PricePerPass, Tokens, Total, plainly, say
from pbsdk.cli._opening import read_options
from pbsdk.errors import InputError
from pbsdk.plugins import SERVERS

__all__ = ["serve"]

_TOKEN = "PBSDK_SERVE_TOKEN"  # noqa: S105 - a name
"""Not an option: those can be read by every user of the machine."""


def serve(  # noqa: PLR0913 - a command's options are its parameters
    backend: Annotated[
        str, typer.Argument(help="A backend's name, as for connect().", autocompletion=_completion.backend_names)
    ] = "smollm2",
    *,
    option: Options = None,
    host: Annotated[
        str, typer.Option(help=f"The address to listen on; a public one needs a token, in {_TOKEN} of the environment.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 for any free one.")] = 8000,
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
    members: Annotated[
        Path | None,
        typer.Option(help="Who may ask, and how much: see `pbsdk members`. Needs --run.", show_default=False),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            help="The folder, or postgresql:// address, that records what members ask, and answers twice for one pass.",
            show_default=False,
            metavar="PATH",
            autocompletion=_completion.folders,
        ),
    ] = None,
    total: Total = None,
    tokens: Tokens = None,
    money: Money = None,
    price_per_pass: PricePerPass = 0.0,
    price_per_1k_tokens: PricePer1kTokens = 0.0,
) -> None:
    """Serve a backend over HTTP: pbsdk's own protocol, Hugging Face fill-mask, and Open Inference v2.

    In another terminal, or on another machine: `connect("http", url="http://127.0.0.1:8000")`.

    With PBSDK_SERVE_TOKEN in the environment, clients must show that token.

    With --members it is a gate for a team: each member asks by a token and within an allowance, all share the answers and
    one record, and --total, --tokens and --money limit them together.

    Examples:
        pbsdk serve smollm2
        pbsdk serve local -o model=roberta-large --port 8001
        pbsdk serve smollm2 --members team.json --run runs/team
    """
    from pbsdk.connecting import open_backend

    server, token = SERVERS.load("http"), os.environ.get(_TOKEN)
    limits = {"total": total, "tokens": tokens, "money": money}
    prices = {"price_per_pass": price_per_pass, "price_per_1k_tokens": price_per_1k_tokens}
    if members is None and (
        run is not None or any(value is not None for value in limits.values()) or any(prices.values())
    ):
        raise InputError("--run, limits and prices belong to a gate; name who may ask with --members")
    if members is not None and (run is None or token is not None):
        raise InputError(
            f"a gate's members have tokens of their own and share a run folder: give --run, and no {_TOKEN}"
        )
    with plainly(), open_backend(backend, **read_options(option)) as model, ExitStack() as stack:
        gate = None
        if members is not None and run is not None:
            from pbsdk.ledger.budget import QueryBudget
            from pbsdk.metering.gate import Gate

            gate = Gate(model, run, members, QueryBudget(passes=None, predict=None, **limits, **prices))  # type: ignore[arg-type]
            stack.callback(gate.close)

        def ready(address: str) -> None:
            say(f"serving {model.identity.name} at {address} (OpenAPI page: {address}/docs); Ctrl-C stops it", err=True)

        server(
            model,
            host=host,
            port=port,
            token=token,
            gate=gate,
            max_batch=max_batch,
            queue=queue,
            allow_hosts=allow_host or (),
            max_connections=max_connections,
            grace=grace,
            ready=ready,
        )
