"""Tiny models as backends; `folder_of` has their files."""

from functools import cache

import pytest

from pbsdk_backends.local import LocalBackend


@pytest.fixture(scope="session")
def backend_of(folder_of):
    """Return a function that gives a family's backend on the CPU, loaded once for each set of options."""

    @cache
    def make(family: str, **options: object) -> LocalBackend:
        return LocalBackend(str(folder_of(family)), device="cpu", **options)

    return make
