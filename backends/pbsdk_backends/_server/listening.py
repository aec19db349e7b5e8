"""The socket that `pbsdk serve` listens on, and how the server starts and stops."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import uvicorn
from fastapi import FastAPI

from pbsdk.errors import InputError, SetupError
from pbsdk_backends._protocol.address import is_loopback
from pbsdk_backends._server.connections import Patient

__all__ = ["Server", "address_of", "listen"]

_RESERVE = 1.0
"""Seconds of the grace that are kept for answering those who are cut off."""


class Server(uvicorn.Server):
    """Uvicorn, except that it leaves clients that only hold a connection open, and that a signal makes it return.

    Args:
        app: what `create_app` made.
        listener: the socket that it is to listen on.
        grace: seconds within which it returns once it is told to stop; a little before, `app.state.stop` is called,
            so that whoever still waits gets an answer.
        max_connections: how many one address may have.
        ready: called with the address once it listens.
    """

    def __init__(
        self,
        app: FastAPI,
        listener: socket.socket,
        *,
        grace: float,
        max_connections: int,
        ready: Callable[[str], None] | None,
    ) -> None:
        if max_connections < 1 or not grace >= 0:
            raise InputError("max_connections must be at least 1, and grace not negative")
        protocol: Any = partial(Patient, Counter(), max_connections)
        super().__init__(uvicorn.Config(app, http=protocol, ws="none", log_level="warning", access_log=False))
        self.config.timeout_graceful_shutdown = grace  # type: ignore[assignment]  # it waits so long, whole or not
        self.address = address_of(listener)
        self._state = app.state
        self._grace = grace
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, and say so."""
        await super().startup(sockets)
        if self._ready is not None:
            self._ready(self.address)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish what is under way, for so long as `grace` allows."""
        self._state.until = time.monotonic() + self._grace
        reserve = min(_RESERVE, self._grace / 2)
        last = asyncio.get_running_loop().call_later(self._grace - reserve, self._state.stop)
        await super().shutdown(sockets)
        last.cancel()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Let SIGINT and SIGTERM stop the server, and restore the handlers afterwards."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        signals = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in signals}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


MOST = 65535
"""The last port."""


def listen(host: str, port: int, *, public: bool) -> socket.socket:
    """Bind a socket; to an address that others can reach only if `public`."""
    if not public and not is_loopback(host):
        raise SetupError(
            f"{host} can be reached from other machines; give a token, which `pbsdk serve` takes from PBSDK_SERVE_TOKEN, or "
            "listen on 127.0.0.1"
        )
    if not 0 <= port <= MOST:  # the system would quietly take another
        raise InputError(f"port {port} doesn't exist; choose one up to {MOST}, or 0 for any free one")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise SetupError(f"can't listen on {host}: {error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise SetupError(f"can't listen on {host}, port {port} ({error.strerror}); choose another port") from None
    return listener


def address_of(listener: socket.socket) -> str:
    """Return the URL of a bound socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
