"""A grid: many texts under the same templates, counted without rendering each query.

What a template adds to a text doesn't depend on the text, and templates that agree in how they show it show it alike. So a
text is read once for all of them: a fingerprint of 64 bits, by which repetitions are found, and its length. The few
texts that make an exception, because a template shows them as a demonstration or nothing of them is left, are
rendered.

>>> grid = Grid([Template("<input> It was <mask>."), Template("<input> So <mask>.")], "plain", "<mask>")
>>> shown = grid.read([Example("Fine."), Example("Dull"), Example(" Fine.")])
>>> bool(shown.fingerprints[0, 0] == shown.fingerprints[0, 2]), shown.sizes.tolist()
(True, [[5, 4, 5]])
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pbsdk.backend import MaskedQuery, Phase, Tokens
from pbsdk.queries.examples import Example
from pbsdk.queries.rendering import asked, render_unshown
from pbsdk.queries.templates import Style, Template, shown_by_any

__all__ = ["Fingerprints", "Foreseen", "Grid", "Shown"]

Fingerprints = npt.NDArray[np.uint64]

_ORDINARY = Example("a", "b")
"""Stands for every text that makes no exception."""


@dataclass(frozen=True)
class Foreseen:
    """What a fit and a prediction would ask about: texts under templates, for tokens (None: all of them)."""

    templates: Sequence[Template]
    style: Style
    tokens: Tokens | None
    train: Sequence[Example] = ()
    validation: Sequence[Example] = ()
    predict: Iterable[Sequence[Example]] = ()
    """A chunk of texts at a time."""
    pilot: int = 0
    """How many texts the fit asks about in full, if it screens the vocabulary; 0: all."""


@dataclass(frozen=True)
class Shown:
    """What templates show of examples, for each way (W) of showing them."""

    fingerprints: Fingerprints
    """(W, N): the same for the same texts."""
    sizes: npt.NDArray[np.int64]
    """(W, N) bytes."""
    exceptions: npt.NDArray[np.bool_]
    """(N,) which examples have to be rendered instead."""


class Grid:
    """Templates, and what is the same about them for every text.

    Attributes:
        templates: all of them.
        way: (T,) which of the ways of showing an example each template has.
        sizes: (T,) the bytes that each adds to what it shows, the mask included.
    """

    def __init__(self, templates: Sequence[Template], style: Style, mask: str) -> None:
        self.templates = list(templates)
        self._style: Style = style
        self._mask = mask
        found = [template.showings(style) for template in templates]
        self._ways = list(dict.fromkeys(found))
        self.way = np.array([self._ways.index(showings) for showings in found], dtype=np.intp)
        plain = [template.query(self._like(template), style=style) for template in templates]
        self.sizes = np.array([self.size(query) - sum(map(_size, _inputs(query))) for query in plain], dtype=np.int64)
        self._is_shown = shown_by_any(templates)
        self._frames = {_frame(query): at for at, query in enumerate(plain)}

    @property
    def ways(self) -> int:
        """How many ways of showing an example there are."""
        return len(self._ways)

    def size(self, query: MaskedQuery) -> int:
        """Return the bytes of a query as it is sent."""
        return _size(query.text(self._mask))

    def read(self, examples: Sequence[Example]) -> Shown:
        """Return what the templates show of each example."""
        fingerprints = np.empty((self.ways, len(examples)), dtype=np.uint64)
        sizes = np.zeros((self.ways, len(examples)), dtype=np.int64)
        exceptions = np.array([self._is_shown(example) for example in examples], dtype=np.bool_)
        for at, way in enumerate(self._ways):
            texts = [[showing.of(example) for example in examples] for showing in way]
            fingerprints[at] = _hashes(list(zip(*texts, strict=True)))
            for lengths in (np.array([_size(text) for text in row], dtype=np.int64) for row in texts):
                sizes[at] += lengths
                exceptions |= (lengths == 0) & (self._style == "plain")
        return Shown(fingerprints, sizes, exceptions)

    def render(self, example: Example, phase: Phase, *, needed: bool) -> list[MaskedQuery]:
        """Return what is asked about an example; if it is `needed`, something is asked though all templates show it."""
        need = [range(len(self.templates))] if needed else ()
        return asked(render_unshown([example], self.templates, phase, self._style, need))

    def queries(self, example: Example, templates: Iterable[int], phase: Phase) -> list[MaskedQuery]:
        """Return what templates ask about an example that makes no exception."""
        return [self.templates[at].query(example, phase, self._style) for at in templates]

    def place(self, query: MaskedQuery) -> tuple[int, int] | None:
        """Return the template and the fingerprint by which `read` knows a query; None if no template asks it as it stands."""
        template = self._frames.get(_frame(query))
        return None if template is None else (template, int(_hashes([_inputs(query)])[0]))

    def names(self) -> list[str]:
        """Return what the ledger calls the templates."""
        return [template.name(self._style) for template in self.templates]

    def _like(self, template: Template) -> Example:
        return _ORDINARY if template.is_pair else Example(_ORDINARY.text)


def _inputs(query: MaskedQuery) -> tuple[str, ...]:
    return tuple(part.text for part in query.parts if part.kind == "input")


def _frame(query: MaskedQuery) -> tuple[str, ...]:
    """Return all of a query but its inputs."""
    return tuple(part.kind if part.kind == "input" else f"{part.kind} {part.text}" for part in query.parts)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def _hashes(keys: Sequence[tuple[str, ...]]) -> Fingerprints:
    return np.array([hash(key) for key in keys], dtype=np.int64).view(np.uint64)
