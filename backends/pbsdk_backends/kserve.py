"""The adapter `kserve`: whole tensors over the Open Inference Protocol v2, as KServe and Triton speak it.

Such a server knows tensors, not words, so texts are tokenised here, from the model's `tokenizer.json` and
without torch, in the same way as for a local model: inputs that are too long are cut, the prompt and the mask
never. The model's answer is a tensor of logits, (1, length, vocabulary) or (1, vocabulary); the row at
the mask is taken and normalised. A server whose model takes texts itself, as `pbsdk serve` does, says
so in its metadata, and gets texts.

Tensors come as bytes after the JSON where the server can do that, because decimal numbers are four
times as long. Logits at every position are large even so: 512 tokens of RoBERTa are 103 MB. A model
that gives logits only at the mask saves nearly all of it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Unpack
from urllib.parse import quote

import numpy as np
from pydantic import BaseModel, Field, SecretStr, model_validator

from pbsdk.backend import (
    Abilities,
    Checkup,
    Floats,
    MaskDistribution,
    MaskedLMBackend,
    MaskedQuery,
    ModelIdentity,
    Part,
    Tokens,
    Vocabulary,
)
from pbsdk.errors import BackendError, BadAnswer, InputError, ModelUnusable, QueryRefused
from pbsdk_backends._remote.keys import describe_keys
from pbsdk_backends._remote.parallel import Job
from pbsdk_backends._remote.transport import (
    HttpRefusal,
    Network,
    NetworkOptions,
    Reply,
    Transport,
    read_json,
    setup_error,
    validated,
)
from pbsdk_backends._tokens.reading import Reader, Reading, surface_words
from pbsdk_backends._tokens.tokenizer_file import TokenizerFile

__all__ = ["KServeBackend"]

HEADER_LENGTH = "Inference-Header-Content-Length"
LARGEST_ANSWER = 256 << 20
_PROBE = (Part("input", "The capital of France is "), Part("mask"), Part("prompt", "."))
_FLOATS = {"FP16": "<f2", "FP32": "<f4", "FP64": "<f8", "BF16": "<u2"}
Size = Annotated[int, Field(ge=0, lt=1 << 48)]


class _Nullable(BaseModel):
    """What KServe says: what it leaves out may be there as null."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, said: object) -> object:
        return {name: value for name, value in said.items() if value is not None} if isinstance(said, dict) else said


class _TensorInfo(_Nullable):
    name: str
    datatype: str
    shape: list[int] = Field(default_factory=list)


class _Metadata(_Nullable):
    name: str
    versions: list[str] = Field(default_factory=list)
    inputs: list[_TensorInfo]
    outputs: list[_TensorInfo]
    parameters: dict[str, Any] = Field(default_factory=dict)


class _OutputParameters(_Nullable):
    binary_data_size: Size = 0


class _Output(_Nullable):
    name: str
    datatype: str
    shape: list[Size]
    data: list[Any] | None = None
    parameters: _OutputParameters = Field(default_factory=_OutputParameters)


class _Inference(_Nullable):
    model_name: str
    model_version: str = ""
    outputs: list[_Output]


