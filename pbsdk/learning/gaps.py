"""Answers with gaps: what becomes of a stream of answers where not every example was asked under every prompt.

A prompt that shows an example as a demonstration doesn't ask about it. Answers come without those; readers of answers count on
one per example and prompt.

>>> list(with_gaps("ab", [True, False, True]))
['a', None, 'b']
>>> list(with_stand_ins("abc", [False, True, True, True], 2))
['b', 'a', 'b', 'c']
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TypeVar

__all__ = ["with_gaps", "with_stand_ins"]

T = TypeVar("T")


def with_gaps(answers: Iterable[T], asked: Iterable[bool]) -> Iterator[T | None]:
    """Yield the answers in order, and None where nothing was asked."""
    stream = iter(answers)
    for has_answer in asked:
        answer = next(stream, None) if has_answer else None
        if has_answer and answer is None:  # whoever counts the answers will say so
            return
        yield answer


def with_stand_ins(answers: Iterable[T], asked: Iterable[bool], n_templates: int) -> Iterator[T]:
    """Yield the answers, which come template by template, and some other answer of the same template where nothing was asked.

    What is before the first answer of a template waits for it.
    """
    stream = iter(answers)
    latest: dict[int, T] = {}
    waiting: deque[tuple[int, T | None]] = deque()
    for place, has_answer in enumerate(asked):
        template = place % n_templates
        if has_answer:
            answer = next(stream, None)
            if answer is None:  # likewise
                return
            latest[template] = answer
            waiting.append((template, answer))
        else:
            waiting.append((template, None))
        while waiting and waiting[0][0] in latest:
            first, own = waiting.popleft()
            yield latest[first] if own is None else own
    yield from stream
