"""The meter: a backend that wraps a backend, and recalls, charges, asks and remembers.

`stream` takes any number of queries. What the ledger knows is recalled. The rest is charged to the
budget in one transaction before anything is sent, or refused as a whole. Then it is asked, a
batch at a time in the order given, and each batch is on disk before its answers are used. If a model reports
more tokens than a text can have, the next batch is sent only if what is left covers it. The
caller always gets what was stored, never what came over the wire, so a replay is identical bit for
bit.

After a retryable error the query is asked again, after a wait that the backend names or that grows with each
attempt. A send that certainly did not run gives its pass back; one that may have run stays spent.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Literal

import numpy as np

from pbsdk.audit.report import AuditReport
from pbsdk.backend import MaskDistribution, MaskedLMBackend, MaskedQuery, OpenVocabulary, Tokens
from pbsdk.errors import BackendError, InputError, LedgerError, LedgerMismatch
from pbsdk.ledger import canaries as birds
from pbsdk.ledger.budget import QueryBudget
from pbsdk.ledger.canaries import CanaryCheck
from pbsdk.ledger.codec import WHOLE, query_key, set_digest
from pbsdk.ledger.inflight import Ask
from pbsdk.ledger.places import fixed
from pbsdk.ledger.shares import Member
from pbsdk.ledger.writer import QueryLedger
from pbsdk.metering.sending import Sender, Stream

__all__ = ["MeteredBackend"]


class MeteredBackend(MaskedLMBackend):
    """A backend whose every query is recorded, charged to a budget, and asked only once.

    Args:
        backend: the model to ask.
        run: the folder of the ledger; created if it doesn't exist.
        budget: passes per example, a `QueryBudget`, or None for no limit.
        retries: how often a failed batch is asked again, if the error is retryable.
        deadline: seconds that the attempts at one batch may take, waits included.
        sleep: how to wait between attempts.
        canaries: ask a few fixed texts before anything else is sent, and refuse to continue if the model's
            answers have changed since the run began; "warn" continues. Off by default: nothing is sent
            that nobody asked for, and a local model's weights are part of its identity anyway.
        member: on whose behalf it asks, where several share the run folder; their allowance holds beside the budget.
    """

    def __init__(  # noqa: PLR0913 - independent settings, all keywords
        self,
        backend: MaskedLMBackend,
        run: str | os.PathLike[str],
        budget: QueryBudget | int | None = 10,
        *,
        retries: int = 5,
        deadline: float = 300.0,
        sleep: Callable[[float], None] = time.sleep,
        canaries: bool | Literal["warn"] = False,
        member: Member | None = None,
    ) -> None:
        if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
            raise InputError(f"retries must be a whole number of at least 0; not {retries!r}")
        if isinstance(deadline, bool) or not isinstance(deadline, int | float) or not deadline > 0:
            raise InputError(f"deadline must be a number of seconds above 0; not {deadline!r}")
        if canaries not in (True, False, "warn"):
            raise InputError(f'canaries must be True, False or "warn"; not {canaries!r}')
        self.budget = QueryBudget.of(budget)
        self.canaries = canaries
        self._last_check: CanaryCheck | None = None
        self.identity = backend.identity
        self.vocabulary = backend.vocabulary
        self.abilities = backend.abilities
        self.mask_token = backend.mask_token
        self.ledger = QueryLedger(run, backend.identity, self.budget, member=member)
        self._remaining: Mapping[str, float] = {}
        self._sender = Sender(backend, self.ledger, retries=retries, deadline=deadline, sleep=sleep)

    def __repr__(self) -> str:
        return f"MeteredBackend({self.identity.name!r}, run={str(self.ledger.folder)!r})"

    @property
    def backend(self) -> MaskedLMBackend:
        """The model that is asked."""
        return self._sender.backend

    @property
    def retries(self) -> int:
        """How often a batch is asked again."""
        return self._sender.retries

    @property
    def deadline(self) -> float:
        """Seconds that the attempts at one batch may take."""
        return self._sender.deadline

    def __deepcopy__(self, memo: dict[int, Any]) -> MeteredBackend:
        return self  # a clone of a classifier shares the ledger, and so never pays twice

    def __reduce__(self) -> tuple[Any, ...]:
        again = partial(
            MeteredBackend,
            retries=self.retries,
            deadline=self.deadline,
            canaries=self.canaries,
            member=self.ledger.member,
        )
        return again, (self.backend, fixed(self.ledger.folder), self.budget)

    def count_tokens(self, query: MaskedQuery) -> int:
        """Return how many tokens the model will read."""
        return self.backend.count_tokens(query)

    def remaining(self) -> Mapping[str, float]:
        """Return what whoever serves the model last said is left of an allowance there."""
        return self.backend.remaining()

    def most_tokens(self, query: MaskedQuery) -> int:
        """Return the most tokens that asking the query can cost."""
        return self.backend.most_tokens(query)

    def check_budget(self, queries: Sequence[MaskedQuery], sets: Sequence[Tokens] = ()) -> None:
        """Raise `BudgetExceeded` if asking for what is not known, under all tokens or one of the sets, would."""
        model, names = self.identity.digest, [set_digest(tokens) for tokens in sets]
        unknown = (
            ask
            for ask in Stream(0, *self.resolve(queries)).unknown
            if not self.ledger.known([query_key(model, ask.query.content, name) for name in names])
        )
        self.ledger.rehearse(list(unknown))

    def token_sets(self) -> list[Tokens]:
        """Return the sets of tokens for which answers are kept, here or where the backend has its own from."""
        return [*self.ledger.token_sets(), *self.backend.token_sets()]

    def audit(self) -> AuditReport:
        """Return what was asked so far, compared with the limits that it was asked under, and what is left."""
        return AuditReport.read(self.ledger.folder, now=self.budget)

    def check_canaries(self) -> CanaryCheck:
        """Ask a few fixed texts, and report whether the model still answers as it did when the run began."""
        asks = self.canary_asks()
        with self._numbered() as number:
            self.ledger.reserve(number, asks)
            for _ in self._sender.answers(Stream(number, asks, known=set())):
                pass
        with self.ledger.reader() as reader:
            self._last_check = birds.checks(reader)[-1]
        return self._last_check

    def canary_asks(self) -> list[Ask]:
        """Return the queries that the next check of the canaries will ask."""
        with self.ledger.reader() as reader:
            return birds.asks(self.identity, birds.count_checks(reader), self._cost())

    @property
    def canaries_due(self) -> bool:
        """Whether the canaries will be asked before the next query is sent."""
        return bool(self.canaries) and self._last_check is None

    def _refuse_another_model(self) -> None:
        """Check the canaries once; stop, or warn, if the model is not the one that the run began with."""
        check = self.check_canaries() if self._last_check is None else self._last_check
        if check.changed and self.canaries == "warn":
            warnings.warn(f"{self.ledger.folder}: {check.describe()}", stacklevel=3)
        elif check.changed:
            raise LedgerMismatch(
                f"{self.ledger.folder}: {check.describe()}. Nothing more was sent; give the changed model a run folder of "
                'its own, or mix the answers with connect(..., canaries="warn")'
            )

    def close(self) -> None:
        """Close the model and the ledger; what was stored stays."""
        try:
            self.backend.close()
        finally:
            self.ledger.close()

    def fill(self, queries: Sequence[MaskedQuery], tokens: Tokens | None = None) -> list[MaskDistribution]:
        """Answer the queries in order, any number of them."""
        return list(self.stream(queries, tokens))

    def stream(self, queries: Sequence[MaskedQuery], tokens: Tokens | None = None) -> Iterator[MaskDistribution]:
        """Answer the queries in order, while later ones are still to be asked."""
        wanted = None if tokens is None else self._checked_tokens(tokens)
        with self._numbered() as number:
            asks, known = self.resolve(queries, wanted)
            stream = Stream(number, asks, known, wanted)
            if stream.unknown:
                self.ledger.reserve(number, stream.unknown)
                if self.canaries:
                    self._refuse_another_model()
            given = 0
            try:
                for answer in self._sender.answers(stream):
                    yield answer if wanted is None else answer.narrowed(wanted)
                    given += 1
            except BackendError as error:
                error.failures = stream.lost
                error.add_note(
                    f"{given} answers were returned; of {len(stream.unknown)} to ask for, {stream.missing} are missing, "
                    "and the rest is kept"
                )
                raise

    @contextmanager
    def _numbered(self) -> Iterator[int]:
        """Open a stream of the ledger, and close it however it ends."""
        number = self.ledger.open_stream()
        try:
            yield number
        finally:
            with suppress(LedgerError):  # a full disk: the next stream or session settles it
                self.ledger.close_stream(number)
                self._note_remaining()

    def _note_remaining(self) -> None:
        """Have the ledger keep what the model's server says is left, if that has changed."""
        told = self.backend.remaining()
        if told and told != self._remaining:
            self.ledger.note_remaining(told)
            self._remaining = dict(told)

    def _checked_tokens(self, tokens: Tokens) -> Tokens:
        ids = np.asarray(tokens)
        size = len(self.vocabulary)
        if ids.ndim != 1 or not ids.size or ids.dtype.kind not in "iu" or (np.diff(ids.astype(np.int64)) <= 0).any():
            raise InputError("tokens must be a non-empty list of distinct token ids in ascending order")
        if ids[0] < 0 or (ids[-1] >= size and not isinstance(self.vocabulary, OpenVocabulary)):
            raise InputError(f"token {int(ids[0] if ids[0] < 0 else ids[-1])} is not in the vocabulary of {size}")
        return ids.astype(np.int64)

    def resolve(
        self, queries: Sequence[MaskedQuery], tokens: Tokens | None = None, promised: AbstractSet[str] = frozenset()
    ) -> tuple[list[Ask], set[str]]:
        """Give each query the key of an answer that serves it, and return which keys are known; nothing is sent.

        An answer for all tokens serves any query; so does one for a set that contains those asked for. Keys in
        `promised` count as known.
        """
        model, own = self.identity.digest, set_digest(tokens)
        places = [WHOLE] if tokens is None else list(dict.fromkeys([WHOLE, own, *self.ledger.supersets(tokens)]))
        cost = self._cost()
        asks: list[Ask] = []
        known: set[str] = set()
        for query in queries:
            for place in places:
                key = query_key(model, query.content, place)
                if key in known or key in promised or self.ledger.known([key]):
                    known.add(key)
                    asks.append(Ask.of(key, query))
                    break
            else:
                asks.append(Ask.of(query_key(model, query.content, own), query, cost(query), own))
        return asks, known

    def _cost(self) -> Callable[[MaskedQuery], int]:
        """Return what a query's reservation holds in tokens; nothing, if nobody counts them."""
        member = self.ledger.member
        counted = self.budget.counts_tokens or (member is not None and member.allowance.counts_tokens)
        return self.backend.most_tokens if counted else lambda _: 0
