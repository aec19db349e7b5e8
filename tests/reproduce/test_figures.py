"""The paper's figures, as they were copied."""

from statistics import fmean

import pytest

from pbsdk.reproduce.figures import FIGURES, ROWS, TITLES, figure
from pbsdk.reproduce.methods import METHODS


def test_the_papers_figures_have_the_averages_that_it_prints():
    eight = list(TITLES)[:8]
    for method, average in (
        ("boosting", 71.4), ("boosting-32", 71.9), ("boosting-1", 62.9), ("boosting-5", 70.2), ("boosting-10", 71.4),
        ("boosting-20", 71.3),
    ):  # fmt: skip
        assert fmean(FIGURES[method][name].mean for name in eight) == pytest.approx(average, abs=0.0501)
    assert fmean(one.mean for one in FIGURES["boosting"].values()) == pytest.approx(71.5, abs=0.0501)
    assert fmean(one.mean for one in FIGURES["boosting-32"].values()) == pytest.approx(72.5, abs=0.0501)
    assert figure("k-32", "trec") is None
    assert set(FIGURES) <= set(ROWS) == set(METHODS)
