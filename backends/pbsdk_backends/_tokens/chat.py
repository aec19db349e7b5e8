"""A query as a conversation, for models that were taught to answer in turns.

The user gives the text, with what the prompt says before it; the words that the prompt says after
it begin the assistant's answer. So `<input> It was <mask>` has the user say the text and the assistant
"It was", and the mask is the next word of a sentence that the assistant has begun: no quotes, no
"Sure!" in its place. Prompts that differ only in those words share the reading of all that stands before
them.

A query that is a conversation by itself, with an instruction and demonstrations as turns, is put so: the question is the user's last
turn, as each demonstration's was, and the mask is the first word of the answer.

A local model's template is rendered up to the assistant's turn (`frame_of`), and the answer's beginning is
written behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Self

from pbsdk.backend import Part
from pbsdk.errors import InputError

__all__ = ["Conversation", "Frame", "frame_of", "turns"]

PLACE = "\ufdd1"
"""Stands for the user's words while the template is rendered: a noncharacter, never part of a text."""
SETTINGS = {"enable_thinking": False, "date_string": "1 January 2025"}
"""What some templates ask: to answer at once, and not to tell today's date, which would change the answers daily."""


def turns(parts: Sequence[Part]) -> tuple[list[Part], str]:
    """Return what the user says, and how the assistant's answer begins.

    >>> turns([Part("prompt", "Review: "), Part("input", "Dull."), Part("prompt", " It was ")])
    ([Part(kind='prompt', text='Review: '), Part(kind='input', text='Dull.')], 'It was')
    """
    end = max((at + 1 for at, part in enumerate(parts) if part.kind == "input"), default=0)
    return list(parts[:end]), "".join(part.text for part in parts[end:]).strip()


class Conversation(NamedTuple):
    """A query in turns."""

    instruction: str
    shown: tuple[str, ...]
    """What user and assistant said before, in turns."""
    question: list[Part]
    """What the user says last."""
    opening: str
    """How the assistant's answer begins."""

    @classmethod
    def of(cls, parts: Sequence[Part]) -> Self:
        """Take the parts before the mask apart.

        >>> Conversation.of([Part("turn"), Part("prompt", "1?"), Part("turn"), Part("prompt", "one"), Part("turn"), Part("input", "2?")]).shown
        ('1?', 'one')
        """
        ends = [place for place, part in enumerate(parts) if part.kind == "turn"]
        if not ends:
            return cls("", (), *turns(parts))
        texts = ["" if part.kind == "turn" else part.text for part in parts]
        said = ["".join(texts[start:end]) for start, end in pairwise([0, *ends])]
        *question, last = parts[ends[-1] + 1 :] or [Part("prompt")]
        return cls(said[0], tuple(said[1:]), [*question, Part(last.kind, last.text.rstrip())], "")


class Frame(NamedTuple):
    """What a chat template writes around the words of a conversation."""

    before: str
    """Before what the user says, if that comes first."""
    after: str
    """Behind what the user says last: the assistant's turn begins."""
    instructing: str = ""
    """Before an instruction."""
    instructed: str = ""
    """Between an instruction and what the user says; nothing if the template knows no instructions."""
    answering: str = ""
    """Between what the user says and what the assistant answers."""
    answered: str = ""
    """Between that and what the user says next."""

    def around(self, parts: Sequence[Part]) -> tuple[Part, ...]:
        """Return a query's parts as the conversation that the model reads."""
        said = Conversation.of(parts)
        head = self.before
        if said.instruction and self.instructed:
            head = self.instructing + said.instruction + self.instructed
        elif said.instruction:
            head += f"{said.instruction}\n\n"
        for asked, answer in zip(said.shown[::2], said.shown[1::2], strict=True):
            head += asked + self.answering + answer + self.answered
        return (Part("prompt", head), *said.question, Part("prompt", self.after + said.opening))


def frame_of(tokenizer: Any, name: str, *, causal: bool) -> Frame:
    """Render the tokenizer's template around an empty place, up to where the assistant begins."""
    if not causal:
        raise InputError(f"chat=True is for causal models, and {name!r} is a masked one; leave chat out")
    if not getattr(tokenizer, "chat_template", None):
        raise InputError(f"{name!r} comes without a chat template; leave chat out, or choose an instruct model")
    try:
        pieces = _rendered(tokenizer, "user")
    except Exception as error:  # a template is a program of the model's authors, and may raise anything
        raise InputError(f"the chat template of {name!r} can't be rendered ({error}); leave chat out") from error
    if len(pieces) != 2:
        raise InputError(f"the chat template of {name!r} doesn't show the user's words once; leave chat out")
    plain = Frame(*pieces)
    try:
        before, answering, answered, after = _rendered(tokenizer, "user", "assistant", "user")
        longer = _rendered(tokenizer, "user", "assistant", "user", "assistant", "user")
    except Exception as error:
        raise InputError(f"the chat template of {name!r} can't show turns ({error}); leave chat out") from error
    if (before, after) != tuple(pieces) or longer != [before, *[answering, answered] * 2, after]:
        raise InputError(f"the chat template of {name!r} writes each turn in a way of its own; leave chat out")
    plain = plain._replace(answering=answering, answered=answered)
    try:
        told = _rendered(tokenizer, "system", "user")
    except Exception:  # noqa: BLE001 - it knows no instructions: the user says them
        return plain
    return plain._replace(instructing=told[0], instructed=told[1]) if len(told) == 3 and told[2] == after else plain


def _rendered(tokenizer: Any, *roles: str) -> list[str]:
    """Return what the template writes around the words of a conversation."""
    said = [{"role": role, "content": PLACE} for role in roles]
    rendered: str = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True, **SETTINGS)
    return rendered.split(PLACE)