class KServeBackend(MaskedLMBackend):
    """A masked or causal model on KServe, Triton or any server of the Open Inference Protocol v2.

    Args:
        model: the model's name on the server.
        url: the server's address, without `/v2`.
        tokenizer: the model's `tokenizer.json`, or a folder that holds it; not needed where the model takes texts.
        version: which version of the model; None for the server's choice.
        causal: whether the model reads only up to the mask; None asks the server, and is False if it doesn't say.
        max_length: tokens that the model reads; longer inputs are cut.
        output: the name of the tensor of logits; None takes the first tensor of floats.
        api_key: or set PBSDK_API_KEY.
        network: workers, time-outs and limits; see `Network`.
    """

    @classmethod
    def checkup(cls) -> Checkup:
        """Say whether a key is in the environment."""
        return Checkup(describe_keys())

    def __init__(  # noqa: PLR0913 - settings that are independent, given by keyword
        self,
        model: str,
        *,
        url: str,
        tokenizer: str | Path | None = None,
        version: str | None = None,
        causal: bool | None = None,
        max_length: int = 512,
        output: str | None = None,
        api_key: str | SecretStr | None = None,
        **network: Unpack[NetworkOptions],
    ) -> None:
        if max_length < 8:
            raise InputError("max_length must be at least 8")
        self._model = model
        self._max_length = max_length
        self._file = None if tokenizer is None else TokenizerFile(tokenizer)
        self._transport = Transport(url, Network.of({"max_bytes": LARGEST_ANSWER, **network}), key=api_key)
        self._path = f"/v2/models/{quote(model)}" + (f"/versions/{quote(version)}" if version else "")
        self._version = version
        try:
            self._connect(causal, output)
        except BackendError as error:
            cure = self._cure(error)
            self.close()
            raise setup_error(error, cure) from None
        except BaseException:
            self.close()
            raise

    def fill(self, queries: Sequence[MaskedQuery], tokens: Tokens | None = None) -> list[MaskDistribution]:
        """Ask for each query in a request of its own, several at once; answers are whole."""
        del tokens
        return self._transport.fill([Job([at], partial(self._ask, query)) for at, query in enumerate(queries)])

    def count_tokens(self, query: MaskedQuery) -> int:
        """Return how many tokens the model reads: exactly if the tokenizer is here, else an estimate."""
        return super().count_tokens(query) if self._texts else len(self._reader.read(query).ids)

    def most_tokens(self, query: MaskedQuery) -> int:
        """Return how many tokens the model reads; the most that a text can have where the server has the tokenizer."""
        return super().most_tokens(query) if self._texts else self.count_tokens(query)

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def _connect(self, causal: bool | None, output: str | None) -> None:
        metadata = validated(_Metadata, read_json(self._transport.get(self._path).body))
        if metadata.name != self._model:
            raise ModelUnusable(f"{self._model!r} was asked for and {metadata.name!r} answered")
        self._causal = metadata.parameters.get("mask") == "last" if causal is None else causal
        self._inputs = {tensor.name: tensor.datatype for tensor in metadata.inputs}
        self._output = _chosen_output(metadata, output)
        self._texts = "BYTES" in self._inputs.values()
        if self._version is None and len(metadata.versions) == 1:
            self._version = metadata.versions[0]
        words = self._read_vocabulary(metadata) if self._texts else self._read_tokenizer()
        self.vocabulary = Vocabulary(words)
        details = {"adapter": "kserve/1", "version": self._version or "", "output": self._output}
        if not self._texts and self._file is not None:
            details |= {"tokenizer": self._file.digest, "max_length": str(self._max_length)}
        self.identity = ModelIdentity(self._model, details)
        self.abilities = Abilities(mask="last" if self._causal else "anywhere", batch_size=self._transport.batch_size)

    def _cure(self, error: BackendError) -> str:
        """Say which setting to look at: the model, if the server's own page is where it should be, or else the URL."""
        if isinstance(error, HttpRefusal) and error.status == 404:
            with contextlib.suppress(BackendError):
                self._transport.get("/v2")
                version = f" in version={self._version!r}" if self._version else ""
                return f"this server has no model={self._model!r}{version}"
        return f"is {self._model!r} a model of this server, and url={self._transport.url!r} its address, without /v2?"

    def _read_vocabulary(self, metadata: _Metadata) -> list[str]:
        if self._file is None and not any(tensor.name == "vocabulary" for tensor in metadata.outputs):
            raise ModelUnusable(f"the words of the tokens of {self._model!r} are not known; give tokenizer=")
        if self._file is not None:
            return surface_words(self._file, self._columns())
        request = self._text_request([], ["vocabulary"])
        outputs, _ = self._infer(request)
        words = next((output.data for output in outputs if output.name == "vocabulary"), None)
        if not words or not all(isinstance(word, str) for word in words):
            raise BadAnswer("the server's vocabulary is not a list of words")
        return words

    def _read_tokenizer(self) -> list[str]:
        unknown = set(self._inputs) - {"input_ids", "attention_mask", "token_type_ids"}
        if "input_ids" not in self._inputs or unknown:
            raise ModelUnusable(
                f"the model takes {', '.join(self._inputs)}; it should take input_ids, "
                "and may take attention_mask and token_type_ids"
            )
        if self._file is None:
            raise ModelUnusable("the model takes token numbers; give its tokenizer.json, or its folder, as tokenizer=")
        if not self._causal and self._file.mask_token is None:
            raise ModelUnusable("the tokenizer has no mask; give causal=True if the model continues texts")
        self.mask_token = self._file.mask_token or self.mask_token
        self._reader = Reader(self._file, causal=self._causal, max_length=self._max_length)
        return surface_words(self._file, self._columns())

    def _columns(self) -> int:
        """Ask once, to check that there is an answer and to learn its width."""
        query = MaskedQuery(_PROBE, example="", prompt="")
        return len(self._row(query, None if self._texts else self._reader.read(query)))

    def _ask(self, query: MaskedQuery) -> list[MaskDistribution]:
        reading = None if self._texts else self._reader.read(query)
        logprobs = self._row(query, reading)
        if len(logprobs) != len(self.vocabulary):
            raise BadAnswer(f"the answer holds {len(logprobs)} tokens; the vocabulary has {len(self.vocabulary)}")
        read, cut = (0, 0) if reading is None else (len(reading.ids), reading.cut)
        return [MaskDistribution.from_logprobs(logprobs, read_tokens=read, cut_tokens=cut)]

    def _row(self, query: MaskedQuery, reading: Reading | None) -> Floats:
        """Return the log-probabilities at the mask."""
        if reading is not None:
            request = self._id_request(reading.ids)
        elif self.mask_token in query.text(""):
            raise QueryRefused(f"a text contains the mask {self.mask_token!r} itself; remove it")
        else:
            request = self._text_request([query.text(self.mask_token)], [self._output])
        outputs, data = self._infer(request)
        logits = self._tensor(outputs, data)
        if logits.ndim == 3 and reading is not None and logits.shape[:2] == (1, len(reading.ids)):
            logits = logits[:, reading.at]
        if logits.ndim != 2 or len(logits) != 1:
            raise BadAnswer(f"the tensor {self._output!r} has the shape {logits.shape}")
        row: Floats = logits[0].astype(np.float64)
        if not np.isfinite(row).all():
            raise BadAnswer("a logit is not finite")
        if len(row) > 1 and (row == row[0]).all():
            raise BadAnswer(f"all numbers of the tensor {self._output!r} are {row[0]:g}, which says nothing")
        if self._output == "logprobs":  # left as they are, so that they keep their place on the grid
            return row
        row -= row.max()
        return row - math.log(float(np.exp(row).sum()))

    def _id_request(self, ids: Sequence[int]) -> dict[str, Any]:
        values = {"input_ids": ids, "attention_mask": [1] * len(ids), "token_type_ids": [0] * len(ids)}
        tensors = [
            {"name": name, "shape": [1, len(ids)], "datatype": datatype, "data": list(values[name])}
            for name, datatype in self._inputs.items()
        ]
        return self._request(tensors, [self._output])

    def _text_request(self, texts: Sequence[str], outputs: Sequence[str]) -> dict[str, Any]:
        name = next(name for name, datatype in self._inputs.items() if datatype == "BYTES")
        return self._request([{"name": name, "shape": [len(texts)], "datatype": "BYTES", "data": list(texts)}], outputs)

    def _request(self, inputs: Sequence[Mapping[str, Any]], outputs: Sequence[str]) -> dict[str, Any]:
        wishes = [{"name": name, "parameters": {"binary_data": name == self._output}} for name in outputs]
        return {"inputs": list(inputs), "outputs": wishes}

    def _infer(self, request: Mapping[str, Any]) -> tuple[list[_Output], bytes]:
        reply = self._transport.post(f"{self._path}/infer", request)
        head, data = _split(reply)
        answer = validated(_Inference, read_json(head))
        if answer.model_name != self._model:
            raise BadAnswer(f"{self._model!r} was asked and {answer.model_name!r} answered")
        if self._version and answer.model_version and answer.model_version != self._version:
            raise BadAnswer(f"version {self._version} of the model was asked and {answer.model_version} answered")
        return answer.outputs, data

    def _tensor(self, outputs: Sequence[_Output], data: bytes) -> np.ndarray[Any, np.dtype[Any]]:
        start = 0
        for output in outputs:
            size = output.parameters.binary_data_size
            if output.name == self._output:
                return _numbers(output, data[start : start + size] if size else None)
            start += size
        raise BadAnswer(f"the answer lacks the tensor {self._output!r}")


