"""`pbsdk audit`: show, diff, verify, certify, prove, check-proof, export, schema; and `pbsdk keys`."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from helpers.commands import called, pbsdk
from helpers.meter import query
from helpers.tampering import edit

from pbsdk.connecting import connect


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


def test_certificates_are_signed_checked_and_shown_to_have_only_grown(trained, tmp_path, monkeypatch):
    run = tmp_path / "run"
    shutil.copytree(trained / "run", run)
    monkeypatch.chdir(tmp_path)
    made = called("keys", "new", "alice.key", "--name", "example.com/alice")
    assert made.stdout.startswith("example.com/alice+")
    assert "must not lie in the run folder" in called("keys", "new", run / "bob.key").stderr
    assert called("audit", "certify", run, "one.json", "--sign", "alice.key").returncode == 0
    with connect("fake", run=run) as lm:
        lm.fill([query("new")])
    assert called("audit", "certify", run, "two.json", "--sign", "alice.key", "--since", "one.json").returncode == 0
    for what in (run, "two.json"):  # with the ledger, and without
        shown = called("audit", "verify", what, "--since", "one.json", "--key", "alice.key.pub")
        assert (shown.returncode, shown.stderr) == (0, "")
        assert "signed by example.com/alice (" in shown.stdout
        assert "not checked" not in shown.stdout
    shown = called("audit", "verify", "two.json", "--since", "one.json")
    added = json.loads(called("audit", "verify", "two.json", "--since", "one.json", "--json").stdout)["added"]
    assert f"{added} were added" in shown.stdout
    assert "not checked: that needs the public key" in shown.stdout
    assert called("audit", "certify", run, "plain.json").returncode == 0
    assert "(unsigned)" in called("audit", "verify", run, "--certificate", "plain.json").stdout
    refused = called("audit", "verify", run, "--certificate", "plain.json", "--key", "alice.key.pub")
    assert (refused.returncode, "is not signed by example.com/alice" in refused.stderr) == (4, True)
    assert "give one with --certificate" in called("audit", "verify", run, "--key", "alice.key.pub").stderr
    assert "pbsdk audit check-proof two.json" in called("audit", "verify", "two.json").stderr


def test_one_query_is_proved_and_checked_without_the_ledger(trained, tmp_path):
    certificate, proof = tmp_path / "c.json", tmp_path / "p.json"
    assert called("audit", "certify", trained / "run", certificate).returncode == 0
    made = called("audit", "prove", trained / "run", "--query", "7", "--certificate", certificate, proof)
    assert (made.returncode, made.stderr) == (0, "")
    assert made.stdout.endswith(f"anyone can check it: pbsdk audit check-proof {proof}\n")
    shown = called("audit", "check-proof", proof)
    assert "record 7 of " in shown.stdout
    assert "who made this checkpoint is not known" in shown.stdout
    shown = called("audit", "check-proof", proof, "--certificate", certificate)
    assert (shown.returncode, "not known" in shown.stdout) == (0, False)
    told = json.loads(called("audit", "check-proof", proof, "--json").stdout)
    assert (told["record"]["seq"], told["checkpoint"]) == (7, "unsigned")
    changed = {**told["record"], "latency": told["record"]["latency"] + 1}
    proof.write_text(json.dumps({**json.loads(proof.read_text()), "record": changed}))
    refused = called("audit", "check-proof", proof)
    assert (refused.returncode, "it, or its path, was changed" in refused.stderr) == (4, True)


def test_audit_verify_says_whether_one_model_gave_the_answers(trained):
    shown = called("audit", "verify", trained / "run")
    assert "\ndrift: can't be told; 128 distinct whole answers show no span" in shown.stdout
    assert json.loads(called("audit", "verify", trained / "run", "--json").stdout)["drift"]["answers"] == 128
