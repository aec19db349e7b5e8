"""Generation: prompts for texts and labels that come without prompts.

A prompt is good if a language model, seeing a text and the word for its class, would have written
the prompt between the two. LM-BFF's way makes that a search: put the class's label word beside
every training text, and look for the words that the model finds likeliest around it for *all*
texts at once. One beam search is shared by all examples; what decides each step is the
log-likelihood summed over the training set. No gradient is taken.

The search is here and knows no model. A `PromptWriter` knows the model and nothing of the search:
it says how likely every next token is after each prefix, and how likely it is to stop there. The
adapter `t5` fills the gaps on both sides of the label word; `pbsdk.prompting.causal_writer` continues the text
towards it, with any causal model.

>>> beam_search(lambda prefixes: (np.log([[0.7, 0.3]] * len(prefixes)), np.log([0.5] * len(prefixes))),
...             beam=3, max_tokens=1)
[((), -0.693...), ((0,), -1.049...), ((1,), -1.897...)]

Many of the likeliest prompts say the same thing in another spelling; `distinct` keeps the first of
each. The result is a `PromptPool` that records how it was made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pbsdk.backend import ModelIdentity, digest
from pbsdk.errors import InputError, SetupError, TemplateError
from pbsdk.foreign import digest_of
from pbsdk.plugins import WRITERS
from pbsdk.queries.examples import read_examples, read_labels
from pbsdk.queries.pools import PromptPool, Provenance
from pbsdk.queries.templates import MASK, Template
from pbsdk.version import __version__

__all__ = ["PromptWriter", "beam_search", "distinct", "generate_pool", "open_writer", "write_pool"]

Floats = npt.NDArray[np.float64]
Prefix = tuple[int, ...]
Extend = Callable[[Sequence[Prefix]], tuple[Floats, Floats]]

_WORD = re.compile(r"<mask>|<input2?>|\w+(?:'\w+)*")
_PLAIN_QUOTES = str.maketrans("‘’“”", "''\"\"")  # noqa: RUF001 - the curly quotes are the point


class PromptWriter(Protocol):
    """A frozen language model that writes prompts, as the search sees it."""

    identity: ModelIdentity
    method: str
    """How it writes: `t5` or `causal`."""
    mask_last: bool
    """Whether its prompts end at the mask."""
    beam: int
    """How many prefixes the search keeps by default."""
    max_tokens: int
    """The maximum number of tokens in a prompt, by default."""
    forwards: int
    """Forward passes so far; one pass is one text with one prefix."""

    def open(self, examples: Sequence[tuple[str, ...]], words: Sequence[str]) -> None:
        """Take the training texts, or pairs of texts, and the label word of each."""

    def extend(self, prefixes: Sequence[Prefix]) -> tuple[Floats, Floats]:
        """Return what may follow each of B prefixes of one length, summed over the examples.

        The first array holds the log-likelihood of every next token, (B, V), the second that of
        ending the prompt there, (B,); minus infinity where that is not allowed.
        """

    def prompt(self, prefix: Prefix) -> str:
        """Return a finished prefix as a prompt in pbsdk's notation."""


def beam_search(extend: Extend, *, beam: int, max_tokens: int) -> list[tuple[Prefix, float]]:
    """Return up to `beam` finished sequences of at most `max_tokens`, the likeliest first.

    Finished sequences keep their place in the beam: nothing that grows gets likelier, so a prefix
    that falls behind `beam` finished ones can't come back. Ties go to the lower tokens.
    """
    finished: list[tuple[Prefix, float]] = []
    growing: list[tuple[Prefix, float]] = [((), 0.0)]
    for length in range(max_tokens + 1):
        following, ending = extend([prefix for prefix, _ in growing])  # (B, V), (B,)
        scores = np.array([score for _, score in growing])
        finished += [
            (prefix, float(score))
            for (prefix, _), score in zip(growing, scores + ending, strict=True)
            if score > -np.inf
        ]
        grown = list(_best(growing, scores[:, None] + following, beam)) if length < max_tokens else []
        ranked = sorted([(*item, True) for item in finished] + [(*item, False) for item in grown], key=_rank)[:beam]
        finished = [(prefix, score) for prefix, score, done in ranked if done]
        growing = [(prefix, score) for prefix, score, done in ranked if not done]
        if not growing:
            break
    return finished


