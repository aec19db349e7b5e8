"""Parity: do two backends give the same answers? Tested on a few texts, before money is spent on training.

The same queries go to both. Tokens are matched by their words, because two providers may number them
differently, and compared where both show them: how far the log-probabilities of the likeliest tokens
lie apart, how many of the likeliest are the same, and whether the verdict, the word that wins among
the given words or among all, is the same. What is shown counts too: a classifier learns from every token that it sees,
so a model that shows its whole vocabulary is another to it than the same model at its top 20.

What settles it is a classifier: given a saved one, both answer its prompts, and its verdicts are compared text by text.

>>> from pbsdk.testing import FakeBackend
>>> report = parity(FakeBackend(), FakeBackend(), ["a fine day", "a dull day"])
>>> report.largest_difference, report.agreement, report.conclusion
(0.0, 1.0, 'the same: one can replace the other')
>>> parity(FakeBackend(), FakeBackend(seed=1), ["a fine day"]).conclusion
'different: retrain after a swap'
>>> parity(FakeBackend(), FakeBackend(top=20), ["a fine day"]).shown
('the whole vocabulary', 'the top 20 tokens')
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np

from pbsdk.backend import (
    STEPS_PER_NAT,
    Abilities,
    MaskDistribution,
    MaskedLMBackend,
    Phase,
    Tokens,
    Vocabulary,
)
from pbsdk.classifier import PromptBoostingClassifier
from pbsdk.errors import InputError
from pbsdk.formatting import aligned, html_table, one_line
from pbsdk.queries.examples import Example, read_examples
from pbsdk.queries.markers import refuse_markers
from pbsdk.queries.pools import fit_templates
from pbsdk.queries.rendering import render
from pbsdk.queries.templates import Template

__all__ = ["ParityReport", "ParityRow", "parity"]

PROMPTS = ("<input> It was <mask>", "<input> This is about <mask>")
SAME = 2 / STEPS_PER_NAT
"""The difference, in nats, that rounding to the grid and a different batching can cause."""
ALIKE = 0.1
"""A mean difference, in nats, that rounding on the wire or half precision explains."""
CARRIES = 0.9
"""The share of equal verdicts, or of tokens shown by both, below which two models are different."""


@dataclass(frozen=True)
class ParityRow:
    """One query, answered by both."""

    text: str
    prompt: str
    compared: int
    """Tokens among the likeliest that both showed."""
    mean_difference: float | None
    """In nats; None if no token was shown by both."""
    largest_difference: float | None
    shared: float
    """Share of the first backend's likeliest words that are among the second's."""
    top: tuple[tuple[str, ...], tuple[str, ...]]
    """The likeliest words of each, up to five."""
    verdicts: tuple[str, str]
    overlap: float | None = None
    """Of the tokens that either showed, the share that both did; None if both showed their whole vocabularies."""

    @property
    def agree(self) -> bool:
        """Both have the same verdict."""
        return self.verdicts[0] == self.verdicts[1]


@dataclass(frozen=True)
class ParityReport:
    """How two backends compare, query by query and overall."""

    models: tuple[str, str]
    identical: bool
    """Both have the same identity."""
    rows: tuple[ParityRow, ...]
    shown: tuple[str, str]
    """What each shows of its vocabulary."""
    classified: tuple[tuple[str, Any, Any], ...] = ()
    """Each text with the label that the given classifier finds for it on the one and on the other."""

    @property
    def mean_difference(self) -> float | None:
        """The mean over queries of the mean difference, in nats."""
        known = [row.mean_difference for row in self.rows if row.mean_difference is not None]
        return fmean(known) if known else None

    @property
    def largest_difference(self) -> float | None:
        """The largest difference of one token's log-probability, in nats."""
        return max((row.largest_difference for row in self.rows if row.largest_difference is not None), default=None)

    @property
    def shared(self) -> float:
        """The mean share of likeliest words in common."""
        return fmean(row.shared for row in self.rows)

    @property
    def agreement(self) -> float:
        """The share of queries with the same verdict."""
        return fmean(row.agree for row in self.rows)

    @property
    def overlap(self) -> float | None:
        """The mean share of tokens that both showed; None if both showed their whole vocabularies."""
        known = [row.overlap for row in self.rows if row.overlap is not None]
        return fmean(known) if known else None

    @property
    def equal_labels(self) -> float | None:
        """The share of texts that the classifier labels equally on both; None if none was given."""
        return fmean(one == other for _, one, other in self.classified) if self.classified else None

    @property
    def verdict(self) -> Literal["same", "alike", "different"]:
        """The conclusion in one word; a classifier's labels, where they are known, decide what is different."""
        mean, largest = self.mean_difference, self.largest_difference
        answers: Literal["same", "alike", "different"] = "different"
        if mean is not None and largest is not None and self._shows_the_same:
            if largest <= SAME and self.agreement == 1:
                answers = "same"
            elif mean <= ALIKE and self.agreement >= CARRIES:
                answers = "alike"
        if self.equal_labels is None or (answers == "same" and self.equal_labels == 1):
            return answers
        return "alike" if self.equal_labels >= CARRIES else "different"

    @property
    def conclusion(self) -> str:
        """The conclusion in one sentence."""
        advice = {
            "same": "one can replace the other",
            "alike": "a classifier should carry over; check its accuracy on held-out texts",
            "different": "retrain after a swap",
        }[self.verdict]
        word = "alike, not the same" if self.verdict == "alike" else self.verdict.replace("same", "the same")
        if self.classified:
            found = sum(one == other for _, one, other in self.classified)
            return f"{word}: the classifier gives {found} of {len(self.classified)} texts the same label; {advice}"
        if self.shown[0] != self.shown[1]:
            return (
                f"{word}: one shows {self.shown[0]}, the other {self.shown[1]}, and a classifier learns from what it sees; "
                f"{advice}, or compare the labels of a trained classifier"
            )
        return f"{word}: {advice}"

    @property
    def _shows_the_same(self) -> bool:
        return self.shown[0] == self.shown[1] and (self.overlap is None or self.overlap >= CARRIES)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "models": list(self.models),
            "identical": self.identical,
            "verdict": self.verdict,
            "conclusion": self.conclusion,
            "mean_difference": self.mean_difference,
            "largest_difference": self.largest_difference,
            "shared": self.shared,
            "agreement": self.agreement,
            "shown": list(self.shown),
            "overlap": self.overlap,
            "equal_labels": self.equal_labels,
            "classified": [list(row) for row in self.classified],
            "rows": [asdict(row) for row in self.rows],
        }

    def __str__(self) -> str:
        rows = self._cells()
        more = f"\n... and {len(rows) - _SHOWN} more queries" if len(rows) > _SHOWN else ""
        parts = [one_line(f"{self.models[0]} and {self.models[1]}"), aligned([_HEAD, *rows[:_SHOWN]]) + more]
        if self._apart():
            parts.append(aligned([_LABELS, *self._apart()]))
        return "\n\n".join([*parts, f"{self._summary()}\n{self.conclusion}"])

    def _repr_html_(self) -> str:
        title = escape(f"{self.models[0]} and {self.models[1]}: {self.conclusion}")
        apart = html_table(_LABELS, self._apart()) if self._apart() else ""
        table = html_table(_HEAD, self._cells())
        return f"<div><p><b>{title}</b></p>{table}{apart}<p>{escape(self._summary())}</p></div>"

    def _summary(self) -> str:
        return (
            f"log-probabilities differ by {_nats(self.mean_difference)} on average and {_nats(self.largest_difference)} "
            f"at most; {self.shared:.0%} of the likeliest words are shared; {self.agreement:.0%} of verdicts agree; "
            f"shown: {self.shown[0]}, and {self.shown[1]}"
            + ("" if self.overlap is None else f", with {self.overlap:.1%} of the tokens in both")
        )

    def _apart(self) -> Sequence[tuple[str, ...]]:
        """Return the first texts that the classifier labels differently."""
        apart = [(_short(text), repr(one), repr(other)) for text, one, other in self.classified if one != other]
        return apart[:10]

    def _cells(self) -> list[tuple[str, ...]]:
        return [
            (
                _short(row.text),
                row.prompt,
                str(row.compared),
                _nats(row.mean_difference),
                _nats(row.largest_difference),
                f"{row.shared:.0%}",
                repr(row.verdicts[0]),
                "=" if row.agree else repr(row.verdicts[1]),
            )
            for row in self.rows
        ]


