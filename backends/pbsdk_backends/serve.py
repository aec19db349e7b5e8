"""`pbsdk serve`: any backend, behind HTTP.

One process serves one model over three protocols: pbsdk's own (`/v1`), the fill-mask API of Hugging Face
(`/`) and the Open Inference Protocol v2 (`/v2`). The model is used by one thread, one request at a
time; requests are not merged, because a different composition of the batch may move an answer by a step of the
grid, and then remote and local training would diverge. Waiting requests form a queue; when it is full, a
request is turned away at once and told when to try again.

The server listens only on this machine unless told otherwise, and never elsewhere without a token.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version as installed_version
from typing import Annotated, Any

from pydantic import SecretStr

from pbsdk.backend import MaskDistribution, MaskedLMBackend, MaskedQuery, OpenVocabulary, Tokens, answered_part
from pbsdk.errors import (
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    BadAnswer,
    InputError,
    MissingExtra,
    PbsdkError,
    QueryRefused,
    SetupError,
)
from pbsdk_backends._protocol import wire as _wire
from pbsdk_backends._server import dialects as _dialects

try:
    from fastapi import Body, FastAPI, HTTPException, Request, Response
    from fastapi.exceptions import RequestValidationError
    from prometheus_client import generate_latest
    from starlette.exceptions import HTTPException as PlainHTTPException
    from starlette.responses import JSONResponse

    from pbsdk_backends._server.guard import Guard, Metrics
    from pbsdk_backends._server.listening import Server, address_of, listen
except ImportError as error:
    raise MissingExtra(
        f'the server needs fastapi, uvicorn and prometheus-client ({error}); install them: pip install "pbsdk[serve]"'
    ) from error

__all__ = ["create_app", "serve", "serving"]

__version__ = installed_version("pbsdk")

BUSY_SECONDS = 1
"""How long a request is told to wait when the queue is full."""
LARGEST_ANSWER = 32 << 20
"""The most bytes of codes in one answer: clients stop reading at 64 MiB unless told otherwise."""

_STATUS: dict[type[BackendError], int] = {
    BackendUnavailable: 503,
    BackendTimeout: 504,
    QueryRefused: 422,
    BadAnswer: 502,
}


@dataclass
class _Desk:
    """The one thread that uses the model, and the queue in front of it."""

    backend: MaskedLMBackend
    queue: int
    max_batch: int
    metrics: Metrics
    waiting: int = 0
    thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "pbsdk-model"))

    async def fill(self, queries: Sequence[MaskedQuery], tokens: Tokens | None = None) -> list[MaskDistribution]:
        if len(queries) > self.max_batch:
            raise HTTPException(413, f"{len(queries)} queries in one request; at most {self.max_batch} are allowed")
        if self.waiting >= self.queue:
            raise HTTPException(429, "the queue is full", {"Retry-After": str(BUSY_SECONDS)})
        self._count(1)
        try:
            return await asyncio.get_running_loop().run_in_executor(self.thread, self._fill, queries, tokens)
        finally:
            self._count(-1)

    def _count(self, step: int) -> None:
        self.waiting += step
        self.metrics.waiting.set(self.waiting)

    def _fill(self, queries: Sequence[MaskedQuery], tokens: Tokens | None) -> list[MaskDistribution]:
        size = self.backend.abilities.batch_size
        answers: list[MaskDistribution] = []
        try:
            for start in range(0, len(queries), size):
                batch = self.backend.fill(queries[start : start + size], tokens)
                answers += [_narrowed(answer, tokens) for answer in batch]
        except BackendError as error:
            late = {len(answers) + at: _narrowed(answer, tokens) for at, answer in answered_part(error).items()}
            error.answered = {**dict(enumerate(answers)), **late}
            self.metrics.queries.inc(len(error.answered))
            self.metrics.failures.labels(type(error).__name__).inc()
            raise
        self.metrics.queries.inc(len(answers))
        return answers


def _narrowed(answer: MaskDistribution, tokens: Tokens | None) -> MaskDistribution:
    return answer if tokens is None else answer.narrowed(tokens)


def create_app(
    backend: MaskedLMBackend,
    *,
    token: str | SecretStr | None = None,
    max_batch: int = 256,
    max_bytes: int = 8 << 20,
    queue: int = 64,
) -> FastAPI:
    """Return the ASGI app that serves a backend.

    Args:
        backend: any backend; closing it is left to the caller.
        token: what a client must send as `Authorization: Bearer ...`; None for no token.
        max_batch: queries that one request may hold.
        max_bytes: bytes that one request may have.
        queue: requests that may wait; further ones are answered with 429.
    """
    if min(max_batch, max_bytes, queue) < 1:
        raise InputError("max_batch, max_bytes and queue must be at least 1")
    secret = _secret(token)
    metrics = Metrics()
    desk = _Desk(backend, queue, max_batch, metrics)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        desk.thread.shutdown(wait=True)

    app = FastAPI(
        title="pbsdk serve", version=__version__, lifespan=lifespan, redoc_url=None, description=__doc__ or ""
    )
    app.add_middleware(Guard, token=secret, max_bytes=max_bytes, metrics=metrics)
    _add_errors(app)
    _add_own(app, desk)
    _add_fill_mask(app, desk)
    _add_oip(app, desk)

    @app.get("/metrics", tags=["operation"])
    async def show_metrics() -> Response:
        """Show Prometheus metrics."""
        return Response(generate_latest(metrics.registry), media_type="text/plain; version=0.0.4")

    return app


def _add_errors(app: FastAPI) -> None:
    async def http(_: Request, error: Exception) -> JSONResponse:
        known = error if isinstance(error, PlainHTTPException) else PlainHTTPException(500)
        return JSONResponse({"error": known.detail}, known.status_code, known.headers)

    async def form(_: Request, error: Exception) -> JSONResponse:
        first = error.errors()[0] if isinstance(error, RequestValidationError) else {}
        where = ".".join(map(str, first.get("loc", ())))
        return JSONResponse({"error": f"{where}: {first.get('msg', 'not understood')}"}, 422)

    async def ours(_: Request, error: Exception) -> JSONResponse:
        if not isinstance(error, BackendError):
            return JSONResponse({"error": str(error)}, 400)
        status = next((_STATUS[kind] for kind in _STATUS if isinstance(error, kind)), 500)
        wait = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
        return JSONResponse({"error": str(error)}, status, wait)

    async def unforeseen(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": f"the model failed ({type(error).__name__})"}, 500)

    app.add_exception_handler(Exception, unforeseen)
    app.add_exception_handler(PlainHTTPException, http)
    app.add_exception_handler(RequestValidationError, form)
    app.add_exception_handler(PbsdkError, ours)


def _add_own(app: FastAPI, desk: _Desk) -> None:
    backend = desk.backend
    open_words = backend.vocabulary if isinstance(backend.vocabulary, OpenVocabulary) else None
    size = 0 if open_words is not None else len(backend.vocabulary)
    abilities = backend.abilities
    card = _wire.ModelCard(
        protocol=_wire.PROTOCOL,
        identity=backend.identity.to_json(),
        mask_token=backend.mask_token,
        whole=abilities.whole,
        top=abilities.top,
        # A whole answer is narrowed here, so that less is sent.
        chosen=abilities.chosen or abilities.whole,
        mask=abilities.mask,
        max_batch=max(1, min(desk.max_batch, abilities.batch_size, LARGEST_ANSWER // max(1, 2 * size))),
        open_vocabulary=open_words is not None,
        vocabulary_size=size,
        vocabulary_digest="" if open_words is not None else _wire.vocabulary_digest(backend.vocabulary),
    )
    model = backend.identity.digest

    @app.get("/v1/model", tags=["pbsdk"])
    async def read_model() -> _wire.ModelCard:
        """Say which model answers and what it can be asked for."""
        return card

    @app.get("/v1/vocabulary", tags=["pbsdk"])
    async def read_vocabulary() -> Response:
        """List the words of all tokens, in order."""
        words = [backend.vocabulary[token] for token in range(size)]
        # In ASCII: some vocabularies have half a surrogate pair as a word, which UTF-8 can't encode.
        return Response(json.dumps(words), media_type="application/json")

    @app.post("/v1/fill", tags=["pbsdk"], response_class=Response)
    async def fill(request: _wire.FillRequest) -> Response:
        """Answer a batch; the answer is binary, see `pbsdk_backends._protocol.wire`."""
        if request.model != model:
            raise HTTPException(404, f"this server answers for {backend.identity.name}, not for the model asked for")
        queries, asked = request.unpacked(), request.asked()
        if open_words is not None:
            for (
                token,
                word,
            ) in request.words.items():  # a server that was restarted knows none; clients may not teach it others
                open_words.believe(token, word)
        failure = None
        try:
            answered = dict(enumerate(await desk.fill(queries, asked)))
        except BackendError as error:
            answered, failure = answered_part(error), _wire.Failure.of(error)
        words = {}
        if open_words is not None:
            shown = {int(token) for answer in answered.values() if answer.tokens is not None for token in answer.tokens}
            words = {token: open_words[token] for token in shown}
        body = _wire.encode_answers(model, queries, answered, asked=asked, failure=failure, words=words)
        return Response(body, media_type="application/octet-stream")


def _add_fill_mask(app: FastAPI, desk: _Desk) -> None:
    backend = desk.backend

    @app.post("/", tags=["fill-mask"])
    @app.post("/models/{model:path}", tags=["fill-mask"])
    async def fill_mask(request: _dialects.FillMask) -> Any:
        """Fill the mask of a text, as Hugging Face's API does; several texts give a list of lists."""
        parameters = request.parameters or _dialects.FillMaskParameters()
        targets = [parameters.targets] if isinstance(parameters.targets, str) else parameters.targets
        tokens = None if targets is None else _dialects.target_tokens(targets, backend.vocabulary)
        top_k = parameters.top_k or (5 if tokens is None else len(tokens))
        answers = await desk.fill([_dialects.query_of(text, backend) for text in request.texts], tokens)
        found = [
            _dialects.fill_mask_answer(text, answer, backend, top_k)
            for text, answer in zip(request.texts, answers, strict=True)
        ]
        return found[0] if len(found) == 1 else found


