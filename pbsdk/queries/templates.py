"""Templates: a pattern with the input, or two, and one mask.

>>> template = Template("<input> What is <mask>?")
>>> template.query(Example("Who wrote Hamlet?")).text()
'Who wrote Hamlet? What is <mask>?'
>>> Template("[Input1]? [MASK], [Input2]").source
'<input>? <mask>, <input2>'

The paper's own notation is read too. Two styles of rendering differ in what happens where a text
meets the prompt. `plain` keeps texts as they are except for white space around them, and drops a text's
final punctuation where the prompt goes on with punctuation of its own. `paper` does as the authors
did: one final punctuation mark is dropped, and a second text after a comma begins with a lowercase
letter, even if it is a name.

>>> Template("<input>? <mask>, <input2>").query(Example("NASA flies...", "NASA lands."), style="paper").text()
'NASA flies..? <mask>, nASA lands.'
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pbsdk.backend import MaskedQuery, Part, Phase
from pbsdk.errors import TemplateError
from pbsdk.queries.examples import Example

__all__ = ["INPUT", "INPUT2", "MARKER", "MASK", "Style", "Template"]

Style = Literal["plain", "paper"]

INPUT, INPUT2, MASK = "<input>", "<input2>", "<mask>"
MARKER = re.compile(r"<input[12]?>|<mask>|\[input[12]?\]|\[mask\]", re.IGNORECASE)
"""A marker in pbsdk's notation or the paper's."""
_ALIASES = {"<input1>": INPUT, "[input]": INPUT, "[input1]": INPUT, "[input2]": INPUT2, "[mask]": MASK}
_OPENS_WITH_PUNCTUATION = tuple(".,;:!?)")
_FINAL_PUNCTUATION = ".,;:!? "
_ANY_PUNCTUATION = tuple(string.punctuation)


@dataclass(frozen=True)
class Template:
    """A pattern with `<input>`, perhaps `<input2>`, and one `<mask>`.

    `source` is the pattern in pbsdk's notation, and its name in ledgers and saved models.
    """

    source: str

    def __post_init__(self) -> None:
        if not isinstance(self.source, str):
            raise TemplateError(f"a prompt must be a string; this is a {type(self.source).__name__}")
        object.__setattr__(self, "source", MARKER.sub(_canonical, self.source))
        markers = MARKER.findall(self.source)
        for marker, least in ((MASK, 1), (INPUT, 1), (INPUT2, 0)):
            if not least <= markers.count(marker) <= 1:
                count = markers.count(marker) or "no"
                raise TemplateError(
                    f"the prompt {self.source!r} has {count} {marker}; it needs exactly one"
                    if least
                    else f"the prompt {self.source!r} has {count} {marker}; it may have one"
                )

    @property
    def is_pair(self) -> bool:
        """Whether it takes two texts."""
        return INPUT2 in self.source

    @cached_property
    def _segments(self) -> tuple[str, ...]:
        return tuple(filter(None, re.split(f"({INPUT}|{INPUT2}|{MASK})", self.source)))

    def query(self, example: Example, phase: Phase = Phase.TRAIN, style: Style = "plain") -> MaskedQuery:
        """Render an example under this template."""
        if (example.pair is not None) != self.is_pair:
            raise TemplateError(
                f"the prompt {self.source!r} takes "
                + ("two texts, and the examples are single texts" if self.is_pair else "one text, not pairs")
                + f"; {'leave out' if self.is_pair else 'add'} {INPUT2}"
            )
        parts = self._plain(example) if style == "plain" else self._as_in_paper(example)
        return MaskedQuery(parts, example.id, self.name(style), phase)

    def name(self, style: Style = "plain") -> str:
        """Return what the ledger calls this template: another rendering is another prompt."""
        return self.source if style == "plain" else f"{style}: {self.source}"

    def _plain(self, example: Example) -> tuple[Part, ...]:
        parts: list[Part] = []
        after_space = True
        for at, segment in enumerate(self._segments):
            part = _part(segment, example)
            text = part.text
            if part.kind == "input":
                text = text.strip()
                if self._follower(at).startswith(_OPENS_WITH_PUNCTUATION):
                    text = text.rstrip(_FINAL_PUNCTUATION)
            elif part.kind == "prompt" and after_space:
                text = text.lstrip(" ")
            if part.kind == "mask" or text:
                parts.append(Part(part.kind, text))
                after_space = text.endswith(" ")
        return tuple(parts)

    def _as_in_paper(self, example: Example) -> tuple[Part, ...]:
        parts: list[Part] = []
        for at, segment in enumerate(self._segments):
            part = _part(segment, example)
            text = part.text
            if part.kind == "input":
                if self._follower(at).startswith(_ANY_PUNCTUATION) and text.endswith(_ANY_PUNCTUATION):
                    text = text[:-1]
                if segment == INPUT2 and at and self._segments[at - 1].rstrip().endswith(","):
                    text = text[:1].lower() + text[1:]
            parts.append(Part(part.kind, text))
        return tuple(parts)

    def _follower(self, at: int) -> str:
        following = self._segments[at + 1] if at + 1 < len(self._segments) else ""
        return "" if following in {INPUT, INPUT2, MASK} else following

    def ending_at_mask(self) -> Template:
        """Return what a causal model reads of this template: nothing after the mask."""
        before, _, after = self.source.partition(MASK)
        lost = [marker for marker in (INPUT, INPUT2) if marker in after]
        if lost:
            raise TemplateError(
                f"the prompt {self.source!r} has {' and '.join(lost)} after the mask, which a causal model never reads; "
                f"put the mask last, such as {' '.join([*lost, before.strip()]).strip()} {MASK}"
            )
        return Template(before.rstrip() + (" " if before != before.rstrip() else "") + MASK)


def _canonical(match: re.Match[str]) -> str:
    marker = match.group().lower()
    return _ALIASES.get(marker, marker)


def _part(segment: str, example: Example) -> Part:
    if segment == MASK:
        return Part("mask")
    if segment == INPUT:
        return Part("input", example.text)
    if segment == INPUT2:
        return Part("input", example.pair or "")
    return Part("prompt", segment)
