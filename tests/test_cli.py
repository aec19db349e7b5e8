"""The command line, as a user runs it: real processes."""

import json
import subprocess
import sys

import pytest

from pbsdk.classifier import PromptBoostingClassifier
from pbsdk.datasets import load_tickets
from pbsdk.registry import connect


def pbsdk(*arguments, cwd=None):
    command = [sys.executable, "-m", "pbsdk", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False, timeout=120)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    tickets = load_tickets()
    with connect("fake", run=folder / "run", budget=10) as lm:
        clf = PromptBoostingClassifier(lm, ["<input> So <mask>.", "<input> The <mask>"], rounds=5, random_state=0)
        clf.fit(tickets.train.texts, tickets.train.labels).save(folder / "model.json")
    return folder


def test_help_teaches():
    shown = pbsdk("--help")
    assert shown.returncode == 0
    for command in ("demo", "audit", "verify", "explain", "backends"):
        assert command in shown.stdout
    assert pbsdk().stdout.strip() == shown.stdout.strip()


def test_audit_and_verify_read_a_run(trained):
    shown = pbsdk("audit", trained / "run")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "within budget: at most 2 of 10 passes an example" in shown.stdout
    report = json.loads(pbsdk("audit", trained / "run", "--json").stdout)
    assert report["phases"][0]["passes"] == 128
    verified = pbsdk("verify", trained / "run")
    assert verified.returncode == 0
    assert json.loads(pbsdk("verify", trained / "run", "--json").stdout)["records"] == report["records"]


def test_explain_shows_a_saved_model_without_its_backend(trained):
    shown = pbsdk("explain", trained / "model.json")
    assert shown.returncode == 0
    assert "<input> The <mask>" in shown.stdout
    learners = json.loads(pbsdk("explain", trained / "model.json", "--json").stdout)["learners"]
    assert len(learners) == 5
    assert set(learners[0]["words"]) == {"account", "billing", "shipping", "technical"}


def test_backends_lists_what_connect_knows():
    names = {backend["name"] for backend in json.loads(pbsdk("backends", "--json").stdout)}
    assert {"fake", "local", "smollm2"} <= names
    assert "fake" in pbsdk("backends").stdout


def test_an_error_is_one_line_without_a_traceback_unless_asked_for(tmp_path):
    shown = pbsdk("audit", tmp_path / "nothing")
    assert shown.returncode == 1
    assert shown.stderr.startswith("error: ")
    assert len(shown.stderr.splitlines()) == 1
    assert shown.stdout == ""
    assert "Traceback" in pbsdk("--debug", "audit", tmp_path / "nothing").stderr


def test_a_wrong_word_is_a_usage_error():
    assert pbsdk("nonesuch").returncode == 2


def test_the_version_is_printed():
    from pbsdk.version import __version__

    assert pbsdk("--version").stdout.strip() == __version__
