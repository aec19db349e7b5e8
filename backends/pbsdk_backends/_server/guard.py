"""What every request to `pbsdk serve` goes through first: the token, the size limit, the metrics.

This is plain ASGI middleware. It answers 401 without reading a byte of the body of a request without the
token, reads other bodies up to the limit and within half a minute, and counts responses for Prometheus.
"""

from __future__ import annotations

import asyncio
import hmac
import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from pydantic import SecretStr
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["Guard", "Metrics"]

OPEN = frozenset({"/docs", "/openapi.json", "/v2/health/live", "/v2/health/ready"})
"""Paths that need no token: they reveal nothing about texts or answers."""
UPLOAD_SECONDS = 30.0


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

    def __init__(self, app: ASGIApp, *, token: SecretStr | None, max_bytes: int, metrics: Metrics) -> None:
        self._app = app
        self._token = token
        self._max_bytes = max_bytes
        self._metrics = metrics

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
        if scope["path"] not in OPEN and not self._knows_token(scope):
            refusal = JSONResponse({"error": "this server requires a token"}, 401, {"WWW-Authenticate": "Bearer"})
            await refusal(scope, receive, send)
            return
        try:
            async with asyncio.timeout(UPLOAD_SECONDS):
                body = await self._read(scope, receive)
        except TimeoutError:
            await JSONResponse({"error": "the request did not end in time"}, 408)(scope, receive, send)
            return
        if body is None:
            large = {"error": f"a request may have at most {self._max_bytes:,} bytes; send fewer queries at once"}
            await JSONResponse(large, 413, {"Connection": "close"})(scope, receive, send)
            return
        unread: bytes | None = body

        async def replay() -> Message:
            nonlocal unread
            if unread is None:
                return await receive()
            message = {"type": "http.request", "body": unread, "more_body": False}
            unread = None
            return message

        await self._app(scope, replay, send)

    def _knows_token(self, scope: Scope) -> bool:
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
