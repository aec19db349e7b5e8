"""The two other protocols that `pbsdk serve` speaks: Hugging Face's fill-mask and OIP v2.

Both know only a text with a mask in it, and nothing about prompts and inputs, so all of the text counts as
input: what is too long is cut, and what looks like a control token is read as plain words.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, Field

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
    """A named tensor, its data row by row."""

    name: str
    shape: list[Annotated[int, Field(ge=0)]]
    datatype: str
    data: list[Any]
    parameters: dict[str, Any] = Field(default_factory=dict)


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

    def texts(self) -> list[str]:
        """Return the texts of the one input tensor."""
        tensor = next((tensor for tensor in self.inputs if tensor.name == TEXT), None)
        if tensor is None or tensor.datatype != "BYTES" or not all(isinstance(text, str) for text in tensor.data):
            raise InputError(f'send one tensor "{TEXT}" of datatype BYTES: texts, each with a mask')
        if int(np.prod(tensor.shape)) != len(tensor.data):
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
    if answers:
        # A multiple of 1/1024 is exact in 32 bits, so nothing is lost on the way.
        values = np.stack([answer.logprobs for answer in answers]).astype("<f4")  # (N, V)
        tensor: dict[str, Any] = {"name": LOGPROBS, "datatype": "FP32", "shape": list(values.shape)}
        if request.wants_binary(LOGPROBS):
            binary.append(values.tobytes())
            tensor["parameters"] = {"binary_data_size": len(binary[-1])}
        else:
            tensor["data"] = values.ravel().tolist()
        outputs.append(tensor)
    if request.wants(VOCABULARY):
        words = [backend.vocabulary[token] for token in range(len(backend.vocabulary))]
        outputs.append({"name": VOCABULARY, "datatype": "BYTES", "shape": [len(words)], "data": words})
    answer = {"model_name": name, "model_version": version, "id": request.id, "outputs": outputs}
    header = json.dumps(answer).encode()
    if not binary:
        return header, {"Content-Type": "application/json"}
    return b"".join((header, *binary)), {
        "Content-Type": "application/octet-stream",
        HEADER_LENGTH: str(len(header)),
    }
