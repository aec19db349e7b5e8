"""`pbsdk audit`: show, diff, verify, certify, export, schema."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from helpers.commands import called, pbsdk
from helpers.tampering import edit


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
    edit(copy, ("UPDATE records SET latency = latency + 1 WHERE seq = 77",))
    for extra in ((), ("--certificate", tmp_path / "c.json")):
        shown = called("audit", "verify", copy, *extra)
        assert shown.returncode == 4
        assert "record 77 was changed" in shown.stderr
    assert called("audit", "export", run, tmp_path / "ledger.jsonl").returncode == 0
    script = Path(__file__).parents[2] / "docs" / "verify_ledger.py"
    command = [sys.executable, "-I", script, tmp_path / "ledger.jsonl", tmp_path / "c.json"]
    assert json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["answers"] == 128
