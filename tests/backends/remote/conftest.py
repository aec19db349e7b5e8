"""What every test of a remote adapter starts from: an environment without keys or proxies."""

import pytest


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    for name in ("HF_TOKEN", "OPENAI_API_KEY", "PBSDK_API_KEY", "HTTP_PROXY", "http_proxy", "NETRC"):
        monkeypatch.delenv(name, raising=False)
