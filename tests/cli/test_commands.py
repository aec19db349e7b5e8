"""The command line, as a user runs it: real processes."""

import json
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.commands import called, pbsdk

from pbsdk.classifier import PromptBoostingClassifier
from pbsdk.connecting import connect
from pbsdk.data.tickets import load_tickets


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
    for command in ("demo", "audit", "plan", "why-miss", "explain", "backends"):
        assert command in shown.stdout
    assert pbsdk().stdout.strip() == shown.stdout.strip()


def test_audit_shows_a_run_in_every_form(trained, tmp_path):
    run = trained / "run"
    shown = pbsdk("audit", run)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "within budget: at most 2 of 10 passes per example" in shown.stdout
    report = json.loads(called("audit", run, "--json").stdout)
    assert report["phases"][0]["passes"] == 128
    assert json.loads(called("audit", "show", run, "--json").stdout) == report
    assert "| passes | 128 |" in called("audit", run, "--markdown").stdout
    written = called("audit", "--html", tmp_path / "page.html", run)
    assert written.returncode == 0
    assert report["verdict"] in (tmp_path / "page.html").read_text("utf-8")
    assert json.loads(called("audit", "schema").stdout)["properties"].keys() == report.keys()


def test_a_run_folder_may_be_called_like_a_command(trained, tmp_path, monkeypatch):
    (tmp_path / "diff").symlink_to(trained / "run")
    monkeypatch.chdir(tmp_path)
    assert called("audit", "./diff").returncode == 0
    assert called("audit", "diff").returncode == 2


def test_audit_diff_compares_two_runs(trained):
    shown = called("audit", "diff", trained / "run", trained / "run")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "128 in both, 0 only in A, 0 only in B" in shown.stdout
    found = json.loads(called("audit", "diff", trained / "run", trained / "run", "--json").stdout)
    assert {row["difference"] for row in found["differences"]} <= {0, None}


def test_audit_verify_names_what_does_not_fit(trained, tmp_path):
    run, copy = trained / "run", tmp_path / "run"
    verified = json.loads(called("audit", "verify", run, "--json").stdout)
    assert verified["answers"] == 128
    assert called("audit", "certify", run, tmp_path / "c.json").returncode == 0
    assert "the certificate matches" in called("audit", "verify", run, "--certificate", tmp_path / "c.json").stdout
    shutil.copytree(run, copy)
    con = sqlite3.connect(copy / "cache.db")
    con.execute("DROP TRIGGER records_hold")
    con.execute("UPDATE records SET latency = latency + 1 WHERE seq = 77")
    con.commit()
    con.close()
    for extra in ((), ("--certificate", tmp_path / "c.json")):
        shown = called("audit", "verify", copy, *extra)
        assert shown.returncode == 4
        assert "record 77 was changed" in shown.stderr
    assert called("audit", "export", run, tmp_path / "ledger.jsonl").returncode == 0
    script = Path(__file__).parents[2] / "docs" / "verify_ledger.py"
    command = [sys.executable, "-I", script, tmp_path / "ledger.jsonl", tmp_path / "c.json"]
    assert json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["answers"] == 128


def test_why_miss_says_which_part_differs(trained):
    found = json.loads(called("why-miss", trained / "run", "--json").stdout)
    assert [(miss["part"], miss["queries"]) for miss in found["misses"]] == [("nothing like it was known", 128)]
    assert "128" in called("why-miss", trained / "run", "--against", trained / "run").stdout


def test_plan_says_what_it_will_cost_and_sends_nothing(trained, tmp_path):
    tickets = load_tickets()
    rows = [
        {"text": text, "label": label} for text, label in zip(tickets.train.texts, tickets.train.labels, strict=True)
    ]
    train = tmp_path / "train.jsonl"
    train.write_text("\n".join(map(json.dumps, rows)))
    common = ("--backend", "fake", "--option", "batch_size=16", "--prompts", "topic", "--n-prompts", "2", "--json")
    shown = called("plan", train, *common, "--run", tmp_path / "run", "--predict", train, "--price-per-pass", "0.5")
    assert shown.returncode == 0
    fit, predict = json.loads(shown.stdout)["steps"]
    assert (fit["passes"], fit["requests"], fit["money"], predict["passes"]) == (128, 8, 64.0, 0)
    assert json.loads(called("audit", tmp_path / "run", "--json").stdout)["phases"] == []
    refused = called("plan", train, *common, "--run", tmp_path / "run", "--budget", "1")
    assert refused.returncode == 3
    assert "the budget doesn't allow" in json.loads(refused.stdout)["verdict"]
    fake = ("--backend", "fake", "--run", trained / "run", "--json")
    again = called("plan", *fake, "--model", trained / "model.json", "--predict", train)
    (step,) = json.loads(again.stdout)["steps"]
    assert (step["recalled"], step["passes"], step["exact"]) == (step["queries"], 0, True)
    assert called("plan", *fake).returncode == 1
    assert "name=value" in called("plan", train, *fake, "--option", "batch_size").stderr


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
