"""`pbsdk explain`."""

import json

from helpers.commands import pbsdk


def test_explain_shows_a_saved_model_without_its_backend(trained):
    shown = pbsdk("explain", trained / "model.json")
    assert shown.returncode == 0
    assert "<input> The <mask>" in shown.stdout
    learners = json.loads(pbsdk("explain", trained / "model.json", "--json").stdout)["learners"]
    assert len(learners) == 5
    assert set(learners[0]["words"]) == {"account", "billing", "shipping", "technical"}
