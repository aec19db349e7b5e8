"""Prefixes: smaller regressions that may decide before every prompt was asked.

Prompts are ordered by how well each does alone on examples left out. After 1, 2, 3, 5 and 7 of them a regression is fitted like the
whole, on their answers and on the texts if the whole reads them. Beside each stands what cross-validation saw of it: how
sure it was of every example left out, and how far the whole agreed. `exits.PrefixExit` reads its thresholds off that.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pbsdk.backend import Floats
from pbsdk.learning.calibration import loss
from pbsdk.learning.choosing import Grid, choose
from pbsdk.learning.exits import Prefix
from pbsdk.learning.linear import Material

__all__ = ["fit_prefixes"]

SIZES = (1, 2, 3, 5, 7)
"""After how many prompts an example may stop."""

STRENGTH = 10.0
"""Of the regressions on single prompts, which only order them."""


def fit_prefixes(material: Material, grid: Grid, left_out: Floats, seed: int) -> tuple[Prefix, ...]:
    """Fit the prefixes of a regression that gave examples left out these log-probabilities (N, C)."""
    sizes = [size for size in SIZES if size < len(material.views)]
    order = _by_loss(material, grid, seed) if sizes else []
    rows = np.arange(len(left_out))
    once = replace(grid, nested=False)
    found = []
    for size in sizes:
        part = material.of_prompts(sorted(order[:size]))
        chosen = choose(part, once, seed)
        second, best = np.sort(chosen.left_out, axis=1)[:, -2:].T
        said = chosen.left_out.argmax(axis=1)
        others = left_out.copy()
        others[rows, said] = -np.inf
        finals = left_out[rows, said] - others.max(axis=1)
        model = part.fitted(chosen.answers, chosen.texts, chosen.bias, {})
        found.append(Prefix(model, np.round(best - second, 6), np.round(finals, 6)))
    return tuple(found)


def _by_loss(material: Material, grid: Grid, seed: int) -> list[int]:
    """Return the prompts, the one that does best alone first."""
    alone = replace(grid, shares=(0.0,), strengths=(STRENGTH,), repeats=1, nested=False)
    answers = material.without_texts()
    losses = [
        loss(choose(answers.of_prompts([at]), alone, seed).left_out, material.labels, material.weights)
        for at in range(len(material.views))
    ]
    return sorted(range(len(losses)), key=losses.__getitem__)