def _add_oip(app: FastAPI, desk: _Desk) -> None:
    backend = desk.backend
    name, version = backend.identity.name, backend.identity.digest

    def check(model: str) -> None:
        if model != name:
            raise HTTPException(404, f"this server has the model {name!r}")

    @app.get("/v2", tags=["OIP v2"])
    async def server() -> dict[str, Any]:
        """Name the server."""
        return {"name": "pbsdk", "version": __version__, "extensions": ["binary_tensor_data"]}

    @app.get("/v2/health/live", tags=["OIP v2"])
    @app.get("/v2/health/ready", tags=["OIP v2"])
    async def health() -> dict[str, bool]:
        """Say that the server is running and its model is loaded."""
        return {"live": True, "ready": True}

    @app.get("/v2/models/{model:path}/ready", tags=["OIP v2"])
    async def ready(model: str) -> dict[str, Any]:
        """Say that the model is loaded."""
        check(model)
        return {"name": name, "ready": True}

    @app.post("/v2/models/{model:path}/infer", tags=["OIP v2"], response_class=Response)
    async def infer(model: str, request: Annotated[_dialects.Infer, Body()]) -> Response:
        """Answer texts with whole tensors of log-probabilities."""
        check(model)
        texts = request.texts()
        answers = await desk.fill([_dialects.query_of(text, backend) for text in texts])
        body, headers = _dialects.infer_answer(request, answers, name, version, backend)
        return Response(body, headers=headers)

    @app.get("/v2/models/{model:path}", tags=["OIP v2"])
    async def metadata(model: str) -> dict[str, Any]:
        """Describe the model's tensors."""
        check(model)
        return _dialects.model_metadata(name, version, backend)


