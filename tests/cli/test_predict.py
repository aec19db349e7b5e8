"""`pbsdk predict`, as a user runs it."""

import csv
import json
import shutil

import pytest
from helpers.commands import called, columns, interrupted_and_resumed

from pbsdk.cli._opening import remembered


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
    return called("predict", folder / "m.json", folder / "test.csv", *more)


def read_table(path, delimiter=","):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter=delimiter))


def test_predictions_keep_the_columns_and_say_how_sure_they_are(fitted, tmp_path):
    common = columns("--run", fitted / "run")
    shown = predict(fitted, *common, "--probabilities")
    assert shown.returncode == 0, shown.stderr
    rows, given = [json.loads(line) for line in shown.stdout.splitlines()], read_table(fitted / "test.csv")
    assert [(row["message"], row["department"]) for row in rows] == [tuple(row.values()) for row in given]
    for row in rows:
        shares = {name.removeprefix("probability of "): row[name] for name in row if name.startswith("probability of ")}
        assert sum(shares.values()) == pytest.approx(1, abs=1e-5)
        assert shares[row["predicted"]] == row["confidence"] == max(shares.values())
    right = sum(row["predicted"] == row["department"] for row in rows)
    assert f"({right} of 160)" in shown.stderr
    assert right == sum(row["right"] for row in rows) > 80


def test_new_texts_are_found_in_the_column_that_the_classifier_learned_from(fitted, tmp_path):
    table = tmp_path / "new.csv"
    rows = read_table(fitted / "test.csv")[:3]
    table.write_text("text,message\n" + "".join(f'R-{at},"{row["message"]}"\n' for at, row in enumerate(rows)), "utf-8")
    shown = called("predict", fitted / "m.json", table, "--run", fitted / "run")
    assert shown.returncode == 0, shown.stderr
    assert "3 texts predicted, 0 queries" in shown.stderr  # so it asked about those messages
    planned = called("plan", "--model", fitted / "m.json", "--predict", table, "--run", fitted / "run", "--json")
    assert json.loads(planned.stdout)["steps"][0]["recalled"] == 30


def test_an_accuracy_on_texts_of_the_training_is_warned_of(fitted, work):
    common = columns("--run", fitted / "run")
    shown = called("predict", fitted / "m.json", work / "train.csv", *common)
    assert (
        f"warning: 64 of 64 texts took part in a fit in {fitted / 'run'}; the accuracy on them is too good"
        in shown.stderr
    )
    assert "warning" not in predict(fitted, *common).stderr


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_each_kind_of_file_holds_the_same(fitted, tmp_path, suffix):
    file = tmp_path / f"p{suffix}"
    shown = called(
        "predict",
        fitted / "m.json",
        fitted / "test.csv",
        "--text-column",
        "message",
        "--run",
        fitted / "run",
        "--output",
        file,
    )
    assert shown.returncode == 0, shown.stderr
    assert "accuracy" not in shown.stdout
    if suffix == ".parquet":
        rows = pytest.importorskip("pyarrow.parquet", reason="Parquet needs pyarrow").read_table(file).to_pylist()
    elif suffix == ".jsonl":
        rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    else:
        rows = read_table(file, "\t" if suffix == ".tsv" else ",")
    assert list(rows[0]) == ["message", "department", "predicted", "confidence"]
    assert [row["message"] for row in rows] == [row["message"] for row in read_table(fitted / "test.csv")]


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_asked(fitted, tmp_path):
    shown = called("predict", fitted / "m.json", fitted / "test.csv", "--run", tmp_path / "run", "--output", "p.xls")
    assert shown.returncode == 1
    assert "must end in one of .csv, .tsv" in shown.stderr
    twice = tmp_path / "t.csv"
    twice.write_text("text,predicted\nHello,x\n", encoding="utf-8")
    refused = called("predict", fitted / "m.json", twice, "--run", tmp_path / "run")
    assert "has a column 'predicted' already" in refused.stderr
    assert not (tmp_path / "run").exists()


