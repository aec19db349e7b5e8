"""Templates: a pattern with the input, or two, and one mask.

>>> template = Template("<input> What is <mask>?")
>>> template.query(Example("Who wrote Hamlet?")).text()
'Who wrote Hamlet? What is <mask>?'
>>> Template("[Input1]? [MASK], [Input2]").source
'<input>? <mask>, <input2>'

The paper's own notation is read too. Two styles of rendering differ in what happens where a text
meets the prompt. `plain` keeps texts as they are but for white space around them, and drops a text's
final punctuation where the prompt goes on with punctuation of its own. `paper` does as the authors
did: one final punctuation mark goes, and a second text after a comma begins with a small letter,
be it a name or not.

>>> Template("<input>? <mask>, <input2>").query(Example("NASA flies...", "NASA lands."), style="paper").text()
'NASA flies..? <mask>, nASA lands.'
"""

from __future__ import annotations

import json
import re
import string
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pbsdk.backend import Abilities, MaskedQuery, Part, Phase
from pbsdk.errors import InputError, TemplateError
from pbsdk.queries.examples import Example

__all__ = [
    "PromptPool",
    "Provenance",
    "Refinement",
    "Template",
    "choosers",
    "escape_markers",
    "fit_templates",
    "load_pool",
    "pool_names",
    "read_pool",
    "refuse_markers",
]

Style = Literal["plain", "paper"]

INPUT, INPUT2, MASK = "<input>", "<input2>", "<mask>"
_ALIASES = {"<input1>": INPUT, "[input]": INPUT, "[input1]": INPUT, "[input2]": INPUT2, "[mask]": MASK}
_MARKER = re.compile(r"<input[12]?>|<mask>|\[input[12]?\]|\[mask\]", re.IGNORECASE)
_MASK_MARKERS = ("<mask>", "[MASK]")
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
        object.__setattr__(self, "source", _MARKER.sub(_canonical, self.source))
        markers = _MARKER.findall(self.source)
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


def fit_templates(templates: Sequence[Template], abilities: Abilities, *, pairs: bool) -> list[Template]:
    """Return the templates as this kind of model and these examples need them, or refuse them.

    For a causal model they end at the mask; those that become one are one, and a warning says so.
    """
    if not templates:
        raise InputError('the pool is empty; give at least one prompt, such as "<input> It was <mask>."')
    for template in templates:
        if template.is_pair != pairs:
            kind, have = ("two texts", "single texts") if template.is_pair else ("one text", "pairs")
            raise TemplateError(f"the prompt {template.source!r} takes {kind}, and the examples are {have}")
    twice = _repeated(templates)
    if twice:
        raise TemplateError(f"the prompt {twice.source!r} stands in the pool twice; leave one out")
    if abilities.mask == "anywhere":
        return list(templates)
    ending = [template.ending_at_mask() for template in templates]
    distinct = list(dict.fromkeys(ending))
    if len(distinct) < len(ending):
        same = _repeated(ending)
        full = [t.source for t, end in zip(templates, ending, strict=True) if end == same]
        warnings.warn(
            f"a causal model reads nothing after the mask: of {len(ending)} prompts {len(distinct)} are different "
            f"({' and '.join(map(repr, full))} are one), and only those are asked",
            stacklevel=3,
        )
    return distinct


def _repeated(templates: Sequence[Template]) -> Template | None:
    seen: set[Template] = set()
    for template in templates:
        if template in seen:
            return template
        seen.add(template)
    return None


def refuse_markers(examples: Sequence[Example], mask_token: str, *, name: str = "texts") -> None:
    """Refuse examples in which a mask is written out: a model might take it for the mask."""
    markers = dict.fromkeys((*_MASK_MARKERS, mask_token))
    for at, example in enumerate(examples):
        for marker in markers:
            if any(marker in text for text in example.texts):
                raise InputError(
                    f"{name}[{at}] contains {marker!r}, which a model may take for its mask; change that text, "
                    'or let pbsdk write it apart with markers="escape"'
                )


def escape_markers(example: Example, mask_token: str) -> Example:
    """Write masks apart, so that no model takes them for its mask.

    >>> escape_markers(Example("say <mask> now"), "<mask>").text
    'say < mask> now'
    """
    texts = example.texts
    for marker in dict.fromkeys((*_MASK_MARKERS, mask_token)):
        texts = tuple(text.replace(marker, f"{marker[:1]} {marker[1:]}") for text in texts)
    return Example(*texts)