def serve(  # noqa: PLR0913 - settings that are independent, given by keyword
    backend: MaskedLMBackend,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | SecretStr | None = None,
    max_batch: int = 256,
    max_bytes: int = 8 << 20,
    queue: int = 64,
    grace: float = 30.0,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve a backend until Ctrl-C or SIGTERM, then finish what is under way and return.

    Args:
        backend: any backend; closing it is left to the caller.
        host: the address to listen on; one that others can reach needs a token.
        port: 0 for any free one.
        token: see `create_app`.
        max_batch: see `create_app`.
        max_bytes: see `create_app`.
        queue: see `create_app`.
        grace: seconds that requests under way have to finish once the server is told to stop.
        ready: called with the server's address once it listens.
    """
    app = create_app(backend, token=token, max_batch=max_batch, max_bytes=max_bytes, queue=queue)
    listener = listen(host, port, public=token is not None)
    with contextlib.closing(listener):
        Server(app, grace, address_of(listener), ready).run(sockets=[listener])


@contextlib.contextmanager
def serving(backend: MaskedLMBackend, **options: Any) -> Iterator[str]:
    """Serve a backend from a thread of this process, and yield the address: for tests and notebooks.

    Options are those of `serve`; the port is any free one unless given.
    """
    host, port, token = options.pop("host", "127.0.0.1"), options.pop("port", 0), options.pop("token", None)
    grace = options.pop("grace", 30.0)
    app = create_app(backend, token=token, **options)
    listening = threading.Event()
    listener = listen(host, port, public=token is not None)
    with contextlib.closing(listener):
        server = Server(app, grace, address_of(listener), lambda _: listening.set())
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            if not listening.wait(30):
                raise SetupError("the server did not start within 30 s")
            yield server.address
        finally:
            server.should_exit = True
            thread.join(grace + 5)


def _secret(token: str | SecretStr | None) -> SecretStr | None:
    if token is None:
        return None
    secret = token if isinstance(token, SecretStr) else SecretStr(token)
    text = secret.get_secret_value()
    if not text or not text.isascii() or not text.isprintable() or text != text.strip():
        raise InputError("the token must be one line of plain ASCII, without spaces at either end")
    return secret
