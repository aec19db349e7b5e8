"""How a query becomes token ids: as its tokenizer would read it, but never misled by the text.

A tokenizer looks for its control tokens in whatever it is given, so a text that says `</s>` would
end the sentence. Tokenising part by part avoids that but breaks other things: words merge across the
borders of parts, and many tokenizers treat the start of a text specially. So a query is read whole,
by a copy of the tokenizer in which every control token is spelled with a character that no text
contains. Text can't spell them; the mask is put in by its hidden spelling; ordinary text gives
exactly the ids that the tokenizer itself gives.

The offsets of the tokens tell which of them belong to an input. If the whole is longer than the
model reads, inputs lose tokens at their ends, always the longest input first.

With a `Frame` the query is read as a conversation. The frame's own control tokens are put in by their
hidden spellings, so that no text can end its turn.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from pbsdk.backend import MaskedQuery, has_half_character
from pbsdk.errors import QueryRefused
from pbsdk_backends._tokens.chat import Frame

__all__ = ["Encoded", "Reader", "Reading", "TokenReader", "plain_copy", "surface_words"]

HIDDEN = "\ufdd0"
"""A Unicode noncharacter: it has no meaning, and is never part of a text."""


class Reading(NamedTuple):
    """A query as a model reads it."""

    ids: list[int]
    at: int
    """The place whose distribution is the answer: the mask, or a causal model's last token."""
    cut: int
    """How many tokens of input were left out."""


class Encoded(NamedTuple):
    """A text as tokens."""

    ids: list[int]
    offsets: list[tuple[int, int]]
    """Where each token's characters start and stop; the tokens of one character overlap."""
    added: list[bool]
    """Which tokens the tokenizer put around the text."""


def plain_copy(tokenizer: Any) -> Tokenizer:
    """Return the tokenizer with its control tokens spelled so that no text contains them."""
    form = json.loads(tokenizer.backend_tokenizer.to_str())
    model = form["model"]
    merged = {piece for merge in model.get("merges") or () for piece in _pieces(merge)}
    special = {entry["content"] for entry in form["added_tokens"] if entry["special"]}
    special = (special | set(tokenizer.all_special_tokens)) - merged
    for entry in form["added_tokens"]:
        if entry["content"] in special:
            entry["content"] = HIDDEN + entry["content"]
            entry["normalized"] = False  # some normalisers would drop the character
    if isinstance(model["vocab"], dict):
        model["vocab"] = {_hidden(word, special): token for word, token in model["vocab"].items()}
    else:
        model["vocab"] = [[_hidden(word, special), score] for word, score in model["vocab"]]
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = _hidden(model["unk_token"], special)
    form["truncation"] = form["padding"] = None
    return Tokenizer.from_str(json.dumps(form))


def _pieces(merge: str | list[str]) -> list[str]:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return [left, right, left + right]


def _hidden(word: str, special: set[str]) -> str:
    return HIDDEN + word if word in special else word


def _respelled(text: str, plain: Tokenizer) -> str:
    """Return text of a template with its control tokens as `plain` spells them."""
    spelled = [token.content for token in plain.get_added_tokens_decoder().values()]
    hidden = sorted((token[1:] for token in spelled if token.startswith(HIDDEN)), key=len, reverse=True)
    return re.sub("|".join(map(re.escape, hidden)), lambda found: HIDDEN + found[0], text) if hidden else text


def surface_words(tokenizer: Any, columns: int) -> list[str]:
    """Return the word of each column of the vocabulary head, as it appears in a text.

    A decoder shows a token's leading space only within a text, so each token is decoded after an
    anchor. Heads are often padded to a round width: the columns beyond the tokenizer are `<unused>`.
    """
    backend = tokenizer.backend_tokenizer
    known = min(columns, len(tokenizer))
    anchor = backend.encode("a", add_special_tokens=False).ids[-1:]
    start = backend.decode(anchor, skip_special_tokens=False)
    spelled = backend.decode_batch([[*anchor, token] for token in range(known)], skip_special_tokens=False)
    special = set(tokenizer.all_special_ids)
    words = [
        text[len(start) :] if text.startswith(start) and token not in special else backend.id_to_token(token) or ""
        for token, text in enumerate(spelled)
    ]
    return words + ["<unused>"] * (columns - known)


def _share_cut(counts: Sequence[int], cut: int) -> list[int]:
    """Return how many tokens each input keeps: the longest is cut first, and among equals the last.

    >>> _share_cut([8, 3], 4), _share_cut([8, 3], 7)
    ([4, 3], [2, 2])
    """
    kept = list(counts)
    for _ in range(cut):
        longest = max(range(len(kept)), key=lambda part: (kept[part], part))
        kept[longest] -= 1
    return kept


