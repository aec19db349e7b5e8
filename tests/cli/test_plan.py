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


def test_a_text_that_cannot_be_asked_about_is_named_by_its_row_in_the_file(tmp_path, trained):
    files = {
        "train.csv": "text,label\nfine,a\n,\na <mask>,b\n",
        "good.csv": "text,label\nfine,a\ndull,b\n",
        "new.csv": "text\nx\ny <mask>\n",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content, "utf-8")
    common = ("--backend", "fake", "--run", tmp_path / "run")
    for arguments, place in (
        (("plan", tmp_path / "train.csv", "--missing", "drop"), "line 4 of train.csv"),
        (
            ("plan", tmp_path / "good.csv", "--validation", tmp_path / "train.csv", "--missing", "drop"),
            "line 4 of train.csv",
        ),
        (("plan", tmp_path / "good.csv", "--predict", tmp_path / "new.csv"), "line 3 of new.csv"),
        (("plan", "--predict", tmp_path / "new.csv"), "line 3 of new.csv"),
        (("fit", tmp_path / "train.csv", "--missing", "drop", "--output", tmp_path / "m.json"), "line 4 of train.csv"),
        (("predict", trained / "model.json", tmp_path / "new.csv"), "line 3 of new.csv"),
    ):
        refused = called(*arguments, *common)
        assert refused.returncode == 1
        assert f"{place} contains '<mask>'" in refused.stderr
        assert "--markers escape" in refused.stderr
    assert called("plan", "--predict", tmp_path / "new.csv", *common, "--markers", "escape").returncode == 0


def test_what_leaves_out_incomplete_rows_is_called_as_the_command_calls_it(tmp_path, trained):
    file = tmp_path / "table.csv"
    file.write_text("text,other,label\nfine,x,a\ndull,y,b\nodd,z,\n", "utf-8")
    labelled = ("--label-column", "label", "--backend", "fake", "--run", tmp_path / "run")
    for arguments, cure in (
        (("plan", file), "leave such rows out with --missing drop"),
        (("fit", file, "--output", tmp_path / "m.json"), "leave such rows out with --missing drop"),
        (("predict", trained / "model.json", file), "leave such rows out with --on-error skip"),
    ):
        refused = called(*arguments, *labelled, "--text-column", "text")
        assert refused.returncode == 1
        assert refused.stderr.rstrip().endswith(cure)
