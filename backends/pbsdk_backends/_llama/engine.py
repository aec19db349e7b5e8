"""llama.cpp in this process, by way of the package `xllamacpp`.

The package holds llama.cpp's own server. A query goes to it directly, as token ids; only tokenising goes over its HTTP
side, which listens on the loopback address and answers nobody without a key that is made for each process.

llama.cpp keeps what it read last, and reads of the next query only what differs. So queries are best asked in the order of their
tokens; an answer is the same to the last digit, whatever was read before (a test holds it).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

import numpy as np
import xllamacpp

from pbsdk.backend import Floats, Tokens, bounded_json
from pbsdk.errors import BackendUnavailable, BadAnswer, ModelUnusable

__all__ = ["Engine", "Piece"]

DIRECT = build_opener(ProxyHandler({}))
"""A proxy of the environment has no business between a process and itself."""

SECONDS = 60.0


class Piece(NamedTuple):
    """A token of a text, and the bytes that it stands for."""

    token: int
    spelled: bytes


class Engine:
    """A model's file, loaded.

    Args:
        file: a GGUF file.
        context: how many tokens a query may have.
        threads: how many threads read; None leaves it to llama.cpp.
        gpu_layers: how many layers go to the GPU; None leaves it to llama.cpp.
    """

    def __init__(self, file: Path, *, context: int, threads: int | None, gpu_layers: int | None) -> None:
        self._key = secrets.token_hex(16)
        params = xllamacpp.CommonParams()
        params.model.path = str(file)
        params.api_keys = [self._key]
        params.n_ctx = context + 1  # the token that is asked for takes a place too
        params.n_parallel = 1
        params.cache_ram_mib = 0
        params.verbosity = 0
        params.warmup = False
        if threads is not None:
            params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        if gpu_layers is not None:
            params.n_gpu_layers = gpu_layers
        try:
            self._server = xllamacpp.Server(params)
        except RuntimeError as error:
            raise ModelUnusable(f"llama.cpp can't load {file.name} ({error}); is it a whole GGUF file?") from error
        (facts,) = self._tell("/v1/models")["data"]
        self.longest = int(facts["meta"]["n_ctx_train"])
        self.size = int(facts["meta"]["n_vocab"])

    def pieces(self, text: str, *, opened: bool) -> list[Piece]:
        """Return a text's tokens as plain text; if not `opened`, after what opens a text."""
        asked = {"content": text, "add_special": not opened, "parse_special": False, "with_pieces": True}
        return [Piece(int(one["id"]), _bytes_of(one["piece"])) for one in self._tell("/tokenize", asked)["tokens"]]

    def words(self) -> list[str]:
        """Return what each token says."""
        words = [""] * self.size
        for entry in self._entries([0], self.size):
            words[entry["id"]] = _bytes_of(entry.get("bytes") or entry["token"]).decode("utf-8", "replace")
        return words

    def answer(self, ids: Sequence[int], top: int | None) -> tuple[Tokens, Floats]:
        """Return the likeliest tokens after these, ascending, and their log-probabilities; all of them if `top` is None."""
        entries = self._entries(ids, self.size if top is None else top)
        tokens = np.array([entry["id"] for entry in entries], dtype=np.int64)
        values = np.array([entry["logprob"] for entry in entries], dtype=np.float64)
        order = np.argsort(tokens)
        return tokens[order], values[order]

    def _entries(self, ids: Sequence[int], count: int) -> list[dict[str, Any]]:
        asked = {"prompt": list(ids), "n_predict": 1, "n_probs": count, "temperature": 0, "cache_prompt": True}
        said = self._server.handle_completions(asked)
        try:
            entries: list[dict[str, Any]] = said["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        except (KeyError, IndexError, TypeError) as error:
            raise BadAnswer(f"llama.cpp shows no log-probabilities: {str(said)[:200]}", retryable=False) from error
        return entries

    def _tell(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._key}"}
        request = Request(self._server.listening_address + path, data, headers)  # noqa: S310 - our own process
        try:
            with DIRECT.open(request, timeout=SECONDS) as reply:
                return bounded_json(reply.read().decode("utf-8"))
        except (HTTPError, URLError, OSError) as error:
            raise BackendUnavailable(f"llama.cpp doesn't answer in this process ({error})", retryable=False) from error


def _bytes_of(spelled: str | list[int]) -> bytes:
    return spelled.encode("utf-8") if isinstance(spelled, str) else bytes(spelled)
