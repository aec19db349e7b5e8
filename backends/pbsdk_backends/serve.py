"""`pbsdk serve`: any backend, behind HTTP.

One process serves one model over three protocols: pbsdk's own (`/v1`), the fill-mask API of Hugging Face
(`/`) and the Open Inference Protocol v2 (`/v2`). The model is used by one thread, one request at a
time; requests are not merged, because a different composition of the batch may move an answer by a step of the
grid, and then remote and local training would diverge. Waiting requests form a queue; when it is full, a
request is turned away at once and told when to try again.

The server listens only on this machine unless told otherwise, and never elsewhere without a token.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from importlib.metadata import version as installed_version
from typing import Any

from pydantic import SecretStr

from pbsdk.backend import MaskedLMBackend, OpenVocabulary, Tokens, answered_part
from pbsdk.errors import (
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    BadAnswer,
    BudgetExceeded,
    InputError,
    LedgerError,
    MissingExtra,
    PbsdkError,
    QueryRefused,
    SetupError,
)
from pbsdk_backends._protocol import wire as _wire
from pbsdk_backends._server import dialects as _dialects

try:
    from fastapi import FastAPI, HTTPException, Request, Response
    from fastapi.exceptions import RequestValidationError
    from prometheus_client import generate_latest
    from starlette.exceptions import HTTPException as PlainHTTPException
    from starlette.responses import JSONResponse

    from pbsdk_backends._server.desk import BUSY_SECONDS, Desk
    from pbsdk_backends._server.gate import Doorkeeper, Gate
    from pbsdk_backends._server.guard import Guard, Metrics
    from pbsdk_backends._server.hosts import Hosts
    from pbsdk_backends._server.listening import Server, listen
    from pbsdk_backends._server.page import add_page
    from pbsdk_backends._server.stopping import Stop
except ImportError as error:
    raise MissingExtra(
        f"the server needs fastapi, h11, prometheus-client and uvicorn ({error}); "
        'install them: pip install "pbsdk[serve]"'
    ) from error

__all__ = ["create_app", "serve", "serving"]

__version__ = installed_version("pbsdk")

PARTING_SECONDS = 30.0
"""How long another ASGI server's shutdown waits for the model."""
LARGEST_ANSWER = 32 << 20
"""The most bytes of codes in one answer: clients stop reading at 64 MiB unless told otherwise."""

_REFUSED = ("limit", "allowed", "asked", "left", "sent")
"""What a client is told of a budget that refused it."""
_LOG = logging.getLogger("uvicorn.error")
_STATUS: dict[type[BackendError], int] = {
    BackendUnavailable: 503,
    BackendTimeout: 504,
    QueryRefused: 422,
    BadAnswer: 502,
}


