"""The socket that `pbsdk serve` listens on, and how the server starts and stops."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import uvicorn
from fastapi import FastAPI

from pbsdk.errors import InputError, SetupError
from pbsdk_backends._protocol.address import is_loopback

__all__ = ["Server", "address_of", "listen"]


class Server(uvicorn.Server):
    """Uvicorn, except that a signal makes it return, so that the caller can close the model."""

    def __init__(self, app: FastAPI, grace: float, address: str, ready: Callable[[str], None] | None) -> None:
        seconds = max(1, round(grace))
        super().__init__(uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=seconds))
        self.address = address
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, and say so."""
        await super().startup(sockets)
        if self._ready is not None:
            self._ready(self.address)

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
        raise SetupError(f"{host} can be reached from other machines; give a token, or listen on 127.0.0.1")
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
