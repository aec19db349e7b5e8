"""The head `soft`: one softmax regression on all prompts' answers at once.

Where the paper reads one word per class, this reads hundreds of tokens of every prompt (`views`), weighs them all by one
L2-regularised regression (`regression`), and brings its probabilities in line with how often it is right on examples that
were left out (`choosing`). The validation set is learned from too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from pbsdk.errors import InputError
from pbsdk.learning.choosing import choose, grid_for
from pbsdk.learning.heads import Fitted, Head, TokenOf, Trial
from pbsdk.learning.linear import FittedRegression, Material, restored
from pbsdk.learning.prefixes import fit_prefixes
from pbsdk.learning.regression import one_thread
from pbsdk.learning.study import Study

__all__ = ["Soft"]


@dataclass(frozen=True)
class Soft(Head):
    """A softmax regression on the answers of all prompts.

    Args:
        strength: how far weights may go: scikit-learn's C, for features of mean square length 1. From 3 to 30 it hardly matters.
        early_exit: whether to fit, too, what may decide before every prompt was asked.
    """

    name: ClassVar[str] = "soft"
    validates: ClassVar[bool] = False
    weighs: ClassVar[bool] = True

    strength: float = 10.0
    early_exit: bool = False

    def __post_init__(self) -> None:
        if not (isinstance(self.strength, int | float) and 0 < self.strength < np.inf):
            raise InputError(f"strength must be a number above 0, not {self.strength!r}")

    @one_thread()
    def fit(self, trial: Trial) -> FittedRegression:
        """Choose views, regress with and without each fold, and calibrate on what was left out."""
        material = Material.of(trial)
        grid = replace(
            grid_for(material.labels, trial.n_classes, texts=False), strengths=(float(self.strength),), nested=False
        )
        chosen = choose(material, grid, trial.seed)
        facts = {
            "strength": float(self.strength),
            "temperature": round(chosen.temperature, 6),
            "folds": grid.folds,
            "cross_validated_accuracy": float((chosen.left_out.argmax(axis=1) == material.labels).mean()),
        }
        study = Study.of(material, chosen, trial)
        return replace(
            material.fitted(chosen.answers, None, chosen.bias, facts),
            confidences=study.confidences,
            study=study,
            prefixes=fit_prefixes(material, grid, chosen.left_out, trial.seed) if self.early_exit else (),
        )

    @classmethod
    def restore(cls, state: Mapping[str, Any], n_classes: int, n_prompts: int, token_of: TokenOf) -> Fitted:
        """Return the regression of a file."""
        return restored(state, n_classes, n_prompts, token_of)
