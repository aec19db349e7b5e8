"""An installation for remote models alone, in a virtual environment of its own: no torch anywhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from pbsdk.testing import FakeBackend
from pbsdk_backends.serve import serving

ROOT = Path(__file__).parents[2]

SCRIPT = """
import importlib.util, sys
from pbsdk import PromptBoostingClassifier, available, connect
from pbsdk.data.tickets import load_tickets
from pbsdk.errors import MissingExtra

assert importlib.util.find_spec("torch") is None
assert importlib.util.find_spec("transformers") is None
problems = {backend.name: backend.problem for backend in available()}
assert not any(problems[name] for name in ("http", "huggingface", "kserve", "openai")), problems
assert problems["local"]
try:
    connect("local", model="roberta-large", run=sys.argv[2] + "/local")
except MissingExtra as error:
    assert "pbsdk[local]" in str(error)
else:
    raise AssertionError("local needs torch")
tickets = load_tickets()
with connect("http", url=sys.argv[1], run=sys.argv[2] + "/run") as lm:
    clf = PromptBoostingClassifier(lm, ["<input> It was <mask>", "<input> So <mask>"], head="soft", random_state=13)
    clf.fit(tickets.train.texts[:16], tickets.train.labels[:16])
    clf.predict(tickets.test.texts[:4])
    assert lm.audit().within_budget
assert "torch" not in sys.modules
print("trained")
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The interpreter of a fresh environment with `pbsdk[remote]` from a wheel."""
    folder = tmp_path_factory.mktemp("remote-only")
    source = folder / "source"
    ignore = shutil.ignore_patterns(".*", "__pycache__", "runs")
    for name in ("pbsdk", "backends"):
        shutil.copytree(ROOT / name, source / name, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    venv.create(folder / "venv", with_pip=True)
    interpreter = folder / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    install = [
        interpreter,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-compile",
        "--disable-pip-version-check",
        f"{source}[remote]",
    ]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if done.returncode and ("No matching distribution" in done.stderr or "connection" in done.stderr.lower()):
        pytest.skip("no package index can be reached from here")
    assert done.returncode == 0, done.stderr
    return interpreter


def test_a_remote_only_installation_trains_without_torch(python, tmp_path):
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PBSDK"))}
    with serving(FakeBackend()) as url:
        done = subprocess.run(
            [python, "-c", SCRIPT, url, str(tmp_path)],
            capture_output=True, text=True, check=False, env=environment, cwd=tmp_path, timeout=500,
        )  # fmt: skip
    assert done.stdout.strip().endswith("trained"), done.stderr
    assert sys.executable != str(python)


def test_the_server_is_an_extra_of_its_own(python):
    code = "from pbsdk_backends.serve import serve"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert 'pip install "pbsdk[serve]"' in done.stderr
