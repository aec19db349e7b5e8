"""The expected calibration error: what it is of probabilities whose worth is known."""

import numpy as np
import pytest

from pbsdk.learning.calibration import expected_calibration_error


def test_probabilities_that_mean_what_they_say_have_none():
    generator = np.random.default_rng(0)
    sure = generator.uniform(0.5, 1, 100_000)
    labels = (generator.uniform(size=len(sure)) > sure).astype(int)
    honest = np.column_stack([sure, 1 - sure])
    assert expected_calibration_error(honest, labels) < 0.01
    boastful = np.column_stack([np.ones_like(sure), np.zeros_like(sure)])
    assert expected_calibration_error(boastful, labels) == pytest.approx(labels.mean())


def test_errors_of_different_bins_add_up_and_those_of_one_bin_cancel():
    apart = np.array([[0.95, 0.05], [0.55, 0.45]])
    assert expected_calibration_error(apart, np.array([0, 1])) == pytest.approx((0.05 + 0.55) / 2)
    together = np.array([[0.61, 0.39], [0.65, 0.35]])
    assert expected_calibration_error(together, np.array([0, 1])) == pytest.approx(abs(1 - 0.61 - 0.65) / 2)
