"""Pools: prompts that belong together, from a list, a JSON file or pbsdk itself, made to fit a model.

>>> read_pool("topic", Abilities(mask="last"))[1]
Template(source='<input> This text is about <mask>')
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from pbsdk.backend import Abilities
from pbsdk.errors import InputError, TemplateError
from pbsdk.foreign import bounded_file, bounded_json, check_digest
from pbsdk.queries.templates import MARKER, Template

__all__ = [
    "PromptPool",
    "Provenance",
    "Refinement",
    "choosers",
    "fit_templates",
    "load_pool",
    "pool_names",
    "read_pool",
]


POOL_BYTES = 1 << 24
"""How large a pool's file may be."""


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

    `prompts` are for models that read both sides of the mask, `prompts_mask_last` for causal ones, `prompts_turns` for those that
    are asked in conversations; what is left out is replaced by what is there. `made` says how, if a model wrote them, and `refined` how they were
    chosen, if examples chose them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = ""
    about: str = ""
    prompts: list[str] = Field(default_factory=list)
    prompts_mask_last: list[str] = Field(default_factory=list)
    prompts_turns: list[str] = Field(default_factory=list)
    made: Provenance | None = None
    refined: Refinement | None = None

    def templates(self, abilities: Abilities) -> list[Template]:
        """Return the prompts written for this kind of model, or else those of the other kind."""
        causal = self.prompts_mask_last or self.prompts
        last = self.prompts_turns or causal if abilities.turns else causal or self.prompts_turns
        chosen = last if abilities.mask == "last" else self.prompts or self.prompts_mask_last
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
        return _parsed((resources.files("pbsdk") / "prompts" / f"{name}.json").read_bytes(), name)
    path = Path(name)
    if path.is_file():
        try:
            data = bounded_file(path, POOL_BYTES)
        except OSError as error:
            raise InputError(f"the prompt file {name} can't be read: {error.strerror}") from error
        except ValueError as error:
            raise InputError(f"the prompt file {name} can't be read: {error}; a pool is a list of prompts") from error
        return _parsed(data, str(name))
    if MARKER.search(str(name)):
        raise InputError(f"prompts is one string, {str(name)!r}; give a list of prompts, such as [prompt]")
    raise InputError(f"no pool and no file is called {str(name)!r}; the pools are {', '.join(pool_names())}")


def _parsed(data: bytes, name: str) -> PromptPool:
    try:
        content = bounded_json(data)
        if isinstance(content, dict):
            check_digest(content)
            content.pop("digest", None)
        return PromptPool.model_validate({"prompts": content} if isinstance(content, list) else content)
    except UnicodeDecodeError as error:
        raise InputError(f"the prompt file {name} is not UTF-8 text") from error
    except ValueError as error:
        raise InputError(
            f'the prompt file {name} can\'t be read: {str(error)[:500]}; it is {{"prompts": [...]}}, or a list of prompts'
        ) from error


def fit_templates(templates: Sequence[Template], abilities: Abilities, *, pairs: bool) -> list[Template]:
    """Return the templates as this kind of model and these examples need them, or refuse them.

    For a causal model they end at the mask. Those that become the same are asked once, and a warning says so.
    """
    if not templates:
        raise InputError('the pool is empty; give at least one prompt, such as "<input> It was <mask>."')
    for template in templates:
        if template.is_pair != pairs:
            kind, have = ("two texts", "single texts") if template.is_pair else ("one text", "pairs")
            raise TemplateError(f"the prompt {template.source!r} takes {kind}, and the examples are {have}")
    twice = _repeated(templates)
    if twice:
        raise TemplateError(f"the prompt {twice.source!r} is in the pool twice; leave one out")
    if abilities.mask == "anywhere":
        return [template.put_to(abilities) for template in templates]
    ending = [template.ending_at_mask().put_to(abilities) for template in templates]
    distinct = list(dict.fromkeys(ending))
    if len(distinct) < len(ending):
        same = _repeated(ending)
        full = [t.source for t, end in zip(templates, ending, strict=True) if end == same]
        warnings.warn(
            f"a causal model reads nothing after the mask: of {len(ending)} prompts {len(distinct)} are different "
            f"({' and '.join(map(repr, full))} are the same), and only those are asked",
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
