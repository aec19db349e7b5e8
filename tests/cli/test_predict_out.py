"""`pbsdk predict --out`: many files, a chunk at a time, into a folder of predictions."""

import csv
import json
import os
import tracemalloc

import numpy as np
import pytest
from helpers.commands import called, passes

from pbsdk.cli._partitions import Partitions
from pbsdk.cli._verdicts import Verdicts
from pbsdk.data.loading import LabelledTexts
from pbsdk.data.tickets import load_tickets
from pbsdk.predicting import Prediction
from pbsdk.testing import FakeBackend

TEXTS = [(at, text, label) for at, (text, label) in enumerate(zip(*vars(load_tickets().test).values(), strict=True))]
HEAD = ("id", "text", "label")


@pytest.fixture
def data(tmp_path):
    """Three files of tickets: 30, 20 and 10."""
    folder = tmp_path / "data"
    folder.mkdir()
    for name, start, stop in (("a", 0, 30), ("b", 30, 50), ("c", 50, 60)):
        write(folder / f"{name}.jsonl", TEXTS[start:stop])
    return folder


def write(path, rows):
    if path.suffix == ".parquet":
        arrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet needs pyarrow")
        parquet.write_table(arrow.table(dict(zip(HEAD, map(list, zip(*rows, strict=True)), strict=True))), path)
    elif path.suffix in {".csv", ".tsv"}:
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",").writerows([HEAD, *rows])
    else:
        path.write_text("".join(json.dumps(dict(zip(HEAD, row, strict=True))) + "\n" for row in rows), encoding="utf-8")
    return path


def predict(trained, source, *more):
    shown = called("predict", trained / "model.json", source, "--backend", "fake", "--json", *more)
    return shown, json.loads(shown.stdout) if shown.stdout else {}


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_files_are_what_output_writes(trained, tmp_path, suffix):
    file = write(tmp_path / f"new{suffix}", TEXTS[:40])
    common = ("--label-column", "label", "--probabilities", "--abstain-below", "0.4", "--on-error", "record")
    once, one = predict(trained, file, "--run", tmp_path / "run", "--output", tmp_path / f"whole{suffix}", *common)
    shown, result = predict(trained, file, "--run", tmp_path / "run", "--out", tmp_path / "out", *common)
    assert once.returncode == shown.returncode == 0, shown.stderr
    if suffix == ".parquet":
        read = pytest.importorskip("pyarrow.parquet", reason="Parquet needs pyarrow").read_table
        whole, parts = read(tmp_path / "whole.parquet"), read(tmp_path / "out" / "new.parquet")
        assert parts.to_pylist() == whole.to_pylist()
        assert str(parts.schema.field("error").type) == "string"
    else:
        assert (tmp_path / "out" / f"new{suffix}").read_bytes() == (tmp_path / f"whole{suffix}").read_bytes()
    assert result["accuracy"] == one["accuracy"] is not None
    assert result["answered"] == one["answered"] < 40
    assert result["sent_now"] == 0


def test_finished_files_are_skipped_and_newer_ones_are_done_again(trained, data, tmp_path):
    common = ("--run", tmp_path / "run", "--out", tmp_path / "out")
    _, first = predict(trained, data / "*.jsonl", *common)
    assert (first["predicted"], first["files_written"], first["files_skipped"]) == (60, 3, 0)
    (tmp_path / "out" / "b.jsonl").unlink()
    _, second = predict(trained, data, *common)
    assert (second["predicted"], second["files_written"], second["files_skipped"]) == (20, 1, 2)
    assert second["sent_now"] == 0
    write(data / "c.jsonl", TEXTS[60:63])
    os.utime(data / "c.jsonl", ns=(1, (tmp_path / "out" / "c.jsonl").stat().st_mtime_ns + 1))
    _, third = predict(trained, data, *common)
    assert (third["predicted"], third["files_written"]) == (3, 1)
    assert len((tmp_path / "out" / "c.jsonl").read_text("utf-8").splitlines()) == 3


def test_files_keep_their_places_below_their_common_folder(trained, tmp_path):
    for name in ("x", "y"):
        (tmp_path / "data" / name).mkdir(parents=True)
        write(tmp_path / "data" / name / "part.csv", TEXTS[:2])
    _, result = predict(
        trained,
        tmp_path / "data" / "**" / "*.csv",
        "--text-column",
        "text",
        "--run",
        tmp_path / "r",
        "--out",
        tmp_path / "out",
    )
    assert result["files_written"] == 2
    assert sorted(file.relative_to(tmp_path / "out").as_posix() for file in tmp_path.glob("out/*/*")) == [
        "x/part.csv",
        "y/part.csv",
    ]


