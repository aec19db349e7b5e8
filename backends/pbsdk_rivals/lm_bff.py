"""LM-BFF: fine-tuning with a prompt, whose words name the classes (Gao et al., ACL 2021), with and without demonstrations.

Before training, one forward pass of every training example under each candidate prompt chooses the prompt, and, if asked to, the words: for each class the words
that are likeliest for its examples, in the combination that is most often right without training. The published search fine-tunes a model for
each of a hundred prompts; this one looks at what they say untrained, which costs as many passes as there are candidates. The candidates are the first prompts of the
run, so `--prompts generated` has them written by a model.

Then all weights are trained on the label words' cross-entropy: 1,000 updates on batches of 2, AdamW at 1e-5 with linear decay, as published. With demonstrations every text
comes with one random training example of each class, whose word is filled in; at prediction it is asked with 16 random sets and the logits are averaged. A
masked model reads them after the text, a causal one before it. The published filter by similarity needs a sentence encoder and is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pbsdk.backend import MaskedQuery, Part, Phase, Vocabulary
from pbsdk.errors import InputError
from pbsdk.queries.examples import Example
from pbsdk.queries.templates import Template
from pbsdk.reproduce.rivals import Contest, Passes
from pbsdk_rivals.adaptation import Adapted, Adapting
from pbsdk_rivals.box import Row, WhiteBox
from pbsdk_rivals.prompted import label_tokens, rows_of

__all__ = ["LmBff", "LmBffDemo", "best_words"]

COMBINATIONS = 10_000
"""How many combinations of words are tried for a prompt."""


@dataclass(frozen=True)
class LmBff(Adapting):
    """Prompt-based fine-tuning."""

    name = "lm-bff"
    title = "LM-BFF"

    batch_size: int = 2
    max_updates: int = 1000
    candidates: int = 10
    """How many prompts are looked at."""
    words: str = "manual"
    """Which words name the classes: `manual`, those of the literature, or `search`."""

    def __post_init__(self) -> None:
        if self.words not in {"manual", "search"}:
            raise InputError(f"{self.name}.words must be manual or search, not {self.words!r}")

    def check_contest(self, contest: Contest) -> None:
        """Refuse a model without a word for a class, unless words are searched for."""
        if self.words == "manual":
            label_tokens(contest, contest.backend.vocabulary)

    @property
    def preparation(self) -> int:
        """One step chooses prompt and words."""
        return 1

    def updates(self, contest: Contest) -> int:
        """Return how many updates there are."""
        del contest
        return self.max_updates

    def templates(self, contest: Contest) -> list[Template]:
        """Return the candidate prompts."""
        return list(contest.templates[: self.candidates])

    def step_passes(self, contest: Contest, number: int) -> Passes:
        """Return the passes of the choice, or of an epoch."""
        if number < self.preparation:
            return Passes.of(contest.train.examples, len(self.templates(contest)))
        return super().step_passes(contest, number)

    def learner(self, contest: Contest) -> Prompted:
        """Return the learner."""
        return Prompted(self, contest, WhiteBox(contest.backend, contest.meter))

    def parameters(self, contest: Contest) -> int:
        """Return the model's size."""
        return sum(weight.numel() for weight in WhiteBox(contest.backend, contest.meter).model.parameters())


@dataclass(frozen=True)
class LmBffDemo(LmBff):
    """Prompt-based fine-tuning with demonstrations."""

    name = "lm-bff-demo"
    title = "LM-BFF with demonstrations"

    samples: int = 16
    """With how many sets of demonstrations a text is asked at prediction."""

    @property
    def predict_passes(self) -> int:
        """One for each set of demonstrations."""
        return self.samples

    def learner(self, contest: Contest) -> Demonstrated:
        """Return the learner."""
        return Demonstrated(self, contest, WhiteBox(contest.backend, contest.meter))


def best_words(
    logprobs: np.ndarray[Any, Any], labels: np.ndarray[Any, Any], n_classes: int, allowed: np.ndarray[Any, Any]
) -> tuple[tuple[float, float], list[int]]:
    """Return how good the best combination of words is (accuracy, margin), and its tokens.

    Args:
        logprobs: of every token for every example (N, V).
        labels: the examples' classes.
        n_classes: how many there are.
        allowed: the tokens that may name a class.
    """
    width = max(2, int(COMBINATIONS ** (1 / n_classes)))
    chosen = []
    for label in range(n_classes):
        mean = logprobs[labels == label][:, allowed].mean(axis=0)
        chosen.append(allowed[np.argsort(-mean, kind="stable")[:width]])
    best: tuple[tuple[float, float], list[int]] = ((-1.0, 0.0), [])
    rows = np.arange(len(labels))
    for tokens in product(*chosen):
        if len(set(tokens)) < n_classes:
            continue
        scores = logprobs[:, tokens]
        right = scores[rows, labels]
        others = scores.copy()
        others[rows, labels] = -np.inf
        margin = right - others.max(axis=1)
        found = (float((margin > 0).mean()), float(margin.mean()))
        if found > best[0]:
            best = (found, [int(token) for token in tokens])
    if not best[1]:
        raise InputError("no combination of different words was found for the classes; use words=manual")
    return best


