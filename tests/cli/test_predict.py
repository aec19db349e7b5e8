"""`pbsdk predict`, as a user runs it."""

import csv
import json
import shutil

import pytest
from helpers.commands import called, columns, interrupted_and_resumed, pbsdk


@pytest.fixture(scope="module")
def fitted(work, tmp_path_factory):
    """A folder with a classifier, its run, and the tickets to classify."""
    folder = tmp_path_factory.mktemp("predicting")
    shutil.copy(work / "test.csv", folder)
    common = columns("--run", folder / "run", "--prompts", "intent", "--head", "boosting", "--seed", "1")
    tables = (work / "train.csv", "--validation", work / "dev.csv")
    shown = called("fit", *tables, *common, "--rounds", "20", "--output", folder / "m.json")
    assert shown.returncode == 0, shown.stderr
    return folder


def predict(folder, *more):
    return pbsdk("predict", folder / "m.json", folder / "test.csv", *more)


def test_predictions_are_lines_with_shares_and_the_accuracy_is_told(fitted, tmp_path):
    common = columns("--run", fitted / "run")
    shown = predict(fitted, *common)
    assert shown.returncode == 0, shown.stderr
    rows = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [row["row"] for row in rows] == list(range(1, 161))
    for row in rows:
        assert sum(row["probabilities"].values()) == pytest.approx(1, abs=1e-5)
        assert row["probabilities"][row["label"]] == max(row["probabilities"].values())
    right = sum(row["label"] == row["expected"] for row in rows)
    assert f"({right} of 160)" in shown.stderr
    assert right > 80
    summary = json.loads(predict(fitted, *common, "--output", tmp_path / "p.csv", "--json").stdout)
    assert (summary["accuracy"], summary["sent_now"]) == (right / 160, 0)
    with (tmp_path / "p.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["label"] for row in table] == [row["label"] for row in rows]
    assert float(table[0]["probability of billing"]) == rows[0]["probabilities"]["billing"]
    unlabelled = ("--text-column", "message", "--backend", "fake", "--run", fitted / "run")
    bare = predict(fitted, *unlabelled, "--output", tmp_path / "p.jsonl")
    assert "accuracy" not in bare.stdout
    assert "expected" not in (tmp_path / "p.jsonl").read_text("utf-8")


def test_what_is_too_uncertain_has_no_label(fitted, work, tmp_path):
    common = columns("--run", fitted / "run")
    model = tmp_path / "auto.json"
    trained = called("fit", work / "train.csv", *common, "--prompts", "intent", "--head", "auto", "--output", model)
    assert trained.returncode == 0, trained.stderr
    shown = pbsdk("predict", model, fitted / "test.csv", *common, "--precision", "0.8", "--json")
    assert shown.returncode == 0, shown.stderr
    rows = [json.loads(line) for line in shown.stdout.splitlines()]
    sure = [row for row in rows if row["label"] is not None]
    summary = json.loads(shown.stderr.splitlines()[-1])
    assert 0 < summary["answered"] == len(sure) < len(rows)
    assert summary["accuracy"] == sum(row["right"] for row in sure) / len(sure)
    least = min(max(row["probabilities"].values()) for row in sure)
    assert all(max(row["probabilities"].values()) < least for row in rows if row["label"] is None)
    said = pbsdk("predict", fitted / "m.json", fitted / "test.csv", *common, "--precision", "0.8")
    assert said.returncode != 0
    assert "'boosting' doesn't cross-validate" in said.stderr


def test_another_model_is_warned_of_in_one_line(fitted, tmp_path):
    shown = predict(fitted, *columns("-o", "seed=5", "--run", tmp_path / "run"))
    assert shown.returncode == 0
    lines = shown.stderr.splitlines()
    assert lines[0].startswith("warning: ")
    assert "seed: 5 here, 0 there" in lines[0]
    assert not any("classifier.py" in line for line in lines)


def test_a_refused_prediction_leaves_the_older_file(fitted, tmp_path):
    (tmp_path / "p.jsonl").write_text("older\n")
    common = columns("--run", tmp_path / "run", "--budget", "1", "--output", tmp_path / "p.jsonl")
    shown = predict(fitted, *common)
    assert shown.returncode == 3
    assert (tmp_path / "p.jsonl").read_text() == "older\n"


def test_a_classifier_that_is_not_there_is_one_line(work, tmp_path):
    shown = called("predict", tmp_path / "none.json", work / "test.csv", *columns("--run", tmp_path / "run"))
    assert (shown.returncode, shown.stdout) == (1, "")
    assert "none.json" in shown.stderr
    assert len(shown.stderr.splitlines()) == 1


def test_after_an_interrupt_the_same_command_goes_on(fitted, tmp_path):
    arguments = (fitted / "m.json", fitted / "test.csv", *columns("--output", tmp_path / "out.jsonl"))
    interrupted_and_resumed("predict", *arguments, run=tmp_path / "run")
    rows = [json.loads(row)["row"] for row in (tmp_path / "out.jsonl").read_text("utf-8").splitlines()]
    assert rows == list(range(1, 161))


def test_an_early_exit_gives_the_same_labels_and_says_what_it_saved(work, tmp_path):
    common = columns("--run", tmp_path / "run")
    made = called("fit", work / "train.csv", *common, "--head", "voting", "--output", tmp_path / "m.json")
    assert made.returncode == 0, made.stderr
    shutil.copy(work / "test.csv", tmp_path)
    early = predict(tmp_path, *common, "--early-exit", "--output", tmp_path / "early.jsonl", "--json")
    assert early.returncode == 0, early.stderr
    found = json.loads(early.stdout)
    assert found["passes_saved"] > 0
    assert found["passes_asked"] == found["sent_now"]
    again = predict(tmp_path, *common, "--early-exit", "--output", tmp_path / "early.jsonl")
    assert f"passes per example instead of {(found['passes_asked'] + found['passes_saved']) / 160:.1f}" in again.stdout
    full = predict(tmp_path, *common, "--output", tmp_path / "full.jsonl", "--json")
    assert json.loads(full.stdout)["sent_now"] == found["passes_saved"]
    early, full = ((tmp_path / f"{name}.jsonl").read_text("utf-8").splitlines() for name in ("early", "full"))
    assert [json.loads(line)["label"] for line in early] == [json.loads(line)["label"] for line in full]
