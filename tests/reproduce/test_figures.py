"""The paper's figures, as they were copied."""

from statistics import fmean

import pytest

from pbsdk.reproduce.figures import FIGURES, ROWS, TITLES, figure
from pbsdk.reproduce.methods import METHODS


def test_the_papers_figures_have_the_averages_that_it_prints():
    eight = list(TITLES)[:8]
    for method, average in (
        ("boosting", 71.4), ("boosting-32", 71.9), ("boosting-1", 62.9), ("boosting-5", 70.2), ("boosting-10", 71.4),
        ("boosting-20", 71.3), ("fine-tuning", 68.0), ("lm-bff", 78.3), ("dart", 78.1), ("bbt", 60.6), ("bbtv2", 67.5), ("rlprompt", 59.8),
    ):  # fmt: skip
        assert fmean(FIGURES[method][name].mean for name in eight) == pytest.approx(average, abs=0.0501)
    assert fmean(one.mean for one in FIGURES["boosting"].values()) == pytest.approx(71.5, abs=0.0501)
    assert fmean(one.mean for one in FIGURES["boosting-32"].values()) == pytest.approx(72.5, abs=0.0501)
    assert figure("k-32", "trec") is None
    for method, average in (("fine-tuning", 69.5), ("lm-bff", 78.0), ("bbt", 64.2), ("rlprompt", 63.0)):
        assert fmean(one.mean for one in FIGURES[method].values()) == pytest.approx(average, abs=0.0501)
    assert set(FIGURES) <= set(ROWS)
    assert set(METHODS) <= set(ROWS)
