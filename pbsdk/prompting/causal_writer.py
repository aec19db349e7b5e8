"""Continuation: a causal model writes prompts by continuing the text.

A causal model can't fill a gap, but it can be asked how it would continue. A prompt A is likely if,
after every training text, the model continues with A and then with the word for the text's class:
the sum over the examples of log p(A | text) + log p(label word | text, A). The search of
`pbsdk.prompting.generation` finds such prompts token by token.

All of this needs no more than the interface: each step asks a backend what comes last in
"<input> A <mask>". So any causal backend that shows its whole vocabulary can write prompts, local or
remote, and its passes are ordinary queries in the phase `generate`, which a meter counts and records.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pbsdk.backend import STEPS_PER_NAT, MaskedLMBackend, ModelIdentity, Phase, Tokens
from pbsdk.errors import InputError
from pbsdk.queries.examples import Example
from pbsdk.queries.rendering import render
from pbsdk.queries.templates import INPUT, INPUT2, MASK, Template

__all__ = ["CausalWriter"]

Floats = npt.NDArray[np.float64]
Prefix = tuple[int, ...]

# Control tokens and our own markers have brackets or bars; a broken character is half a letter; and
# small models love to begin a new paragraph or a numbered list, whatever the text was about.
_UNFIT = re.compile(r"[<>\[\]|\ufffd\d]|[^\S ]|^ *$")


class CausalWriter:
    """Writes prompts whose mask comes last, with any causal backend that shows its whole vocabulary.

    Args:
        backend: the model, metered or not; see `pbsdk.connect`.
        beam: how many prefixes a search keeps by default.
        max_tokens: the maximum number of tokens in a prompt, by default.
    """

    method = "causal"
    mask_last = True

    def __init__(self, backend: MaskedLMBackend, *, beam: int = 20, max_tokens: int = 8) -> None:
        if backend.abilities.mask != "last":
            raise InputError(
                f"{backend.identity.name} isn't causal, so it can't continue a text; write prompts with a causal model, "
                "or with a T5"
            )
        if not backend.abilities.whole:
            raise InputError(
                f"{backend.identity.name} doesn't show its whole vocabulary, so it can't propose words; write prompts "
                "with another model, such as the embedded one"
            )
        self.identity: ModelIdentity = backend.identity
        self.beam = beam
        self.max_tokens = max_tokens
        self.forwards = 0
        self._backend = backend
        self._words = [backend.vocabulary[token] for token in range(len(backend.vocabulary))]
        self._unfit = np.array([_UNFIT.search(word) is not None for word in self._words])  # (V,)
        self._examples: list[Example] = []
        self._pieces: list[tuple[int, ...]] = []

    def open(self, examples: Sequence[tuple[str, ...]], words: Sequence[str]) -> None:
        """Take the training texts, or pairs of texts, and the label word of each."""
        self._examples = [Example(*texts) for texts in examples]
        spelled = {word: self._spelled(f" {word}") for word in dict.fromkeys(words)}
        self._pieces = [spelled[word] for word in words]

    def extend(self, prefixes: Sequence[Prefix]) -> tuple[Floats, Floats]:
        """Return the summed log-likelihood of every next token, (B, V), and of the label words, (B,)."""
        templates = [Template(self.prompt(prefix)) for prefix in prefixes]
        following = np.zeros((len(prefixes), len(self._words)))  # (B, V)
        ending = np.zeros(len(prefixes))  # (B,)
        queries = render(self._examples, templates, Phase.GENERATE)
        for at, answer in enumerate(self._backend.stream(queries)):
            example, prefix = divmod(at, len(prefixes))
            logprobs = answer.logprobs
            following[prefix] += logprobs
            ending[prefix] += logprobs[self._pieces[example][0]]
        self.forwards += len(queries)
        self._add_later_pieces(prefixes, ending)
        following[:, self._unfit] = -np.inf
        ending[[self._unfinished(prefix) for prefix in prefixes]] = -np.inf
        return following, ending

    def prompt(self, prefix: Prefix) -> str:
        """Return a prefix as a prompt in pbsdk's notation; both texts of a pair come first."""
        pair = bool(self._examples) and self._examples[0].pair is not None
        return f"{INPUT}\n{INPUT2}{self._said(prefix)} {MASK}" if pair else f"{INPUT}{self._said(prefix)} {MASK}"

    def _add_later_pieces(self, prefixes: Sequence[Prefix], ending: Floats) -> None:
        """Add the likelihood of what follows the first piece of label words that have several."""
        for example, pieces in zip(self._examples, self._pieces, strict=True):
            for told in range(1, len(pieces)):
                templates = [Template(self.prompt((*prefix, *pieces[:told]))) for prefix in prefixes]
                queries = render([example], templates, Phase.GENERATE)
                wanted: Tokens = np.array([pieces[told]])
                for at, answer in enumerate(self._backend.stream(queries, wanted)):
                    ending[at] += answer.at(wanted)[0] / -STEPS_PER_NAT
                self.forwards += len(queries)

    def _said(self, prefix: Prefix) -> str:
        return "".join(self._words[token] for token in prefix)

    def _unfinished(self, prefix: Prefix) -> bool:
        said = self._said(prefix)
        return not said.strip() or said != said.rstrip()

    def _spelled(self, word: str) -> tuple[int, ...]:
        """Return the tokens that spell a word, always taking the longest that fits."""
        ids = {said: token for token, said in reversed(list(enumerate(self._words))) if said}
        pieces: list[int] = []
        rest = word
        while rest:
            fitting = (rest[:end] for end in range(len(rest), 0, -1) if rest[:end] in ids)
            piece = next(fitting, None)
            if piece is None:
                raise InputError(
                    f"{self.identity.name} has no token for {rest!r} in the label word {word.strip()!r}; use another word"
                )
            pieces.append(ids[piece])
            rest = rest[len(piece) :]
        return tuple(pieces)
