"""Servers on real sockets for the tests: scripted ones, faulty ones, and stand-ins for providers."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import numpy as np

from pbsdk.backend import MaskDistribution, MaskedQuery, Part
from pbsdk.testing import FakeBackend

TOKEN = "open-sesame-8675309"


def headers(token: str = TOKEN) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@dataclass
class Reply:
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    fault: str = ""
    """reset: no answer; cut: half of the body; stall: nothing until the end; trickle: a byte at a time."""


def json_reply(content: Any, status: int = 200, **headers: str) -> Reply:
    return Reply(status, json.dumps(content).encode(), {"Content-Type": "application/json", **headers})


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Scripted:
    """A server that answers by a function, and remembers every request in full."""

    def __init__(self, answer: Callable[[Asked], Reply]) -> None:
        self.answer = answer
        self.asked: list[Asked] = []
        self.over = threading.Event()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def handle_one_request(self) -> None:
                with contextlib.suppress(ConnectionError):
                    super().handle_one_request()

            def do_GET(self) -> None:
                owner.handle(self)

            do_POST = do_GET  # noqa: N815 - likewise

            def log_message(self, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def handle_error(self, request: object, client_address: object) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        asked = Asked(handler.command, handler.path, dict(handler.headers), body)
        self.asked.append(asked)
        reply = self.answer(asked)
        if reply.fault == "reset":
            # A linger of zero seconds makes the close a reset.
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            handler.close_connection = True
            handler.rfile.close()
            handler.connection.close()
            return
        if reply.fault == "stall":
            self.over.wait(60)
            handler.close_connection = True
            return
        handler.send_response(reply.status)
        for name, value in reply.headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(reply.body)))
        handler.end_headers()
        if reply.fault == "trickle":
            for byte in reply.body:
                handler.wfile.write(bytes([byte]))
                if self.over.wait(0.05):
                    return
            return
        handler.wfile.write(reply.body[: len(reply.body) // 2] if reply.fault == "cut" else reply.body)
        handler.close_connection = reply.fault == "cut"


def query(text: str, phase: str = "train") -> MaskedQuery:
    return MaskedQuery((Part("input", text), Part("prompt", " It was "), Part("mask")), text, "<input> It was <mask>")


def shown(answer: MaskDistribution, backend: FakeBackend, top: int) -> list[tuple[str, float]]:
    """Return the words and log-probabilities of an answer's best tokens."""
    best = np.argsort(answer.codes, kind="stable")[:top]
    tokens = best if answer.tokens is None else answer.tokens[best]
    return [
        (backend.vocabulary[int(token)], float(answer.logprobs[at])) for token, at in zip(tokens, best, strict=True)
    ]


@dataclass
class OpenAIScript:
    """A server in the manner of OpenAI's, over the fake model."""

    backend: FakeBackend = field(default_factory=lambda: FakeBackend(mask="last"))
    model: str = "tiny"
    completions: int = 0
    """How many log-probabilities completions may show; 0 for no such route."""
    chat: int = 0
    silent: bool = False
    """Answer without log-probabilities."""
    extra: bool = False
    """Show the token drawn as one more."""
    opening: str = ""
    """How the assistant's turn may be begun: "told" as with vLLM, "last" as with llama.cpp, or not at all."""
    strict: bool = False
    """Refuse other models' names."""
    refusal: str = "at most {limit} logprobs"
    """What it says when more are asked for than it shows."""

    def __call__(self, asked: Asked) -> Reply:
        if asked.path == "/v1/models":
            return json_reply({"object": "list", "data": [{"id": self.model, "object": "model"}]})
        limit = {"/v1/completions": self.completions, "/v1/chat/completions": self.chat}.get(asked.path, 0)
        if not limit:
            return json_reply({"error": {"message": "no such route", "type": "invalid_request_error"}}, 404)
        request = asked.json
        if request["model"] != self.model and self.strict:
            return json_reply({"error": {"message": f"The model `{request['model']}` does not exist."}}, 404)
        chat = "messages" in request
        count = request["top_logprobs"] if chat else request["logprobs"]
        refused = self._refused(request, count, limit)
        if refused:
            return json_reply({"error": {"message": refused}}, 400)
        text = request["messages"][-1]["content"] if chat else request["prompt"]
        (answer,) = self.backend.fill([MaskedQuery((Part("input", text), Part("mask")), "e", "p")])
        best = self._best(answer, request, count + 1 if self.extra else count)
        if chat and request["messages"][-1] == {"role": "assistant", "content": "Anna lives in"}:
            told = request.get("continue_final_message", False) and not request.get("add_generation_prompt", True)
            if told and self.opening == "last":
                return json_reply({"error": {"message": "unknown field"}}, 400)
            best = [(" Paris" if self.opening == ("told" if told else "last") else "Paris", -0.1)]
        logprobs: Any = {"top_logprobs": [dict(best)], "tokens": [best[0][0]]}
        if chat:
            places = [{"token": word, "logprob": value, "bytes": None} for word, value in best]
            logprobs = {"content": [{"token": best[0][0], "logprob": best[0][1], "top_logprobs": places}]}
        choice = {"index": 0, "logprobs": None if self.silent else logprobs, "finish_reason": "length"}
        choice |= {"message": {"role": "assistant", "content": best[0][0]}} if chat else {"text": best[0][0]}
        said = {"id": "1", "model": self.model, "choices": [choice], "usage": {"prompt_tokens": len(text.split())}}
        return json_reply(said | self._signed())

    def _refused(self, request: Any, count: int, limit: int) -> str:
        del request
        return self.refusal.format(limit=limit, count=count) if count > limit else ""

    def _best(self, answer: MaskDistribution, request: Any, count: int) -> list[tuple[str, float]]:
        del request
        return shown(answer, self.backend, count)

    def _signed(self) -> dict[str, Any]:
        return {}


