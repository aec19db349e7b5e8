"""`pbsdk fit`, as a user runs it."""

import json
import re

import pytest
from helpers.commands import called, columns, interrupted_and_resumed, pbsdk

from pbsdk.audit.report import AuditReport


@pytest.fixture(scope="module")
def fitted(work):
    rounds = ("--head", "boosting", "--rounds", "20", "--seed", "1")
    arguments = columns("--run", work / "run", "--prompts", "intent", *rounds)
    shown = pbsdk("fit", work / "train.csv", "--validation", work / "dev.csv", *arguments, "--output", work / "m.json")
    assert shown.returncode == 0, shown.stderr
    return work, arguments, shown


def test_fit_saves_a_classifier_and_says_what_it_learned_and_cost(fitted):
    work, arguments, shown = fitted
    assert shown.stderr == ""
    assert "64 texts, 64 for validation, on fake" in shown.stdout
    assert re.search(r"accuracy on validation [\d.]+% \(of 64 texts; 95% interval [\d.]+% to [\d.]+%\)", shown.stdout)
    for label in ("account", "billing", "shipping", "technical"):
        assert f"  {label} " in shown.stdout
    assert "within budget: at most 10 of 10 passes per example" in shown.stdout
    assert "1,280 queries sent this time" in shown.stdout
    again = called(
        "fit", work / "train.csv", "--validation", work / "dev.csv", *arguments, "--output", work / "n.json", "--json"
    )
    found = json.loads(again.stdout)
    assert (found["sent_now"], found["train"], found["validation"]) == (0, 64, 64)
    assert found["validation_accuracy"] > 0.5
    assert found["estimate"]["low"] < found["validation_accuracy"] < found["estimate"]["high"]
    assert (found["estimate"]["chance"], found["estimate"]["warning"]) == (0.25, None)
    assert (work / "n.json").read_bytes() == (work / "m.json").read_bytes()


def test_prompts_show_demonstrations_and_plan_foretells_what_is_left_out(work, tmp_path):
    common = columns("--run", tmp_path / "run", "--prompts", "topic-shown", "--demonstrations", "2", "--seed", "5")
    planned = called("plan", work / "train.csv", "--validation", work / "dev.csv", *common, "--json")
    fit = json.loads(planned.stdout)["steps"][-1]
    model = tmp_path / "m.json"
    rest = ("--rounds", "5", "--output", model, "--json")
    shown = called("fit", work / "train.csv", "--validation", work / "dev.csv", *common, *rest)
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["sent_now"] == fit["passes"] == 1280 - 10 * 4 * 2
    assert [len(some) for some in json.loads(model.read_text("utf-8"))["demonstrations"]] == [8] * 10
    predicted = called("predict", model, work / "train.csv", *columns("--run", tmp_path / "run"))
    assert predicted.returncode == 0, predicted.stderr
    assert len(predicted.stdout.splitlines()) == 64
    some = tmp_path / "some.csv"
    some.write_text("message,department\na,x\nb,y\nc,x\nd,y\n", encoding="utf-8")
    refused = called("fit", some, *common, "--validation-share", "0", "--output", tmp_path / "n.json")
    assert refused.returncode == 1
    assert "shows all of them as demonstrations" in refused.stderr
    assert "--demonstrations 0" in refused.stderr


def test_a_part_is_held_out_unless_told_otherwise(fitted, tmp_path):
    work, arguments, _ = fitted
    common = ("fit", work / "train.csv", *arguments, "--output", tmp_path / "new" / "m.json", "--json")
    some = json.loads(called(*common).stdout)
    assert (some["train"], some["validation"], some["sent_now"]) == (52, 12, 0)
    none = json.loads(called(*common, "--validation-share", "0").stdout)
    assert (none["train"], none["validation"], none["validation_accuracy"]) == (64, 0, None)


def test_a_head_that_cross_validates_learns_from_every_text(fitted, tmp_path):
    work, *_ = fitted
    common = columns("--run", work / "run", "--prompts", "intent", "--output", tmp_path / "m.json")
    shown = called("fit", work / "train.csv", *common)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("auto: learned from 64 texts, on fake\ncross-validated accuracy ")
    tried = r"What it tried: the best of 26 \(.*\)\nweight +accuracy +loss +head +settings\n(\d.*\n){5}On examples left out, "
    assert re.search(tried, shown.stdout)
    assert re.search(
        r"TF-IDF and a linear model on the same texts, at no pass: [\d.]+% \(cross-validated\)", shown.stdout
    )
    explained = called("explain", tmp_path / "m.json")
    selection = json.loads(called("fit", work / "train.csv", *common, "--json").stdout)["selection"]
    assert len(selection["tried"]) == 26
    assert selection["reason"] in " ".join(explained.stdout.split())
    both = called("fit", work / "train.csv", "--validation", work / "dev.csv", *common)
    assert "auto: learned from 128 texts, on fake" in both.stdout


