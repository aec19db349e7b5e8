"""The demo, for real: the embedded model on the tickets that ship."""

import io
import json
import subprocess
import sys
from contextlib import redirect_stderr

import pytest
from helpers.needs import needs_model

from pbsdk.demo import PRECISION, run_demo
from pbsdk.ledger.verifier import verify_run

pytestmark = pytest.mark.timeout(3000)  # some minutes of one core, which may have much else to do


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def shown(cache, tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PBSDK_CACHE", str(cache))
        with redirect_stderr(io.StringIO()) as said:
            result = run_demo(folder)
        assert said.getvalue() == ""  # nor does the unpacking of the model say anything
        yield folder, result


@needs_model
def test_the_demo_is_accurate_and_within_its_budget(shown):
    folder, result = shown
    assert result.accuracy >= 0.8
    assert result.accuracy > result.text_accuracy > result.zero_shot_accuracy > result.majority_accuracy == 0.25
    assert result.accuracy >= result.boosting_accuracy - 0.02
    assert result.passes_now == (64 + 64 + 160) * 10
    assert result.audit.verdict.startswith("within budget: at most 10 of 10 passes per example (fit)")
    assert set(result.words) == {"account", "billing", "shipping", "technical"}
    assert verify_run(folder / "run").answers == result.passes_now


@needs_model
def test_its_probabilities_are_calibrated_and_its_abstention_keeps_what_it_promises(shown):
    _, result = shown
    assert result.calibration_error <= 0.05
    assert 0.5 < result.coverage < 1
    assert result.precision >= PRECISION - 0.02  # of about 120 tickets, give or take two
    assert f"it is sure of {result.coverage:.0%} of the tickets" in str(result)


@needs_model
def test_a_second_demo_asks_nothing_and_says_the_same(shown, cache):
    folder, first = shown
    command = [sys.executable, "-m", "pbsdk", "demo", "--folder", str(folder), "--json"]
    again = subprocess.run(
        command, capture_output=True, text=True, check=True, env={"PBSDK_CACHE": str(cache), "PATH": ""}, timeout=300
    )
    second = json.loads(again.stdout)
    assert second["passes_now"] == 0
    assert second["accuracy"] == first.accuracy
    assert second["words"] == first.words
    assert f"pbsdk explain {first.saved}" in str(first)
