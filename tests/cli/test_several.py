"""Cells with several labels, or none, from a table and back."""

import csv
import json

import pytest
from helpers.commands import called

from pbsdk.data.files import TextFormat, read_columns
from pbsdk.multilabel import MultiLabelPromptClassifier, load_classifier
from pbsdk.testing import FakeBackend

ROWS = [
    ("the parcel is late", "post"),
    ("a courier for the team", "post; sport"),
    ("our team won", "sport"),
    ("good morning", ""),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("several")
    for name, count in (("train.csv", 6), ("dev.csv", 1)):
        with (made / name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(
                [("text", "label"), *((f"{text} {name} {at}", cell) for at in range(count) for text, cell in ROWS)]
            )
    return made


@pytest.fixture(scope="module")
def fit(folder):
    return called(
        "fit", folder / "train.csv", "--label-separator", ";", "--validation", folder / "dev.csv", "--backend", "fake", "--head", "soft",
        "--n-prompts", 3, "--run", folder / "run", "--output", folder / "m.json", "--json",
    )  # fmt: skip


def test_a_table_with_several_labels_is_fitted(fit, folder):
    assert fit.returncode == 0, fit.stderr
    result = json.loads(fit.stdout)
    assert (result["head"], result["train"], result["validation"]) == ("soft", 24, 4)
    assert result["labels"]["post"]["texts"] == result["labels"]["sport"]["texts"] == 14
    assert result["audit"]["within_budget"]
    again = called(
        "fit", folder / "train.csv", "--label-separator", ";", "--backend", "fake", "--head", "soft", "--n-prompts", 3,
        "--run", folder / "run", "--output", folder / "again.json",
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert "several labels per text: learned from 24 texts" in again.stdout
    assert "label  texts  threshold" in again.stdout


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl"])
def test_predictions_hold_the_labels_in_a_cell_as_they_came(fit, folder, suffix):
    assert fit.returncode == 0
    output = folder / f"said{suffix}"
    done = called(
        "predict",
        folder / "m.json",
        folder / "train.csv",
        "--probabilities",
        "--run",
        folder / "run",
        "--output",
        output,
    )
    assert done.returncode == 0, done.stderr
    table = read_columns(output, TextFormat())
    clf = load_classifier(folder / "m.json", FakeBackend())
    assert isinstance(clf, MultiLabelPromptClassifier)
    assert table["predicted"] == [";".join(one) for one in clf.predict_sets(list(table["text"]))]
    assert "post;sport" in table["predicted"]
    shares = clf.predict_proba(list(table["text"]))
    assert [float(one) for one in table["confidence"]] == pytest.approx(
        [max(p, 1 - p) if (p := row[abs(row - 0.5).argmin()]) else 1 for row in shares], abs=1e-5
    )
    assert [float(one) for one in table["probability of sport"]] == pytest.approx(shares[:, 1].tolist(), abs=1e-5)


def test_what_is_about_one_label_is_refused_before_anything_is_asked(fit, folder):
    assert fit.returncode == 0
    for option in (("--label-column", "label"), ("--precision", 0.9), ("--max-changed", 0.01)):
        done = called("predict", folder / "m.json", folder / "train.csv", *option, "--run", folder / "run")
        assert done.returncode == 1
        assert "gives texts several labels" in done.stderr
    for options, said in (
        (("--label-separator", ";", "--validation-share", 0.2), "leave it out"),
        (("--label-separator", ""), "is empty"),
    ):
        done = called("fit", folder / "train.csv", *options, "--backend", "fake", "--run", folder / "none")
        assert done.returncode == 1
        assert said in done.stderr
    assert not (folder / "none").exists()


def test_it_is_planned_carded_and_explained(fit, folder):
    assert fit.returncode == 0
    planned = called(
        "plan",
        "--model",
        folder / "m.json",
        "--predict",
        folder / "dev.csv",
        "--backend",
        "fake",
        "--run",
        folder / "run",
    )
    assert planned.returncode == 0, planned.stderr
    assert "Gives texts any of 2 labels, or none: post, sport." in called("card", folder / "m.json").stdout
    assert called("explain", folder / "m.json").returncode == 0


def test_balanced_classes_are_an_option(folder, tmp_path):
    rows = [("a parcel", "post")] * 9 + [("a goal", "sport")] * 3
    with (tmp_path / "t.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(
            [("text", "label"), *((f"{text} {at}", label) for at, (text, label) in enumerate(rows))]
        )
    given = (
        "fit",
        tmp_path / "t.csv",
        "--backend",
        "fake",
        "--head",
        "soft",
        "--n-prompts",
        2,
        "--run",
        tmp_path / "run",
    )
    shares = []
    for name, options in (("plain", ()), ("balanced", ("--balanced",))):
        done = called(*given, *options, "--output", tmp_path / f"{name}.json")
        assert done.returncode == 0, done.stderr
        shares.append(load_classifier(tmp_path / f"{name}.json", FakeBackend()).predict_proba(["good morning"])[0, 1])
    assert shares[1] > shares[0]
