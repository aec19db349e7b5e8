"""Why a query was not recalled: which part of its key differs from the nearest one that was known.

An answer is recalled when the model, the text as rendered and the token set are the same. A miss is
expected when something is asked for the first time. It is a surprise, and costs money, when only a detail
changed: a different rendering style, a prompt with one more full stop, one token that the earlier set lacks.
Each query that was sent is compared with what was answered before it, from the closest match to
the loosest, and the misses are counted by the part that differs.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from pbsdk.formatting import number
from pbsdk.ledger.codec import set_key, split_parts, unpack_tokens
from pbsdk.ledger.reader import LedgerReader

__all__ = ["Miss", "MissReport", "why_miss"]

_STYLES = ("paper: ",)
"""Prefixes of the names of prompts that are rendered in a style other than the plain one."""


class Miss(BaseModel):
    """Misses of one kind, and the first of them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    part: str
    """What differs: model identity, token set, text as rendered, rendering style, prompt, text, or nothing known."""
    queries: int
    record: int
    """The first record of this kind."""
    nearest: int | None
    """The record of the nearest known answer."""
    detail: str


class MissReport(BaseModel):
    """Why queries were sent rather than recalled."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str
    against: str
    queries: int
    misses: list[Miss]

    def to_dict(self) -> dict[str, Any]:
        """Return the findings as plain values."""
        return self.model_dump(mode="json")

    def __str__(self) -> str:
        if not self.misses:
            return f"{self.run}: nothing was sent; every query was recalled, or there were none"
        lines = [f"{self.run}: {number(self.queries)} queries were sent, compared with what {self.against} knew"]
        for miss in self.misses:
            near = "" if miss.nearest is None else f", nearest to record {miss.nearest}"
            lines += [
                "",
                f"{miss.part}: {number(miss.queries)}",
                f"  first in record {miss.record}{near}: {miss.detail}",
            ]
        return "\n".join(lines)


class _Key(NamedTuple):
    """A query's key in parts, and the number of its record."""

    seq: int
    content: str
    tokens: str
    example: str
    prompt: str


@dataclass
class _Known:
    """The known answers, indexed by each kind of match."""

    contents: dict[str, _Key] = field(default_factory=dict)
    pairs: dict[tuple[str, str], _Key] = field(default_factory=dict)
    examples: dict[str, dict[str, _Key]] = field(default_factory=dict)
    prompts: dict[str, _Key] = field(default_factory=dict)

    def add(self, key: _Key) -> None:
        self.contents[key.content] = key
        self.pairs[key.example, key.prompt] = key
        self.examples.setdefault(key.example, {})[key.prompt] = key
        self.prompts[key.prompt] = key


def why_miss(run: str | os.PathLike[str], against: str | os.PathLike[str] | None = None) -> MissReport:
    """Compare every query that a run sent with what it knew at that point, or with everything another run knows."""
    with LedgerReader(run) as here:
        if against is None:
            return _Comparison(here, here).report(_walk(here))
        with LedgerReader(against) as there:
            known = _Known()
            for _, key, answered in _walk(there):
                if answered:
                    known.add(key)
            return _Comparison(here, there, known).report(_walk(here))


def _walk(reader: LedgerReader) -> Iterator[tuple[str, _Key, bool]]:
    """Yield the session and key of every first reservation and of every answer, in order."""
    keys: dict[str, _Key] = {}
    for seq, session, query, state, example, prompt, note in reader.select(
        "SELECT seq, session, query, state, example, prompt, note FROM records"
        " WHERE state IN ('reserved', 'done') ORDER BY seq"
    ):
        if state == "done":
            yield session, keys[query]._replace(seq=seq), True
        else:
            content, tokens = split_parts(note)
            again = query in keys
            keys[query] = _Key(seq, content, tokens, example, prompt)
            if not again:
                yield session, keys[query], False


