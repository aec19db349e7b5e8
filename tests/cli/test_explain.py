"""`pbsdk explain`."""

import json

import pytest
from helpers.commands import called, pbsdk

from pbsdk.learning.explanation import Explanation, LearnerRow


def test_explain_shows_a_saved_model_without_its_backend(trained):
    shown = pbsdk("explain", trained / "model.json")
    assert shown.returncode == 0
    assert "<input> The <mask>" in shown.stdout
    learners = json.loads(pbsdk("explain", trained / "model.json", "--json").stdout)["learners"]
    assert len(learners) == 5
    assert set(learners[0]["words"]) == {"account", "billing", "shipping", "technical"}


def test_some_classes_can_be_chosen(trained):
    chosen = ("--class", "shipping", "--class", "billing")
    learners = json.loads(called("explain", trained / "model.json", *chosen, "--json").stdout)["learners"]
    assert [list(learner["words"]) for learner in learners] == [["shipping", "billing"]] * 5
    refused = called("explain", trained / "model.json", "--class", "none")
    assert refused.returncode == 1
    assert "there is no class 'none'; choose from account, billing" in refused.stderr


@pytest.mark.parametrize("width", [40, 80, 200])
def test_many_classes_fit_the_width_of_a_terminal(width):
    names = tuple(f"a rather long label of a class, number {at}" for at in range(24))
    rows = tuple(LearnerRow(f"<input> Prompt {at}: <mask>", tuple(f" w{c}" for c in range(24)), 0.5) for at in range(3))
    lines = Explanation(names, rows, "note " * 60).fitted_to(width).splitlines()
    assert max(map(len, lines)) <= width
    assert sum("' w23'" in line for line in lines) == 3
    assert len({line.find("' w") for line in lines if "' w" in line}) == 1
    assert "weight" in Explanation(names[:2], rows).only([names[1]]).fitted_to(200).splitlines()[0]
