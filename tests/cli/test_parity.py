"""`pbsdk parity`, with a server over a real socket."""

import json

import pytest
from helpers.commands import called, columns

from pbsdk.testing import FakeBackend

serve = pytest.importorskip("pbsdk_backends.serve", reason="the server's packages are not installed (pbsdk[serve])")
pytest.importorskip("requests", reason="the remote adapters' packages are not installed (pbsdk[remote])")


def test_a_served_model_is_found_to_be_the_same_and_another_to_be_different(tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("One text.\n\nAnother one.\n")
    with serve.serving(FakeBackend(seed=3)) as url:
        same = called("parity", "fake", "http", "--a", "seed=3", "--b", f"url={url}", "--json")
        assert same.returncode == 0, same.stderr
        assert json.loads(same.stdout)["verdict"] == "same"
        other = called("parity", "fake", "http", "--b", f"url={url}", "--texts", texts)
    assert other.returncode == 1
    assert "different" in other.stdout


def test_a_classifier_is_compared_label_by_label(trained, tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("One text.\nAnother one.\n")
    options = ("--b", "top=3", "--texts", texts)
    assert called("parity", "fake", "fake", *options).returncode == 1
    shown = called("parity", "fake", "fake", *options, "--model", trained / "model.json", "--json")
    found = json.loads(shown.stdout)
    assert [text for text, *_ in found["classified"]] == ["One text.", "Another one."]
    assert found["shown"] == ["the whole vocabulary", "the top 3 tokens"]
    assert shown.returncode == (found["equal_labels"] < 0.9)


def test_texts_stand_in_a_table_in_the_column_that_the_classifier_knows(work, tmp_path):
    fit = columns("--run", tmp_path / "run", "--head", "voting", "--n-prompts", "1", "--validation-share", "0")
    assert called("fit", work / "dev.csv", *fit, "--output", tmp_path / "m.json").returncode == 0
    table = tmp_path / "new.csv"
    table.write_text("nr;message\n" + "".join(f"{at};Text {at}, a line\n" for at in range(12)), encoding="utf-8")
    shown = called("parity", "fake", "fake", "--texts", table, "--model", tmp_path / "m.json")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "gives 12 of 12 texts the same label" in shown.stdout
    assert "\n... and 4 more queries\n" in shown.stdout  # of 24
    refused = called("parity", "fake", "fake", "--texts", table, "--text-column", "body")
    assert "has no column 'body'" in refused.stderr


def test_texts_that_are_not_there_are_one_line(tmp_path):
    shown = called("parity", "fake", "fake", "--texts", tmp_path / "none.txt")
    assert (shown.returncode, shown.stdout) == (1, "")
    assert shown.stderr.startswith("error: ")
    assert len(shown.stderr.splitlines()) == 1
