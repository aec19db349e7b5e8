"""What tests of adapters start from: an environment without keys or proxies, tiny models, and a server of the fake."""

from functools import cache

import pytest
from helpers.servers import TOKEN

from pbsdk.testing import FakeBackend


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    keys = ("HF_TOKEN", "OPENAI_API_KEY", "AZURE_OPENAI_API_KEY", "PBSDK_API_KEY")
    for name in (*keys, "OPENAI_BASE_URL", "HTTP_PROXY", "http_proxy", "NETRC"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def backend_of(folder_of):
    """Return a function that gives a family's backend on the CPU, loaded once for each set of options."""
    from pbsdk_backends.local import LocalBackend  # it imports torch, which remote adapters do without

    @cache
    def make(family: str, **options: object) -> LocalBackend:
        return LocalBackend(str(folder_of(family)), device="cpu", **options)

    return make


@pytest.fixture(scope="module")
def fake():
    return FakeBackend(batch_size=8)


@pytest.fixture(scope="module")
def url(fake):
    """The address of a server that offers the fake to who knows `TOKEN`."""
    from pbsdk_backends.serve import serving

    with serving(fake, token=TOKEN) as address:
        yield address
