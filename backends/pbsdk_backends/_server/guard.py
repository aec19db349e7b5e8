"""What every request to `pbsdk serve` goes through first: the host, the token, the size limit, the metrics.

This is plain ASGI middleware. It refuses other hosts' names and foreign pages, answers 401 without reading a byte of the
body of a request without the token, reads other bodies up to the limit and within half a minute, leaves a request whose
client has hung up, and counts responses for Prometheus.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import math
import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from pydantic import SecretStr
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pbsdk.errors import PbsdkError
from pbsdk_backends._protocol.wire import REMAINING, write_remaining
from pbsdk_backends._server.gate import GUEST, Doorkeeper, Guest
from pbsdk_backends._server.hosts import Hosts
from pbsdk_backends._server.stopping import Stop

__all__ = ["Guard", "Metrics"]

OPEN = frozenset({"/docs", "/openapi.json", "/v2/health/live", "/v2/health/ready"})
"""Paths that need no token: they reveal nothing about texts or answers."""
UPLOAD_SECONDS = 30.0
_LOG = logging.getLogger("uvicorn.error")
_LOST_GATE = {"error": "the gate can't tell who is asking, and this request did not run; its log says why"}


class Metrics:
    """The numbers that `/metrics` shows, of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("pbsdk_requests", "Requests answered.", ["path", "status"], registry=self.registry)
        self.seconds = Histogram("pbsdk_request_seconds", "Time per request.", ["path"], registry=self.registry)
        self.queries = Counter("pbsdk_queries", "Queries that the model answered.", registry=self.registry)
        self.failures = Counter("pbsdk_failures", "Batches that the model failed.", ["kind"], registry=self.registry)
        self.waiting = Gauge("pbsdk_waiting", "Requests waiting for the model or with it.", registry=self.registry)


class Guard:
    """Lets a request through to the app, or answers it itself."""

    def __init__(  # noqa: PLR0913 - settings that are independent, given by keyword
        self,
        app: ASGIApp,
        *,
        token: SecretStr | None,
        door: Doorkeeper | None,
        hosts: Hosts,
        max_bytes: int,
        metrics: Metrics,
        stop: Stop,
    ) -> None:
        self._app = app
        self._token = token
        self._door = door
        self._hosts = hosts
        self._max_bytes = max_bytes
        self._metrics = metrics
        self._stop = stop

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection's event."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 0
        start = time.monotonic()

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._handle(scope, receive, noting)
        finally:
            # The route's pattern, not the path: a stranger must not be able to create labels.
            path = getattr(scope.get("route"), "path", "other")
            self._metrics.requests.labels(path, str(status)).inc()
            self._metrics.seconds.labels(path).observe(time.monotonic() - start)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        guest, refused = await self._let_in(scope)
        if refused is not None:
            await refused(scope, receive, send)
            return
        try:
            async with asyncio.timeout(UPLOAD_SECONDS) as patience:
                with self._stop.telling(lambda: patience.reschedule(0)):
                    body = await self._read(scope, receive)
        except TimeoutError:
            if self._stop.come:
                stopping = {"error": "the server is stopping, and this request did not run"}
                await JSONResponse(stopping, 503, {"Retry-After": "1", "Connection": "close"})(scope, receive, send)
                return
            late = {"error": "the request did not end in time"}
            await JSONResponse(late, 408, {"Connection": "close"})(scope, receive, send)
            return
        if body is None:
            large = {"error": f"a request may have at most {self._max_bytes:,} bytes; send fewer queries at once"}
            await JSONResponse(large, 413, {"Connection": "close"})(scope, receive, send)
            return
        if guest is not None:
            send = self._telling(guest, send)
            # The body is read first: a client that is cut off while sending can't know that nothing ran.
            if scope["method"] == "POST" and (seconds := guest.wait()):
                often = {"error": f"{guest.name} has asked as often as it may in a minute; none of this was sent"}
                await JSONResponse(often, 429, {"Retry-After": str(math.ceil(seconds))})(scope, receive, send)
                return
            GUEST.set(guest)
        await self._attend(body, scope, receive, send)

    async def _let_in(self, scope: Scope) -> tuple[Guest | None, JSONResponse | None]:
        """Return who asks, if there is a gate, and what to answer if the request may not go on."""
        host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        origins = [value.decode("latin-1") for name, value in scope["headers"] if name == b"origin"]
        if refusal := self._hosts.refusal(host, origins):
            return None, JSONResponse({"error": refusal}, 403)
        try:
            guest = await self._guest(scope)
        except PbsdkError as error:  # not for strangers' eyes: it names files
            _LOG.error("%s", error)
            return None, JSONResponse(_LOST_GATE, 503, {"Retry-After": "1"})
        if scope["path"] not in OPEN and guest is None and not self._knows_token(scope):
            said = "this server requires a token" if self._door is None else "this gate requires a member's token"
            return None, JSONResponse({"error": said}, 401, {"WWW-Authenticate": "Bearer"})
        return guest, None

    async def _attend(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app until it has answered or the client hangs up."""
        unread: bytes | None = body
        answered = False
        gone = asyncio.Event()

        async def replay() -> Message:
            nonlocal unread
            if unread is None:
                await gone.wait()
                return {"type": "http.disconnect"}
            message = {"type": "http.request", "body": unread, "more_body": False}
            unread = None
            return message

        async def noting(message: Message) -> None:
            nonlocal answered
            answered = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        work = asyncio.ensure_future(self._app(scope, replay, noting))
        ear = asyncio.ensure_future(receive())
        try:
            await asyncio.wait((work, ear), return_when=asyncio.FIRST_COMPLETED)
            gone.set()
            if not work.done() and not answered:
                work.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await work
                return
            await work
        finally:
            ear.cancel()
            work.cancel()

    async def _guest(self, scope: Scope) -> Guest | None:
        if self._door is None or scope["path"] in OPEN:
            return None
        return await self._door.admit(dict(scope["headers"]).get(b"authorization", b""))

    def _telling(self, guest: Guest, send: Send) -> Send:
        """Have every answer to a guest say what is left."""
        door = self._door

        async def telling(message: Message) -> None:
            if message["type"] == "http.response.start" and door is not None:
                with contextlib.suppress(PbsdkError):  # the answer matters more
                    left = write_remaining(await door.remaining(guest))
                    message["headers"] = [*message["headers"], (REMAINING.lower().encode(), left.encode())]
            await send(message)

        return telling

    def _knows_token(self, scope: Scope) -> bool:
        if self._door is not None:
            return False
        if self._token is None:
            return True
        given = dict(scope["headers"]).get(b"authorization", b"")
        wanted = f"Bearer {self._token.get_secret_value()}".encode()
        return hmac.compare_digest(given, wanted)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        promised = dict(scope["headers"]).get(b"content-length", b"0")
        if promised.isdigit() and int(promised) > self._max_bytes:
            return None
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > self._max_bytes:
                return None
            chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks)