_SHOWN = 20
"""How many queries are printed."""

_HEAD = ("text", "prompt", "tokens", "mean", "most", "shared", "verdict", "the other's")
_LABELS = ("labelled differently", "label", "the other's")


def parity(  # noqa: PLR0913 - independent settings, all keywords
    a: MaskedLMBackend,
    b: MaskedLMBackend,
    texts: Any,
    *,
    prompts: Sequence[str | Template] = PROMPTS,
    words: Sequence[str] = (),
    top: int = 20,
    model: str | Path | None = None,
) -> ParityReport:
    """Ask two backends the same queries, and report how their answers differ.

    Every text costs each backend one pass per prompt, and one for each prompt of the classifier, in the phase `predict`.

    Args:
        a: the backend you know.
        b: the backend that should replace it.
        texts: a few texts, or pairs, of the kind to be classified.
        prompts: the prompts to ask with; required for pairs.
        words: the verdict is the likeliest of these words, or of all words if none are given.
        top: how many of the likeliest tokens are compared.
        model: the file of a trained classifier; the share of texts that it labels equally on both decides.
    """
    examples = read_examples(texts)
    if not examples or top < 1:
        raise InputError("parity needs at least one text, and top must be at least 1")
    for backend in (a, b):
        refuse_markers(examples, backend.mask_token)
    last = "last" in {a.abilities.mask, b.abilities.mask}
    pool = [Template(prompt) if isinstance(prompt, str) else prompt for prompt in prompts]
    # If one of them can't read past the mask, neither is asked to.
    templates = fit_templates(pool, Abilities(mask="last" if last else "anywhere"), pairs=examples[0].pair is not None)
    queries = render(examples, templates, Phase.PREDICT)
    said = {example.id: " / ".join(example.texts) for example in examples}
    labels = [] if model is None else [_labels(model, backend, examples) for backend in (a, b)]
    answers = [(backend.vocabulary, list(backend.stream(queries))) for backend in (a, b)]
    missing = [word for word in words for vocabulary, _ in answers if vocabulary.find(word) is None]
    if missing:
        raise InputError(f"{missing[0]!r} is not a token of both models; choose another word")
    rows = tuple(
        _row(
            said[query.example],
            query.prompt,
            *(_Side(vocabulary, found[at], words, top) for vocabulary, found in answers),
        )
        for at, query in enumerate(queries)
    )
    return ParityReport(
        (a.identity.name, b.identity.name),
        a.identity == b.identity,
        rows,
        (_shown(a.abilities), _shown(b.abilities)),
        tuple(zip([said[example.id] for example in examples], *labels, strict=True)) if labels else (),
    )


