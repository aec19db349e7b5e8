"""`pbsdk fit` and `pbsdk predict`, as a user runs them."""

import csv
import json
import signal
import subprocess
import sys
import time
from itertools import pairwise

import pytest
from helpers.commands import pbsdk

from pbsdk.audit.report import AuditReport
from pbsdk.cli._common import plainly
from pbsdk.data.tickets import load_tickets
from pbsdk.errors import InputError


def table(path, part, head=("text", "label")):
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(head)
        writer.writerows(zip(part.texts, part.labels, strict=True))
    return path


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fitting")
    tickets = load_tickets()
    table(folder / "train.csv", tickets.train, ("message", "department"))
    table(folder / "dev.csv", tickets.validation, ("message", "department"))
    table(folder / "test.csv", tickets.test, ("message", "department"))
    return folder


def columns(*more):
    return ("--text-column", "message", "--label-column", "department", "--backend", "fake", *more)


@pytest.fixture(scope="module")
def fitted(work):
    arguments = columns("--run", work / "run", "--prompts", "intent", "--rounds", "20", "--seed", "1")
    shown = pbsdk("fit", work / "train.csv", "--validation", work / "dev.csv", *arguments, "--output", work / "m.json")
    assert shown.returncode == 0, shown.stderr
    return work, arguments, shown


def test_fit_saves_a_classifier_and_says_what_it_learned_and_cost(fitted):
    work, arguments, shown = fitted
    assert shown.stderr == ""
    assert "64 texts, 64 for validation, on fake" in shown.stdout
    assert "accuracy on validation" in shown.stdout
    for label in ("account", "billing", "shipping", "technical"):
        assert f"  {label} " in shown.stdout
    assert "within budget: at most 10 of 10 passes per example" in shown.stdout
    assert "1280 queries sent this time" in shown.stdout
    again = pbsdk(
        "fit", work / "train.csv", "--validation", work / "dev.csv", *arguments, "--output", work / "n.json", "--json"
    )
    found = json.loads(again.stdout)
    assert (found["sent_now"], found["train"], found["validation"]) == (0, 64, 64)
    assert found["validation_accuracy"] > 0.5
    assert (work / "n.json").read_bytes() == (work / "m.json").read_bytes()


def test_prompts_show_demonstrations_and_plan_foretells_what_is_left_out(work, tmp_path):
    common = columns("--run", tmp_path / "run", "--prompts", "topic-shown", "--demonstrations", "2", "--seed", "5")
    planned = pbsdk("plan", work / "train.csv", "--validation", work / "dev.csv", *common, "--json")
    fit = json.loads(planned.stdout)["steps"][-1]
    model = tmp_path / "m.json"
    rest = ("--rounds", "5", "--output", model, "--json")
    shown = pbsdk("fit", work / "train.csv", "--validation", work / "dev.csv", *common, *rest)
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["sent_now"] == fit["passes"] == 1280 - 10 * 4 * 2
    assert [len(some) for some in json.loads(model.read_text("utf-8"))["demonstrations"]] == [8] * 10
    predicted = pbsdk("predict", model, work / "train.csv", *columns("--run", tmp_path / "run"))
    assert predicted.returncode == 0, predicted.stderr
    assert len(predicted.stdout.splitlines()) == 64
    some = tmp_path / "some.csv"
    some.write_text("message,department\na,x\nb,y\nc,x\nd,y\n", encoding="utf-8")
    refused = pbsdk("fit", some, *common, "--validation-share", "0", "--output", tmp_path / "n.json")
    assert refused.returncode == 1
    assert "shows all of them as demonstrations" in refused.stderr
    assert "--demonstrations 0" in refused.stderr


def test_a_part_is_held_out_unless_told_otherwise(fitted, tmp_path):
    work, arguments, _ = fitted
    common = ("fit", work / "train.csv", *arguments, "--output", tmp_path / "new" / "m.json", "--json")
    some = json.loads(pbsdk(*common).stdout)
    assert (some["train"], some["validation"], some["sent_now"]) == (52, 12, 0)
    none = json.loads(pbsdk(*common, "--validation-share", "0").stdout)
    assert (none["train"], none["validation"], none["validation_accuracy"]) == (64, 0, None)


def test_a_budget_that_is_too_small_ends_with_3_before_anything_is_sent(work, tmp_path):
    run = tmp_path / "run"
    shown = pbsdk("fit", work / "train.csv", *columns("--run", run, "--budget", "3"), "--output", tmp_path / "m.json")
    assert shown.returncode == 3
    assert "--budget 10" in shown.stderr
    assert "QueryBudget" not in shown.stderr
    assert AuditReport.read(run).phases == []
    assert not (tmp_path / "m.json").exists()