class TokenReader(ABC):
    """Reads queries for one model, `causal` ones up to the mask, others whole, whatever tokenises them.

    Args:
        causal: whether the model reads nothing after the mask.
        max_length: how many tokens it reads at most.
        mask_id: the mask's token, if it has one.
        mask: how the mask is written for `encode`.
        start: what is read where there is nothing to read.
        frame: what a chat template writes around the user's words, spelled for `encode`.
    """

    def __init__(  # noqa: PLR0913 - facts about a tokenizer, all keywords
        self,
        *,
        causal: bool,
        max_length: int,
        mask_id: int | None = None,
        mask: str = "",
        start: Sequence[int] = (),
        frame: Frame | None = None,
    ) -> None:
        self._causal = causal
        self._max_length = max_length
        self._mask_id = mask_id
        self._mask = mask
        self._start = list(start)
        self._frame = frame

    @abstractmethod
    def encode(self, text: str, *, opened: bool) -> Encoded:
        """Return a text's tokens, read as plain text; not `opened` ones with what the tokenizer puts around a text."""

    def read(self, query: MaskedQuery) -> Reading:
        """Return the query's tokens, cut to the model's length."""
        parts = query.before_mask() if self._causal else query.parts
        if any(HIDDEN in part.text for part in parts):
            raise QueryRefused("a text contains U+FDD0, which is not a character; remove it")
        if any(has_half_character(part.text) for part in parts):
            raise QueryRefused(
                "a text holds half of a character (a lone surrogate), which no tokenizer reads; repair it"
            )
        if self._frame is not None:
            parts = self._frame.around(parts)
        text = "".join(self._mask if part.kind == "mask" else part.text for part in parts)
        if self._causal:
            text = text.rstrip(" ")  # the next token brings its own space
        spans, end = [], 0
        for part in parts:
            start, end = end, end + len(self._mask if part.kind == "mask" else part.text)
            if part.kind == "input":
                spans.append((start, end))
        # A template writes the opening token itself.
        ids, offsets, added = self.encode(text, opened=self._frame is not None)
        if self._causal:
            while ids and added[len(ids) - 1]:  # a closing token would be read as the end of the text
                ids = ids[:-1]
            ids = ids or self._start
        if not ids:
            raise QueryRefused("there is nothing before the mask; put words before it in the prompt")
        inside = [
            [
                token
                for token, (start, stop) in enumerate(offsets[: len(ids)])
                if not added[token] and first <= start < last and stop <= last and ids[token] != self._mask_id
            ]
            for first, last in spans
        ]
        gone = self._cut(inside, offsets, len(ids))
        kept = [token for index, token in enumerate(ids) if index not in gone]
        at = len(kept) - 1 if self._mask_id is None or self._causal else kept.index(self._mask_id)
        return Reading(kept, at, len(gone))

    def _cut(self, inside: list[list[int]], offsets: list[tuple[int, int]], length: int) -> set[int]:
        """Return the places of the tokens to leave out."""
        excess = length - self._max_length
        if excess <= 0:
            return set()
        room = sum(map(len, inside))
        if excess > room:
            raise QueryRefused(
                f"the prompt alone has {length - room} tokens and the model reads at most {self._max_length}; "
                "shorten the prompt or raise max_length"
            )
        gone: set[int] = set()
        for tokens, kept in zip(inside, _share_cut([len(tokens) for tokens in inside], excess), strict=True):
            end = kept
            while 0 < end < len(tokens) and offsets[tokens[end]][0] < offsets[tokens[end - 1]][1]:
                end -= 1  # the bytes of one character are kept or cut together
            gone.update(tokens[end:])
        return gone


class Reader(TokenReader):
    """Reads queries with a tokenizer of transformers, or one that has what reading needs of it."""

    def __init__(self, tokenizer: Any, *, causal: bool, max_length: int, frame: Frame | None = None) -> None:
        plain = plain_copy(tokenizer)
        starts = (tokenizer.bos_token_id, tokenizer.eos_token_id)
        self._become(
            plain,
            {
                "causal": causal,
                "max_length": max_length,
                "mask_id": tokenizer.mask_token_id,
                "mask": "" if causal else plain.id_to_token(tokenizer.mask_token_id) or "",
                "start": next(([token] for token in starts if token is not None), []),
                "frame": frame and [_respelled(text, plain) for text in frame],
            },
        )

    def _become(self, plain: Tokenizer, facts: dict[str, Any]) -> None:
        self._plain, self._facts = plain, facts
        frame = facts["frame"]
        super().__init__(**{**facts, "frame": None if frame is None else Frame(*frame)})

    def told(self) -> dict[str, Any]:
        """Return all that it knows, as plain values from which `again` makes it."""
        return {"tokenizer": self._plain.to_str(), **self._facts}

    @classmethod
    def again(cls, told: dict[str, Any]) -> Reader:
        """Return the reader that said this of itself."""
        reader = cls.__new__(cls)
        facts = dict(told)
        reader._become(Tokenizer.from_str(facts.pop("tokenizer")), facts)  # noqa: SLF001 - its own
        return reader

    def encode(self, text: str, *, opened: bool) -> Encoded:
        """Return a text's tokens; control tokens that it writes out are plain text."""
        encoding = self._plain.encode(text, add_special_tokens=not opened)
        return Encoded(encoding.ids, encoding.offsets, list(map(bool, encoding.special_tokens_mask)))