def _rank(item: tuple[Prefix, float, bool]) -> tuple[float, Prefix, bool]:
    prefix, score, done = item
    return -score, prefix, not done


def _best(growing: Sequence[tuple[Prefix, float]], totals: Floats, beam: int) -> Iterator[tuple[Prefix, float]]:
    flat = totals.ravel()
    # Everything that reaches the beam's last place, ties included; the caller sorts them.
    last = np.partition(flat, -beam)[-beam] if flat.size > beam else -np.inf
    for place in np.flatnonzero((flat >= last) & (flat > -np.inf)):
        at, token = divmod(int(place), totals.shape[1])
        yield (*growing[at][0], token), float(flat[place])


def distinct(prompts: Iterable[str], *, overlap: float = 0.8) -> list[str]:
    r"""Return the prompts without those that nearly repeat an earlier one.

    Case, spaces and the shape of quotes never distinguish prompts. Punctuation does so only where there
    are no words. Otherwise two prompts are nearly the same if they share at least the fraction
    `overlap` of all their words, each on the same side of the mask.

    >>> distinct(["<input> It's <mask>.", "<input> it\u2019s <mask>!", "<input> A <mask> film."])
    ["<input> It's <mask>.", '<input> A <mask> film.']
    >>> distinct(["<input>. <mask>, <input2>", "<input>? <mask>, <input2>", "<input> . <mask> , <input2>"])
    ['<input>. <mask>, <input2>', '<input>? <mask>, <input2>']
    """
    kept: list[str] = []
    forms: list[tuple[tuple[str, ...], frozenset[tuple[str, bool]]]] = []
    for prompt in prompts:
        form = _form(prompt)
        if not any(form[0] == other[0] or _shared(form[1], other[1]) >= overlap for other in forms):
            kept.append(prompt)
            forms.append(form)
    return kept


def _form(prompt: str) -> tuple[tuple[str, ...], frozenset[tuple[str, bool]]]:
    plain = prompt.casefold().translate(_PLAIN_QUOTES)
    words = tuple(_WORD.findall(plain))
    at = words.index(MASK) if MASK in words else len(words)
    sided = frozenset((word, place > at) for place, word in enumerate(words) if not word.startswith("<"))
    return (words if sided else ("".join(plain.split()),)), sided


def _shared(one: frozenset[tuple[str, bool]], other: frozenset[tuple[str, bool]]) -> float:
    return len(one & other) / len(one | other) if one and other else 0.0


def generate_pool(  # noqa: PLR0913 - independent settings, all keywords
    writer: PromptWriter,
    texts: Any,
    labels: Any,
    *,
    label_words: Mapping[Any, str] | None = None,
    count: int = 10,
    beam: int | None = None,
    max_tokens: int | None = None,
    per_class: int | None = None,
    seed: int = 0,
    overlap: float = 0.8,
    name: str = "generated",
) -> PromptPool:
    """Write prompts for labelled texts, without gradients.

    Args:
        writer: the model that writes, from `open_writer`.
        texts: training texts, or pairs of texts.
        labels: their labels.
        label_words: a word for each label; None takes the labels themselves, if they are words.
        count: how many prompts to keep, at most.
        beam: how many prefixes the search keeps; None for the writer's own choice.
        max_tokens: how long a prompt may be, in the writer's tokens; None for its own choice.
        per_class: use only this many texts per class, drawn with `seed`; None for all.
        seed: the seed of that draw. The search itself is deterministic.
        overlap: how much two prompts may share; see `distinct`.
        name: the pool's name.
    """
    examples = read_examples(texts)
    classes = [label.item() if hasattr(label, "item") else label for label in read_labels(labels, len(examples))]
    width = writer.beam if beam is None else beam
    longest = writer.max_tokens if max_tokens is None else max_tokens
    for value, what in ((count, "count"), (width, "beam"), (longest, "max_tokens"), (per_class, "per_class")):
        if value is not None and value < 1:
            raise InputError(f"{what} is {value}; it must be at least 1")
    if not examples:
        raise InputError("there are no texts to write prompts for; give the few-shot training set")
    words = _label_words(classes, label_words)
    rows = _drawn(classes, per_class, seed)
    before = writer.forwards
    writer.open([examples[row].texts for row in rows], [words[classes[row]] for row in rows])
    scores = dict(_prompts(writer, beam_search(writer.extend, beam=width, max_tokens=longest)))
    kept = distinct(scores, overlap=overlap)[:count]
    if not kept:
        raise InputError(
            f"the search found no finished prompt of at most {longest} tokens with a beam of {width}; raise either"
        )
    made = Provenance(
        method=writer.method,
        model=ModelIdentity(writer.identity.name, writer.identity.details).to_json(),
        pbsdk=__version__,
        seed=seed,
        texts=len(rows),
        examples=digest(*sorted(examples[row].id for row in rows)),
        label_words={str(label): words[label] for label in sorted(words, key=str)},
        beam=width,
        max_tokens=longest,
        forwards=writer.forwards - before,
        scores=[round(scores[prompt], 4) for prompt in kept],
    )
    about = f"Written by {writer.identity.name} ({writer.method}) for {len(rows)} texts of {len(words)} classes."
    prompts = {"prompts_mask_last" if writer.mask_last else "prompts": kept}
    return PromptPool(name=name, about=about, made=made, **prompts)


