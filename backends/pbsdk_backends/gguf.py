"""The adapter `gguf`: a model's file of llama.cpp's kind, run in this process.

    connect("gguf", model="SmolLM2-135M-Instruct.Q4_1.gguf")

Ollama, LM Studio and llama.cpp keep their models in such files. No server is needed, and neither torch nor transformers: llama.cpp
itself comes in the wheel `xllamacpp`. The models are causal, so prompts end at the mask.

With `top=1000`, the default, the thousand likeliest tokens are shown, and the rest is treated as censored. `top=None` shows the whole
vocabulary; llama.cpp then spells all of it out for every answer, which takes longer than reading a short text.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pbsdk.backend import (
    Abilities,
    Checkup,
    MaskDistribution,
    MaskedLMBackend,
    MaskedQuery,
    ModelIdentity,
    Tokens,
    Vocabulary,
)
from pbsdk.errors import BackendUnavailable, InputError, MissingExtra, ModelUnusable

try:
    from pbsdk_backends._llama.engine import Engine
    from pbsdk_backends._tokens.reading import Encoded, Reading, TokenReader
except ImportError as error:
    raise MissingExtra(
        f'the adapter `gguf` needs xllamacpp and tokenizers ({error}); install them: pip install "pbsdk[gguf]"'
    ) from error

__all__ = ["GGUFBackend"]

CONTEXT = 2048
"""How many tokens a query may have by default: memory is taken for as many."""


class GGUFBackend(MaskedLMBackend):
    """A causal language model from a GGUF file.

    Args:
        model: The file.
        top: How many of the likeliest tokens are shown; None for the whole vocabulary.
        max_length: Tokens of a query at most; the text is cut beyond. Memory is taken for as many.
        threads: Threads that read; None leaves it to llama.cpp.
        gpu_layers: Layers that go to the GPU, where the installed xllamacpp supports one; None leaves it to llama.cpp.
    """

    protocol: ClassVar[str] = "gguf/1"
    """Goes up when the same file would answer differently."""

    @classmethod
    def checkup(cls) -> Checkup:
        """Name the engine."""
        return Checkup({"engine": f"xllamacpp {version('xllamacpp')}"})

    def __init__(
        self,
        model: str,
        *,
        top: int | None = 1000,
        max_length: int = CONTEXT,
        threads: int | None = None,
        gpu_layers: int | None = None,
    ) -> None:
        for name, given in (("top", top), ("max_length", max_length), ("threads", threads)):
            if given is not None and given < 1:
                raise InputError(f"{name}={given} must be at least 1")
        self._options: Mapping[str, Any] = {
            "model": str(Path(model).expanduser().resolve()),
            "top": top,
            "max_length": max_length,
            "threads": threads,
            "gpu_layers": gpu_layers,
        }
        file = _checked(Path(model).expanduser())
        weights = _digest(file)
        engine = Engine(file, context=max_length, threads=threads, gpu_layers=gpu_layers)
        if max_length > engine.longest:
            raise InputError(f"max_length={max_length} must be between 1 and the model's {engine.longest}")
        self._lock = threading.Lock()
        self._opened: _Reader | None = _Reader(engine, max_length)
        self._top = None if top is None or top >= engine.size else top
        self.vocabulary = Vocabulary(engine.words())
        details = {"adapter": self.protocol, "kind": "causal", "weights": weights, "max_length": str(max_length)}
        if self._top is not None:
            details["top"] = str(self._top)
        self.identity = ModelIdentity(file.stem, details)
        # On a CPU a batch is a few seconds of work, so that little is lost if the process dies.
        self.abilities = Abilities(whole=self._top is None, top=self._top, mask="last", batch_size=64)

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickle says how to open the model, and holds none of it.
        return _open_again, (dict(self._options), self.identity)

    def fill(self, queries: Sequence[MaskedQuery], tokens: Tokens | None = None) -> list[MaskDistribution]:
        """Answer each query in order, for only `tokens` if they are given and the whole vocabulary is shown."""
        with self._lock:
            readings = [self._reader.read(query) for query in queries]
            answers: dict[int, MaskDistribution] = {}
            # In the order of their tokens: what a query begins like the last one with isn't read again.
            for place in sorted(range(len(readings)), key=lambda place: readings[place].ids):
                answers[place] = self._answer(readings[place], tokens)
        return [answers[place] for place in range(len(queries))]

    def _answer(self, reading: Reading, tokens: Tokens | None) -> MaskDistribution:
        shown, values = self._reader.engine.answer(reading.ids, self._top)
        read, cut = len(reading.ids), reading.cut
        if self._top is not None:
            return MaskDistribution.from_logprobs(values, shown, top=True, read_tokens=read, cut_tokens=cut)
        chosen = values if tokens is None else values[np.asarray(tokens)]
        return MaskDistribution.from_logprobs(chosen, tokens, read_tokens=read, cut_tokens=cut)

    def count_tokens(self, query: MaskedQuery) -> int:
        """Return how many tokens the model reads of the query, exactly."""
        return len(self._reader.read(query).ids)

    def most_tokens(self, query: MaskedQuery) -> int:
        """Return how many tokens the model reads of the query."""
        return self.count_tokens(query)

    def close(self) -> None:
        """Free the model's memory."""
        self._opened = None

    @property
    def _reader(self) -> _Reader:
        if self._opened is None:
            raise BackendUnavailable("this backend is closed; connect again", retryable=False)
        return self._opened


