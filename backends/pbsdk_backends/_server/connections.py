"""Connections that can't be held open for nothing.

Uvicorn waits for the rest of a request as long as its client likes. Here the headers have to be complete within some
seconds, the body within some more, and a client that doesn't read its answer is left. One address may have only so many
connections; a further one is told to come again, and nothing it sends is read.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["Patient"]

HEADER_SECONDS = 10.0
"""For the whole of a request's headers."""
BODY_SECONDS = 40.0
"""For its body; the guard gives up sooner, with an answer."""
STALL_SECONDS = 60.0
"""For the next bytes of an answer to be taken."""
_PARTING_SECONDS = 1.0
_LATE = b'{"error": "the headers did not end in time"}'
_FULL = b'{"error": "too many connections from this address; this request was not read"}'


def _reply(status: bytes, body: bytes, *headers: bytes) -> bytes:
    length = b"Content-Length: %d" % len(body)
    lines = (
        b"HTTP/1.1 " + status,
        b"Content-Type: application/json",
        length,
        b"Connection: close",
        *headers,
        b"",
        body,
    )
    return b"\r\n".join(lines)


class Patient(H11Protocol):
    """One connection; patient, but not for ever.

    Args:
        places: how many connections each address has; shared by all connections of a server.
        most: how many it may have.
        options: uvicorn's.
    """

    def __init__(self, places: Counter[str], most: int, **options: Any) -> None:
        super().__init__(**options)
        self._places = places
        self._most = most
        self._address = ""
        self._refused = False
        self._phase = ""
        self._timer: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._unread = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a place, or turn the client away."""
        peer = transport.get_extra_info("peername")
        self._address = str(peer[0]) if peer else ""
        if self._places[self._address] >= self._most:
            self._refused = True
            transport.write(_reply(b"503 Service Unavailable", _FULL, b"Retry-After: 1"))
            # Closed by the client, or in a moment: closed at once, with bytes unread, the reply would be lost.
            transport.write_eof()
            self.loop.call_later(_PARTING_SECONDS, transport.abort)
            return
        self._places[self._address] += 1
        super().connection_made(transport)
        self._await("headers", HEADER_SECONDS)

    def data_received(self, data: bytes) -> None:
        """Read on, and see how far the request has come."""
        if self._refused:
            return
        super().data_received(data)
        state = self.conn.their_state
        if state is h11.IDLE:
            self._await("headers", HEADER_SECONDS)
        elif state is h11.SEND_BODY:
            self._await("body", BODY_SECONDS)
        else:
            self._await("", 0.0)

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        if self._refused:
            return
        self._places[self._address] -= 1
        if not self._places[self._address]:
            del self._places[self._address]
        self._await("", 0.0)
        self._stop_watching()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Watch whether the client goes on reading."""
        super().pause_writing()
        self._unread = self.transport.get_write_buffer_size()
        self._stall = self.loop.call_later(STALL_SECONDS, self._leave_if_stalled)

    def resume_writing(self) -> None:
        """The client has read."""
        self._stop_watching()
        super().resume_writing()

    def _stop_watching(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _await(self, phase: str, seconds: float) -> None:
        if phase == self._phase:
            return
        self._phase = phase
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if phase:
            self._timer = self.loop.call_later(seconds, self._leave)

    def _leave(self) -> None:
        if self._phase == "headers" and not self.transport.is_closing():
            self.transport.write(_reply(b"408 Request Timeout", _LATE))
            self.transport.close()
        else:
            self.transport.abort()

    def _leave_if_stalled(self) -> None:
        unread = self.transport.get_write_buffer_size()
        if unread >= self._unread:
            self.transport.abort()
            return
        self._unread = unread
        self._stall = self.loop.call_later(STALL_SECONDS, self._leave_if_stalled)