def _chosen_output(metadata: _Metadata, output: str | None) -> str:
    numbers = [tensor.name for tensor in metadata.outputs if tensor.datatype in _FLOATS]
    if (output is not None and output not in numbers) or not numbers:
        raise ModelUnusable(
            f"the model gives {', '.join(f'{tensor.name} ({tensor.datatype})' for tensor in metadata.outputs)}; "
            "output= must name its tensor of logits"
        )
    return output or numbers[0]


def _split(reply: Reply) -> tuple[bytes, bytes]:
    length = reply.headers.get(HEADER_LENGTH)
    if length is None:
        return reply.body, b""
    if not length.isdecimal() or len(length) > 20 or int(length) > len(reply.body):
        raise BadAnswer("the answer's header doesn't match its length")
    return reply.body[: int(length)], reply.body[int(length) :]


def _numbers(output: _Output, data: bytes | None) -> np.ndarray[Any, np.dtype[Any]]:
    if output.datatype not in _FLOATS:
        raise BadAnswer(f"the tensor {output.name!r} has the datatype {output.datatype}")
    try:
        if data is None:
            values = np.asarray(output.data, dtype=np.float64).ravel()
        else:
            values = np.frombuffer(data, dtype=_FLOATS[output.datatype])
            if output.datatype == "BF16":  # the upper half of a 32-bit number
                values = (values.astype(np.uint32) << 16).view(np.float32)
        return values.reshape(output.shape)
    except (ValueError, TypeError):
        raise BadAnswer(f"the numbers of {output.name!r} don't fill its shape {output.shape}") from None
