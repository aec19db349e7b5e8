"""The two other protocols that `pbsdk serve` speaks: Hugging Face's fill-mask and OIP v2.

Both know only a text with a mask in it, and nothing about prompts and inputs, so all of the text counts as
input: what is too long is cut, and what looks like a control token is read as plain words.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from pbsdk.backend import (
    MaskDistribution,
    MaskedLMBackend,
    MaskedQuery,
    OpenVocabulary,
    Part,
    Phase,
    Tokens,
    Vocabulary,
    digest,
)
from pbsdk.errors import InputError

__all__ = ["FillMask", "Infer", "fill_mask_answer", "infer_answer", "model_metadata", "query_of", "target_tokens"]

TEXT = "text"
LOGPROBS = "logprobs"
VOCABULARY = "vocabulary"
HEADER_LENGTH = "Inference-Header-Content-Length"
_MARKS = ("<mask>", "[MASK]")
_LENGTH = struct.Struct("<I")


class FillMaskParameters(BaseModel):
    """How many tokens, or which."""

    top_k: Annotated[int, Field(ge=1)] | None = None
    targets: list[str] | str | None = None


class FillMask(BaseModel):
    """A text with a mask, or several."""

    inputs: str | list[str]
    parameters: FillMaskParameters | None = None

    @property
    def texts(self) -> list[str]:
        """The texts, always as a list."""
        return [self.inputs] if isinstance(self.inputs, str) else self.inputs


class Tensor(BaseModel):
    """A named tensor, its data row by row, or as so many bytes after the JSON (`binary_data_size`)."""

    name: str
    shape: Annotated[list[Annotated[int, Field(ge=0, lt=1 << 63)]], Field(max_length=8)]
    datatype: str
    data: list[Any] | None = None
    parameters: dict[str, Any] = Field(default_factory=dict)

    @property
    def size(self) -> int:
        """How many bytes after the JSON are this tensor's."""
        size = self.parameters.get("binary_data_size", 0)
        if not isinstance(size, int) or size < 0:
            raise InputError(f"binary_data_size of {self.name!r} must be a number of bytes")
        return size


class OutputWish(BaseModel):
    """An output that the client wants."""

    name: str
    parameters: dict[str, Any] = Field(default_factory=dict)


class Infer(BaseModel):
    """An inference request of the Open Inference Protocol v2."""

    id: str = ""
    inputs: list[Tensor]
    outputs: list[OutputWish] = Field(default_factory=list)
    parameters: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def read(cls, body: bytes, length: str | None) -> Infer:
        """Read a request: JSON, and after `length` bytes of it, if there is a length, the data of its tensors."""
        if length is not None and not (length.isdecimal() and len(length) <= 20 and int(length) <= len(body)):
            raise InputError(f"{HEADER_LENGTH} doesn't match the length of the request")
        end = len(body) if length is None else int(length)
        try:
            request = cls.model_validate_json(body[:end])
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the request"
            raise InputError(f"{where}: {first['msg']}".encode("ascii", "backslashreplace").decode()) from None
        for tensor in request.inputs:
            if tensor.data is None:
                tensor.data = _strings(body[end : end + tensor.size])
                end += tensor.size
        if end != len(body):
            raise InputError("the request is longer, or shorter, than its tensors")
        return request

    def texts(self) -> list[str]:
        """Return the texts of the one input tensor."""
        tensor = next((tensor for tensor in self.inputs if tensor.name == TEXT), None)
        if (
            tensor is None
            or tensor.datatype != "BYTES"
            or tensor.data is None
            or not all(isinstance(text, str) for text in tensor.data)
        ):
            raise InputError(f'send one tensor "{TEXT}" of datatype BYTES: texts, each with a mask')
        if math.prod(tensor.shape) != len(tensor.data):
            raise InputError(f"the shape {tensor.shape} doesn't match {len(tensor.data)} texts")
        return tensor.data

    def wants(self, name: str) -> bool:
        """Say whether an output was asked for by name."""
        return any(wish.name == name for wish in self.outputs)

    def wants_binary(self, name: str) -> bool:
        """Say whether an output should come as bytes after the JSON."""
        wish = next((wish for wish in self.outputs if wish.name == name), None)
        everywhere = bool(self.parameters.get("binary_data_output", False))
        return bool(wish.parameters.get("binary_data", everywhere)) if wish else everywhere


def _strings(data: bytes) -> list[str]:
    """Read a tensor of BYTES: before each element its length, in four bytes."""
    found: list[str] = []
    at = 0
    while at < len(data):
        start = at + _LENGTH.size
        size = int.from_bytes(data[at:start], "little")
        at = start + size
        if at > len(data):
            raise InputError("a tensor of BYTES ends inside an element")
        try:
            found.append(data[start:at].decode())
        except UnicodeDecodeError:
            raise InputError("a text is not UTF-8") from None
    return found