def create_app(  # noqa: PLR0913 - settings that are independent, given by keyword
    backend: MaskedLMBackend,
    *,
    token: str | SecretStr | None = None,
    gate: Gate | None = None,
    max_batch: int = 256,
    max_bytes: int = 8 << 20,
    queue: int = 64,
    allow_hosts: Sequence[str] = (),
) -> FastAPI:
    """Return the ASGI app that serves a backend.

    Args:
        backend: any backend; closing it is left to the caller.
        token: what a client must send as `Authorization: Bearer ...`; None for no token.
        gate: who may ask, each by a token and within limits of their own, in place of one token for all.
        max_batch: queries that one request may hold.
        max_bytes: bytes that one request may have.
        queue: requests that may wait; further ones are answered with 429.
        allow_hosts: names that the server answers to, besides addresses in digits, `localhost` and the machine's own
            name; pages of these hosts may use it from a browser. `*` for any.
    """
    if min(max_batch, max_bytes, queue) < 1:
        raise InputError("max_batch, max_bytes and queue must be at least 1")
    if token is not None and gate is not None:
        raise InputError("a gate's members have tokens of their own; leave out token")
    secret, door = _secret(token), None if gate is None else Doorkeeper(gate)
    metrics, stop = Metrics(), Stop()
    desk = Desk(backend, queue=queue, max_batch=max_batch, metrics=metrics, stop=stop)

    @contextlib.asynccontextmanager
    async def lifespan(served: FastAPI) -> AsyncIterator[None]:
        yield
        desk.close(getattr(served.state, "until", time.monotonic() + PARTING_SECONDS))
        if door is not None:
            door.close()

    app = FastAPI(
        title="pbsdk serve",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        description=__doc__ or "",
    )
    hosts = Hosts(allow_hosts)
    app.state.stop, app.state.hosts = stop, hosts
    app.add_middleware(Guard, token=secret, door=door, hosts=hosts, max_bytes=max_bytes, metrics=metrics, stop=stop)
    add_page(app)
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
        # A place may be half of a surrogate pair, which no reply can hold.
        said = f"{where}: {first.get('msg', 'not understood')}".encode("ascii", "backslashreplace").decode()
        return JSONResponse({"error": said}, 422)

    async def ours(_: Request, error: Exception) -> JSONResponse:
        if isinstance(error, BudgetExceeded):
            said = error.with_cure("ask whoever runs this server") if error.limit else str(error)
            about = {name: getattr(error, name) for name in _REFUSED}
            return JSONResponse({"error": said, **about}, 402)
        if isinstance(error, LedgerError):  # of the gate: whether anything ran is in its record, if anywhere
            _LOG.error("%s", error)
            said = "the gate can't keep its record, and this request may have run; its log says why"
            return JSONResponse({"error": said}, 500)
        if not isinstance(error, BackendError):
            return JSONResponse({"error": str(error)}, 400)
        status = next((_STATUS[kind] for kind in _STATUS if isinstance(error, kind)), 500)
        wait = error.retry_after
        # A 503 that says how long to wait did not run; anything else of these may have.
        if status == 503 and error.may_have_run:
            status = 504
        elif status == 503 and wait is None:
            wait = BUSY_SECONDS
        return JSONResponse({"error": str(error)}, status, {} if wait is None else {"Retry-After": str(wait)})

    async def unforeseen(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": f"the model failed ({type(error).__name__})"}, 500)

    app.add_exception_handler(Exception, unforeseen)
    app.add_exception_handler(PlainHTTPException, http)
    app.add_exception_handler(RequestValidationError, form)
    app.add_exception_handler(PbsdkError, ours)


def _add_own(app: FastAPI, desk: Desk) -> None:
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
        turns=abilities.turns,
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
        _check_tokens(asked, backend)
        if open_words is not None:
            for token, word in request.words.items():  # a restarted server knows none; nobody may teach it false ones
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


def _check_tokens(asked: Tokens | None, backend: MaskedLMBackend) -> None:
    if asked is None or isinstance(backend.vocabulary, OpenVocabulary):
        return
    size = len(backend.vocabulary)
    if asked[-1] >= size:
        raise InputError(f"token {asked[-1]} doesn't exist; the vocabulary has {size:,}")


def _add_fill_mask(app: FastAPI, desk: Desk) -> None:
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


def _add_oip(app: FastAPI, desk: Desk) -> None:
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

    about = "An inference request; where Inference-Header-Content-Length ends the JSON, the tensors' bytes follow."
    form = {"content": {"application/json": {"schema": {"type": "object", "description": about}}}}

    @app.post(
        "/v2/models/{model:path}/infer",
        tags=["OIP v2"],
        response_class=Response,
        openapi_extra={"requestBody": form},
    )
    async def infer(model: str, asked: Request) -> Response:
        """Answer texts with whole tensors of log-probabilities; tensors may come and go as bytes after the JSON."""
        check(model)
        # Read here, since clients such as Triton's send no content type, and bytes after the JSON.
        request = _dialects.Infer.read(await asked.body(), asked.headers.get(_dialects.HEADER_LENGTH))
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
    gate: Gate | None = None,
    max_batch: int = 256,
    max_bytes: int = 8 << 20,
    queue: int = 64,
    allow_hosts: Sequence[str] = (),
    max_connections: int = 256,
    grace: float = 30.0,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve a backend until Ctrl-C or SIGTERM, then finish what is under way and return.

    Args:
        backend: any backend; closing it is left to the caller.
        host: the address to listen on; one that others can reach needs a token.
        port: 0 for any free one.
        token: see `create_app`.
        gate: see `create_app`.
        max_batch: see `create_app`.
        max_bytes: see `create_app`.
        queue: see `create_app`.
        allow_hosts: see `create_app`; it answers to `host` too.
        max_connections: connections that one address may have at once; behind a proxy all have the proxy's.
        grace: seconds that requests under way have to finish once the server is told to stop; what hasn't finished
            shortly before is answered with whether it may have run.
        ready: called with the server's address once it listens.
    """
    app = create_app(
        backend,
        token=token,
        gate=gate,
        max_batch=max_batch,
        max_bytes=max_bytes,
        queue=queue,
        allow_hosts=allow_hosts,
    )
    app.state.hosts.answer_to(host)
    listener = listen(host, port, public=(token or gate) is not None)
    with contextlib.closing(listener):
        Server(app, listener, grace=grace, max_connections=max_connections, ready=ready).run(sockets=[listener])


@contextlib.contextmanager
def serving(backend: MaskedLMBackend, **options: Any) -> Iterator[str]:
    """Serve a backend from a thread of this process, and yield the address: for tests and notebooks.

    Options are those of `serve`; the port is any free one unless given.
    """
    listening = threading.Event()
    host, port, token = options.pop("host", "127.0.0.1"), options.pop("port", 0), options.pop("token", None)
    grace, most = options.pop("grace", 30.0), options.pop("max_connections", 256)
    app = create_app(backend, token=token, **options)
    app.state.hosts.answer_to(host)
    listener = listen(host, port, public=(token or options.get("gate")) is not None)
    with contextlib.closing(listener):
        server = Server(app, listener, grace=grace, max_connections=most, ready=lambda _: listening.set())
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
