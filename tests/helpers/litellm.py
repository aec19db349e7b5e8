"""A small stand-in for the library LiteLLM: it sends what the library would, without its detours."""

from __future__ import annotations

from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import requests


class Said(Exception):
    def __init__(self, response: requests.Response) -> None:
        super().__init__(response.text)
        self.status_code, self.response = response.status_code, response


class Late(Exception):
    status_code = 408


def completion(*, api_base: str, timeout: float, **request: Any) -> SimpleNamespace:
    settings = {name: request.pop(name) for name in ("num_retries", "max_retries", "drop_params")}
    assert settings == {"num_retries": 0, "max_retries": 0, "drop_params": False}
    assert request.pop("custom_llm_provider") in {"openai", "hosted_vllm"}
    try:
        response = requests.post(f"{api_base}/chat/completions", json=request, timeout=timeout)
    except requests.Timeout:
        raise Late("no answer") from None
    if response.status_code != 200:
        raise Said(response)
    return SimpleNamespace(model_dump=response.json)


def stand_in() -> ModuleType:
    """Return a module that can take the library's place."""
    module = ModuleType("litellm")
    module.__spec__ = ModuleSpec("litellm", None)
    module.__dict__.update(completion=completion, exceptions=SimpleNamespace(Timeout=Late))
    return module
