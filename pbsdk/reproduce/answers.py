"""Answers as the methods see them: whole, or as far as a provider would show them.

What a provider shows is part of the whole answer, so methods that see only the likeliest tokens share the passes of
those that see all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from pbsdk.backend import Floats, MaskedQuery, Phase, digest
from pbsdk.learning.heads import Trial
from pbsdk.learning.matrix import Matrices
from pbsdk.queries.demonstrations import shown
from pbsdk.queries.examples import Example
from pbsdk.queries.rendering import asked, render_unshown
from pbsdk.queries.templates import Style, Template
from pbsdk.reproduce.draws import Draw
from pbsdk.reproduce.methods import Method

__all__ = ["Answered", "Answers", "States", "render_all"]


def render_all(
    examples: Iterable[Example], templates: Sequence[Template], phase: Phase, style: Style
) -> list[MaskedQuery]:
    """Render every example under every template; where a template shows the example, without that demonstration."""
    return asked(render_unshown(examples, templates, phase, style, [[place] for place in range(len(templates))]))


class Answers:
    """The answers of a pool; leaving the `with` block gives back their disk space."""

    def __init__(self, whole: Matrices) -> None:
        self._seen: dict[int | None, Matrices] = {None: whole}

    def seen(self, top: int | None) -> Matrices:
        """Return them as they are, or with only the `top` likeliest tokens shown."""
        if top is not None and top not in self._seen:
            self._seen[top] = self._seen[None].likeliest(top)
        return self._seen[top]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give back the disk space."""
        for matrices in self._seen.values():
            matrices.close()


@dataclass(frozen=True)
class Answered:
    """A draw's answers under the prompts that a group of methods uses."""

    draw: Draw
    templates: Sequence[Template]
    train: Answers
    validation: Answers
    merged: Answers
    """For training and validation as one set; empty if no method of the group needs them."""
    test: Answers
    passes: int | None
    """The passes that choosing the prompts needs; None if they were not chosen."""
    asking: Mapping[tuple[str, str], float]
    """The seconds of each (example, prompt digest) at the model."""

    def trial(self, method: Method, n_classes: int, seed: int) -> Trial:
        """Return what a method learns from: the training set and validation apart, or both as one."""
        draw = self.draw
        examples = draw.both.examples
        shows = shown(examples, self.templates[: method.prompts])
        silent = shows if shows.any() else None
        if method.merged:
            merged = self.merged.seen(method.top)[: method.prompts]
            return Trial(merged, draw.both.labels, n_classes, seed, examples=examples, silent=silent)
        train, validation = (part.seen(method.top)[: method.prompts] for part in (self.train, self.validation))
        held_out = (validation, draw.validation.labels)
        return Trial(train, draw.train.labels, n_classes, seed, held_out, examples=examples, silent=silent)


class States:
    """The model's own hidden states, for white boxes: the mean over an example's prompts, each asked for once.

    Args:
        ask: what returns the states (N, H) of queries; no meter counts it.
    """

    def __init__(self, ask: Callable[[Sequence[MaskedQuery]], Floats]) -> None:
        self._ask = ask
        self._known: dict[str, Floats] = {}

    def of(self, examples: Sequence[Example], templates: Sequence[Template], style: Style) -> Floats:
        """Return the states (N, H) of examples."""
        return np.array([self._of_one(render_all([example], templates, Phase.PROBE, style)) for example in examples])

    def _of_one(self, queries: Sequence[MaskedQuery]) -> Floats:
        name = digest(*(query.content for query in queries))
        if name not in self._known:
            self._known[name] = self._ask(queries).mean(axis=0)
        return self._known[name]
