"""Presets: what ships can be read, is found by its address, and sends no key to strangers."""

from __future__ import annotations

import json

import pytest

from pbsdk.errors import InputError
from pbsdk_backends._remote.presets import find_preset, known_presets


def test_what_ships_has_an_address_or_says_that_it_is_yours():
    assert {name for name, preset in known_presets().items() if not preset.url} == {"azure"}
    for name, preset in known_presets().items():
        assert preset.about
        assert not preset.keys or preset.hosts, name
        assert preset.url.startswith("https://") or preset.url.startswith("http://127.0.0.1:") or name == "azure"


@pytest.mark.parametrize("name", ["openai", "together", "xai", "deepseek", "openrouter", "fireworks"])
def test_an_address_says_whose_dialect_is_spoken_there(name):
    preset = known_presets()[name]
    assert find_preset(None, preset.url) == preset
    assert (
        find_preset(None, preset.url.replace("/v1", ".evil.example/v1").replace("/api", "").replace("/inference", ""))
        != preset
    )


def test_azure_is_known_by_its_address():
    assert find_preset(None, "https://mine.openai.azure.com/openai/v1").header == "api-key"


def test_a_model_gets_what_it_wants():
    preset = known_presets()["openai"]
    assert preset.to_model("gpt-4o-mini").body == {}
    assert preset.to_model("gpt-4o-mini").most_tokens == "max_tokens"
    assert preset.to_model("gpt-5.2").body == {"reasoning_effort": "none"}
    assert preset.to_model("gpt-5.2").most_tokens == "max_completion_tokens"


def test_a_preset_cannot_send_a_known_key_elsewhere():
    (key,) = find_preset({"keys": ["OPENAI_API_KEY"], "hosts": ["example.org"]}, "").provider_keys()
    assert key.lives_at("api.openai.com")
    assert not key.lives_at("example.org")
    (key,) = find_preset({"keys": ["MINE"], "url": "https://example.org/v1"}, "").provider_keys()
    assert key.lives_at("example.org")


@pytest.mark.parametrize("text", ["[", '{"top": 0}', '{"top": NaN}', json.dumps(["x"])])
def test_a_file_that_is_no_preset_is_refused(tmp_path, text):
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(InputError, match=r"bad\.json"):
        find_preset(tmp_path / "bad.json", "")