class _Comparison:
    def __init__(self, here: LedgerReader, there: LedgerReader, known: _Known | None = None) -> None:
        self._here, self._there = here, there
        self._fixed = known is not None
        self._known = known or _Known()
        self._names, self._names_there = here.names(), there.names()
        self._models = here.model().differences(there.model())

    def report(self, walk: Iterator[tuple[str, _Key, bool]]) -> MissReport:
        counts: dict[str, int] = {}
        firsts: dict[str, tuple[_Key, _Key | None, str]] = {}
        for _, key, answered in walk:
            if answered and not self._fixed:
                self._known.add(key)
            elif not answered:
                part, nearest = self._nearest(key)
                counts[part] = counts.get(part, 0) + 1
                if part not in firsts:
                    firsts[part] = key, nearest, self._detail(part, key, nearest)
        return MissReport(
            run=str(self._here.folder),
            against="it" if self._here is self._there else str(self._there.folder),
            queries=sum(counts.values()),
            misses=[
                Miss(
                    part=part,
                    queries=counts[part],
                    record=key.seq,
                    nearest=None if nearest is None else nearest.seq,
                    detail=detail,
                )
                for part, (key, nearest, detail) in sorted(firsts.items(), key=lambda item: -counts[item[0]])
            ],
        )

    def _nearest(self, key: _Key) -> tuple[str, _Key | None]:
        part, nearest = self._likeness(key)
        if self._models and nearest is not None:
            part = "model identity" if part == "run folder" else f"model identity and {part}"
        return part, nearest

    def _likeness(self, key: _Key) -> tuple[str, _Key | None]:
        known = self._known
        same = known.contents.get(key.content)
        if same is not None:
            return ("run folder" if same.tokens in {key.tokens, "whole"} else "token set"), same
        pair = known.pairs.get((key.example, key.prompt))
        if pair is not None:
            return "text as rendered", pair
        others = known.examples.get(key.example, {})
        bare = _bare(self._names.get(key.prompt, ""))
        for prompt, other in others.items():
            if _bare(self._names_there.get(prompt, "")) == bare:
                return "rendering style", other
        if others:
            names = {self._names_there.get(prompt, prompt): other for prompt, other in others.items()}
            close = difflib.get_close_matches(self._names.get(key.prompt, ""), names, n=1, cutoff=0.0)
            return "prompt", names[close[0]]
        if key.prompt in known.prompts:
            return "text", known.prompts[key.prompt]
        return "nothing like it was known", None

    def _detail(self, part: str, key: _Key, nearest: _Key | None) -> str:
        if nearest is None:
            return "neither its text nor its prompt had an answer yet"
        what = part.rpartition(" and ")[2]
        details = {
            "run folder": "the same question is answered in another run folder",
            "text as rendered": "the same text under the same prompt, but the model sees different characters: "
            "were markers escaped, or spaces changed?",
            "text": "its prompt is known, its text is not",
            "model identity": "",
        }
        if what == "token set":
            detail = self._sets(key.tokens, nearest.tokens)
        elif what in {"prompt", "rendering style"}:
            one, other = self._names.get(key.prompt, ""), self._names_there.get(nearest.prompt, "")
            detail = f"{one!r} here, {other!r} known"
        else:
            detail = details[what]
        models = f"{self._models} (here: {self._here.folder})" if self._models else ""
        return "; ".join(filter(None, [models, detail]))

    def _sets(self, asked: str, known: str) -> str:
        if asked == "whole":
            return "all tokens were asked for, but only chosen ones are known"
        here, there = _token_set(self._here, asked), _token_set(self._there, known)
        lacking = len(here - there)
        return f"{len(here)} tokens were asked for, {lacking} of which are not among the {len(there)} known"


def _bare(prompt: str) -> str:
    for style in _STYLES:
        prompt = prompt.removeprefix(style)
    return prompt


def _token_set(reader: LedgerReader, name: str) -> set[int]:
    data = reader.stored(set_key(name))
    return set() if data is None else set(unpack_tokens(data).tolist())
