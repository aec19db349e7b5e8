"""Clients that nobody here wrote, before `pbsdk serve`: an adapter of a dozen lines for each."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from huggingface_hub import InferenceClient

from pbsdk.backend import (
    Abilities,
    MaskDistribution,
    MaskedLMBackend,
    MaskedQuery,
    ModelIdentity,
    OpenVocabulary,
    Tokens,
)
from pbsdk_backends.http import HttpBackend
from servers.environment import Environment
from servers.process import figure, free_port, running
from servers.trial import MODEL, Running
from servers.weights import INSIDE


@contextmanager
def serving(environment: Environment, folder: Path) -> Iterator[Running]:
    """Run `pbsdk serve smollm2`."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "pbsdk", "serve", "smollm2", "--port", str(port)]
    with running(command, f"{url}/v2/health/ready", folder / "serve.log"):
        yield Running(url, figure(f"{url}/metrics", "pbsdk_queries_total"), environment.python)


class ThroughInferenceClient(MaskedLMBackend):
    """Whatever fills masks, seen through Hugging Face's client."""

    def __init__(self, url: str, top: int = 100) -> None:
        self._client, self._top = InferenceClient(url), top
        self.identity = ModelIdentity(MODEL, {"top": str(top)})
        self.vocabulary: OpenVocabulary = OpenVocabulary()
        self.abilities = Abilities(whole=False, top=top, mask="last")

    def fill(self, queries: Sequence[MaskedQuery], tokens: Tokens | None = None) -> list[MaskDistribution]:
        return [self._answer(query.text()) for query in queries]

    def _answer(self, text: str) -> MaskDistribution:
        words = self._client.fill_mask(text, top_k=self._top)
        for word in words:
            self.vocabulary.learn(word.token, word.token_str)
        scores = np.log([word.score for word in words])
        return MaskDistribution.from_logprobs(scores, [word.token for word in words], top=True)


class ThroughTritonClient(MaskedLMBackend):
    """The same model, seen through NVIDIA's client, which runs in an environment of its own."""

    def __init__(self, url: str, python: Path) -> None:
        with HttpBackend(url=url) as known:
            self.identity = ModelIdentity(MODEL, {"client": "tritonclient"})
            self.vocabulary = known.vocabulary
            name = known.identity.name
        self.abilities = Abilities(mask="last")
        command = [python, INSIDE / "triton_client.py", url, name]
        self._client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def fill(self, queries: Sequence[MaskedQuery], tokens: Tokens | None = None) -> list[MaskDistribution]:
        return [self._answer(query.text()) for query in queries]

    def _answer(self, text: str) -> MaskDistribution:
        assert self._client.stdin is not None
        assert self._client.stdout is not None
        self._client.stdin.write(json.dumps(text).encode() + b"\n")
        self._client.stdin.flush()
        return MaskDistribution.from_logprobs(np.frombuffer(self._client.stdout.read(4 * len(self.vocabulary)), "<f4"))

    def close(self) -> None:
        self._client.kill()
        self._client.communicate()
