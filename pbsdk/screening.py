"""Screening: a full data set is asked about without a hundred kilobytes for each answer.

`screened` asks about a pilot of texts in full, and returns which tokens to ask for of all texts (`learning.screen`). Which texts those are depends on their
digests alone, so another order or seed asks for nothing new. If the run folder holds answers for a screen that serves these texts too,
that one is used again: a part of the texts, or more of them, has a slightly different pilot, and would otherwise be asked about twice.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from pbsdk.backend import MaskedLMBackend, MaskedQuery
from pbsdk.learning.screen import Pilot, Screen, most_kept, pilot_size
from pbsdk.progress import progress_bar

__all__ = ["screened"]


def screened(
    backend: MaskedLMBackend, queries: Sequence[MaskedQuery], screen: int | None, *, progress: bool | None = None
) -> Screen | None:
    """Ask about a pilot of `screen` texts, and return which tokens to ask for of all texts; None: all tokens.

    The budget is checked for all queries before any is sent.
    """
    examples = {query.example for query in queries}
    prompts = {prompt: place for place, prompt in enumerate(dict.fromkeys(query.prompt for query in queries))}
    vocabulary = len(backend.vocabulary)
    size = pilot_size(screen, backend.abilities, vocabulary, len(examples), len(prompts))
    if not size:
        return None
    known = [tokens for tokens in backend.token_sets() if len(tokens) <= most_kept(vocabulary)]
    backend.check_budget(queries, known)
    chosen = set(heapq.nsmallest(size, examples))
    first = [query for query in queries if query.example in chosen]
    pilot = Pilot(len(prompts))
    answers = progress_bar(backend.stream(first), total=len(first), what="screening", show=progress)
    for query, answer in zip(first, answers, strict=True):
        pilot.add(prompts[query.prompt], answer)
    found = pilot.screen(known)
    return found if len(found.tokens) <= most_kept(vocabulary) else None