def _prompts(writer: PromptWriter, found: Sequence[tuple[Prefix, float]]) -> Iterator[tuple[str, float]]:
    seen: set[str] = set()
    for prefix, score in found:
        try:
            prompt = Template(writer.prompt(prefix)).source
        except TemplateError:  # the model wrote a marker of ours
            continue
        if prompt not in seen:
            seen.add(prompt)
            yield prompt, score


def _label_words(classes: Sequence[Any], given: Mapping[Any, str] | None) -> dict[Any, str]:
    found = list(dict.fromkeys(classes))
    if len(found) < 2:
        raise InputError(f"all labels are {found[0]!r}; prompts are written to tell at least two classes apart")
    if given is not None:
        lacking = [label for label in found if not str(given.get(label, "")).strip()]
        if lacking:
            raise InputError(f"label_words has no word for the label {lacking[0]!r}; give one for each of {found}")
        words = {label: str(given[label]).strip() for label in found}
    else:
        words = {label: " ".join(re.split(r"[\s_]+", str(label))).strip() for label in found}
        for label, word in words.items():
            if not any(letter.isalpha() for letter in word):
                raise InputError(
                    f"the label {label!r} is not a word; name the classes with",
                    setting="label_words",
                    value=f"{{{label!r}: 'great', ...}}",
                )
    for one, other in pairwise(sorted(words, key=lambda label: words[label])):
        if words[one] == words[other]:
            raise InputError(f"the labels {one!r} and {other!r} have the same word, {words[one]!r}; give each its own")
    return words


def _drawn(classes: Sequence[Any], per_class: int | None, seed: int) -> list[int]:
    if per_class is None:
        return list(range(len(classes)))
    order = np.random.default_rng(seed).permutation(len(classes))
    chosen: list[int] = []
    for label in dict.fromkeys(classes):
        chosen += [int(row) for row in order if classes[row] == label][:per_class]
    return sorted(chosen)


def write_pool(pool: PromptPool, path: str | Path) -> Path:
    """Write a pool to a JSON file that `read_pool` and `prompts=` take, with a digest by which damage is noticed."""
    target = Path(path)
    content = json.loads(pool.model_dump_json(exclude_none=True))
    sealed = {"digest": digest_of(content), **content}
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(sealed, indent=2, ensure_ascii=False) + "\n", "utf-8")
    except OSError as error:
        raise InputError(f"the pool can't be written to {path}: {error.strerror}; choose another file") from error
    return target


def open_writer(method: str, **options: Any) -> PromptWriter:
    """Open a prompt writer by name: `t5`, or one that another package registers.

    Writers register under the entry-point group `pbsdk.writers`. `options` are what the writer
    takes, such as `model="google/t5-v1_1-large"`.
    """
    made = WRITERS.load(method)
    try:
        writer: PromptWriter = made(**options)
    except TypeError as error:
        raise SetupError(f"the prompt writer {method!r} doesn't take these options: {error}") from error
    return writer
