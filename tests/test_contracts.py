"""Each import contract is kept, and each is broken by the import it forbids, planted in a copy of the packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
NAMES = {contract["name"] for contract in CONTRACTS}

LAYERS = "dependencies point one way"
CORE = "no adapter, torch or network in the core; diskcache is the ledger's, tenacity the meter's"
LEARNER = "the learner knows only the interface"
ADAPTERS = "adapters see the interface and the errors only"
NEIGHBOURS = "adapters don't know each other"
REMOTE = "remote adapters need no torch"

RIVALS = "rivals know the seam for methods, and no adapter"
FRAME = "rivals stand on one frame, and not on each other"

RUN_A_MODEL = {"_local", "local", "smollm2", "t5"}

LINT = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"

PLANTS = [
    ("pbsdk/testing/recording.py", "import diskcache", {CORE}),
    ("pbsdk/metering/plan.py", "import tenacity", {CORE}),
    ("pbsdk/classifier.py", "import requests", {CORE}),
    ("pbsdk/audit/report.py", "import torch", {CORE}),
    ("pbsdk/learning/matrix.py", "def late():\n    import transformers", {CORE}),
    ("pbsdk/demo.py", "from pbsdk_backends import smollm2", {CORE}),
    ("pbsdk/learning/boosting.py", "from pbsdk.ledger import codec", {LAYERS, LEARNER}),
    ("pbsdk/queries/templates.py", "import sqlite3", {LEARNER}),
    ("pbsdk/ledger/budget.py", "from pbsdk.audit import report", {LAYERS}),
    ("pbsdk/formatting.py", "from pbsdk.queries import examples", {LAYERS}),
    ("pbsdk/named_by_no_layer.py", "", {LAYERS}),
    ("backends/pbsdk_backends/openai.py", "from pbsdk.ledger import chain", {ADAPTERS}),
    ("backends/pbsdk_backends/_local/forward.py", "from pbsdk import plugins", {ADAPTERS}),
    ("backends/pbsdk_backends/kserve.py", "from pbsdk_backends import http", {NEIGHBOURS}),
    ("backends/pbsdk_backends/_tokens/reading.py", "from pbsdk_backends._remote import keys", {NEIGHBOURS}),
    ("backends/pbsdk_backends/named_by_no_layer.py", "", {NEIGHBOURS}),
    ("pbsdk/reproduce/rivals.py", "import pbsdk_rivals", {CORE}),
    ("backends/pbsdk_rivals/box.py", "from pbsdk_backends import local", {RIVALS}),
    ("backends/pbsdk_rivals/training.py", "from pbsdk.ledger import chain", {RIVALS}),
    ("backends/pbsdk_rivals/dart.py", "from pbsdk_rivals import bbt", {FRAME}),
    ("backends/pbsdk_rivals/named_by_no_layer.py", "", {FRAME}),
    ("backends/pbsdk_backends/http.py", "import torch", {REMOTE}),
    ("backends/pbsdk_backends/_protocol/wire.py", "import transformers", {REMOTE}),
    ("backends/pbsdk_backends/huggingface.py", "from pbsdk_backends._local import model", {REMOTE}),
]


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The packages and their contracts, to be spoiled."""
    folder = tmp_path_factory.mktemp("contracts")
    for package in ("pbsdk", "backends"):
        shutil.copytree(ROOT / package, folder / package, ignore=lambda at, names: [n for n in names if unread(at, n)])
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def unread(folder, name):
    return name == "__pycache__" or (Path(folder, name).is_file() and not name.endswith(".py"))


def broken(folder):
    """Return the contracts that import-linter calls broken."""
    path = os.pathsep.join([str(folder), str(folder / "backends")])
    done = subprocess.run(
        [sys.executable, "-c", LINT],
        capture_output=True, text=True, check=False, cwd=folder, env={**os.environ, "PYTHONPATH": path, "COLUMNS": "200"},
    )  # fmt: skip
    said = {name for name in NAMES if f"{name} BROKEN" in done.stdout}
    assert said | {name for name in NAMES if f"{name} KEPT" in done.stdout} == NAMES, done.stdout + done.stderr
    assert bool(said) == bool(done.returncode)
    return said


def test_there_are_eight_contracts_and_all_are_kept(copy):
    assert {LAYERS, CORE, LEARNER, ADAPTERS, NEIGHBOURS, REMOTE, RIVALS, FRAME} == NAMES
    assert len(CONTRACTS) == 8
    assert broken(copy) == set()


@pytest.mark.parametrize(("file", "line", "contracts"), PLANTS, ids=[f"{file}: {line}" for file, line, _ in PLANTS])
def test_a_forbidden_import_breaks_its_contract_and_no_other(copy, file, line, contracts):
    planted = copy / file
    before = planted.read_text("utf-8") if planted.exists() else None
    planted.write_text(f"{before or ''}\n{line}\n", "utf-8")
    try:
        assert broken(copy) == contracts
    finally:
        if before is None:
            planted.unlink()
        else:
            planted.write_text(before, "utf-8")


def test_an_adapter_is_remote_unless_it_runs_a_model_itself():
    (remote,) = (contract for contract in CONTRACTS if contract["name"] == REMOTE)
    folder = ROOT / "backends" / "pbsdk_backends"
    modules = {path.stem for path in folder.iterdir() if path.name.endswith(".py") or (path / "__init__.py").exists()}
    named = {module.removeprefix("pbsdk_backends.") for module in remote["source_modules"]}
    assert named == modules - RUN_A_MODEL - {"__init__"}
