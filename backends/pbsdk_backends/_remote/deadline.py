"""A deadline that holds whatever the server does: when it is over, the connection is cut.

A time-out of the HTTP library begins anew with every byte. So a server that sends its headers a byte at a time, or
`100 Continue` for ever, or trailers without an end, could hold a thread as long as it likes. A `Watch` is the time of
one exchange, begun in the thread that asks: it holds a second handle on the connection, and shuts that down when the
time is over, which ends every read and write on it, TLS handshakes and a proxy's headers included.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import threading
from typing import Any, Self

from requests.adapters import HTTPAdapter

__all__ = ["Watch", "WatchedPool"]

_here = threading.local()


class Watch:
    """The time that one exchange may take.

    Args:
        seconds: after how long the connection is cut.
    """

    def __init__(self, seconds: float) -> None:
        self.cut = False
        """Whether the time was over before the exchange was."""
        self.sent = False
        """Whether the request may have reached the server."""
        self._line: socket.socket | None = None
        self._over = False
        self._lock = threading.Lock()
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        _here.watch = self
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        _here.watch = None
        self._timer.cancel()
        with self._lock:
            self._over = True
            if self._line is not None:
                self._line.close()

    def hold(self, connection: socket.socket, *, sent: bool) -> None:
        """Take a handle on the connection of this exchange; `sent` says that the request goes out on it."""
        with self._lock:
            self.sent = sent
            if self._line is not None:
                self._line.close()
            self._line = socket.socket(fileno=os.dup(connection.fileno()))
            if self.cut:
                self._shut()

    def _end(self) -> None:
        with self._lock:
            if not self._over:
                self.cut = True
                self._shut()

    def _shut(self) -> None:
        if self._line is not None:
            with contextlib.suppress(OSError):  # the server was faster
                self._line.shutdown(socket.SHUT_RDWR)


class _Watched:
    """What a connection of urllib3's does besides: it shows itself to the watch of the thread that uses it."""

    sock: socket.socket | None
    _asking = False

    def _new_conn(self) -> socket.socket:
        connection: socket.socket = super()._new_conn()  # type: ignore[misc]
        _show(connection, sent=self._asking)
        return connection

    def request(self, *args: Any, **options: Any) -> Any:
        self._asking = True
        if self.sock is not None:  # else it is made now
            _show(self.sock, sent=True)
        return super().request(*args, **options)  # type: ignore[misc]


def _show(connection: socket.socket, *, sent: bool) -> None:
    watch: Watch | None = getattr(_here, "watch", None)
    if watch is not None:
        watch.hold(connection, sent=sent)


@functools.cache
def _watched(kind: type) -> type:
    return type(f"Watched{kind.__name__}", (_Watched, kind), {})


class WatchedPool(HTTPAdapter):
    """A pool of connections that a `Watch` can cut."""

    def get_connection_with_tls_context(self, *args: Any, **options: Any) -> Any:
        """Return the pool of urllib3's for a request, its connections to be watched."""
        pool: Any = super().get_connection_with_tls_context(*args, **options)
        if not issubclass(pool.ConnectionCls, _Watched):
            pool.ConnectionCls = _watched(pool.ConnectionCls)
        return pool