class _Reader(TokenReader):
    """Reads queries with llama.cpp's own tokenizer, to which a text's control tokens are plain text."""

    def __init__(self, engine: Engine, max_length: int) -> None:
        bare, whole = ([piece.token for piece in engine.pieces("a", opened=opened)] for opened in (True, False))
        ahead = next(start for start in range(len(whole)) if whole[start : start + len(bare)] == bare)
        super().__init__(causal=True, max_length=max_length, start=whole[:ahead])
        self.engine = engine
        self._ahead, self._behind = ahead, len(whole) - ahead - len(bare)

    def encode(self, text: str, *, opened: bool) -> Encoded:
        """Return a text's tokens."""
        pieces = self.engine.pieces(text, opened=opened)
        ahead, behind = (0, 0) if opened else (self._ahead, self._behind)
        spoken = pieces[ahead : len(pieces) - behind]
        offsets = _offsets([piece.spelled for piece in spoken], text)
        nowhere = (0, 0)
        return Encoded(
            [piece.token for piece in pieces],
            [nowhere] * ahead + offsets + [nowhere] * behind,
            [True] * ahead + [False] * len(spoken) + [True] * behind,
        )


def _offsets(spelled: Sequence[bytes], text: str) -> list[tuple[int, int]]:
    r"""Return where the characters of each token start and stop; tokens that share a character overlap.

    >>> _offsets([b" na", b"\xc3", b"\xafve"], "na\u00efve")
    [(0, 2), (2, 3), (2, 5)]
    """
    data = text.encode("utf-8")
    begun = [0, *accumulate(byte & 0xC0 != 0x80 for byte in data)]  # characters, at each place between bytes
    added = sum(map(len, spelled)) - len(data)  # some tokenizers put a space before a text
    stops = [min(max(0, stop - added), len(data)) for stop in accumulate(map(len, spelled))]
    starts = [0, *stops[:-1]]
    return [
        (begun[start + 1] - 1 if start < len(data) else begun[start], begun[stop])
        for start, stop in zip(starts, stops, strict=True)
    ]


def _checked(file: Path) -> Path:
    if not file.is_file():
        raise ModelUnusable(f"there is no file {file}; name a GGUF file, such as one of Ollama, LM Studio or llama.cpp")
    with file.open("rb") as opened:
        if opened.read(4) != b"GGUF":
            raise ModelUnusable(
                f"{file.name} is not a GGUF file; for weights of other kinds there is the adapter `local`"
            )
    return file


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _open_again(options: Mapping[str, Any], identity: ModelIdentity) -> GGUFBackend:
    """Open what was pickled, if it is still the same model."""
    backend = GGUFBackend(**options)
    difference = backend.identity.differences(identity)
    if difference:
        backend.close()
        raise ModelUnusable(f"this was pickled with another model ({difference}); use the same file")
    return backend