def test_the_model_file_remembers_its_backend_and_never_a_secret(work, tmp_path):
    fit = columns("-o", "seed=5", "--run", tmp_path / "run", "--head", "boosting", "--rounds", "2")
    called("fit", work / "train.csv", *fit, "--validation-share", "0", "--output", tmp_path / "m.json")
    assert json.loads((tmp_path / "m.json").read_text("utf-8"))["backend"] == {"name": "fake", "options": {"seed": 5}}
    data = (tmp_path / "m.json", work / "test.csv", "--text-column", "message", "--run", tmp_path / "run")
    shown = called("predict", *data)
    assert (shown.returncode, "warning" in shown.stderr) == (0, False)
    planned = called("plan", "--model", data[0], "--predict", *data[1:], "--json")
    assert json.loads(planned.stdout)["steps"][0]["passes"] == 0
    kept = {"url": "http://user:pw@host/v1", "base": "http://host?key=1", "model": "x"}
    assert remembered("openai", kept) == {"name": "openai", "options": {"model": "x"}}


def test_a_remembered_backend_that_does_not_fit_says_what_to_type(work, tmp_path):
    fit = ("fit", work / "train.csv", *columns("--run", tmp_path / "run", "--head", "boosting", "--rounds", "2"))
    called(*fit, "--validation-share", "0", "--output", tmp_path / "m.json")
    saved = json.loads((tmp_path / "m.json").read_text("utf-8"))
    del saved["digest"]
    for backend, said in (
        (
            {"name": "gone", "options": {"model": "x"}},
            "was trained with `--backend gone -o model=x`; if that is elsewhere now",
        ),
        (
            {"name": "openai", "options": {"url": "http://192.0.2.1/v1"}},
            "to http://192.0.2.1/v1; if you trust that, type --backend openai -o url=http://192.0.2.1/v1",
        ),
        (
            {"name": "openai", "options": {"model": "m", "provider": "together"}},
            "to together; if you trust that, type --backend openai -o model=m -o provider=together",
        ),
        (
            {"name": "ray", "options": {"address": "192.0.2.1:6379"}},
            "to 192.0.2.1:6379; if you trust that, type --backend ray -o address=192.0.2.1:6379",
        ),
        ({"name": "fake", "options": {"seed": 7}}, "or use this one with `--backend fake -o seed=7`"),
    ):
        (tmp_path / "m.json").write_text(json.dumps({**saved, "backend": backend}), encoding="utf-8")
        shown = called(
            "predict", tmp_path / "m.json", work / "test.csv", "--text-column", "message", "--run", tmp_path / "other"
        )
        assert (shown.returncode, shown.stdout) == (1, "")
        assert said in shown.stderr


def test_what_is_too_uncertain_has_no_label(fitted, work, tmp_path):
    common = columns("--run", fitted / "run")
    model = tmp_path / "auto.json"
    trained = called("fit", work / "train.csv", *common, "--prompts", "intent", "--head", "auto", "--output", model)
    assert trained.returncode == 0, trained.stderr
    shown = called("predict", model, fitted / "test.csv", *common, "--precision", "0.8", "--json")
    assert shown.returncode == 0, shown.stderr
    rows = [json.loads(line) for line in shown.stdout.splitlines()]
    sure = [row for row in rows if row["predicted"] is not None]
    summary = json.loads(shown.stderr.splitlines()[-1])
    assert 0 < summary["answered"] == len(sure) < len(rows)
    assert summary["accuracy"] == sum(row["right"] for row in sure) / len(sure)
    least = min(row["confidence"] for row in sure)
    assert all(row["confidence"] < least for row in rows if row["predicted"] is None)
    said = called("predict", fitted / "m.json", fitted / "test.csv", *common, "--precision", "0.8")
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


def test_predict_keeps_the_limits_that_plan_knows(fitted, tmp_path):
    for limit, cure in ((("--total", "5"), "--total "), (("--money", "1", "--price-per-pass", "0.5"), "--money ")):
        shown = predict(fitted, *columns("--run", tmp_path / "run", *limit, "--output", tmp_path / "p.csv"))
        assert shown.returncode == 3
        assert f"To allow it: {cure}" in shown.stderr
    assert not (tmp_path / "p.csv").exists()