def test_a_file_is_there_as_a_whole_or_not_at_all(trained, data, tmp_path):
    common = ("--run", tmp_path / "run", "--out", tmp_path / "out")
    refused, _ = predict(trained, data, *common, "--total", "70")
    assert refused.returncode == 3
    assert "--total" in refused.stderr
    assert names(tmp_path / "out") == ["a.jsonl", "predictions.json"]
    before = passes(tmp_path / "run")
    shown, result = predict(trained, data, *common)
    assert shown.returncode == 0, shown.stderr
    assert (result["files_written"], result["files_skipped"]) == (2, 1)
    assert passes(tmp_path / "run") == before + result["sent_now"]


def test_it_goes_on_after_an_interrupt(trained, data, tmp_path, monkeypatch):
    common = ("--run", tmp_path / "run", "--out", tmp_path / "out", "-o", "batch_size=8")
    fill, calls = FakeBackend.fill, []

    def interrupted(self, queries, tokens=None):
        calls.append(len(queries))
        if len(calls) == 10:
            raise KeyboardInterrupt
        return fill(self, queries, tokens)

    monkeypatch.setattr(FakeBackend, "fill", interrupted)
    shown, _ = predict(trained, data, *common)
    assert shown.returncode == 130
    assert "the same command continues from there" in shown.stderr
    assert names(tmp_path / "out") == ["a.jsonl", "predictions.json"]
    kept = passes(tmp_path / "run")
    shown, result = predict(trained, data, *common)
    assert shown.returncode == 0, shown.stderr
    assert names(tmp_path / "out") == ["a.jsonl", "b.jsonl", "c.jsonl", "predictions.json"]
    assert (result["predicted"], result["files_skipped"]) == (30, 1)
    assert 60 <= kept < 120 <= kept + result["sent_now"] <= 120 + 8


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_what_is_wrong_with_the_last_file_is_said_before_anything_is_asked(trained, data, tmp_path):
    common = ("--text-column", "text", "--run", tmp_path / "run", "--out", tmp_path / "out")
    write(data / "d.jsonl", [*TEXTS[:3], (3, None, "x")])
    shown, _ = predict(trained, data, *common)
    assert shown.returncode == 1
    assert "line 4 of the file d.jsonl has no value in the column 'text'" in shown.stderr
    assert passes(tmp_path / "run") == 0
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").glob("*.jsonl"))
    shown, result = predict(trained, data, *common, "--on-error", "record")
    assert (shown.returncode, result["predicted"], result["failed"]) == (5, 63, 1)
    where = ("--backend", "fake", *common[:-1], tmp_path / "told")
    told = called("predict", trained / "model.json", data, *where, "--on-error", "record")
    assert "(line 4 of d.jsonl)" in told.stdout


def test_what_cannot_be_meant_is_refused(trained, data, tmp_path):
    def refusal(*more, source=data):
        shown, _ = predict(trained, source, "--run", tmp_path / "run", *more)
        assert shown.returncode == 1
        return shown.stderr

    out = ("--out", tmp_path / "out")
    assert "excludes --output" in refusal(*out, "--output", "p.csv")
    assert "excludes an early exit" in refusal(*out, "--early-exit")
    assert "would overwrite them" in refusal("--out", data)
    assert "there are no files" in refusal(*out, source=tmp_path / "*.csv")
    (data / "a.json").write_text('[{"text": "x"}]', encoding="utf-8")
    assert "two files would both become" in refusal(*out)
    (data / "a.json").unlink()
    write(data / "b.jsonl", [])
    assert "b.jsonl is empty" in refusal(*out)
    write(data / "b.jsonl", TEXTS[:1])
    assert predict(trained, data, "--run", tmp_path / "run", *out)[0].returncode == 0
    assert "made with something else (probabilities differs)" in refusal(*out, "--probabilities")


def test_memory_holds_one_chunk(tmp_path):
    count = 4_000
    file = write(tmp_path / "new.csv", [(at, f"text {at} " + "x" * 1000, "a") for at in range(count)])
    verdicts = Verdicts(LabelledTexts([], []), ("a", "b"), probabilities=True)
    model = tmp_path / "model.json"
    model.write_text("{}", encoding="utf-8")
    tracemalloc.start()
    files = Partitions.find(str(file), tmp_path / "out", {"rows": 250, "text": "text", "labelled": False})
    files.prepare(verdicts, model)
    files.write(verdicts, sure)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert verdicts.tally.total() == count
    assert peak < file.stat().st_size / 2


def sure(chunk):
    for row in range(len(chunk)):
        yield Prediction(row, "a", np.array([0.9, 0.1]))


def test_an_engine_needs_a_folder_to_stream_into_and_a_name(trained, data, tmp_path):
    shown, _ = predict(trained, data, "--run", tmp_path / "run", "--out", tmp_path / "out", "--engine", "spark")
    assert "no engine is called 'spark'" in shown.stderr
    pytest.importorskip("ray", reason="the engine ray needs Ray: pip install ray")
    shown, _ = predict(trained, data, "--run", tmp_path / "run", "--engine", "ray")
    assert "--engine is about files that stream into a folder" in shown.stderr
