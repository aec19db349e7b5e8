"""What every test of a remote adapter starts from: an environment without keys or proxies."""

import pytest


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    keys = ("HF_TOKEN", "OPENAI_API_KEY", "AZURE_OPENAI_API_KEY", "PBSDK_API_KEY")
    for name in (*keys, "OPENAI_BASE_URL", "HTTP_PROXY", "http_proxy", "NETRC"):
        monkeypatch.delenv(name, raising=False)
