"""Rendering: examples under templates, as one list of queries in the order that everything relies on.

The order is example-major: all prompts of the first example, then all of the second. A causal model
reads a text once for all its prompts, and `pbsdk.learning.matrix.collect` takes answers in this order.

>>> templates = [Template("<input> It was <mask>."), Template("<input> So <mask>.")]
>>> [query.text() for query in render([Example("Fine."), Example("Dull.")], templates)]
['Fine. It was <mask>.', 'Fine. So <mask>.', 'Dull. It was <mask>.', 'Dull. So <mask>.']
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pbsdk.backend import MaskedQuery, Phase
from pbsdk.queries.examples import Example
from pbsdk.queries.templates import Style, Template

__all__ = ["asked", "render", "render_unshown"]


def render(
    examples: Iterable[Example], templates: Sequence[Template], phase: Phase = Phase.TRAIN, style: Style = "plain"
) -> list[MaskedQuery]:
    """Render every example under every template, example by example."""
    return [template.query(example, phase, style) for example in examples for template in templates]


def render_unshown(
    examples: Iterable[Example],
    templates: Sequence[Template],
    phase: Phase,
    style: Style,
    needs: Sequence[Sequence[int]] = (),
) -> list[MaskedQuery | None]:
    """Render in the same order, but None where a template shows the example as a demonstration.

    Each of `needs` names templates by their places, of which at least one must be asked. An example that all of
    them show is asked under them without its demonstration.
    """
    found: list[MaskedQuery | None] = []
    for example in examples:
        shown = [template.shows(example) for template in templates]
        bare = {place for need in needs if all(shown[place] for place in need) for place in need}
        for place, template in enumerate(templates):
            if place in bare:
                found.append(template.without(example).query(example, phase, style))
            else:
                found.append(None if shown[place] else template.query(example, phase, style))
    return found


def asked(slots: Iterable[MaskedQuery | None]) -> list[MaskedQuery]:
    """Return the queries among what `render_unshown` rendered."""
    return [slot for slot in slots if slot is not None]
