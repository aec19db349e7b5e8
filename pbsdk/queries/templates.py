r"""Templates: a pattern with the input, or two, and one mask.

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

A template may say more: `<labels>` stands for the names of the classes, `<examples>` for labelled demonstrations. Each is
shown as what follows `<examples>`, with its own text and the name of its class. Such a template is filled before it is used.

>>> more = Template("One of: <labels>.\n\n<examples><input> It is <mask>.")
>>> shown = [Demonstration.of(Example("Ten euros!"), 0), Demonstration.of(Example("It's late."), 1)]
>>> more.filled(["billing", "shipping"], shown).query(Example("Where is it?")).text()
"One of: billing, shipping.\n\nTen euros! It is billing.\n\nIt's late. It is shipping.\n\nWhere is it? It is <mask>."

To a model that is asked in conversations (`turns`) such a template is one: what stands before `<examples>` is the instruction, each
demonstration is a question and its answer, and the classes are named in the order in which they are shown.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple, Self

from pbsdk.backend import Abilities, MaskedQuery, Part, Phase, digest
from pbsdk.errors import TemplateError
from pbsdk.queries.examples import Example

__all__ = [
    "EXAMPLES",
    "INPUT",
    "INPUT2",
    "LABELS",
    "MARKER",
    "MASK",
    "Demonstration",
    "Showing",
    "Style",
    "Template",
    "shown_by_any",
]

Style = Literal["plain", "paper"]

INPUT, INPUT2, MASK, LABELS, EXAMPLES = "<input>", "<input2>", "<mask>", "<labels>", "<examples>"
MARKER = re.compile(r"<input[12]?>|<mask>|<labels>|<examples>|\[input[12]?\]|\[mask\]", re.IGNORECASE)
"""A marker in pbsdk's notation or the paper's."""
_ALIASES = {"<input1>": INPUT, "[input]": INPUT, "[input1]": INPUT, "[input2]": INPUT2, "[mask]": MASK}
_OPENS_WITH_PUNCTUATION = tuple(".,;:!?)")
_FINAL_PUNCTUATION = ".,;:!? "
_ANY_PUNCTUATION = tuple(string.punctuation)
_BETWEEN = "\n\n"
"""What stands between demonstrations, and after the last."""
_MOST_WORDS = 60
"""How many words of a text a demonstration shows."""


@dataclass(frozen=True)
class Demonstration:
    """A labelled example as a prompt shows it."""

    texts: tuple[str, ...]
    """The text, or both, as they are shown."""
    label: int
    """The place of its class."""
    example: str
    """A digest of the whole text or pair, by which it is known when it is asked about."""

    @classmethod
    def of(cls, example: Example, label: int) -> Self:
        """Make one of an example; a text longer than 60 words is cut after the 60th."""
        return cls(tuple(_beginning(text) for text in example.texts), label, _known_as(example.texts))

    @cached_property
    def ids(self) -> frozenset[str]:
        """By which texts it is known: the whole one, and the one that is shown."""
        return frozenset({self.example, _known_as(self.texts)})


class Showing(NamedTuple):
    """How a prompt shows an input text: which one, in which style, and what it does to it."""

    second: bool
    style: Style
    cut: bool
    """It drops the final punctuation, since the prompt goes on with its own."""
    lower: bool
    """It begins with a lowercase letter."""

    def of(self, example: Example) -> str:
        """Return the text as it is shown."""
        text = (example.pair or "") if self.second else example.text
        if self.style == "plain":
            return text.strip().rstrip(_FINAL_PUNCTUATION) if self.cut else text.strip()
        if self.cut and text.endswith(_ANY_PUNCTUATION):
            text = text[:-1]
        return text[:1].lower() + text[1:] if self.lower else text


@dataclass(frozen=True)
class Template:
    """A pattern with `<input>`, perhaps `<input2>`, and one `<mask>`; perhaps `<labels>` and `<examples>` before them.

    `source` is the pattern in pbsdk's notation, and its name in saved models. `labels` and `demonstrations` are
    what a template with `<labels>` or `<examples>` was filled with; `turns` says that it is put to the model as a conversation.
    """

    source: str
    labels: tuple[str, ...] = field(default=(), repr=False)
    demonstrations: tuple[Demonstration, ...] = field(default=(), repr=False)
    turns: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.source, str):
            raise TemplateError(f"a prompt must be a string; this is a {type(self.source).__name__}")
        object.__setattr__(self, "source", MARKER.sub(_canonical, self.source))
        markers = MARKER.findall(self.source)
        for marker, least in ((MASK, 1), (INPUT, 1), (INPUT2, 0), (LABELS, 0), (EXAMPLES, 0)):
            if not least <= markers.count(marker) <= 1:
                count = markers.count(marker) or "no"
                raise TemplateError(
                    f"the prompt {self.source!r} has {count} {marker}; it needs exactly one"
                    if least
                    else f"the prompt {self.source!r} has {count} {marker}; it may have one"
                )

        for marker, later in ((LABELS, {INPUT, INPUT2}), (EXAMPLES, {INPUT, INPUT2, MASK})):
            if marker in markers and later.intersection(markers[: markers.index(marker)]):
                raise TemplateError(
                    f"the prompt {self.source!r} has {marker} after {markers[0]}; put it in front, such as "
                    f"{marker}{self.source.replace(marker, '')}"
                )

    @property
    def is_pair(self) -> bool:
        """Whether it takes two texts."""
        return INPUT2 in self.source

    @property
    def has_examples(self) -> bool:
        """Whether it has a place for demonstrations."""
        return EXAMPLES in self.source

    @property
    def names_classes(self) -> bool:
        """Whether it needs the names of the classes: for `<labels>`, or for demonstrations."""
        return LABELS in self.source or self.has_examples

    def with_examples(self) -> Template:
        """Return the template with a place for demonstrations: its own, or else in front."""
        return self if self.has_examples else replace(self, source=EXAMPLES + self.source)

    def put_to(self, abilities: Abilities) -> Template:
        """Return the template as this kind of model is asked."""
        return self if self.turns == abilities.turns else replace(self, turns=abilities.turns)

    def filled(self, labels: Sequence[str], demonstrations: Sequence[Demonstration] = ()) -> Template:
        """Return the template with the names of the classes and with demonstrations; a plain one as it is."""
        if not self.names_classes:
            return self
        return replace(self, labels=tuple(labels), demonstrations=tuple(demonstrations) if self.has_examples else ())

    def shows(self, example: Example) -> bool:
        """Whether an example is one of the demonstrations, or has the text of one."""
        return bool(self.demonstrations) and _known_as(example.texts) in self._shown

    def showings(self, style: Style) -> tuple[Showing, ...]:
        """Return how it shows its inputs, in order: templates that agree in this show every example alike."""
        places = [at for at, segment in enumerate(self._segments) if segment in {INPUT, INPUT2}]
        return tuple(_showing(self._segments, at, style) for at in places)

    def without(self, example: Example) -> Template:
        """Return the template without the demonstrations that show an example."""
        name = _known_as(example.texts)
        return replace(self, demonstrations=tuple(one for one in self.demonstrations if name not in one.ids))

    @cached_property
    def _shown(self) -> frozenset[str]:
        return frozenset[str]().union(*(one.ids for one in self.demonstrations))

    @cached_property
    def _segments(self) -> tuple[str, ...]:
        before = self.source.rpartition(EXAMPLES)[0]
        shown = "".join(self._demonstrated(self._asked, one) + _BETWEEN for one in self.demonstrations)
        literal = self._named(before) + shown
        return (literal, *self._asked) if literal else self._asked

    @cached_property
    def _asked(self) -> tuple[str, ...]:
        """What follows `<examples>`, in segments."""
        _, examples, asked = self.source.rpartition(EXAMPLES)
        pieces = re.split(f"({INPUT}|{INPUT2}|{MASK})", asked.lstrip() if examples else asked)
        return tuple(self._named(piece) for piece in pieces if piece)

    def _named(self, text: str) -> str:
        """Return a text with the names of the classes: in their own order, or, in a conversation, as they are shown."""
        order = dict.fromkeys(one.label for one in self.demonstrations) if self.turns else {}
        names = [self.labels[label] for label in dict.fromkeys([*order, *range(len(self.labels))])]
        return text.replace(LABELS, ", ".join(names))

    @cached_property
    def _said(self) -> tuple[Part, ...]:
        """What a conversation begins with, up to the question: the instruction, and demonstrations as turns."""
        before, examples, _ = self.source.rpartition(EXAMPLES)
        instruction = self._named(before).strip()
        if not examples or not (instruction or self.demonstrations):
            return ()
        parts = [Part("prompt", instruction), Part("turn", _BETWEEN)] if instruction else [Part("turn")]
        for one in self.demonstrations:
            question = _plain(self._asked, Example(*one.texts))
            asked = "".join(part.text for part in question[: [part.kind for part in question].index("mask")])
            answer = Part("prompt", self.labels[one.label])
            parts += [Part("prompt", asked.strip()), Part("turn", " "), answer, Part("turn", _BETWEEN)]
        return tuple(parts)

    def _demonstrated(self, segments: Sequence[str], shown: Demonstration) -> str:
        """Return a demonstration as the asked part has it."""
        name = self.labels[shown.label]
        parts = _plain(segments, Example(*shown.texts))
        return "".join(name if part.kind == "mask" else part.text for part in parts).strip()

    def query(self, example: Example, phase: Phase = Phase.TRAIN, style: Style = "plain") -> MaskedQuery:
        """Render an example under this template."""
        if (example.pair is not None) != self.is_pair:
            raise TemplateError(
                f"the prompt {self.source!r} takes "
                + ("two texts, and the examples are single texts" if self.is_pair else "one text, not pairs")
                + f"; {'leave out' if self.is_pair else 'add'} {INPUT2}"
            )
        if self.names_classes and not self.labels:
            raise TemplateError(
                f"the prompt {self.source!r} has {EXAMPLES if self.has_examples else LABELS}, which a classifier fills "
                "when it is fitted; leave that out here, or use Template.filled(labels, demonstrations)"
            )
        if self.names_classes and style != "plain":
            raise TemplateError(
                f"the prompt {self.source!r} has {EXAMPLES if self.has_examples else LABELS}, which style={style!r} "
                "doesn't know; leave that out, or use",
                setting="style",
                value='"plain"',
            )
        if style == "paper":
            parts = self._as_in_paper(example)
        elif self.turns:
            parts = (*self._said, *_plain(self._asked, example))
        else:
            parts = _plain(self._segments, example)
        return MaskedQuery(parts, example.id, self.name(style), phase)

    def name(self, style: Style = "plain") -> str:
        """Return what the ledger calls this template: another rendering, or another filling, is another prompt."""
        name = self.source if style == "plain" else f"{style}: {self.source}"
        return f"{name} ({self._filling})" if self.labels else name

    @cached_property
    def _filling(self) -> str:
        """What it was filled with, told apart by a digest."""
        shown = (piece for one in self.demonstrations for piece in (str(one.label), *one.texts))
        short = digest(str(len(self.labels)), *self.labels, *shown)[:12]
        count = len(self.demonstrations)
        return f"{count} demonstration{'' if count == 1 else 's'}, {short}" if count else f"class names, {short}"

    def _as_in_paper(self, example: Example) -> tuple[Part, ...]:
        return tuple(_part(self._segments, at, example, "paper") for at in range(len(self._segments)))

    def ending_at_mask(self) -> Template:
        """Return what a causal model reads of this template: nothing after the mask."""
        before, _, after = self.source.partition(MASK)
        lost = [marker for marker in (INPUT, INPUT2) if marker in after]
        if lost:
            raise TemplateError(
                f"the prompt {self.source!r} has {' and '.join(lost)} after the mask, which a causal model never reads; "
                f"put the mask last, such as {' '.join([*lost, before.strip()]).strip()} {MASK}"
            )
        return replace(self, source=before.rstrip() + (" " if before != before.rstrip() else "") + MASK)


def shown_by_any(templates: Sequence[Template]) -> Callable[[Example], bool]:
    """Return a function that says whether any of the templates shows an example."""
    known = frozenset[str]().union(*(template._shown for template in templates))  # noqa: SLF001 - its own module's
    return (lambda example: _known_as(example.texts) in known) if known else lambda _: False


def _canonical(match: re.Match[str]) -> str:
    marker = match.group().lower()
    return _ALIASES.get(marker, marker)


def _part(segments: Sequence[str], at: int, example: Example, style: Style) -> Part:
    segment = segments[at]
    if segment == MASK:
        return Part("mask")
    if segment in {INPUT, INPUT2}:
        return Part("input", _showing(segments, at, style).of(example))
    return Part("prompt", segment)


def _showing(segments: Sequence[str], at: int, style: Style) -> Showing:
    second = segments[at] == INPUT2
    punctuation = _OPENS_WITH_PUNCTUATION if style == "plain" else _ANY_PUNCTUATION
    lower = style == "paper" and second and at > 0 and segments[at - 1].rstrip().endswith(",")
    return Showing(second, style, _follower(segments, at).startswith(punctuation), lower)


def _plain(segments: Sequence[str], example: Example) -> tuple[Part, ...]:
    parts: list[Part] = []
    after_space = True
    for at in range(len(segments)):
        part = _part(segments, at, example, "plain")
        text = part.text.lstrip(" ") if part.kind == "prompt" and after_space else part.text
        if part.kind == "mask" or text:
            parts.append(Part(part.kind, text))
            after_space = text.endswith(" ")
    return tuple(parts)


def _follower(segments: Sequence[str], at: int) -> str:
    following = segments[at + 1] if at + 1 < len(segments) else ""
    return "" if following in {INPUT, INPUT2, MASK} else following


def _beginning(text: str) -> str:
    found = re.match(rf"\s*(?:\S+\s+){{{_MOST_WORDS - 1}}}\S+", text)
    return found.group() if found else text


def _known_as(texts: Sequence[str]) -> str:
    """Return a digest of texts; white space around them, which no prompt shows, makes no difference."""
    return digest(*(text.strip() for text in texts))
