"""A model that was opened before can be planned with without its weights, and only while it is the same model."""

import json
import os
import subprocess
import sys
from inspect import signature

import pytest
from helpers.tiny_models import ask

from pbsdk.connecting import connect_to_plan
from pbsdk.errors import BackendUnavailable, InputError
from pbsdk_backends._local import files, outline
from pbsdk_backends.local import LocalBackend
from pbsdk_backends.smollm2 import SmolLM2Backend

QUERIES = [ask("Stocks fell on Monday.", " It was ", "."), ask("Rain </s> " * 80, " All of it is about ", "")]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PBSDK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(files, "SETTLED", -1)
    return tmp_path / "cache"


@pytest.fixture(params=["roberta", "gpt2"])
def folder(request, folder_of):
    return folder_of(request.param)


def test_an_outline_says_all_that_its_model_says(folder, tmp_path):
    with LocalBackend(str(folder), max_length=40) as model, outline.local(str(folder), max_length=40) as told:
        assert told.identity == model.identity
        assert told.identity.digest == model.identity.digest
        assert [told.vocabulary[i] for i in range(len(told.vocabulary))] == [
            model.vocabulary[i] for i in range(len(model.vocabulary))
        ]
        assert (told.abilities, told.mask_token) == (model.abilities, model.mask_token)
        assert [told._reader.read(query) for query in QUERIES] == [model._reader.read(query) for query in QUERIES]
        assert [told.count_tokens(query) for query in QUERIES] == [model.count_tokens(query) for query in QUERIES]
        assert told.most_tokens(QUERIES[1]) == 40
        with pytest.raises(BackendUnavailable, match="opened for a plan"):
            told.fill(QUERIES)


def test_what_would_read_otherwise_has_another_outline(folder_of, monkeypatch):
    place = folder_of("gpt2")
    LocalBackend(str(place)).close()
    assert outline.local(str(place), share_text=True) is not None
    for other in ({"max_length": 9}, {"precision": "bfloat16"}, {"check_weights": True}, {"unheard": 1}, {"chat": {1}}):
        assert outline.local(str(place), **other) is None
    config = place / "config.json"
    told = config.stat()
    os.utime(config, ns=(told.st_atime_ns, told.st_mtime_ns + 1))
    assert outline.local(str(place)) is None
    LocalBackend(str(place)).close()
    assert outline.local(str(place)) is not None
    monkeypatch.setattr(outline.metadata, "version", lambda name: f"another {name}")
    assert outline.local(str(place)) is None


def test_a_broken_outline_is_as_good_as_none(folder_of, cache):
    place = folder_of("gpt2")
    LocalBackend(str(place)).close()
    (file,) = (cache / "outlines").iterdir()
    whole = json.loads(file.read_text())
    for text in ("", "[1]", "{}", json.dumps({**whole, "reader": {**whole["reader"], "tokenizer": "{}"}})):
        file.write_text(text)
        assert outline.local(str(place)) is None


def test_the_oldest_outlines_go(folder_of, cache):
    place = folder_of("gpt2")
    kept = cache / "outlines"
    kept.mkdir(parents=True)
    for number in range(outline.KEPT + 3):
        (kept / f"{number}.json").touch()
        os.utime(kept / f"{number}.json", (number, number))
    LocalBackend(str(place)).close()
    assert len(list(kept.iterdir())) == outline.KEPT
    assert outline.local(str(place)) is not None


def test_what_changed_a_moment_ago_is_not_kept(folder_of, cache, monkeypatch):
    monkeypatch.setattr(files, "SETTLED", 10**18)
    LocalBackend(str(folder_of("gpt2"))).close()
    assert not (cache / "outlines").exists()


def test_options_are_as_the_adapters_have_them():
    for adapter in (LocalBackend, SmolLM2Backend):
        taken = signature(adapter).parameters
        assert {name: taken[name].default for name in outline.USUAL} == outline.USUAL


def test_a_plan_imports_no_torch_where_there_is_an_outline(folder_of, tmp_path):
    place = folder_of("gpt2")
    LocalBackend(str(place)).close()
    code = (
        "import sys; from pbsdk_backends._local import files; files.SETTLED = -1\n"
        "from pbsdk.connecting import connect_to_plan\n"
        f"with connect_to_plan('local', model={str(place)!r}, run={str(tmp_path / 'run')!r}) as lm: print(lm.identity.digest)\n"
        "print({'torch', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    with LocalBackend(str(place)) as model:
        assert done.stdout.split() == [model.identity.digest, "set()"]


def test_without_an_outline_the_model_is_opened_and_says_what_is_wrong(folder_of, tmp_path):
    with connect_to_plan("local", model=str(folder_of("roberta")), run=tmp_path / "run") as lm:
        assert isinstance(lm.backend, LocalBackend)
    with pytest.raises(InputError, match="doesn't take these options"):
        connect_to_plan("local", sise=3, run=tmp_path / "run")