class Provenance(BaseModel):
    """How a pool was made by a model: enough to make it again, and to know what it cost."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: str
    """How it was written: `t5` or `causal`."""
    model: str
    """The identity of the model that wrote it, as JSON."""
    pbsdk: str
    """The version of pbsdk."""
    seed: int
    texts: int
    """How many training texts decided."""
    examples: str
    """A digest that names those texts."""
    label_words: dict[str, str]
    beam: int
    max_tokens: int
    forwards: int
    """Forward passes, all of them in the phase `generate`: one is one text with one prefix."""
    scores: list[float]
    """Each prompt's log-likelihood, summed over the texts."""


class Refinement(BaseModel):
    """How a pool's prompts were chosen from more: enough to choose them again, and to know by which examples."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: str
    """How they were chosen: `paper` or `halving`."""
    model: str
    """The identity of the model that was asked, as JSON."""
    pbsdk: str
    """The version of pbsdk."""
    seed: int
    of: int
    """How many prompts there were to choose from."""
    passes: int
    """Passes it needs, all of them in the phase `refine`."""
    scores: list[float]
    """Each prompt's accuracy on validation, of one weak learner."""
    chosen_by: list[str]
    """The validation examples, by their digests."""


class PromptPool(BaseModel):
    """A pool of prompts as a JSON file holds it.

    `prompts` are for models that read both sides of the mask, `prompts_mask_last` for causal ones;
    one of the two may be left out. `made` says how, if a model wrote them, and `refined` how they were
    chosen, if examples chose them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = ""
    about: str = ""
    prompts: list[str] = Field(default_factory=list)
    prompts_mask_last: list[str] = Field(default_factory=list)
    made: Provenance | None = None
    refined: Refinement | None = None

    def templates(self, abilities: Abilities) -> list[Template]:
        """Return the prompts written for this kind of model, or else those of the other kind."""
        chosen = (
            self.prompts_mask_last or self.prompts
            if abilities.mask == "last"
            else self.prompts or self.prompts_mask_last
        )
        return [Template(prompt) for prompt in chosen]


def pool_names() -> list[str]:
    """Return the names of the pools that come with pbsdk."""
    folder = resources.files("pbsdk") / "prompts"
    return sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json"))


def read_pool(prompts: str | Path | PromptPool | Iterable[str | Template], abilities: Abilities) -> list[Template]:
    """Read prompts from a list, the name of a pool that comes with pbsdk, or a JSON file."""
    if isinstance(prompts, PromptPool):
        return prompts.templates(abilities)
    if isinstance(prompts, str | Path):
        return load_pool(prompts).templates(abilities)
    if not isinstance(prompts, Iterable):
        raise InputError("prompts must be a list of prompts, the name of a pool, or a pool's file")
    return [prompt if isinstance(prompt, Template) else Template(prompt) for prompt in prompts]


def choosers(prompts: object) -> frozenset[str]:
    """Return the digests of the examples that chose these prompts, where a pool remembers them."""
    pool = load_pool(prompts) if isinstance(prompts, str | Path) else prompts
    return frozenset(pool.refined.chosen_by) if isinstance(pool, PromptPool) and pool.refined else frozenset()


def load_pool(name: str | Path) -> PromptPool:
    """Load a pool that comes with pbsdk by its name, or one from a JSON file."""
    if isinstance(name, str) and name in pool_names():
        return _parsed((resources.files("pbsdk") / "prompts" / f"{name}.json").read_text("utf-8"), name)
    path = Path(name)
    if path.is_file():
        try:
            return _parsed(path.read_text("utf-8"), str(name))
        except UnicodeDecodeError as error:
            raise InputError(f"the prompt file {name} is not UTF-8 text") from error
    if _MARKER.search(str(name)):
        raise InputError(f"prompts is one string, {str(name)!r}; give a list of prompts, such as [prompt]")
    raise InputError(f"no pool and no file is called {str(name)!r}; the pools are {', '.join(pool_names())}")


def _parsed(text: str, name: str) -> PromptPool:
    try:
        content = json.loads(text)
        return PromptPool.model_validate({"prompts": content} if isinstance(content, list) else content)
    except (json.JSONDecodeError, ValidationError) as error:
        raise InputError(
            f'the prompt file {name} can\'t be read: {error}; it is {{"prompts": [...]}}, or a list of prompts'
        ) from error
