"""`pbsdk predict --on-error` and `--retry-failed`: jobs that survive a bad row."""

import csv
import json

import pytest
from helpers.commands import called, columns

from pbsdk.cli.predict import SOME_FAILED


@pytest.fixture(scope="module")
def job(work, tmp_path_factory):
    """A folder with a classifier and a table of texts, two of which are refused by a filter."""
    folder = tmp_path_factory.mktemp("job")
    fit = columns("--run", folder / "run", "--prompts", "intent", "--head", "voting", "--n-prompts", "3")
    shown = called("fit", work / "train.csv", *fit, "--validation-share", "0", "--output", folder / "m.json")
    assert shown.returncode == 0, shown.stderr
    with (work / "test.csv").open(encoding="utf-8", newline="") as file:
        rows = [(row["message"], row["department"]) for row in csv.DictReader(file)][:20]
    rows[4], rows[9] = ("a forbidden text", rows[4][1]), ("see <mask>", rows[9][1])
    with (folder / "new.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("message", "department"), *rows])
    return folder


def predict(job, *more, run="run", refuse="forbidden"):
    filtered = ("-o", f"refuse={refuse}") if refuse else ()
    common = ("--text-column", "message", "--backend", "fake", *filtered, "--run", job / run)
    return called("predict", job / "m.json", job / "new.csv", *common, *more)


def read(file):
    with file.open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


def test_a_bad_row_ends_a_job_by_default(job, tmp_path):
    shown = predict(job, "--output", tmp_path / "p.csv")
    assert shown.returncode == 1
    assert "--markers escape" in shown.stderr
    assert not (tmp_path / "p.csv").exists()


def test_a_recorded_error_stands_in_a_column_of_strings(job, tmp_path):
    shown = predict(job, "--on-error", "record", "--probabilities", "--output", tmp_path / "p.csv")
    assert shown.returncode == SOME_FAILED, shown.stderr
    assert "18 texts predicted" in shown.stdout
    assert "2 of 20 texts failed: " in shown.stdout
    assert "(line 6)" in shown.stdout
    assert "(line 11)" in shown.stdout
    assert "--retry-failed asks about them again" in shown.stdout
    rows = read(tmp_path / "p.csv")
    assert list(rows[0])[-1] == "error"
    assert [at for at, row in enumerate(rows) if row["error"]] == [4, 9]
    assert "refuses texts with 'forbidden'" in rows[4]["error"]
    assert "--markers escape" in rows[9]["error"]
    for row in rows:
        empty = {row["predicted"], row["confidence"], row["probability of billing"]} == {""}
        assert empty == bool(row["error"])


def test_all_is_well_is_an_empty_string_in_every_format(job, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet needs pyarrow")
    options = ("--on-error", "record", "--markers", "escape")
    for suffix in (".jsonl", ".parquet"):
        file = tmp_path / f"p{suffix}"
        shown = predict(job, *options, "--output", file, run="well", refuse=None)
        assert shown.returncode == 0, shown.stderr
        assert "failed" not in shown.stdout
        if suffix == ".parquet":
            table = parquet.read_table(file)
            assert str(table.schema.field("error").type) == "string"
            rows = table.to_pylist()
        else:
            rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        assert {row["error"] for row in rows} == {""}


def test_skipped_rows_are_left_out_and_counted(job, tmp_path):
    shown = predict(job, "--on-error", "skip", "--output", tmp_path / "p.csv", "--json")
    assert shown.returncode == SOME_FAILED
    rows = read(tmp_path / "p.csv")
    assert list(rows[0]) == ["message", "department", "predicted", "confidence"]
    given = read(job / "new.csv")
    assert [row["message"] for row in rows] == [row["message"] for at, row in enumerate(given) if at not in {4, 9}]
    found = json.loads(shown.stdout)
    assert (found["predicted"], found["failed"], sum(found["errors"].values())) == (18, 2, 2)


def test_a_retry_asks_only_about_what_failed_and_what_is_missing(job, tmp_path):
    file = tmp_path / "p.csv"
    predict(job, "--on-error", "record", "--label-column", "department", "--output", file)
    first = file.read_text("utf-8")
    lines = first.splitlines(keepends=True)
    file.write_text("".join(lines[:-3]), encoding="utf-8")  # as if it had been interrupted
    again = ("--retry-failed", "--label-column", "department", "--output", file, "--json")
    # In a run folder of its own everything that is asked about is sent.
    shown = predict(job, *again, run="other", refuse=None)
    assert shown.returncode == SOME_FAILED
    found = json.loads(shown.stdout)
    assert (found["predicted"], found["failed"], found["sent_now"]) == (19, 1, 3 * (1 + 3))
    rows = read(file)
    assert [at for at, row in enumerate(rows) if row["error"]] == [9]
    assert rows[4]["predicted"]
    well = [line for at, line in enumerate(lines[1:]) if at not in {4, 9}]
    assert [
        line for at, line in enumerate(file.read_text("utf-8").splitlines(keepends=True)[1:]) if at not in {4, 9}
    ] == well
    assert found["accuracy"] == sum(row["right"] == "True" for row in rows) / 19
    last = predict(job, *again, "--markers", "escape", run="other", refuse=None)
    assert (last.returncode, json.loads(last.stdout)["sent_now"]) == (0, 3)
    assert not list(tmp_path.glob(".p*"))


def test_a_retry_that_cannot_be_is_refused(job, tmp_path):
    file = tmp_path / "p.csv"
    for arguments, said in (
        ((), "name it with --output"),
        (("--output", file), "to go on from; leave --retry-failed out"),
        (("--output", file, "--on-error", "skip"), "needs --on-error record"),
    ):
        shown = predict(job, "--retry-failed", *arguments)
        assert (shown.returncode, shown.stdout) == (1, "")
        assert said in shown.stderr
    predict(job, "--on-error", "skip", "--output", file)
    assert "has no column 'error'" in predict(job, "--retry-failed", "--output", file).stderr
    predict(job, "--on-error", "record", "--output", file)
    more = predict(job, "--retry-failed", "--output", file, "--probabilities")
    assert "give the options that it was written with" in more.stderr
    before = file.read_text("utf-8")
    file.write_text(before.replace("a forbidden text", "another text"), encoding="utf-8")
    other = predict(job, "--retry-failed", "--output", file)
    assert "is about another text (its 'message' differs)" in other.stderr
    stopping = predict(job, "--on-error", "record", "--early-exit")
    assert "leave --on-error out, or the early exit" in stopping.stderr


def test_a_row_without_a_text_or_with_something_else_is_recorded(job, tmp_path):
    file = tmp_path / "rows.jsonl"
    cells = [{"message": "Where is my parcel?", "department": "shipping"}, {"department": "billing"}]
    cells += [{"message": 5, "department": None}, {"message": ["a", "b", "c"], "department": "shipping"}]
    file.write_text("".join(json.dumps(cell) + "\n" for cell in cells), encoding="utf-8")
    data = (job / "m.json", file, *columns("--run", job / "run"))
    assert "line 2 of the file rows.jsonl has no value" in called("predict", *data).stderr
    shown = called("predict", *data, "--on-error", "record")
    rows = [json.loads(line) for line in shown.stdout.splitlines()]
    assert shown.returncode == SOME_FAILED
    assert [bool(row["error"]) for row in rows] == [False, True, True, True]
    assert rows[1]["error"].startswith("the text is missing")
    assert [row["right"] for row in rows[1:]] == [None] * 3


def test_a_column_that_parquet_cannot_hold_is_refused_before_anything_is_asked(job, tmp_path):
    pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    rows = [{"message": "well"}, {"message": 7}]
    (tmp_path / "mixed.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    given = (
        job / "m.json",
        tmp_path / "mixed.jsonl",
        "--backend",
        "fake",
        "--on-error",
        "record",
        "--run",
        tmp_path / "run",
    )
    shown = called("predict", *given, "--output", tmp_path / "p.parquet")
    assert shown.returncode == 1
    assert "the column 'message' can't stand in a Parquet file" in shown.stderr
    assert not (tmp_path / "run").exists()
    shown = called("predict", *given, "--output", tmp_path / "p.jsonl")
    assert shown.returncode == SOME_FAILED


def test_what_has_no_text_or_no_label_is_not_judged(job, tmp_path):
    rows = [("The parcel is late.", "shipping"), (None, "shipping"), ("The parcel is lost.", None)]
    table = tmp_path / "new.jsonl"
    lines = [json.dumps({"message": text, "department": label}) for text, label in rows]
    table.write_text("\n".join(lines), encoding="utf-8")
    where = ("--run", job / "run", "--output", tmp_path / "p.jsonl")
    shown = called("predict", job / "m.json", table, *columns(*where), "--on-error", "record")
    assert shown.returncode == SOME_FAILED, shown.stderr
    assert " of 1)\n" in shown.stdout
    assert "1 of 3 texts failed: " in shown.stdout
    found = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text("utf-8").splitlines()]
    assert [row["right"] for row in found] == [found[0]["predicted"] == "shipping", None, None]
