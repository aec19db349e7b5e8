"""`pbsdk plan`."""

import json

from helpers.commands import called, write_table

from pbsdk.data.tickets import load_tickets


def test_plan_says_what_it_will_cost_and_sends_nothing(trained, tmp_path):
    train = write_table(tmp_path / "train.jsonl", load_tickets().train)
    common = ("--backend", "fake", "--option", "batch_size=16", "--prompts", "topic", "--n-prompts", "2", "--json")
    shown = called("plan", train, *common, "--run", tmp_path / "run", "--predict", train, "--price-per-pass", "0.5")
    assert shown.returncode == 0
    fit, predict = json.loads(shown.stdout)["steps"]
    assert (fit["passes"], fit["requests"], fit["money"], predict["passes"]) == (128, 8, 64.0, 0)
    assert json.loads(called("audit", tmp_path / "run", "--json").stdout)["phases"] == []
    refused = called("plan", train, *common, "--run", tmp_path / "run", "--budget", "1")
    assert refused.returncode == 3
    assert "the budget doesn't allow" in json.loads(refused.stdout)["verdict"]
    fake = ("--backend", "fake", "--run", trained / "run", "--json")
    again = called("plan", *fake, "--model", trained / "model.json", "--predict", train)
    (step,) = json.loads(again.stdout)["steps"]
    assert (step["recalled"], step["passes"], step["exact"]) == (step["queries"], 0, True)
    assert called("plan", *fake).returncode == 1
    before = json.loads(called("audit", trained / "run", "--json").stdout)
    assert called("plan", *fake, "--model", trained / "model.json", "--predict", train, "--budget", "0").returncode == 0
    after = json.loads(called("audit", trained / "run", "--json").stdout)
    assert after["records"] > before["records"]
    assert [after[fact] for fact in ("verdict", "budget", "scopes", "held")] == [
        before[fact] for fact in ("verdict", "budget", "scopes", "held")
    ]
    assert "name=value" in called("plan", train, *fake, "--option", "batch_size").stderr
