"""Tiny models as fixtures; `tiny_models` builds them."""

from functools import cache
from pathlib import Path

import pytest
from helpers.tiny_models import CAUSAL, build

from pbsdk_backends.local import LocalBackend


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory):
    """Return a function that gives the folder of a family's tiny model, built once."""

    @cache
    def make(family: str) -> Path:
        causal = family in {*CAUSAL, "bloom", "mistral"}
        return build(tmp_path_factory.mktemp(family) / f"tiny-{family}", family, causal=causal)

    return make


@pytest.fixture(scope="session")
def backend_of(folder_of):
    """Return a function that gives a family's backend on the CPU, loaded once for each set of options."""

    @cache
    def make(family: str, **options: object) -> LocalBackend:
        return LocalBackend(str(folder_of(family)), device="cpu", **options)

    return make
