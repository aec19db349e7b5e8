"""Cross-validation and calibration: how good scores are on texts they weren't learned from, and what they are worth.

Folds are stratified and seeded. A temperature is the factor on the scores that makes the labels likeliest, found on a fixed grid,
on scores of examples that were left out. The expected calibration error says how far probabilities are from how often they are right.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pbsdk.backend import Floats
from pbsdk.learning.regression import log_softmax

__all__ = ["expected_calibration_error", "loss", "stratified_folds", "temperature"]

TEMPERATURES: Floats = np.exp(np.linspace(np.log(0.25), np.log(8), 60))

Labels = npt.NDArray[np.intp]


def stratified_folds(labels: Labels, n_folds: int, repeats: int, seed: int) -> Labels:
    """Return the fold (repeats, N) of each example: every class is dealt out in turn, in seeded order.

    >>> np.bincount(stratified_folds(np.array([0] * 6 + [1] * 4), 5, 1, seed=0)[0]).tolist()
    [2, 2, 2, 2, 2]
    """
    generator = np.random.default_rng(seed)
    folds = np.empty((repeats, len(labels)), dtype=np.intp)
    for one in folds:
        dealt = np.concatenate([generator.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)])
        one[dealt] = np.arange(len(labels)) % n_folds
    return folds


def loss(log_probabilities: Floats, labels: Labels) -> float:
    """Return the mean negative log-likelihood of the labels."""
    return float(-log_probabilities[np.arange(len(labels)), labels].mean())


def temperature(scores: Floats, labels: Labels) -> float:
    """Return the factor on scores (N, C) under whose softmax the labels are likeliest."""
    low, high = 0, len(TEMPERATURES) - 1  # the loss is convex in the factor
    while low < high:
        middle = (low + high) // 2
        here, further = (loss(log_softmax(scores * factor), labels) for factor in TEMPERATURES[middle : middle + 2])
        low, high = (low, middle) if here <= further else (middle + 1, high)
    return float(TEMPERATURES[low])


def expected_calibration_error(probabilities: Floats, labels: Labels, bins: int = 15) -> float:
    """Return how far the probability (N, C) of the likeliest class is from how often it is right, on average.

    Examples are put in bins of equal width by that probability. Each bin counts the distance between its mean
    probability and its accuracy, as often as it has examples (Guo et al., 2017).

    >>> round(expected_calibration_error(np.array([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6]]), np.array([0, 1, 1])), 6)
    0.4
    """
    sure = probabilities.max(axis=1)
    right = probabilities.argmax(axis=1) == labels
    places = np.clip(np.ceil(sure * bins).astype(np.intp) - 1, 0, bins - 1)
    return float(np.abs(np.bincount(places, weights=right - sure, minlength=bins)).sum() / len(labels))
