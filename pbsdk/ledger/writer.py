"""The ledger: every answer, and the record of how it was obtained.

What belongs together is written in one transaction (see `store.py`), so a crash can't separate a
record from its answer, and a budget is checked in the transaction that spends it.

A *stream* is one call that wants many queries answered. It reserves them all, then claims, asks and
finishes a batch at a time. A claim takes over what another stream has only reserved, and leaves
alone what another has sent; so two callers with the same question never both pay, and never
wait for one that isn't working on it. A stream that ends, however it ends, leaves nothing reserved.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import numpy as np

from pbsdk.backend import MaskDistribution, ModelIdentity, Tokens
from pbsdk.errors import BudgetExceeded, LedgerCorrupted, LedgerError
from pbsdk.ledger import forking
from pbsdk.ledger import inflight as accounts
from pbsdk.ledger.budget import QueryBudget
from pbsdk.ledger.chain import Event, append
from pbsdk.ledger.codec import TOKEN_BYTES, answer_digest, decode, pack_tokens, set_digest, set_key, unpack_tokens
from pbsdk.ledger.inflight import Ask, Claim, Failed, Owner, Result
from pbsdk.ledger.lots import Lot, charge
from pbsdk.ledger.places import locate, open_store
from pbsdk.ledger.reader import LedgerReader
from pbsdk.ledger.shares import Member, Share, Shares
from pbsdk.ledger.store import Connection, Session
from pbsdk.ledger.verifier import Verification, verify_run
from pbsdk.version import __version__

__all__ = ["QueryLedger", "verify_run"]


class _RehearsalOver(Exception):
    """Raised to undo a rehearsal."""


class QueryLedger(forking.Forkable):
    """The append-only record of every query, and the answers, in a run folder or a database.

    Safe to share between threads; a folder between processes on one machine (not over NFS), a database between machines.
    """

    def __init__(
        self,
        run: str | os.PathLike[str],
        identity: ModelIdentity,
        budget: QueryBudget | None = None,
        *,
        member: Member | None = None,
    ) -> None:
        self.folder = locate(run)
        self.identity = identity
        self.budget = budget or QueryBudget()
        self.member = member
        self._shares = Shares()
        self._run = open_store(self.folder, identity)
        self._sets: dict[str, Tokens] = {}
        self._streams: set[int] = set()
        self._numbers = itertools.count(1)
        self._enter = threading.Lock()
        self._session: Session | None = None
        self._closed = False
        forking.watch(self)
        self.session  # noqa: B018 - enters, and settles what the dead left

    def __repr__(self) -> str:
        return f"QueryLedger({str(self.folder)!r}, {self.identity.name!r})"

    @property
    def session(self) -> str:
        """The name of this opening; a forked child opens its own."""
        if self._closed:
            raise LedgerError(f"the ledger in {self.folder} is closed; connect again")
        session = self._session
        if session is None:
            with self._enter:
                session = self._session = self._session or self._new_session()
        return session.name

    @property
    def _entered(self) -> bool:
        """Whether this process has a session here."""
        return not self._closed and self._session is not None

    def after_fork(self) -> None:
        """Leave locks, streams and session to the parent."""
        self._enter, self._streams, self._session = threading.Lock(), set(), None

    def _new_session(self) -> Session:
        note = {"pbsdk": __version__, "model": self.identity.to_json(), "budget": self.budget.to_dict()}
        if self.member is not None:
            note["member"] = self.member.to_dict()
        session = self._run.enter()
        opened = Event(session.name, "opened", note=json.dumps(note, ensure_ascii=False))

        def open_it(con: Connection) -> None:
            append(con, [opened])
            self._settle_dead(con, session.name)

        try:
            self._run.write(open_it)
            self._run.sync()
        except BaseException:
            session.close()
            raise
        return session

    # Recalling

    def known(self, keys: Iterable[str]) -> set[str]:
        """Return which keys have an answer."""
        return self._run.read(lambda con: accounts.answered(con, keys))

    def supersets(self, tokens: Tokens) -> list[str]:
        """Return the names of the stored token sets that contain all of `tokens`."""
        names = self._run.read(lambda con: con.execute("SELECT digest FROM sets ORDER BY digest").fetchall())
        return [name for (name,) in names if np.isin(tokens, self._token_set(name), assume_unique=True).all()]

    def token_sets(self) -> list[Tokens]:
        """Return the stored token sets."""
        names = self._run.read(lambda con: con.execute("SELECT digest FROM sets ORDER BY digest").fetchall())
        return [self._token_set(name) for (name,) in names]

    def recall(self, asks: Sequence[Ask]) -> list[MaskDistribution]:
        """Read answers, check them against their records, and record the hits."""
        session, hits, answers = self.session, [], []
        for ask in asks:
            answer, name = self._read(ask.key)
            answers.append(answer)
            hits.append(ask.event(session, "hit", answer=name))
        self._run.write(lambda con: append(con, hits))
        return answers

    def _read(self, key: str) -> tuple[MaskDistribution, str]:
        row, data = self._run.read(
            lambda con: (
                con.execute("SELECT digest, seq FROM answers WHERE query = ?", (key,)).fetchone(),
                self._run.get(key),
            )
        )
        if row is None or data is None:
            raise LedgerCorrupted(f"{self.folder}: the answer to {key} is missing")
        name, seq = row
        if answer_digest(data) != name:
            raise LedgerCorrupted(f"{self.folder}: the answer of record {seq} was changed: it doesn't match its digest")
        try:
            return decode(data, self._token_set), name
        except LedgerCorrupted as error:
            raise LedgerCorrupted(f"{self.folder}: record {seq}: {error}") from error

    def _token_set(self, name: str) -> Tokens:
        if name not in self._sets:
            data = self._run.read(lambda _: self._run.get(set_key(name)))
            if data is None or len(data) % TOKEN_BYTES or set_digest(unpack_tokens(data)) != name:
                raise LedgerCorrupted(f"{self.folder}: the token set {name} is missing or was changed")
            self._sets[name] = unpack_tokens(data)
        return self._sets[name]

    def words(self) -> dict[int, str]:
        """Return what the tokens of an open vocabulary say, as far as answers showed them."""
        with self.reader() as reader:
            return reader.words()

    # Asking

    def open_stream(self) -> int:
        """Begin a stream; pass it to `close_stream` in the end, whatever happens."""
        number = next(self._numbers)
        self.session  # noqa: B018 - a forked child enters first
        self._streams.add(number)
        return number

    def close_stream(self, stream: int) -> None:
        """End a stream: what it reserved is released, and what it sent but never finished is unknown."""
        self._streams.discard(stream)
        if self._entered:
            session = self.session
            self._run.write(lambda con: self._settle_dead(con, session))

    def reserve(self, stream: int, asks: Sequence[Ask]) -> None:
        """Reserve all of the queries that nobody has answered or reserved, or raise `BudgetExceeded`."""
        owner = Owner(self.session, stream)

        def reserve(con: Connection) -> None:
            self._check_share(con, lambda: accounts.missing(con, asks))
            self._settle_dead(con, owner.session)
            accounts.reserve(con, owner, accounts.missing(con, asks), self.budget)

        self._run.write(reserve)

    def claim(self, stream: int, asks: Sequence[Ask]) -> Claim:
        """Mark as sent what this stream may send now; reserve again what was given up in the meantime."""
        owner = Owner(self.session, stream)

        def claim(con: Connection) -> Claim:
            self._check_share(con, lambda: accounts.unanswered(con, asks))
            self._settle_dead(con, owner.session)
            return accounts.claim(con, owner, asks, self.budget)

        return self._run.write(claim)

    def finish(
        self, stream: int, results: Sequence[Result], tokens: Tokens | None, words: Mapping[int, str] | None = None
    ) -> list[MaskDistribution]:
        """Store answers, their records, and `words` of an open vocabulary in one transaction; return them as stored."""
        owner, name = Owner(self.session, stream), set_digest(tokens)

        def finish(con: Connection) -> None:
            if tokens is not None and name not in self._sets:
                self._run.set(set_key(name), pack_tokens(tokens))
                con.execute("INSERT INTO sets VALUES (?) ON CONFLICT DO NOTHING", (name,))
            for result in results:
                self._run.set(result.ask.key, result.data)
            accounts.finish(con, owner, results, words or {})

        self._run.write(finish)
        if tokens is not None:
            self._sets[name] = tokens.copy()
        return [decode(result.data, self._token_set) for result in results]

    def fail(self, stream: int, failed: Sequence[Failed], *, latency: int, again: Sequence[Ask]) -> None:
        """Record sends that brought no answer, each by its own fate; reserve another attempt for those in `again`.

        What certainly did not run gives its pass back. If the budget refuses another attempt, the
        failures are recorded and `BudgetExceeded` is raised.
        """
        if not failed:
            return
        owner = Owner(self.session, stream)

        def fail(con: Connection) -> BudgetExceeded | None:
            self._check_share(con, list)
            attempts = accounts.fail(con, owner, failed, latency=latency)
            try:
                if self.member is not None:  # a send that did not run makes room for its next attempt
                    ran = {lost.ask.key for lost in failed if lost.ran}
                    self._shares.check_more(self.member, [ask.tokens for ask in again if ask.key in ran])
                accounts.reserve(con, owner, again, self.budget, attempts)
            except BudgetExceeded as error:
                return error
            return None

        refusal = self._run.write(fail)
        if refusal is not None:
            raise refusal

    def _check_share(self, con: Connection, asks: Callable[[], Sequence[Ask]]) -> None:
        """Raise `BudgetExceeded` if queries don't fit a member's allowance."""
        if self.member is not None:
            self._shares.catch_up(lambda statement, *values: con.execute(statement, values))
            self._shares.check(self.member, asks())

    def share(self) -> Share:
        """Return what this ledger's member has taken so far."""
        if self.member is None:
            raise LedgerError("this ledger is nobody's in particular; open it with member=...")
        self._run.read(lambda con: self._shares.catch_up(lambda statement, *values: con.execute(statement, values)))
        return self._shares.of(self.member.name)

    def charge(self, lots: Sequence[Lot]) -> None:
        """Record passes inside the model that are about to run, or raise `BudgetExceeded`, and then none of them may."""
        if self.member is not None:
            raise LedgerError(
                "what a member of a team may spend covers queries only; look into a model in a run of your own"
            )
        session = self.session
        self._run.write(lambda con: charge(con, session, lots, self.budget))

    def note_remaining(self, remaining: Mapping[str, float]) -> None:
        """Record what the server that answers says is left of an allowance there."""
        event = Event(self.session, "allowed", note=json.dumps(dict(remaining)))
        self._run.write(lambda con: append(con, [event]))

    def _settle_dead(self, con: Connection, session: str) -> None:
        """Release what the dead reserved, and count as spent what they sent."""
        owners = accounts.owners(con)
        others = {owner.session for owner in owners} - {session}
        alive = self._run.alive(others) if others else others
        for owner in owners:
            if not (owner.stream in self._streams if owner.session == session else owner.session in alive):
                accounts.settle(con, session, owner)

    # Looking

    def rehearse(self, asks: Sequence[Ask]) -> None:
        """Raise `BudgetExceeded` if `reserve` would; nothing is kept."""
        with self.rehearsal() as con:
            self._check_share(con, lambda: accounts.missing(con, asks))
            accounts.charge(con, accounts.missing(con, asks), self.budget)

    @contextmanager
    def rehearsal(self) -> Iterator[Connection]:
        """A transaction in which anything may be tried and nothing is kept."""
        with suppress(_RehearsalOver), self._run.transaction() as con:
            yield con
            raise _RehearsalOver

    def reader(self) -> LedgerReader:
        """Return a view of the folder that can't write; close it after use."""
        return LedgerReader(self.folder)

    def verify(self) -> Verification:
        """Derive chain, digests and counters again; raise `LedgerCorrupted` at the first that doesn't match."""
        return verify_run(self.folder)

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write the records as JSON lines that anyone can check."""
        with self.reader() as reader:
            reader.export(path)

    def close(self) -> None:
        """Settle what is open and leave the folder; what was stored stays."""
        if self._entered:
            self._streams.clear()
            session = self.session
            with suppress(LedgerError):  # the next one to enter settles it otherwise
                self._run.write(lambda con: self._settle_dead(con, session))
        self._closed = True
        if self._session is not None:
            self._session.close()
        self._run.close()