def _labels(model: str | Path, backend: MaskedLMBackend, examples: Sequence[Example]) -> list[Any]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* was trained on another model")  # which is what is being measured
        classifier = PromptBoostingClassifier.load(model, backend)
    found: list[Any] = classifier.predict([*map(_as_given, examples)]).tolist()
    return found


def _as_given(example: Example) -> str | tuple[str, ...]:
    return example.text if example.pair is None else example.texts


def _shown(abilities: Abilities) -> str:
    if abilities.whole:
        return "the whole vocabulary"
    return f"the top {abilities.top} tokens" + (", and any that it is asked for" if abilities.chosen else "")


class _Side:
    """One backend's answer: its likeliest tokens, and its verdict."""

    def __init__(self, vocabulary: Vocabulary, answer: MaskDistribution, words: Sequence[str], top: int) -> None:
        self.vocabulary = vocabulary
        self.answer = answer
        self.best = _likeliest(answer, top)
        self.top = [vocabulary[int(token)] for token in self.best]
        self.verdict = max(words, key=self._value) if words else self.top[0].strip()

    def value(self, word: str) -> float | None:
        """Return the log-probability of exactly this word, or None where it is not shown."""
        token = self.vocabulary.get(word)
        if token is None or (self.answer.tokens is not None and token not in self.answer.tokens):
            return None
        return float(self.answer.at(np.array([token]))[0]) / -STEPS_PER_NAT

    @property
    def whole(self) -> bool:
        return self.answer.tokens is None

    def words(self) -> list[str]:
        """Return the words of all tokens shown."""
        tokens = range(len(self.answer.codes)) if self.answer.tokens is None else self.answer.tokens
        return [self.vocabulary[int(token)] for token in tokens]

    def _value(self, word: str) -> float:
        token = self.vocabulary.find(word)
        return -np.inf if token is None else float(self.answer.at(np.array([token]))[0]) / -STEPS_PER_NAT


def _likeliest(answer: MaskDistribution, top: int) -> Tokens:
    best = np.argsort(answer.codes, kind="stable")[:top]
    return best if answer.tokens is None else answer.tokens[best]


def _row(text: str, prompt: str, a: _Side, b: _Side) -> ParityRow:
    pairs: Mapping[str, tuple[float | None, float | None]] = {
        word: (a.value(word), b.value(word)) for word in dict.fromkeys([*a.top, *b.top])
    }
    gaps = [abs(one - other) for one, other in pairs.values() if one is not None and other is not None]
    return ParityRow(
        text=text,
        prompt=prompt,
        compared=len(gaps),
        mean_difference=fmean(gaps) if gaps else None,
        largest_difference=max(gaps) if gaps else None,
        shared=len(set(a.top) & set(b.top)) / len(set(a.top)),
        top=(tuple(a.top[:5]), tuple(b.top[:5])),
        verdicts=(a.verdict, b.verdict),
        overlap=None if a.whole and b.whole else _overlap(a, b),
    )


def _overlap(a: _Side, b: _Side) -> float:
    few, many = sorted((a, b), key=lambda side: len(side.answer.codes))
    both = sum(many.value(word) is not None for word in few.words())
    return both / (len(few.answer.codes) + len(many.answer.codes) - both)


def _nats(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _short(text: str, length: int = 40) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"
