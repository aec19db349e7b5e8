"""`pbsdk explain`."""

import json

import pytest
from helpers.commands import called

from pbsdk.learning.explanation import Explanation, LearnerRow


def test_explain_shows_a_saved_model_without_its_backend(trained):
    shown = called("explain", trained / "model.json")
    assert shown.returncode == 0
    assert "<input> The <mask>" in shown.stdout
    learners = json.loads(called("explain", trained / "model.json", "--json").stdout)["learners"]
    assert len(learners) == 5
    assert set(learners[0]["words"]) == {"account", "billing", "shipping", "technical"}


def test_some_classes_can_be_chosen(trained):
    chosen = ("--class", "shipping", "--class", "billing")
    learners = json.loads(called("explain", trained / "model.json", *chosen, "--json").stdout)["learners"]
    assert [list(learner["words"]) for learner in learners] == [["shipping", "billing"]] * 5
    refused = called("explain", trained / "model.json", "--class", "none")
    assert refused.returncode == 1
    assert "there is no class 'none'; choose from account, billing" in refused.stderr


def test_in_a_pipe_it_is_as_wide_as_columns_says(trained, monkeypatch):
    def widest():
        shown = called("explain", trained / "model.json").stdout
        return max(map(len, shown.splitlines())), shown

    monkeypatch.setenv("COLUMNS", "60")
    width, shown = widest()
    assert width <= 60
    assert shown.startswith("Words by which a class is recognised\n  account  ")
    assert "\n1. <input>" in shown
    monkeypatch.delenv("COLUMNS")
    assert 60 < widest()[0] <= 100


@pytest.mark.parametrize("width", [40, 80, 200])
def test_many_classes_fit_the_width_of_a_terminal(width):
    names = tuple(f"a rather long label of a class, number {at}" for at in range(24))
    rows = tuple(LearnerRow(f"<input> Prompt {at}: <mask>", tuple(f" w{c}" for c in range(24)), 0.5) for at in range(3))
    lines = Explanation(names, rows, "note " * 60).fitted_to(width).splitlines()
    assert max(map(len, lines)) <= width
    assert sum("' w23'" in line for line in lines) == 3  # and the summary has none in quotation marks
    assert len({line.find("' w") for line in lines if "' w" in line}) == 1
    assert "weight" in Explanation(names[:2], rows).only([names[1]]).fitted_to(200).splitlines()[0]
