"""How a query is put to a chat API, where the server's template stands between us and the model.

`prefill` is the way of `_tokens.chat`: the user says the text, and the assistant's turn begins with the
prompt's last words. Some servers go on with a last message of the assistant's (llama.cpp), some want to be
told to (vLLM), and some begin a new turn whatever one says. There the sentence is shown with a
blank, after two that are filled in by one word each, so that the answer's first token is such a word.

A query that is a conversation by itself needs none of these: demonstrations come as turns, and show what an answer looks like.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any, Literal

from pbsdk.backend import MaskedQuery, Part
from pbsdk_backends._tokens.chat import Conversation

__all__ = ["BLANK", "PREFILLS", "PROBE", "Opening", "conversation", "goes_on"]

Opening = Literal["told", "last", "blank"]
PREFILLS: tuple[Opening, ...] = ("told", "last")
"""Ways to begin the assistant's turn, to be tried in this order."""
BLANK = "Fill in the blank with one word."
_TOLD = {"continue_final_message": True, "add_generation_prompt": False}
_SHOWN = (
    ("The sun was shining all day. The weather was ___", "fine"),
    ("She plays the piano every evening. Her hobby is ___", "music"),
)
PROBE = MaskedQuery(
    (Part("input", "Anna lives in Paris, and Bert lives in Rome."), Part("prompt", " Anna lives in "), Part("mask")),
    example="",
    prompt="",
)


def conversation(parts: Sequence[Part], opening: Opening, instruction: str | None) -> dict[str, Any]:
    """Return the part of a request that says what was said so far.

    `instruction` is what the model is told first; None: nothing, or to fill in the blank.
    """
    whole = Conversation.of(parts)
    in_turns = bool(whole.shown or whole.instruction)
    if instruction is None and opening == "blank" and not in_turns:
        instruction = BLANK
    told = "\n\n".join(filter(None, (instruction, whole.instruction)))
    system = [_message("system", told)] if told else []
    if in_turns:
        earlier = [_message(role, text) for role, text in zip(cycle(("user", "assistant")), whole.shown, strict=False)]
        return {"messages": [*system, *earlier, _message("user", _text(whole.question))]}
    if opening == "blank":
        shown = [
            _message(role, text) for pair in _SHOWN for role, text in zip(("user", "assistant"), pair, strict=True)
        ]
        text = "".join(part.text for part in parts).rstrip()
        return {"messages": [*system, *shown, _message("user", f"{text} ___".lstrip())]}
    asked = [*system, _message("user", _text(whole.question))]
    if not whole.opening:
        return {"messages": asked}
    return {"messages": [*asked, _message("assistant", whole.opening)], **(_TOLD if opening == "told" else {})}


def goes_on(word: str) -> bool:
    """Say whether the likeliest answer to `PROBE` goes on with the sentence; a new turn begins without a space."""
    return word in {" Paris", "\u2581Paris"}


def _text(parts: Sequence[Part]) -> str:
    return "".join(part.text for part in parts) or "\n"  # an empty message is refused by some servers


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