def test_a_budget_that_is_too_small_ends_with_3_before_anything_is_sent(work, tmp_path):
    run = tmp_path / "run"
    shown = called("fit", work / "train.csv", *columns("--run", run, "--budget", "3"), "--output", tmp_path / "m.json")
    assert shown.returncode == 3
    assert "--budget 10" in shown.stderr
    assert "QueryBudget" not in shown.stderr
    assert AuditReport.read(run).phases == []
    assert not (tmp_path / "m.json").exists()


LIMITS = (
    (("--total", "639"), "--total 640"),
    (("--attempts", "639"), "--attempts 640"),
    (("--tokens", "100"), "--tokens "),
    (("--money", "1", "--price-per-pass", "0.5"), "--money 320"),
    (("--total", "639", "--strict"), "--total 640"),
)


@pytest.mark.parametrize(("limit", "cure"), LIMITS)
def test_fit_and_plan_keep_every_limit_and_name_the_option_that_lifts_it(work, tmp_path, limit, cure):
    common = columns("--run", tmp_path / "run", *limit)
    for arguments in (("fit", "--output", tmp_path / "m.json"), ("plan",)):
        shown = called(arguments[0], work / "train.csv", *common, *arguments[1:])
        assert shown.returncode == 3
        said = shown.stdout + shown.stderr
        assert cure in said
        assert "QueryBudget" not in said
    assert AuditReport.read(tmp_path / "run").phases == []


def test_limits_that_cannot_be_are_refused_by_the_option_name(work, tmp_path):
    common = (work / "train.csv", *columns("--run", tmp_path / "run"))
    for command in ("fit", "plan"):
        for option, value in (("--total", "-1"), ("--money", "nan"), ("--price-per-pass", "inf"), ("--n-prompts", "0")):
            shown = called(command, *common, option, value)
            assert shown.returncode == 2
            assert option in shown.stderr
        unpriced = called(command, *common, "--money", "5")
        assert unpriced.returncode == 1
        assert "set --price-per-1k-tokens or --price-per-pass" in unpriced.stderr


def test_what_cannot_work_is_one_line_with_the_cure_as_an_option(work, tmp_path):
    fake = ("--backend", "fake", "--run", tmp_path / "run", "--output", tmp_path / "m.json")
    (tmp_path / "odd.csv").write_text("message,department\nHelp me,garden\n")
    (tmp_path / "plain.csv").write_text("one,two,three\na,b,c\n")
    for arguments, said in (
        (("fit", tmp_path / "plain.csv", *fake), "name it with --label-column"),
        (("fit", work / "train.csv", "--label-column", "departement", *fake), "did you mean 'department'?"),
        (("fit", work / "train.csv", *fake[:-1], tmp_path, "--label-column", "department"), "is a folder"),
        (
            ("fit", work / "train.csv", *columns(*fake[2:]), "--validation", tmp_path / "odd.csv"),
            "unknown label 'garden'",
        ),
        (("fit", tmp_path / "odd.csv", *columns(*fake[2:])), "training needs two classes or more"),
        (("fit", tmp_path / "odd.csv", *columns(*fake[2:]), "--head", "boosting"), "--validation-share 0"),
        (("fit", work / "train.csv", *columns(*fake[2:]), "--validation-share", "2"), "below 1"),
    ):
        shown = called(*arguments)
        assert (shown.returncode, shown.stdout) == (1, "")
        assert said in shown.stderr
        assert len(shown.stderr.splitlines()) == 1


def test_after_an_interrupt_the_same_command_goes_on(work, tmp_path):
    few = ("--prompts", "intent", "--rounds", "5", "--output", tmp_path / "m.json")
    interrupted_and_resumed("fit", work / "train.csv", *columns(*few), run=tmp_path / "run")
    assert (tmp_path / "m.json").is_file()


def test_a_screen_is_planned_and_reported(work, tmp_path):
    common = columns("--run", tmp_path / "run", "--prompts", "intent", "--n-prompts", "2", "--screen", "20")
    model = ("--backend", "fake", "-o", "vocabulary_size=6000")
    (planned,) = json.loads(called("plan", work / "train.csv", *common, *model, "--json").stdout)["steps"]
    assert (planned["passes"], planned["in_full"]) == (128, 40)
    shown = called("fit", work / "train.csv", *common, *model, "--output", tmp_path / "m.json")
    assert re.search(
        r"tokens kept, which have [\d.]+% of the probability in 20 texts asked about in full", shown.stdout
    )
    found = json.loads(
        called("fit", work / "train.csv", *common, *model, "--output", tmp_path / "m.json", "--json").stdout
    )
    assert (found["sent_now"], found["screen"]["texts"]) == (0, 20)
