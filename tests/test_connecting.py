"""`connect` and `available`: by name, with hints where something is missing."""

import subprocess
import sys
from importlib import metadata

import pytest

from pbsdk.connecting import available, connect
from pbsdk.errors import InputError, LedgerMismatch, MissingExtra, SetupError, UnknownBackend
from pbsdk.ledger.budget import QueryBudget
from pbsdk.testing import FakeBackend


def plug(monkeypatch, **entries):
    found = [metadata.EntryPoint(name, value, "pbsdk.backends") for name, value in entries.items()]
    monkeypatch.setattr(metadata, "entry_points", lambda group: found)


def test_connecting_meters_the_backend(tmp_path):
    with connect("fake", run=tmp_path / "run", budget=3, seed=5) as lm:
        assert lm.identity == FakeBackend(seed=5).identity
        assert lm.budget == QueryBudget(passes=3, predict=3)
        assert (tmp_path / "run").is_dir()


def test_without_a_run_the_folder_is_named_after_the_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with connect("fake"), connect("fake", seed=1):
        pass
    assert len(list((tmp_path / "runs").glob("fake-*"))) == 2


def test_the_environment_names_the_backend_where_nobody_does(tmp_path, monkeypatch):
    monkeypatch.setenv("PBSDK_BACKEND", "fake")
    with connect(run=tmp_path / "run") as lm:
        assert lm.identity.name == "fake"


def test_without_any_name_it_is_the_embedded_model(monkeypatch):
    monkeypatch.delenv("PBSDK_BACKEND", raising=False)
    plug(monkeypatch, smollm2="nowhere:Nothing")
    with pytest.raises(MissingExtra, match=r"'smollm2' can't be imported.*pip install \"pbsdk\[demo\]\""):
        connect()


def test_an_unknown_name_is_answered_with_a_near_one():
    with pytest.raises(UnknownBackend, match=r"no backend is called 'fakee'\. Did you mean 'fake'\?"):
        connect("fakee")


def test_unknown_options_are_refused_with_the_known_ones(tmp_path):
    with pytest.raises(InputError, match=r"doesn't take these options.*colour.*it takes vocabulary_size, seed"):
        connect("fake", run=tmp_path / "run", colour="red")
    assert not (tmp_path / "run").exists()


def test_a_run_of_another_model_is_refused(tmp_path):
    connect("fake", run=tmp_path / "run").close()
    with pytest.raises(LedgerMismatch, match="seed"):
        connect("fake", run=tmp_path / "run", seed=1)


def test_adapters_that_cannot_be_imported_say_what_to_install(monkeypatch):
    plug(monkeypatch, local="no_such_module:Local", theirs="no_such_module:X", odd="pbsdk.version:__version__")
    with pytest.raises(MissingExtra, match=r'pip install "pbsdk\[local\]"'):
        connect("local")
    with pytest.raises(MissingExtra, match="install what no_such_module:X needs"):
        connect("theirs")
    with pytest.raises(SetupError, match="not a MaskedLMBackend"):
        connect("odd")
    found = {backend.name: backend for backend in available()}
    assert set(found) == {"local", "theirs", "odd"}
    assert all(backend.problem for backend in found.values())


def test_what_is_available_is_said_in_a_line():
    fake = next(backend for backend in available() if backend.name == "fake")
    assert fake.about == "A deterministic stand-in for a language model, with a memory."
    assert not fake.problem


def test_importing_pbsdk_imports_no_adapter_no_torch_and_no_network():
    code = (
        "import sys, pbsdk, pbsdk.cli, pbsdk.doctor.examination; [getattr(pbsdk, name) for name in pbsdk.__all__]; "
        "print([m for m in ('torch', 'transformers', 'requests', 'pbsdk_backends', 'fastapi') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