def test_what_cannot_work_is_one_line_with_the_cure_as_an_option(work, tmp_path):
    fake = ("--backend", "fake", "--run", tmp_path / "run", "--output", tmp_path / "m.json")
    (tmp_path / "odd.csv").write_text("message,department\nHelp me,garden\n")
    (tmp_path / "plain.csv").write_text("one,two,three\na,b,c\n")
    for arguments, said in (
        (("fit", tmp_path / "plain.csv", *fake), "say --label-column"),
        (("fit", work / "train.csv", "--label-column", "departement", *fake), "did you mean 'department'?"),
        (("fit", work / "train.csv", *fake[:-1], tmp_path, "--label-column", "department"), "is a folder"),
        (
            ("fit", work / "train.csv", *columns(*fake[2:]), "--validation", tmp_path / "odd.csv"),
            "unknown label 'garden'",
        ),
        (("fit", tmp_path / "odd.csv", *columns(*fake[2:])), "--validation-share 0"),
        (("fit", work / "train.csv", *columns(*fake[2:]), "--validation-share", "2"), "below 1"),
        (("predict", tmp_path / "none.json", work / "test.csv", *fake), "none.json"),
    ):
        shown = pbsdk(*arguments)
        assert (shown.returncode, shown.stdout) == (1, "")
        assert said in shown.stderr
        assert len(shown.stderr.splitlines()) == 1


def test_predictions_are_lines_with_shares_and_the_accuracy_is_told(fitted, tmp_path):
    work, _, _ = fitted
    model = ("predict", work / "m.json", work / "test.csv")
    common = columns("--run", work / "run")
    shown = pbsdk(*model, *common)
    assert shown.returncode == 0, shown.stderr
    rows = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [row["row"] for row in rows] == list(range(1, 161))
    for row in rows:
        assert sum(row["shares"].values()) == pytest.approx(1, abs=1e-5)
        assert row["shares"][row["label"]] == max(row["shares"].values())
    right = sum(row["label"] == row["expected"] for row in rows)
    assert f"({right} of 160)" in shown.stderr
    assert right > 80
    summary = json.loads(pbsdk(*model, *common, "--output", tmp_path / "p.csv", "--json").stdout)
    assert (summary["accuracy"], summary["sent_now"]) == (right / 160, 0)
    with (tmp_path / "p.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["label"] for row in table] == [row["label"] for row in rows]
    assert float(table[0]["share of billing"]) == rows[0]["shares"]["billing"]
    bare = pbsdk(
        *model, "--text-column", "message", "--backend", "fake", "--run", work / "run", "--output", tmp_path / "p.jsonl"
    )
    assert "accuracy" not in bare.stdout
    assert "expected" not in (tmp_path / "p.jsonl").read_text("utf-8")


def test_another_model_is_warned_of_in_one_line(fitted, tmp_path):
    work, _, _ = fitted
    shown = pbsdk("predict", work / "m.json", work / "test.csv", *columns("-o", "seed=5", "--run", tmp_path / "run"))
    assert shown.returncode == 0
    lines = shown.stderr.splitlines()
    assert lines[0].startswith("warning: ")
    assert "seed: 5 here, 0 there" in lines[0]
    assert not any("classifier.py" in line for line in lines)


def test_a_refused_prediction_leaves_the_older_file(fitted, tmp_path):
    work, _, _ = fitted
    (tmp_path / "p.jsonl").write_text("older\n")
    common = columns("--run", tmp_path / "run", "--budget", "1", "--output", tmp_path / "p.jsonl")
    shown = pbsdk("predict", work / "m.json", work / "test.csv", *common)
    assert shown.returncode == 3
    assert (tmp_path / "p.jsonl").read_text() == "older\n"


@pytest.mark.parametrize("command", ["fit", "predict"])
def test_after_an_interrupt_the_same_command_goes_on(fitted, tmp_path, command):
    work, _, _ = fitted
    out = tmp_path / "out.jsonl"
    slow = ("-o", "latency=0.1", "-o", "batch_size=4", "--run", tmp_path / "run", "--output", out)
    arguments = ("predict", work / "m.json", work / "test.csv", *columns(*slow))
    if command == "fit":
        arguments = ("fit", work / "train.csv", *columns(*slow), "--prompts", "intent", "--rounds", "5")
    line = [sys.executable, "-m", "pbsdk", *map(str, arguments)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        _until(lambda: _answers(tmp_path / "run") >= 8)
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command goes on from there" in complaint
    assert "Traceback" not in complaint
    kept = _answers(tmp_path / "run")
    fast = [part if part != "latency=0.1" else "latency=0" for part in map(str, arguments)]
    done = pbsdk(*fast, "--json")
    assert done.returncode == 0, done.stderr
    total = _answers(tmp_path / "run")
    sent = json.loads(done.stdout)["sent_now"]
    assert 8 <= kept < total
    assert total - kept <= sent <= total - kept + 4  # the batch that was interrupted may have run, and is asked again
    if command == "predict":
        rows = [json.loads(row)["row"] for row in out.read_text("utf-8").splitlines()]
        assert len(rows) == 160
        assert all(one + 1 == other for one, other in pairwise(rows))


def _answers(run):
    return sum(phase.passes for phase in AuditReport.read(run).phases) if (run / "cache.db").is_file() else 0


def _until(done):
    for _ in range(600):
        try:
            if done():
                return
        except Exception:  # noqa: BLE001 - the ledger is just being made
            pass
        time.sleep(0.05)
    pytest.fail("the command never began to ask")


def test_python_cures_become_options():
    with pytest.raises(InputError, match=r"leave such rows out with --missing drop, which fit has$"), plainly():
        raise InputError("leave such rows out with", setting="missing", value='"drop"')
