"""Verifying a run folder: everything that it says about itself, derived again.

`verify_run` walks the records once, in order. Each must have the next number, the hash that follows
from the one before it, a state that its query can be in, and the key that its parts give; an
answer must match the digest that its record carries. Then the lists and counters that repeat
the records are counted again. The first record that doesn't match is named.

What this can't detect is a folder rewritten as a whole, hashes included. A certificate that was kept
elsewhere can: see `pbsdk/audit/certificate.py`. It is made on the same walk, from each record's leaf.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from pbsdk.errors import LedgerCorrupted
from pbsdk.ledger.budget import INSIDE, SCOPE_OF_PHASE
from pbsdk.ledger.chain import FIELDS, FORMAT, GENESIS, Record, canonical, follow
from pbsdk.ledger.codec import (
    SET_PREFIX,
    TOKEN_BYTES,
    answer_digest,
    is_storable_of,
    query_key,
    set_digest,
    set_named_in,
    split_parts,
    unpack_tokens,
    words_in,
)
from pbsdk.ledger.lots import RAN, charged_examples
from pbsdk.ledger.merkle import leaf_hash
from pbsdk.ledger.reader import LedgerReader

__all__ = ["Verification", "verify_run"]

_AFTER = {
    "reserved": {""},
    "sent": {"reserved"},
    "released": {"reserved"},
    "done": {"sent"},
    "failed": {"sent"},
    "unknown": {"sent"},
}
"""Which states a query may be in before each record; a query that is not in flight has none."""


class _Flight(NamedTuple):
    """What the list of queries in flight must say of one, from its last records."""

    session: str
    state: str
    phase: str
    example: str
    prompt: str
    attempt: int
    read: int
    """The most that it can cost."""


@dataclass(frozen=True)
class Verification:
    """A ledger whose records all match: how many there are, and the hash that covers them."""

    run: str
    records: int
    answers: int
    head: str

    def __str__(self) -> str:
        return f"{self.run}: all {self.records:,} records and {self.answers:,} answers match; head {self.head}"

    def to_dict(self) -> dict[str, object]:
        """Return the result as plain values."""
        return asdict(self)


def verify_run(run: str | os.PathLike[str], leaf: Callable[[bytes], None] | None = None) -> Verification:
    """Derive everything in a run folder again from its records.

    Args:
        run: the folder.
        leaf: called with the hash of every record as a leaf of the Merkle tree (`merkle.py`), in order.

    Raises:
        LedgerCorrupted: naming the first record that doesn't match.
    """
    with LedgerReader(run) as reader:
        return _Verifier(reader, leaf).run()


class _Verifier:
    def __init__(self, reader: LedgerReader, leaf: Callable[[bytes], None] | None) -> None:
        self._reader = reader
        self._leaf = leaf
        self._model = reader.model().digest
        self._in_flight: dict[str, _Flight] = {}
        self._sessions: set[str] = set()
        self._words: dict[int, str] = {}
        self._ran: Counter[tuple[str, str, str]] = Counter()
        self._names_kept = reader.names()
        self._sets = {
            name.removeprefix(SET_PREFIX)
            for (name,) in reader.select("SELECT key FROM stored")
            if name.startswith(SET_PREFIX)
        }

    def run(self) -> Verification:
        self._refuse(self._reader.damage())
        self._records()
        self._answers()
        self._names()
        self._counters()
        self._rest()
        self._refuse(self._reader.oddity())
        records, head = self._reader.head()
        return Verification(str(self._reader.folder), records, self._reader.rows("answers"), head)

    def _refuse(self, what: str) -> None:
        if what:
            raise self._broken(what)

    def _broken(self, what: str) -> LedgerCorrupted:
        return LedgerCorrupted(f"{self._reader.folder}: {what}")

    def _records(self) -> None:
        """Check numbers, hashes, the order of states and keys, and each answer with its record."""
        chain, last = GENESIS, 0
        rows = self._reader.select(
            "SELECT r.*, s.value FROM records r LEFT JOIN stored s ON r.state = 'done' AND s.key = r.query ORDER BY r.seq"
        )
        size = len(Record._fields)
        for row in rows:
            record = Record._make(row[:size])
            seq = record.seq
            if seq != last + 1:
                raise self._broken(f"record {last + 1} is missing: record {seq} follows {last}")
            text = canonical(record[: len(FIELDS)])
            chain = follow(chain, text)
            if chain != record.chain:
                raise self._broken(f"record {seq} was changed, or one before it: it doesn't match its hash")
            self._state(record)
            if record.state == "done":
                self._answer(record, row[size])
            if self._leaf is not None:
                self._leaf(leaf_hash(text.encode()))
            last = seq
        if (last, chain) != self._reader.head():
            raise self._broken(f"record {last + 1} is missing: the record was cut off after {last}")

    def _state(self, record: Record) -> None:
        """Check that a query can enter this state, and that its key follows from its parts."""
        seq, query, state, note = record.seq, record.query, record.state, record.note
        if state == "opened":
            if json.loads(note)["model"] != self._reader.meta()["model"]:
                raise self._broken(f"record {seq}: the folder names a different model than the one that was asked")
            self._sessions.add(record.session)
            return
        if state == RAN:
            self._lot(record)
        if state in {"hit", "allowed", RAN}:
            return
        flight = self._in_flight.pop(query, None)
        before = flight.state if flight else ""
        if state not in _AFTER or before not in _AFTER[state]:
            raise self._broken(f"record {seq}: a query can't be {state} when it is {before or 'not in flight'}")
        if flight and state == "sent":
            self._in_flight[query] = flight._replace(session=record.session, state=state, attempt=record.attempt)
        if state == "reserved":
            self._in_flight[query] = _Flight(*(getattr(record, name) for name in _Flight._fields))
            content, tokens = split_parts(note)
            if query_key(self._model, content, tokens) != query:
                raise self._broken(f"record {seq}: the key is not that of this model, text and token set")

    def _lot(self, record: Record) -> None:
        """Count the passes of a lot for each example of its group."""
        text = self._names_kept.get(record.example, "")
        examples = charged_examples(text)
        if not text or record.note != str(len(examples)) or record.phase not in INSIDE or record.attempt < 1:
            raise self._broken(f"record {record.seq}: the examples that it charges are not those that it names")
        if record.prompt not in self._names_kept:
            raise self._broken(f"record {record.seq}: the name of its method is missing")
        for example in examples:
            self._ran[record.phase, example, record.prompt] += record.attempt

    def _answer(self, record: Record, value: Any) -> None:
        """Check the answer's bytes, and that its token set exists; remember the words that it was the first to show."""
        seq = record.seq
        self._words |= words_in(record.note)
        if type(value) is not bytes:
            raise self._broken(f"record {seq}: its answer is missing or was not written by pbsdk")
        if answer_digest(value) != record.answer:
            raise self._broken(f"record {seq}: its answer was changed: it doesn't match its digest")
        name = set_named_in(value)
        if name is not None and name not in self._sets:
            raise self._broken(f"record {seq}: the token set {name} of its answer is missing")

    def _answers(self) -> None:
        """Check that answers, their index and the records agree, and that hits refer to stored answers."""
        done = "SELECT query, answer, seq FROM records WHERE state = 'done'"
        listed = "SELECT query, digest, seq FROM answers"
        for one, two in ((done, listed), (listed, done)):
            for row in self._reader.select(f"{one} EXCEPT {two} ORDER BY 3 LIMIT 1"):
                raise self._broken(f"record {row[2]}: the list of answers doesn't match it")
        for row in self._reader.select(
            "SELECT r.seq FROM records r LEFT JOIN answers a ON a.query = r.query"
            " WHERE r.state = 'hit' AND (a.digest IS NULL OR a.digest <> r.answer OR a.seq > r.seq) ORDER BY r.seq LIMIT 1"
        ):
            raise self._broken(f"record {row[0]}: a hit on an answer that doesn't exist")
        for key, value in self._reader.select(
            "SELECT s.key, s.value FROM stored s LEFT JOIN answers a ON a.query = s.key WHERE a.query IS NULL"
        ):
            name = key.removeprefix(SET_PREFIX)
            if not len(value) or len(value) % TOKEN_BYTES:
                raise self._broken("it holds an answer that no record mentions")
            if set_digest(unpack_tokens(value)) != name:
                raise self._broken(f"the token set {name} was changed, or no record mentions it")

    def _names(self) -> None:
        """Check that every prompt has its text, and that the text matches its digest."""
        names = self._names_kept
        for name, text in names.items():
            if not is_storable_of(text, name):
                raise self._broken(f"the text of prompt {name} was changed: it doesn't match its digest")
        for seq, prompt in self._reader.select(
            "SELECT min(seq), prompt FROM records WHERE state = 'reserved' GROUP BY prompt ORDER BY 1"
        ):
            if prompt not in names:
                raise self._broken(f"record {seq}: the text of its prompt is missing")

    def _counters(self) -> None:
        """Count from the records what the budget's counters hold."""
        counted = (
            f"SELECT {SCOPE_OF_PHASE} AS scope, example, prompt,"  # noqa: S608 - constants only
            " count(*) FILTER (WHERE state = 'reserved') - count(*) FILTER (WHERE state IN ('sent', 'released')) AS held,"
            " count(*) FILTER (WHERE state = 'sent') AS sent, count(*) FILTER (WHERE state = 'failed') AS failed FROM records WHERE state IN ('reserved', 'sent', 'released', 'failed')"
            " GROUP BY 1, 2, 3"
        )
        inside = f"scope IN {INSIDE}"
        kept = f"SELECT scope, example, prompt, held, sent, failed FROM passes WHERE NOT {inside}"  # noqa: S608 - likewise
        for one, two in ((counted, kept), (kept, counted)):
            for row in self._reader.select(f"SELECT * FROM ({one}) AS a EXCEPT SELECT * FROM ({two}) AS b LIMIT 1"):  # noqa: S608 - constants only
                raise self._broken(f"the counters of example {row[1]} under prompt {row[2]} don't match the records")
        ran = {
            (scope, example, prompt): (held, sent, failed)
            for scope, example, prompt, held, sent, failed in self._reader.select(
                f"SELECT scope, example, prompt, held, sent, failed FROM passes WHERE {inside}"  # noqa: S608 - likewise
            )
        }
        if ran != {what: (0, passes, 0) for what, passes in self._ran.items()}:
            raise self._broken("the counters of passes inside the model don't match the records")
        (here,) = self._reader.select(
            f"SELECT count(*) FILTER (WHERE NOT {inside} AND held + sent > failed)"  # noqa: S608 - likewise
            f" + coalesce(sum(CASE WHEN {inside} THEN sent ELSE 0 END), 0),"
            " coalesce(sum(held), 0), coalesce(sum(sent), 0), coalesce(sum(failed), 0) FROM passes"
        )
        ((tokens,),) = self._reader.select(
            "SELECT (SELECT coalesce(sum(read), 0) FROM records WHERE state IN ('done', 'unknown', 'ran'))"
            " + (SELECT coalesce(sum(tokens), 0) FROM inflight)"
        )
        kept_totals = list(self._reader.select("SELECT passes, held, sent, failed, tokens FROM totals"))
        if kept_totals != [(*here, tokens)]:
            raise self._broken("the totals don't match the records")
        listed = {
            key: _Flight(*row)
            for key, *row in self._reader.select(
                "SELECT query, session, state, phase, example, prompt, attempt, tokens FROM inflight"
            )
        }
        if listed != self._in_flight:
            odd = min(key for key in listed | self._in_flight if listed.get(key) != self._in_flight.get(key))
            rows = self._reader.select("SELECT coalesce(max(seq), 0) FROM records WHERE query = ?", odd)
            raise self._broken(f"record {next(rows)[0]}: the list of queries in flight doesn't match it")
        for (query,) in self._reader.select(
            "SELECT query FROM inflight i WHERE NOT EXISTS"
            " (SELECT 1 FROM streams s WHERE s.session = i.session AND s.stream = i.stream) LIMIT 1"
        ):
            raise self._broken(f"the stream that has query {query} in flight is not listed, so nobody would settle it")

    def _rest(self) -> None:
        """Check what no record counts: the vocabulary, token sets, streams, and what the ledger says about itself."""
        if self._reader.words() != self._words:
            raise self._broken("the words of the vocabulary are not those that the records hold")
        if {name for (name,) in self._reader.select("SELECT digest FROM sets")} != self._sets:
            raise self._broken("the list of token sets doesn't match the sets that are stored")
        if {name for (name,) in self._reader.select("SELECT session FROM streams")} - self._sessions:
            raise self._broken("it lists a stream of a session that no record opened")
        meta = self._reader.meta()
        if set(meta) != {"format", "model"} or meta["format"] != str(FORMAT):
            raise self._broken(
                f"its description ({', '.join(sorted(meta))}) is not that of a ledger of format {FORMAT}"
            )
