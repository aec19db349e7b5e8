"""`pbsdk members` and `pbsdk serve --members`: a team at one gate, every process a real one."""

import ast
import json

import pytest
from helpers.commands import called, served
from helpers.meter import start

from pbsdk.audit.report import AuditReport
from pbsdk.ledger.verifier import verify_run

pytest.importorskip("fastapi", reason="the server's packages are not installed (pbsdk[serve])")
pytest.importorskip("requests", reason="the remote adapters' packages are not installed (pbsdk[remote])")


def made(file, name, *limits):
    return json.loads(called("members", "add", file, name, *limits, "--json").stdout)["token"]


def test_tokens_are_made_listed_changed_and_revoked(tmp_path):
    file = tmp_path / "team.json"
    shown = called("members", "add", file, "ana", "--passes", "500", "--per-minute", "60")
    token = shown.stdout.strip()
    assert token.startswith("pbsdk_")
    assert "can't be shown again" in shown.stderr
    listed = called("members", "list", file).stdout
    assert "ana     500     no limit  no limit  60" in listed
    assert token not in listed + file.read_text()
    assert called("members", "change", file, "ana", "--passes", "800").stdout == "changed ana\n"
    assert called("members", "revoke", file, "ana").returncode == 0
    (entry,) = json.loads(called("members", "list", file, "--json").stdout)
    assert (entry["passes"], entry["per_minute"]) == (800, 60)
    assert entry["revoked"]
    assert "token_sha256" not in entry
    assert called("members", "revoke", file, "ben").stderr.startswith("error: ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--run", "runs/x"), "--members"),
        (("--members", "none.json"), "--run"),
        (("--members", "none.json", "--run", "runs/x"), "make it with"),
        (("--total", "5"), "--members"),
    ],
)
def test_a_gate_that_cannot_work_is_one_line(tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    shown = called("serve", "fake", *arguments)
    assert shown.returncode == 1
    assert said in shown.stderr
    assert len(shown.stderr.splitlines()) == 1


def test_a_gate_has_no_token_for_all(tmp_path, monkeypatch):
    monkeypatch.setenv("PBSDK_SERVE_TOKEN", "secret")
    shown = called("serve", "fake", "--members", tmp_path / "team.json", "--run", tmp_path / "run")
    assert (shown.returncode, "tokens of their own" in shown.stderr) == (1, True)
    assert "secret" not in shown.stderr


def test_several_processes_at_one_gate_never_get_one_pass_over(tmp_path, monkeypatch):
    file, run = tmp_path / "team.json", tmp_path / "run"
    tokens = {"ana": made(file, "ana", "--passes", "14"), "ben": made(file, "ben", "--passes", "16")}
    with served("fake", "-o", "vocabulary_size=20", "--members", file, "--run", run) as url:
        jobs = []
        # Two processes of ana's, who need at least 25 passes, and two of ben's; a few texts are asked by both.
        for at, (name, first, batch) in enumerate([("ana", 0, 1), ("ana", 10, 2), ("ben", 25, 1), ("ben", 35, 3)]):
            monkeypatch.setenv("PBSDK_API_KEY", tokens[name])
            jobs.append(start("at_gate", tmp_path / f"client{at}", url, first, 18, batch))
        said = [job.communicate(timeout=120)[0].splitlines() for job in jobs]
        assert all(job.returncode == 0 for job in jobs)
    verify_run(run)
    report = AuditReport.read(run)
    members = {member.name: member for member in report.members}
    assert members["ana"].passes == 14  # whoever asks one at a time takes what the other can't
    assert members["ben"].passes == 16
    paid = sum(phase.attempts for phase in report.phases)
    assert paid == members["ana"].passes + members["ben"].passes
    assert "whoever runs this server" in next(line for line in said[0] + said[1] if line.startswith("refused"))
    left = ast.literal_eval(said[3][-1].removeprefix("left "))
    assert set(left) == {"passes"}
    shown = called("audit", run)
    assert "Members" in shown.stdout
    for token in tokens.values():
        assert token not in shown.stdout + called("audit", run, "--json").stdout
