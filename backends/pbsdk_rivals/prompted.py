"""Examples under a prompt, and the words that say the classes: what most rivals begin with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pbsdk.backend import Phase, Vocabulary
from pbsdk.errors import InputError
from pbsdk.queries.examples import Example
from pbsdk.queries.templates import Style, Template
from pbsdk.reproduce.rivals import Contest, Rival
from pbsdk_rivals.box import Row, WhiteBox

__all__ = ["Worded", "label_tokens", "rows_of", "texts_of"]


class Worded(Rival):
    """A rival that needs a word for each class."""

    def check_contest(self, contest: Contest) -> None:
        """Refuse a model without a token for one of them."""
        label_tokens(contest, contest.backend.vocabulary)


def rows_of(box: WhiteBox, examples: Iterable[Example], template: Template, style: Style) -> list[Row]:
    """Read examples under a template."""
    return [box.row(template.query(example, Phase.TRAIN, style)) for example in examples]


def texts_of(box: WhiteBox, examples: Sequence[Example]) -> list[Row]:
    """Read examples without a prompt."""
    pairs = bool(examples) and examples[0].pair is not None
    bare = Template("<input> <input2> <mask>" if pairs else "<input> <mask>")
    return [box.text_row(bare.query(example)) for example in examples]


def label_tokens(contest: Contest, vocabulary: Vocabulary) -> list[int]:
    """Return a token for each class: its word in the literature, or else its name."""
    tokens = []
    for word in contest.words:
        token = vocabulary.find(word)
        if token is None:
            raise InputError(
                f"this model has no single token for {word!r}, which would say a class of {contest.dataset}; leave out the methods with label words"
            )
        tokens.append(token)
    return tokens