def test_a_classifier_that_is_not_there_is_one_line(work, tmp_path):
    shown = called("predict", tmp_path / "none.json", work / "test.csv", *columns("--run", tmp_path / "run"))
    assert (shown.returncode, shown.stdout) == (1, "")
    assert "none.json" in shown.stderr
    assert len(shown.stderr.splitlines()) == 1


def test_after_an_interrupt_the_same_command_goes_on(fitted, tmp_path):
    arguments = (fitted / "m.json", fitted / "test.csv", *columns("--output", tmp_path / "out.jsonl"))
    interrupted_and_resumed("predict", *arguments, run=tmp_path / "run")
    rows = [json.loads(row)["message"] for row in (tmp_path / "out.jsonl").read_text("utf-8").splitlines()]
    assert rows == [row["message"] for row in read_table(fitted / "test.csv")]


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
    assert [json.loads(line)["predicted"] for line in early] == [json.loads(line)["predicted"] for line in full]


STRANGE = ("=cmd|' /C calc'!A0", "-fine\x1b[2J")


@pytest.fixture(scope="module")
def strange(tmp_path_factory):
    """A folder with a classifier whose labels would run in a spreadsheet or steer a terminal, and its table."""
    folder = tmp_path_factory.mktemp("strange")
    with (folder / "t.csv").open("w", encoding="utf-8", newline="") as file:
        rows = [(f"{'sun' if at % 2 else 'rain'} {at}", STRANGE[at % 2]) for at in range(8)]
        csv.writer(file).writerows([("text", "label"), *rows])
    fit = ("--backend", "fake", "--run", folder / "run", "--prompts", "topic", "--head", "boosting", "--rounds", "3")
    shown = called("fit", folder / "t.csv", *fit, "--validation-share", "0", "--output", folder / "m.json")
    assert shown.returncode == 0, shown.stderr
    assert "\x1b" not in shown.stdout + shown.stderr
    return folder


def of_strange(folder, *more):
    run = ("--backend", "fake", "--run", folder / "run", "--label-column", "label")
    return called("predict", folder / "m.json", folder / "t.csv", *run, *more)


def test_a_spreadsheet_gets_labels_that_look_like_formulas_as_text_on_request(strange, tmp_path):
    for option, mark in (((), ""), (("--spreadsheet",), "'")):
        shown = of_strange(strange, "--output", tmp_path / "p.csv", *option)
        assert shown.returncode == 0, shown.stderr
        with (tmp_path / "p.csv").open(encoding="utf-8", newline="") as file:
            table = list(csv.DictReader(file))
        expected = {mark + label.replace("\x1b", "\\x1b") for label in STRANGE}
        assert {row["label"] for row in table} == expected
        assert {row["predicted"] for row in table} <= expected
        assert "\x1b" not in (tmp_path / "p.csv").read_text("utf-8")
    refused = of_strange(strange, "--output", tmp_path / "p.jsonl", "--spreadsheet")
    assert refused.returncode == 1
    assert "give --output FILE.csv" in refused.stderr


def test_what_steers_a_terminal_is_shown_by_every_command(strange, tmp_path):
    lines = of_strange(strange)
    assert {json.loads(line)["label"] for line in lines.stdout.splitlines()} == set(STRANGE)
    explained = called("explain", strange / "m.json")
    assert "-fine\\x1b[2J" in explained.stdout
    missing = called("predict", tmp_path / "no\x1b]0;title\x07.json", strange / "t.csv")
    assert "no\\x1b]0;title\\x07.json" in missing.stderr
    named = tmp_path / "\x9b2J"
    (strange / "run").rename(named)
    audited = [called("audit", named, *form) for form in ((), ("--markdown",), ("--json",))]
    named.rename(strange / "run")
    assert [shown.returncode for shown in audited] == [0, 0, 0]
    for shown in (lines, explained, missing, *audited):
        assert not set("\x1b\x07\x9b") & set(shown.stdout + shown.stderr)
