"""A transformers model as a backend: reading, running and answering, whatever the architecture.

Loading decides once how the model is run. The fast ways of `forward` are tried on a few short
queries, and the first that gives the same numbers as the plain way is kept, so an unusual architecture is
slower, never wrong. After that, `fill` reads the queries, makes rows of them, runs the rows, and
puts the log-probabilities on the grid.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from pbsdk.backend import (
    LEAST,
    STEPS_PER_NAT,
    Abilities,
    Floats,
    MaskDistribution,
    MaskedLMBackend,
    MaskedQuery,
    ModelIdentity,
    Part,
    Tokens,
    Vocabulary,
)
from pbsdk.errors import BackendUnavailable, BadAnswer, InputError, ModelUnusable
from pbsdk_backends._local.forward import Forward, Way, agree, position_offset
from pbsdk_backends._local.hidden import last_hidden_states
from pbsdk_backends._local.inside import Opened
from pbsdk_backends._local.int8 import Int8Linear
from pbsdk_backends._local.passes import Passes
from pbsdk_backends._local.sharing import Beginning, Row, single, tree
from pbsdk_backends._local.tries import rows_of
from pbsdk_backends._local.weights import Loaded
from pbsdk_backends._tokens.reading import Reader, Reading, surface_words

__all__ = ["TransformersBackend"]

UNBOUNDED = 2048
"""Where a text is cut if neither the model nor its tokenizer names a length."""
TREE_LIMIT = 4096
"""Beyond this many tokens, a tree's attention mask, which grows with their square, isn't worth the time saved."""
WINDOWS = ("sliding_window", "window_size", "attention_chunk_size", "attention_window", "local_attention")


class TransformersBackend(MaskedLMBackend):
    """What the adapters `local` and `smollm2` have in common.

    Attributes:
        way: How the model is run: `packed`, `padded`, `trie` (a causal model, each beginning read once), `shared` (trees
            alone) or `alone`.
    """

    protocol: ClassVar[str] = "transformers/1"
    """Goes up when the same model would answer differently."""

    _options: Mapping[str, object]
    """What the adapter was opened with, and another process opens it with again."""

    def __init__(  # noqa: PLR0913 - settings that are independent, given by keyword
        self,
        loaded: Loaded,
        name: str,
        details: dict[str, str],
        *,
        batch_tokens: int | None,
        max_length: int | None,
        share_text: bool,
    ) -> None:
        self._model = loaded.model
        self._causal = loaded.kind == "causal"
        limit = _longest(loaded.model, loaded.tokenizer)
        if max_length is not None and not 1 <= max_length <= limit:
            raise InputError(f"max_length={max_length} must be between 1 and the model's {limit}")
        if batch_tokens is not None and batch_tokens < 1:
            raise InputError(f"batch_tokens={batch_tokens} must be at least 1")
        self.max_length = max_length or limit
        on_cpu = self._model.device.type == "cpu"
        brisk = self._causal and loaded.precision == "bfloat16"  # larger batches: it is done in half the time
        self._tokenizer, self._precision = loaded.tokenizer, loaded.precision
        self._shorter: dict[int, Reader] = {}
        self._exact = loaded.precision == "float32"
        self._reader = Reader(loaded.tokenizer, causal=self._causal, max_length=self.max_length, frame=loaded.frame)
        self._tree_limit = min([TREE_LIMIT, *_windows(loaded.model.config)])
        self._lock = threading.Lock()
        self._closed = False
        self._forward = Forward(self._model, causal=self._causal)
        self._before: list[list[int]] = []
        self.way, run, columns = self._choose_way(self._forward, share_text=share_text)
        self._forward.beginnings.clear()
        self._passes = Passes(
            run,
            batch_tokens=batch_tokens or (16384 if not on_cpu else 2048 if brisk else 1024),
            padded=self.way in {"padded", "shared", "trie"},
        )
        self.identity = ModelIdentity(
            name,
            {
                "adapter": self.protocol,
                "kind": loaded.kind,
                **details,
                "precision": loaded.precision,
                "max_length": str(self.max_length),
            },
        )
        self.vocabulary = Vocabulary(surface_words(loaded.tokenizer, columns))
        if not self._causal:
            self.mask_token = loaded.tokenizer.mask_token
        # On a CPU a batch is a few seconds of work, so that little is lost if the process dies.
        size = (160 if self._causal else 64) if on_cpu and not brisk else 320
        mask: Literal["last", "anywhere"] = "last" if self._causal else "anywhere"
        self.abilities = Abilities(mask=mask, batch_size=size, turns=loaded.frame is not None)

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickle says how to open the model, and holds none of it.
        return _open_again, (type(self), dict(self._options), self.identity)

    def fill(self, queries: Sequence[MaskedQuery], tokens: Tokens | None = None) -> list[MaskDistribution]:
        """Answer each query in order, for only `tokens` if they are given."""
        if self._closed:
            raise BackendUnavailable("this backend is closed; connect again", retryable=False)
        readings = [self._reader.read(query) for query in queries]
        answers: dict[int, MaskDistribution] = {}
        with self._lock:  # the ways hang hooks into the model
            rows = self._rows(readings)
            parts = [(owners, _codes(logprobs, tokens)) for owners, logprobs in self._passes.run(rows)]
        for owners, part in parts:  # fetched once all batches are on their way, so that a GPU never waits for the host
            for owner, codes in zip(owners, _fetched(part), strict=True):
                reading = readings[owner]
                answers[owner] = MaskDistribution(codes, tokens, read_tokens=len(reading.ids), cut_tokens=reading.cut)
        return [answers[owner] for owner in range(len(queries))]

    def hidden_states(self, queries: Sequence[MaskedQuery]) -> Floats:
        """Return the last hidden state (N, H) at each mask; see `pbsdk.backend.HiddenStates`."""
        if self._closed:
            raise BackendUnavailable("this backend is closed; connect again", retryable=False)
        readings = [self._reader.read(query) for query in queries]
        with self._lock:
            return last_hidden_states(
                self._model, readings, causal=self._causal, batch_tokens=self._passes.batch_tokens
            )

    def inside(self) -> Opened:
        """Return the model itself; see `pbsdk.backend.Inside`."""
        if self._closed:
            raise BackendUnavailable("this backend is closed; connect again", retryable=False)
        return Opened(
            model=self._model,
            tokenizer=self._tokenizer,
            causal=self._causal,
            precision=self._precision,
            read=self._read_shorter,
            batch_tokens=self._passes.batch_tokens,
        )

    def _read_shorter(self, query: MaskedQuery, room: int) -> Reading:
        """Return a query's tokens, with room for more before the model's length is reached."""
        if room not in self._shorter:
            self._shorter[room] = Reader.again({**self._reader.told(), "max_length": self.max_length - room})
        return self._shorter[room].read(query)

    def count_tokens(self, query: MaskedQuery) -> int:
        """Return how many tokens the model reads of the query, exactly."""
        return len(self._reader.read(query).ids)

    def most_tokens(self, query: MaskedQuery) -> int:
        """Return how many tokens the model reads of the query."""
        return self.count_tokens(query)

    def outlined(self) -> dict[str, Any]:
        """Return what `outline` keeps of the model: all but the weights, as plain values."""
        return {
            "name": self.identity.name,
            "details": dict(self.identity.details),
            "words": [self.vocabulary[token] for token in range(len(self.vocabulary))],
            "abilities": asdict(self.abilities),
            "mask_token": self.mask_token,
            "reader": self._reader.told(),
        }

    def close(self) -> None:
        """Free the weights' memory."""
        self._closed = True
        self._forward.beginnings.clear()
        self._model.to("meta")
        for module in self._model.modules():
            if isinstance(module, Int8Linear):
                module.drop()

    def _rows(self, readings: Sequence[Reading]) -> list[Row]:
        """Return rows that answer all readings: one each, or as they share."""
        if self.way == "trie":
            found = self._forward.beginnings.lengths
            rows = rows_of(readings, limit=self._tree_limit, found=found, before=self._before)
            self._before = sorted(reading.ids for reading in readings)
            return rows
        if self.way == "shared":
            return rows_of(readings, limit=self._tree_limit, found=None)
        return [single(owner, reading) for owner, reading in enumerate(readings)]

    def _choose_way(self, forward: Forward, *, share_text: bool) -> tuple[str, Way, int]:
        """Return the fastest way that gives the same numbers as the plain one, and the width of the head."""
        queries = [_trial("A short text.", " It is"), _trial("A short text.", " All of it is about"), _trial("", "A")]
        readings = [self._reader.read(query) for query in queries]
        plain = [single(owner, reading) for owner, reading in enumerate(readings)]
        ways: list[tuple[str, Way, Callable[[], list[Row]]]] = []
        if forward.can_pack():
            ways.append(("packed", forward.packed, lambda: plain))
        if self._causal and share_text:
            if _looks_everywhere(self._model.config):
                ways.append(("trie", forward.padded, lambda: _after_beginnings(readings)))
            ways.append(("shared", forward.padded, lambda: [tree([0, 1], readings), tree([2], readings)]))
        ways.append(("padded", forward.padded, lambda: plain))
        with torch.inference_mode():
            try:
                expected = forward.alone(plain)
            except (RuntimeError, ValueError, TypeError, AttributeError, IndexError) as error:
                raise ModelUnusable(
                    f"the model does not run on a plain text ({error}); choose a masked or causal language model"
                ) from error
            columns = expected.shape[-1]
            for name, way, make in ways:
                rows = make()
                try:
                    logits = way(rows)
                except (RuntimeError, ValueError, TypeError, AttributeError, IndexError, KeyError):
                    continue  # an unusual architecture: try the next way
                if agree(logits, expected[[owner for row in rows for owner in row.owners]], exact=self._exact):
                    return name, way, columns
        return "alone", forward.alone, columns