def _packed(words: Sequence[str]) -> bytes:
    # Half of a surrogate pair, which some vocabularies have as a word, is no UTF-8.
    encoded = [word.encode("utf-8", "surrogatepass") for word in words]
    return b"".join(part for word in encoded for part in (_LENGTH.pack(len(word)), word))


def query_of(text: str, backend: MaskedLMBackend) -> MaskedQuery:
    """Make a query from a text that contains one mask: the model's own, `<mask>` or `[MASK]`."""
    marks = [mark for mark in dict.fromkeys((backend.mask_token, *_MARKS)) if mark in text]
    if len(marks) != 1 or text.count(marks[0]) != 1:
        raise InputError(f"No mask_token ({backend.mask_token}) found on the input, or more than one")
    before, _, after = text.partition(marks[0])
    parts = (Part("input", before), Part("mask"), Part("input", after))
    return MaskedQuery(parts, example=digest(text), prompt="<input>", phase=Phase.PREDICT)


def target_tokens(targets: Sequence[str], vocabulary: Vocabulary) -> Tokens:
    """Return the tokens for exactly these words, ascending; a word that has no token is left out."""
    # RoBERTa's and SentencePiece's symbols for a space are understood as well.
    spellings = {target.replace("\u0120", " ").replace("\u2581", " ") for target in targets} | set(targets)
    found = {token for spelling in spellings if (token := vocabulary.get(spelling)) is not None}
    if not found:
        raise InputError("none of the targets is a token in the model's vocabulary")
    return np.array(sorted(found), dtype=np.int64)


def fill_mask_answer(
    text: str, answer: MaskDistribution, backend: MaskedLMBackend, top_k: int
) -> list[dict[str, float | int | str]]:
    """Write an answer as Hugging Face does: the most probable first."""
    tokens = answer.tokens if answer.tokens is not None else np.arange(len(answer.codes))
    best = np.argsort(answer.codes, kind="stable")[:top_k]
    mark = next(mark for mark in (backend.mask_token, *_MARKS) if mark in text)
    before, _, after = text.partition(mark)
    found: list[dict[str, float | int | str]] = []
    for place in best:
        token = int(tokens[place])
        word = backend.vocabulary[token]
        start = before.rstrip(" ") if word.startswith(" ") else before
        score = float(np.exp(answer.logprobs[place]))
        found.append({"score": score, "token": token, "token_str": word, "sequence": f"{start}{word}{after}"})
    return found


def model_metadata(name: str, version: str, backend: MaskedLMBackend) -> dict[str, Any]:
    """Describe the model's tensors."""
    size = len(backend.vocabulary)
    return {
        "name": name,
        "versions": [version],
        "platform": "pbsdk",
        "inputs": [{"name": TEXT, "datatype": "BYTES", "shape": [-1]}],
        "outputs": [
            {"name": LOGPROBS, "datatype": "FP32", "shape": [-1, size]},
            {"name": VOCABULARY, "datatype": "BYTES", "shape": [size]},
        ],
        "parameters": {"mask": backend.abilities.mask},
    }


def infer_answer(
    request: Infer, answers: Sequence[MaskDistribution], name: str, version: str, backend: MaskedLMBackend
) -> tuple[bytes, dict[str, str]]:
    """Write answers as tensors; return the body and its headers."""
    if isinstance(backend.vocabulary, OpenVocabulary) or not backend.abilities.whole:
        raise InputError("this model shows only part of its vocabulary; ask it through /v1/fill or fill-mask")
    outputs: list[dict[str, Any]] = []
    binary: list[bytes] = []

    def add(
        name: str, datatype: str, shape: Sequence[int], data: Callable[[], list[Any]], raw: Callable[[], bytes]
    ) -> None:
        tensor: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(shape)}
        if request.wants_binary(name):
            binary.append(raw())
            tensor["parameters"] = {"binary_data_size": len(binary[-1])}
        else:
            tensor["data"] = data()
        outputs.append(tensor)

    if answers:
        # A multiple of 1/1024 is exact in 32 bits, so nothing is lost on the way.
        values = np.stack([answer.logprobs for answer in answers]).astype("<f4")  # (N, V)
        add(LOGPROBS, "FP32", values.shape, lambda: values.ravel().tolist(), values.tobytes)
    if request.wants(VOCABULARY):
        words = [backend.vocabulary[token] for token in range(len(backend.vocabulary))]
        add(VOCABULARY, "BYTES", [len(words)], lambda: words, lambda: _packed(words))
    answer = {"model_name": name, "model_version": version, "id": request.id, "outputs": outputs}
    header = json.dumps(answer).encode()
    if not binary:
        return header, {"Content-Type": "application/json"}
    return b"".join((header, *binary)), {
        "Content-Type": "application/octet-stream",
        HEADER_LENGTH: str(len(header)),
    }
