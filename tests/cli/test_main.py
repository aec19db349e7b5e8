"""What happens when something goes wrong, and what goes to which stream."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from helpers.commands import called, pbsdk, write_table

from pbsdk.cli import main
from pbsdk.data.tickets import load_tickets


@pytest.fixture
def table(tmp_path):
    return write_table(tmp_path / "train.jsonl", load_tickets().train)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A folder with a classifier, and what fit said."""
    folder = tmp_path_factory.mktemp("fitted")
    options = ("--n-prompts", 2, "--backend", "fake", "--run", "run", "--progress", "--json")
    return folder, pbsdk("fit", write_table(folder / "train.jsonl", load_tickets().train).name, *options, cwd=folder)


def test_debug_may_stand_before_or_after_the_command(tmp_path):
    nothing = tmp_path / "nothing"
    for words in (("--debug", "audit", nothing), ("audit", "--debug", nothing), ("audit", nothing, "--debug")):
        shown = pbsdk(*words)
        assert shown.returncode == 1
        assert "Traceback" in shown.stderr
        assert "LedgerError" in shown.stderr


def test_after_two_dashes_debug_is_a_name():
    shown = called("audit", "show", "--", "--debug")
    assert (shown.returncode, shown.stderr) == (1, "error: --debug is not a run folder: it holds no cache.db\n")


def test_what_nobody_expected_is_one_line_that_says_it_is_a_bug(monkeypatch, tmp_path):
    def broken(_):
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("pbsdk.audit.report.AuditReport.read", broken)
    shown = called("audit", tmp_path)
    assert (shown.returncode, shown.stdout) == (70, "")
    assert shown.stderr.count("\n") == 1
    assert "this is a bug in pbsdk" in shown.stderr
    assert "RuntimeError: two lines" in shown.stderr
    assert "--debug" in shown.stderr
    monkeypatch.setattr(sys, "argv", ["pbsdk", "audit", str(tmp_path), "--debug"])
    with pytest.raises(RuntimeError, match="two"):
        main()


def test_a_reader_that_leaves_early_is_no_error():
    command = f"{sys.executable} -m pbsdk audit schema | head -1; echo ${{PIPESTATUS[1]}}"
    shown = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, timeout=60)
    assert shown.stdout == "{\n0\n"
    assert shown.stderr == ""


@pytest.mark.parametrize("line", ["--help", "prompts list --json", "predict model.json train.jsonl --run run"])
def test_a_reader_that_is_gone_before_the_first_line_is_no_error_either(line, fitted):
    folder, _ = fitted
    command = f"{sys.executable} -m pbsdk {line} | (exec <&-; sleep 0); true"
    shown = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=folder,
        env={**os.environ, "PBSDK_BACKEND": "fake"},
    )
    assert shown.stderr == ""


def test_an_interrupt_says_what_is_kept_and_ends_with_130(table):
    command = [
        sys.executable,
        "-m",
        "pbsdk",
        "fit",
        table.name,
        "--backend",
        "fake",
        "-o",
        "latency=0.5",
        "--run",
        "run",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=table.parent)
    while not (table.parent / "run" / "cache.db").exists():
        time.sleep(0.02)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err == "\ninterrupted; what was answered is kept, and the same command continues from there\n"


def test_an_interrupt_with_debug_shows_where(monkeypatch, tmp_path):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("pbsdk.audit.report.AuditReport.read", interrupted)
    shown = called("audit", tmp_path)
    assert (shown.returncode, shown.stdout, shown.stderr) == (130, "", "\ninterrupted\n")
    monkeypatch.setattr(sys, "argv", ["pbsdk", "--debug", "audit", str(tmp_path)])
    with pytest.raises(KeyboardInterrupt):
        main()


def test_progress_goes_to_stderr_and_stdout_is_the_result_alone(fitted):
    folder, shown = fitted
    assert json.loads(shown.stdout)["train"] == 64
    assert "asking" in shown.stderr
    common = ("predict", "model.json", "train.jsonl", "--backend", "fake", "--run", "run")
    quiet, loud = pbsdk(*common, cwd=folder), pbsdk(*common, "--progress", "--json", cwd=folder)
    assert quiet.stdout == loud.stdout
    assert len([json.loads(line) for line in loud.stdout.splitlines()]) == 64
    assert "predicting" in loud.stderr
    assert "predicting" not in quiet.stderr


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