def _open_again(
    adapter: Callable[..., TransformersBackend], options: Mapping[str, object], identity: ModelIdentity
) -> TransformersBackend:
    """Open what was pickled, if it is still the same model."""
    backend = adapter(**options)
    difference = backend.identity.differences(identity)
    if difference:
        backend.close()
        raise ModelUnusable(
            f"this was pickled with another model ({difference}); use the same files, or save the classifier and load it with the model at hand"
        )
    return backend


def _trial(text: str, prompt: str) -> MaskedQuery:
    return MaskedQuery((Part("input", text), Part("prompt", prompt + " "), Part("mask"), Part("prompt", ".")), "", "")


def _after_beginnings(readings: Sequence[Reading]) -> list[Row]:
    """Return the trial's queries after beginnings of all kinds: a short one, one that goes on from it, and none."""
    short = Beginning(tuple(readings[0].ids[:1]))
    longer = Beginning(tuple(readings[1].ids[:3]), short)
    return [tree([0], readings, short), tree([0, 1], readings, longer), tree([2], readings)]


def _longest(model: Any, tokenizer: Any) -> int:
    """Return the most tokens that the model reads."""
    places = getattr(model.config, "max_position_embeddings", None)
    limits = [int(tokenizer.model_max_length)] if tokenizer.model_max_length < 10**9 else []
    if isinstance(places, int) and places > 0:
        limits.append(places - position_offset(model))
    return min(limits, default=UNBOUNDED)


def _windows(config: Any) -> list[int]:
    """Return the windows of local attention: a tree longer than one would need a narrower attention mask."""
    values = [getattr(config, name, None) for name in WINDOWS]
    return [value for value in values if isinstance(value, int) and value > 0]


def _looks_everywhere(config: Any) -> bool:
    """Say whether every layer looks at all tokens; a window, longer than a trial, would not show in it."""
    kinds = getattr(config, "layer_types", None) or ["full_attention"]
    return not _windows(config) and set(kinds) == {"full_attention"}


def _codes(logprobs: Tensor, tokens: Tokens | None) -> Tensor:
    """Put log-probabilities (asks, V) on the grid, only in the wanted columns; what is no number becomes -1."""
    if tokens is not None:
        logprobs = logprobs[:, torch.from_numpy(np.asarray(tokens)).to(logprobs.device)]
    return (logprobs * -STEPS_PER_NAT).round_().clamp_(0, LEAST).nan_to_num_(nan=-1.0).to(torch.int32)


def _fetched(codes: Tensor) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """Bring codes (asks, V) to the host."""
    there = codes.cpu().numpy()
    if (there < 0).any():
        raise BadAnswer("the model's answer is not a number; try precision='exact'", retryable=False)
    return there.astype(np.uint16)
