"""Keys: where each may go, and what is none."""

from __future__ import annotations

import pytest

from pbsdk.errors import SetupError
from pbsdk_backends._remote.keys import HUGGING_FACE, ProviderKey, find_key

OPENAI = ProviderKey("OPENAI_API_KEY", ("openai.com",))
AZURE = ProviderKey("AZURE_OPENAI_API_KEY", ("azure.com",))


def test_a_key_of_the_environment_goes_only_to_its_home(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf-key")
    monkeypatch.setenv("OPENAI_API_KEY", "oa-key")

    def found(url, *own):
        key = find_key(None, url, *own)
        return key and key.get_secret_value()

    assert found("https://router.huggingface.co/x", HUGGING_FACE) == "hf-key"
    assert found("https://abc.endpoints.huggingface.cloud", HUGGING_FACE) == "hf-key"
    assert found("https://api.openai.com/v1", OPENAI) == "oa-key"
    for elsewhere in ("https://huggingface.co.evil.example", "https://evilhuggingface.co", "http://127.0.0.1:8000"):
        assert found(elsewhere, HUGGING_FACE) is None
    monkeypatch.setenv("PBSDK_API_KEY", "own-key")
    assert found("http://127.0.0.1:8000", HUGGING_FACE) == "own-key"
    assert found("http://127.0.0.1:8000") == "own-key"
    assert found("https://huggingface.co.evil.example", HUGGING_FACE) == "own-key"
    monkeypatch.setenv("OPENAI_BASE_URL", "https://gateway.example/v1")
    assert found("https://gateway.example/v1", OPENAI) == "oa-key"
    assert found("https://api.openai.com/v1", OPENAI) is None  # the key is the gateway's
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "az-key")
    assert found("https://mine.openai.azure.com/openai/v1", AZURE, OPENAI) == "az-key"
    assert found("https://gateway.example/v1", AZURE, OPENAI) == "oa-key"


@pytest.mark.parametrize("key", ["", "  ", "two\nlines", "k\u00e9y", 7])
def test_a_key_that_cannot_be_sent_is_refused_without_being_shown(key):
    with pytest.raises(SetupError) as caught:
        find_key(key, "https://example.org")
    assert str(key).strip() == "" or str(key) not in str(caught.value)
