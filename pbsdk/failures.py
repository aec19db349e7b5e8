"""What becomes of a text that can't be read, or that the model can't be asked about, while thousands of others can.

`on_error` says it: "fail" ends the prediction, as it should while something is being tried out; "skip" leaves the text out; "record"
keeps its place and says what went wrong. Only what is about single texts is treated so. A budget that is used up, a ledger that
can't be written and Ctrl-C end a prediction always, and so does a model that fails for `MOST_IN_A_ROW` texts in a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from pbsdk.backend import MaskDistribution, MaskedQuery
from pbsdk.errors import BackendError, BadAnswer, InputError, PbsdkError
from pbsdk.queries.examples import Example, text_rows

__all__ = ["MOST_IN_A_ROW", "OnError", "Streak", "ask_each", "check_on_error", "read_each"]

OnError = Literal["fail", "skip", "record"]

MOST_IN_A_ROW = 20
"""After so many texts in a row that the model failed for, it is the model and not the texts."""

LOT = 500
"""How many texts are asked about at once after one has failed: a further failure makes the rest of its lot be looked up again."""

Answers = list[MaskDistribution | None]
Ask = Callable[[Sequence[MaskedQuery]], Iterator[MaskDistribution]]


def check_on_error(on_error: str, choices: Sequence[str] = ("fail", "skip", "record")) -> None:
    """Refuse what is none of the choices."""
    if on_error not in choices:
        raise InputError(f"on_error must be one of {', '.join(map(repr, choices))}; not {on_error!r}")


def read_each(texts: Any, read: Callable[[Any], list[Example]], *, pairs: bool) -> Sequence[Example | InputError]:
    """Read texts or pairs; one that can't be read leaves its error.

    >>> from pbsdk.queries.examples import read_examples
    >>> good, bad = read_each(["fine", None], read_examples, pairs=False)
    >>> good, str(bad)
    (Example(text='fine', pair=None), 'the text is missing (None); drop that row, or put an empty text there')
    """
    rows = text_rows(texts)
    with suppress(InputError):  # they seldom fail, and reading them all at once is quicker
        examples = read(rows)
        if all((example.pair is not None) == pairs for example in examples):
            return examples
    return [_read_one(row, read, pairs=pairs) for row in rows]


def _read_one(row: Any, read: Callable[[Any], list[Example]], *, pairs: bool) -> Example | InputError:
    try:
        (example,) = read([row])
    except InputError as error:
        problem = error.problem.replace("texts[0]", "the text")
        return InputError(problem, setting=error.setting, value=error.value)
    fits = (example.pair is not None) == pairs
    return example if fits else InputError(f"the prompts take {'pairs of texts' if pairs else 'one text, not pairs'}")


def ask_each(
    rows: Sequence[Sequence[MaskedQuery | None]], ask: Ask, *, fail: bool = False
) -> Iterator[Answers | BackendError]:
    """Yield the answers of each row, None where there is no query, or why the model can't be asked about it.

    A row is lost with its first query that fails for good, and its others are not asked any more. The rest is asked again
    without it: what was answered is recalled. With `fail` the first error is raised.
    """
    lost: dict[int, BackendError] = {}
    done, most = 0, len(rows)
    while done < len(rows):
        lot = range(done, min(done + most, len(rows)))
        wanted = [(row, slot) for row in lot if row not in lost for slot in rows[row] if slot is not None]
        answers = ask([query for _, query in wanted])
        try:
            for row in lot:
                yield lost[row] if row in lost else _of_row(rows[row], answers)
                done = row + 1
        except BackendError as error:
            if fail or not error.failures:  # nobody says which
                raise
            lost |= {wanted[place][0]: why for place, why in error.failures.items()}
            most = LOT


def _of_row(slots: Sequence[MaskedQuery | None], answers: Iterator[MaskDistribution]) -> Answers:
    """Take a row's answers from those to come."""
    found: Answers = []
    for slot in slots:
        answer = None if slot is None else next(answers, None)
        if slot is not None and answer is None:
            raise BadAnswer("fewer answers came than queries were asked")
        found.append(answer)
    return found


@dataclass
class Streak:
    """How many texts in a row the model failed for."""

    length: int = 0

    def count(self, error: PbsdkError | None) -> None:
        """Count one more text, and end what can't go on; a text that can't be read says nothing of the model."""
        if isinstance(error, BackendError):
            self.length += 1
            if self.length >= MOST_IN_A_ROW:
                raise BackendError(f"{MOST_IN_A_ROW} texts in a row failed, so it isn't the texts: {error}") from error
        elif error is None:
            self.length = 0