def words_of(vocabulary: Vocabulary) -> np.ndarray[Any, Any]:
    """Return the tokens that are words of letters; those that begin with a space, where there are any."""
    letters = [token for token in range(len(vocabulary)) if vocabulary[token].strip().isalpha()]
    spaced = [token for token in letters if vocabulary[token].startswith(" ")]
    return np.array(spaced or letters)


class Prompted(Adapted):
    """A model that is trained under a prompt."""

    def __init__(self, rival: LmBff, contest: Contest, box: WhiteBox) -> None:
        super().__init__(rival, contest, box)
        self._templates, self._search = rival.templates(contest), rival.words == "search"
        self._place = 0
        self._words = label_tokens(contest, contest.backend.vocabulary) if not self._search else []

    def step(self, number: int) -> None:
        """Choose prompt and words, or train for an epoch."""
        if number < self._rival.preparation:
            self._choose()
        else:
            super().step(number)

    def _choose(self) -> None:
        """Take the prompt, and perhaps the words, that are best without training."""
        contest, box = self._contest, self._box
        labels = np.asarray(contest.train.labels)
        allowed = words_of(contest.backend.vocabulary) if self._search else np.array(self._words)
        best = (-1.0, 0.0)
        for place, template in enumerate(self._templates):
            rows = rows_of(box, contest.train.examples, template, contest.style)
            logits = box.each(rows, box.logits).float().log_softmax(dim=-1).cpu().numpy()
            if self._search:
                found, words = best_words(logits, labels, len(contest.classes), allowed)
            else:
                scores, words = logits[:, allowed], self._words
                right = scores[np.arange(len(labels)), labels]
                found = (float((scores.argmax(axis=1) == labels).mean()), float(right.mean()))
            if found > best or not place:
                best, self._place, self._words = found, place, words

    @property
    def template(self) -> Template:
        """The prompt that was chosen."""
        return self._templates[self._place]

    def lengths(self, examples: Sequence[Example]) -> list[Row]:
        """Return the examples' rows."""
        return rows_of(self._box, examples, self.template, self._contest.style)

    def learn(self, batch: Sequence[int], epoch: int) -> None:
        """Run a batch forward and backward."""
        rows = self.rows_to_learn(list(self.examples_of(batch)), epoch)
        logits = self._box.logits(rows, model=self.model)[:, self._words]
        self._box.backward(nn.functional.cross_entropy(logits.float(), self.labels_of(batch)), rows)

    def rows_to_learn(self, examples: Sequence[Example], epoch: int) -> list[Row]:
        """Return what a batch's examples are learned from."""
        del epoch
        return self.lengths(examples)

    def class_logits(self, examples: Sequence[Example]) -> Tensor:
        """Return the logits (N, C) of the label words."""
        return self._asked(self.lengths(examples))

    def _asked(self, rows: Sequence[Row]) -> Tensor:
        return self._box.each(rows, lambda batch: self._box.logits(batch, model=self.model)[:, self._words].float())

    def state(self) -> dict[str, Any]:
        """Return the weights and what was chosen."""
        return {**super().state(), "place": self._place, "words": self._words}

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a state."""
        super().restore(state)
        self._place, self._words = state["place"], list(state["words"])


class Demonstrated(Prompted):
    """A model that is trained under a prompt, with demonstrations."""

    _rival: LmBffDemo

    def rows_to_learn(self, examples: Sequence[Example], epoch: int) -> list[Row]:
        """Return each example's row with demonstrations of this epoch's."""
        return [self._row(example, [2, epoch]) for example in examples]

    def lengths(self, examples: Sequence[Example]) -> list[Row]:
        """Return rows with demonstrations, which differ a little in length from one set to the next."""
        return [self._row(example, [3, 0]) for example in examples]

    def class_logits(self, examples: Sequence[Example]) -> Tensor:
        """Return the mean logits (N, C) over sets of demonstrations."""
        found = [
            self._asked([self._row(example, [3, sample]) for example in examples])
            for sample in range(self._rival.samples)
        ]
        return torch.stack(found).mean(dim=0)

    def _row(self, example: Example, numbers: Sequence[int]) -> Row:
        """Return an example's row with one random demonstration of each class, never itself."""
        train, template, style = self._contest.train, self.template, self._contest.style
        random = np.random.default_rng([self._contest.seed, *numbers, int(example.id[:8], 16)])
        query = template.query(example, Phase.TRAIN, style)
        shown: list[Part] = []
        for label in random.permutation(len(self._contest.classes)).tolist():
            places = [
                at for at in np.flatnonzero(train.labels == label).tolist() if train.examples[at].id != example.id
            ]
            one = template.query(train.examples[random.choice(places)], Phase.TRAIN, style)
            word = self._contest.backend.vocabulary[self._words[label]].strip()
            parts = [Part("prompt", word) if part.kind == "mask" else part for part in one.parts]
            shown += [*parts, Part("prompt", " ")] if self._box.causal else [Part("prompt", " "), *parts]
        both = (*shown, *query.parts) if self._box.causal else (*query.parts, *shown)
        return self._box.row(MaskedQuery(both, query.example, query.prompt, query.phase))
