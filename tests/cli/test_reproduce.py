"""`pbsdk reproduce`, on the fake and on real models: a tiny RoBERTa by its folder, and the embedded one."""

import json

from helpers.commands import called
from helpers.needs import needs_data, needs_model


def reproduce(*arguments):
    shown = called("reproduce", *arguments, "--no-progress", "--json")
    assert shown.returncode == 0, shown.stderr
    return json.loads(shown.stdout), shown.stderr


@needs_data
def test_a_masked_model_by_its_folder_takes_the_papers_prompts_and_style(folder_of, tmp_path):
    arguments = ("--datasets", "rte", "--methods", "boosting-1,boosting-20", "--seeds", 13, "--test-rows", 8)
    found, said = reproduce(*arguments, "--model", folder_of("roberta"), "-o", "device=cpu", "--folder", tmp_path)
    # 64 + 8 texts under twenty prompts, ten more of those published
    assert "the budget allows it: 1,440 passes" in said
    assert [cell["n_prompts"] for cell in found["cells"]] == [1, 20]
    assert "at most 20 of 20 passes per example (fit)" in said
    listed = called("audit", tmp_path / "run", "--json")
    assert "paper: <input>. <mask>, <input2>" in listed.stdout


@needs_data
@needs_model
def test_the_embedded_model_learns_sentiment_from_sixteen_texts_a_class(tmp_path):
    arguments = ("--datasets", "sst2", "--methods", "boosting-5,voting,random", "--seeds", 13, "--test-rows", 24)
    found, said = reproduce(*arguments, "--prompts", "own", "--folder", tmp_path)
    score = {cell["method"]: cell["score"] for cell in found["cells"]}
    assert max(score["boosting-5"], score["voting"]) > 0.6
    assert "10 of 10 passes per example (fit)" in said
    again, said = reproduce(*arguments, "--prompts", "own", "--folder", tmp_path)
    assert again == found
    assert "the budget allows it: 0 passes" in said


def test_the_command_prints_tables_and_writes_three_files(tmp_path, pool):
    out = tmp_path / "out"
    arguments = ("--datasets", "desk", "--prompts", pool, "--seeds", "13,21", "--test-rows", 20, "--folder", out)
    arguments += ("--model", "fake", "--no-progress")
    methods = ("--methods", "boosting-1,boosting-5,boosting,k-32")
    planned = called("reproduce", *arguments, *methods, "--plan")
    assert "the budget allows it" in planned.stdout
    shown = called("reproduce", *arguments, *methods)
    assert shown.stdout.startswith("Model: fake.")
    assert "| PromptBoosting, k = 32 |" in shown.stdout
    assert "desk 13" in shown.stderr
    assert "within budget: at most 10 of 10 passes per example (fit)" in shown.stderr
    assert (out / "results.md").read_text("utf-8").strip() == shown.stdout.strip()
    assert len(json.loads((out / "results.json").read_text("utf-8"))["cells"]) == 8
    assert (out / "results.png").read_bytes().startswith(b"\x89PNG")
    refused = called("reproduce", *arguments, *methods, "--budget", 3, "--folder", tmp_path / "small")
    assert (refused.returncode, refused.stdout) == (3, "")
    wrong = called("reproduce", *arguments, "--seeds", "13,x")
    assert wrong.returncode == 1
    assert "error: seeds must be whole numbers" in wrong.stderr
