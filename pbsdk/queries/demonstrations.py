"""Demonstrations: labelled texts that a prompt shows before it asks.

They are drawn from the training texts: the same number of each class, in shuffled order, others for every prompt (each
text is shown once before any is shown again). A prompt shows 16 at most: with few classes the number per class is
lowered, with more than 16 each prompt shows another draw of the classes. A text longer than 60 words is shown cut.

A prompt never asks about a text that it shows: the answer would be no evidence. So each class must keep a text that
is not shown, under every prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt

from pbsdk.errors import InputError
from pbsdk.queries.examples import Example
from pbsdk.queries.problem import Problem
from pbsdk.queries.templates import MARKER, Demonstration, Template

__all__ = ["check_demonstrations", "fill_templates", "name_classes", "shown"]

MOST = 16
"""How many demonstrations a prompt shows at most."""


def check_demonstrations(value: Any) -> None:
    """Refuse what is no number of demonstrations per class."""
    if value is not None and (not isinstance(value, Integral) or isinstance(value, bool) or value < 0):
        raise InputError(f"demonstrations must be a whole number per class, 0 for none, or None; not {value!r}")


def name_classes(classes: Sequence[Any], given: Mapping[Any, str] | None, mask_token: str) -> tuple[str, ...]:
    """Return what prompts call each class: the name given, or else the label, its underscores and hyphens as spaces.

    >>> name_classes(["card_lost", "top-up"], {"top-up": "top up by card"}, "<mask>")
    ('card lost', 'top up by card')
    """
    if given is not None and not isinstance(given, Mapping):
        raise InputError(f"label_names must map labels to names, such as {{{classes[0]!r}: 'a name'}}; not {given!r}")
    strange = [label for label in given or () if label not in classes]
    if strange:
        raise InputError(f"label_names has {strange[0]!r}, which is no label; the labels are {_listed(classes)}")
    names = []
    for label in classes:
        name = (given or {}).get(label, str(label).replace("_", " ").replace("-", " "))
        if not isinstance(name, str) or not name.strip():
            raise InputError(f"the class {label!r} is called {name!r} in prompts; give it a name with", **_NAMES)
        if MARKER.search(name) or mask_token in name:
            raise InputError(
                f"the class {label!r} is called {name!r} in prompts, which contains a marker; give it a name with",
                **_NAMES,
            )
        names.append(name.strip())
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"two classes are called {twice!r} in prompts; give them names of their own with", **_NAMES)
    return tuple(names)


_NAMES = {"setting": "label_names", "value": "{label: name}"}


def _listed(classes: Sequence[Any]) -> str:
    return ", ".join(map(repr, classes[:10])) + (", ..." if len(classes) > 10 else "")


def fill_templates(
    templates: Sequence[Template], problem: Problem, names: Sequence[str], *, per_class: int | None, seed: int
) -> list[Template]:
    """Return the templates filled with the names of the classes and with demonstrations, drawn from the training set.

    `per_class` is how many each class has; None: 1.
    """
    generator = np.random.default_rng([seed, 1])  # another stream than a head's, which has the seed alone
    n_classes = len(problem.classes)
    examples = [_distinct(problem, label) for label in range(n_classes)]
    decks = [_Deck(len(own), generator) for own in examples]
    classes = _Deck(n_classes, generator)
    each = min(1 if per_class is None else per_class, max(1, MOST // n_classes))
    filled = []
    for template in templates:
        drawn: list[Demonstration] = []
        if template.has_examples and each:
            for label in range(n_classes) if n_classes <= MOST else classes.deal(MOST):
                hand = decks[label].deal(each)
                drawn += [Demonstration.of(examples[label][place], label) for place in hand]
        order = generator.permutation(len(drawn)).tolist()
        filled.append(template.filled(names, [drawn[place] for place in order]))
    _check_what_is_left(filled, problem)
    return filled


def shown(examples: Sequence[Example], templates: Sequence[Template]) -> npt.NDArray[np.bool_]:
    """Return which examples (N, T) each template shows."""
    rows = [[template.shows(example) for template in templates] for example in examples]
    return np.array(rows, dtype=np.bool_).reshape(len(examples), len(templates))


def _distinct(problem: Problem, label: int) -> list[Example]:
    """Return the examples of a class, each text once."""
    own = (problem.train[row] for row in np.flatnonzero(problem.train_labels == label))
    return list({Demonstration.of(example, label).example: example for example in own}.values())


class _Deck:
    """Deals in shuffled cycles: every card before any comes again, and none twice in a hand."""

    def __init__(self, size: int, generator: np.random.Generator) -> None:
        self._size = size
        self._generator = generator
        self._left: list[int] = []

    def deal(self, count: int) -> list[int]:
        """Return so many cards, or all there are."""
        hand, self._left = self._left[:count], self._left[count:]
        if len(hand) < min(count, self._size):
            fresh = [card for card in self._generator.permutation(self._size).tolist() if card not in hand]
            need = count - len(hand)
            hand, self._left = hand + fresh[:need], fresh[need:] + hand
        return hand


def _check_what_is_left(templates: Sequence[Template], problem: Problem) -> None:
    """Refuse a draw that leaves a class without a text to ask about."""
    hidden = ~shown(problem.train, templates)
    for label, name in enumerate(problem.classes.tolist()):
        own = problem.train_labels == label
        empty = np.flatnonzero(~hidden[own].any(axis=0))
        if len(empty):
            raise InputError(
                f"the class {name!r} has {int(own.sum())} texts, and the prompt {templates[empty[0]].source!r} shows all "
                "of them as demonstrations; give it more texts, so that one is left to ask about, or use",
                setting="demonstrations",
                value="0",
            )
