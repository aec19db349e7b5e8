"""A query as a conversation, for models that were taught to answer in turns.

The user gives the text, with what the prompt says before it; the words that the prompt says after
it begin the assistant's answer. So `<input> It was <mask>` has the user say the text and the assistant
"It was", and the mask is the next word of a sentence that the assistant has begun: no quotes, no
"Sure!" in its place. Prompts that differ only in those words share the reading of all that stands before
them.

A local model's template is rendered up to the assistant's turn (`frame_of`), and the answer's beginning is
written behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pbsdk.backend import Part
from pbsdk.errors import InputError

__all__ = ["Frame", "frame_of", "turns"]

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


class Frame(NamedTuple):
    """What a chat template writes around the user's words."""

    before: str
    after: str

    def around(self, parts: Sequence[Part]) -> tuple[Part, ...]:
        """Return a query's parts as the conversation that the model reads."""
        said, opening = turns(parts)
        return (Part("prompt", self.before), *said, Part("prompt", self.after + opening))


def frame_of(tokenizer: Any, name: str, *, causal: bool) -> Frame:
    """Render the tokenizer's template around an empty place, up to where the assistant begins."""
    if not causal:
        raise InputError(f"chat=True is for causal models, and {name!r} is a masked one; leave chat out")
    if not getattr(tokenizer, "chat_template", None):
        raise InputError(f"{name!r} comes without a chat template; leave chat out, or choose an instruct model")
    try:
        rendered = tokenizer.apply_chat_template(
            [{"role": "user", "content": PLACE}], tokenize=False, add_generation_prompt=True, **SETTINGS
        )
    except Exception as error:  # a template is a program of the model's authors, and may raise anything
        raise InputError(f"the chat template of {name!r} can't be rendered ({error}); leave chat out") from error
    before, place, after = rendered.partition(PLACE)
    if not place or PLACE in after:
        raise InputError(f"the chat template of {name!r} doesn't show the user's words once; leave chat out")
    return Frame(before, after)
