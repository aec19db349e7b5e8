"""Canaries: a few fixed texts that tell whether a model still answers as it did.

A provider can change a model or its tokenizer behind the same name. Answers from before and after the
change then mix in one run folder unnoticed. A canary check asks about a few texts that never change, and
compares the answers with those of the folder's first check: how far apart they are (half the sum of the
differences in probability), and whether the model read the same number of tokens.

Checks are queries like any other: phase `probe`, recorded, charged to the totals. The key of a check
includes its number, so that each check is asked rather than recalled.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import numpy as np
from pydantic import BaseModel, ConfigDict

from pbsdk.backend import MaskDistribution, MaskedQuery, ModelIdentity, Part, Phase, digest
from pbsdk.ledger.codec import WHOLE, decode, query_key
from pbsdk.ledger.inflight import Ask
from pbsdk.ledger.reader import LedgerReader

__all__ = ["TEXTS", "TOLERANCE", "CanaryCheck", "asks", "checks", "count_checks"]

TEXTS = (
    "The weather is fine today.",
    "She sold 3,204 shares before noon and bought none back.",
    "Ça va ? 日本語 🙂 naïve re-entry",
)
"""Ordinary words, figures, and what tokenizers differ over."""
TOLERANCE = 0.02
"""How far apart answers may be: room for arithmetic that differs slightly between calls. Chosen, not measured."""

_PROMPT = "canary: <input> It was <mask>"


class CanaryCheck(BaseModel):
    """One check: the canaries' answers against those of the folder's first check."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    time: str
    session: str
    texts: int
    distance: float
    """The largest distance of an answer from the first one: 0 is identical, 1 has nothing in common."""
    same_tokens: bool
    """Whether the model read the same number of tokens of each text as the first time."""
    changed: bool

    def describe(self) -> str:
        """Describe the finding in words."""
        if not self.changed:
            return f"the model answers as it did when the run began (at most {self.distance:.1%} apart)"
        what = [] if self.same_tokens else ["it reads a different number of tokens"]
        what += [f"its answers are up to {self.distance:.1%} apart"] if self.distance > TOLERANCE else []
        return f"the model is not the one that this run began with: {', and '.join(what)}"


def asks(identity: ModelIdentity, number: int, cost: Callable[[MaskedQuery], int]) -> list[Ask]:
    """Return the queries of check `number`; the first check is 0."""
    name = f"{WHOLE}#{number}"
    queries = [
        MaskedQuery((Part("input", text), Part("prompt", " It was "), Part("mask")), digest(text), _PROMPT, Phase.PROBE)
        for text in TEXTS
    ]
    return [Ask.of(query_key(identity.digest, q.content, name), q, cost(q), name) for q in queries]


def count_checks(reader: LedgerReader) -> int:
    """Return how many checks were started."""
    return len({note.rpartition("#")[2] for _, note, _ in _asked(reader)})


def _asked(reader: LedgerReader) -> list[tuple[str, str, str]]:
    rows = reader.select(
        "SELECT query, note, example FROM records WHERE state = 'reserved' AND phase = ? AND prompt = ? ORDER BY seq",
        Phase.PROBE,
        digest(_PROMPT),
    )
    return [(str(query), str(note), str(example)) for query, note, example in rows]


def checks(reader: LedgerReader) -> list[CanaryCheck]:
    """Return every check that brought answers, in order."""
    numbers = {query: (int(note.rpartition("#")[2]), example) for query, note, example in _asked(reader)}
    first: dict[str, MaskDistribution] = {}
    found: dict[int, CanaryCheck] = {}
    for query, (number, example) in numbers.items():
        for moment, session, data in reader.select(
            "SELECT r.time, r.session, s.value FROM records r JOIN stored s ON s.key = r.query"
            " WHERE r.seq = (SELECT seq FROM answers WHERE query = ?)",
            query,
        ):
            answer = decode(data, lambda _: None)
            baseline = first.setdefault(example, answer)
            before = found.get(number)
            distance = max(before.distance if before else 0.0, _distance(baseline, answer))
            same = (before is None or before.same_tokens) and baseline.read_tokens == answer.read_tokens
            found[number] = CanaryCheck(
                time=datetime.fromtimestamp(moment / 1e6, UTC).isoformat().replace("+00:00", "Z"),
                session=session,
                texts=(before.texts if before else 0) + 1,
                distance=distance,
                same_tokens=same,
                changed=not same or distance > TOLERANCE,
            )
    return [found[number] for number in sorted(found)]


def _distance(one: MaskDistribution, other: MaskDistribution) -> float:
    """Return half the sum of differences in probability over the tokens that either shows."""
    if one.tokens is None or other.tokens is None:
        if len(one.codes) != len(other.codes):
            return 1.0
        tokens = np.arange(len(one.codes))
    else:
        tokens = np.union1d(one.tokens, other.tokens)
    p, q = (np.exp(answer.at(tokens) / -1024.0) for answer in (one, other))
    return min(1.0, round(float(np.abs(p - q).sum()) / 2, 6))
