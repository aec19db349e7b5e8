"""The snippets of docs/providers run as they stand, but for the address."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from remote_servers import OpenAIScript, scripted

from pbsdk.backend import ModelIdentity
from pbsdk.testing import FakeBackend
from pbsdk_backends import huggingface
from pbsdk_backends.serve import serving

PAGES = Path(__file__).parents[2] / "docs" / "providers"
ADDRESS = "http://127.0.0.1:8000"


def snippet(name: str) -> str:
    (code,) = re.findall(r"```python\n(.*?)```", (PAGES / f"{name}.md").read_text("utf-8"), flags=re.DOTALL)
    return code


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("HF_TOKEN", "OPENAI_API_KEY", "PBSDK_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def run(code: str, capsys) -> str:
    exec(compile(code, "snippet", "exec"), {"__name__": "snippet"})
    return capsys.readouterr().out


def test_the_page_of_http(capsys):
    with serving(FakeBackend()) as url:
        assert "within budget" in run(snippet("http").replace(ADDRESS, url), capsys)


def test_the_page_of_huggingface(capsys, monkeypatch):
    with serving(FakeBackend()) as url:
        monkeypatch.setattr(huggingface, "SERVERLESS", f"{url}/models")
        assert "within budget" in run(snippet("huggingface"), capsys)
    assert Path("tickets.json").exists()


def test_the_page_of_openai(capsys):
    with scripted(OpenAIScript(completions=100, model="HuggingFaceTB/SmolLM2-1.7B")) as server:
        assert "within budget" in run(snippet("openai").replace(ADDRESS, server.url), capsys)
    assert Path("tickets.json").exists()


def test_the_page_of_kserve(capsys):
    fake = FakeBackend()
    fake.identity = ModelIdentity("roberta", fake.identity.details)
    with serving(fake) as url:
        code = snippet("kserve").replace(ADDRESS, url).replace('tokenizer="tokenizer.json", ', "")
        assert "within budget" in run(code, capsys)


def test_every_remote_adapter_has_a_page():
    assert {page.stem for page in PAGES.glob("*.md")} == {"http", "huggingface", "kserve", "openai"}