@dataclass
class VLLMScript(OpenAIScript):
    """A server in the manner of vLLM's: it answers for chosen tokens, tokenizes, and shows all for -1 if its limit is -1."""

    refusal: str = "Requested sample logprobs of {count}, which is greater than max allowed: {limit}"

    def __call__(self, asked: Asked) -> Reply:
        if asked.path == "/tokenize":
            token = self.backend.vocabulary.get(asked.json["prompt"])
            return json_reply({"tokens": [0, 1] if token is None else [token]})
        if asked.path == "/detokenize":
            return json_reply({"prompt": "".join(self.backend.vocabulary[token] for token in asked.json["tokens"])})
        return super().__call__(asked)

    def _refused(self, request: Any, count: int, limit: int) -> str:
        if len(request.get("logprob_token_ids", [])) > 128:
            return "Requested logprob_token_ids of length 129, which is greater than max allowed: 128"
        return self.refusal.format(limit=limit, count=count) if limit >= 0 and not 0 <= count <= limit else ""

    def _best(self, answer: MaskDistribution, request: Any, count: int) -> list[tuple[str, float]]:
        everything = shown(answer, self.backend, len(self.backend.vocabulary))
        if "logprob_token_ids" in request:
            words = [self.backend.vocabulary[token] for token in request["logprob_token_ids"]]
            return [everything[0], *((word, dict(everything)[word]) for word in words)]
        return everything if count < 0 else everything[:count]

    def _signed(self) -> dict[str, Any]:
        return {"system_fingerprint": "vllm-0.32.0-df468cc0"}


@dataclass
class GeminiScript:
    """A server in the manner of Google's, over the fake model."""

    backend: FakeBackend = field(default_factory=lambda: FakeBackend(mask="last"))
    model: str = "gemini-2.5-flash"
    silent: bool = False
    """Answer without log-probabilities."""
    thinks: bool = False
    """Know no way to leave thinking out."""

    def __call__(self, asked: Asked) -> Reply:
        if asked.path != f"/v1beta/models/{self.model}:generateContent":
            return self._refusal(404, f"{asked.path} is not found for API version v1beta")
        said = asked.json
        settings = said["generationConfig"]
        if self.thinks and settings.get("thinkingConfig"):
            return self._refusal(400, "This model only works in thinking mode.")
        if not 1 <= settings["logprobs"] <= 20 or settings["responseLogprobs"] is not True:
            return self._refusal(400, "logprobs must be between 1 and 20")
        assert {entry["role"] for entry in said["contents"]} <= {"user", "model"}
        text = said["contents"][-1]["parts"][0]["text"]
        (answer,) = self.backend.fill([MaskedQuery((Part("input", text), Part("mask")), "e", "p")])
        best = shown(answer, self.backend, settings["logprobs"])
        candidates = [{"token": word, "tokenId": 7, "logProbability": value} for word, value in best]
        candidate: dict[str, Any] = {"content": {"role": "model", "parts": [{"text": best[0][0]}]}}
        if not self.silent:
            chosen = [candidates[0]]
            candidate["logprobsResult"] = {"topCandidates": [{"candidates": candidates}], "chosenCandidates": chosen}
        usage = {"promptTokenCount": len(text.split())}
        return json_reply({"candidates": [candidate], "modelVersion": self.model, "usageMetadata": usage})

    @staticmethod
    def _refusal(code: int, message: str) -> Reply:
        return json_reply({"error": {"code": code, "message": message, "status": "INVALID_ARGUMENT"}}, code)


@contextlib.contextmanager
def scripted(answer: Callable[[Asked], Reply]) -> Iterator[Scripted]:
    with Scripted(answer) as server:
        yield server


def dialled(url: str, sent: bytes = b"") -> socket.socket:
    """Connect to a server, and send it the beginning of something."""
    host, port = url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=30)
    connection.sendall(sent)
    return connection


def everything(connection: socket.socket) -> bytes:
    """Read until the server closes the connection."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := connection.recv(1 << 16):
            data += chunk
    return data


class Gate(FakeBackend):
    """A model that answers only when it is let."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.entered, self.open = threading.Semaphore(0), threading.Event()
        self.inside, self.most = 0, 0

    def fill(self, queries: Any, tokens: Any = None) -> list[MaskDistribution]:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.entered.release()
        assert self.open.wait(60)
        self.inside -= 1
        return super().fill(queries, tokens)


@contextlib.contextmanager
def dripping(first: bytes, again: bytes, pause: float = 0.02) -> Iterator[str]:
    """A server that answers every request with `first`, and then with `again` for ever."""
    over = threading.Event()

    def drip(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.recv(1 << 16)
            connection.sendall(first)
            while not over.wait(pause):
                connection.sendall(again)

    def accept(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=drip, args=listener.accept()[:1], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
