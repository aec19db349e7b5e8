"""Reading a ledger without touching it, wherever it is kept.

A `LedgerReader` works beside a run that is still going on, and needs no model. Everything it shows is as of the moment it was opened.
`sums.py` adds up what it reads, and `verifier.py` checks whether the record is intact.
"""

from __future__ import annotations

import base64
import json
import os
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pbsdk.backend import ModelIdentity
from pbsdk.errors import LedgerCorrupted, PbsdkError
from pbsdk.ledger import forking
from pbsdk.ledger.budget import FIT, QueryBudget, Totals
from pbsdk.ledger.chain import FIELDS, FORMAT, GENESIS
from pbsdk.ledger.places import locate, open_view

__all__ = ["LedgerReader"]

_ODD = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What reading values raises that are of another kind, or in another form, than pbsdk writes."""


_AT_ONCE = 500
"""How many values one statement takes."""


class LedgerReader:
    """A view of a ledger that can't write. The numbers are those of the moment it was opened.

    One whose schema is not exactly a ledger's, or that has lost records, is refused; so are, on leaving the `with` block, values
    that could not be read.
    """

    def __init__(self, run: str | os.PathLike[str]) -> None:
        self.folder = locate(run)
        self._leave = weakref.finalize(self, forking.leave, forking.enter())
        try:
            self._view = open_view(self.folder)
        except BaseException as error:
            self._leave()
            self._refuse_odd(error)
            raise

    def _refuse_odd(self, error: BaseException | None) -> None:
        if isinstance(error, _ODD) and not isinstance(error, PbsdkError):
            raise LedgerCorrupted(
                f"{self.folder} holds what pbsdk never writes ({type(error).__name__}: {error}); use another run folder"
            ) from error

    def close(self) -> None:
        """Close the view."""
        self._view.close()
        self._leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        self._refuse_odd(error)

    def select(self, statement: str, *values: int | str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a statement, which sees the ledger's tables, `stored` (the bytes under each key) and what was derived."""
        return self._view.select(statement, *values)

    def derive(self, name: str, query: str) -> None:
        """Keep a query's rows under a name, for later statements."""
        self._view.derive(name, query)

    def _all(self, statement: str) -> list[tuple[Any, ...]]:
        return list(self.select(statement))

    def damage(self) -> str:
        """Return what is wrong with the files or tables as such, or nothing."""
        return self._view.damage()

    def oddity(self) -> str:
        """Return what is stored beside the ledger's tables that pbsdk doesn't write, or nothing."""
        return self._view.oddity()

    def stored(self, key: str) -> bytes | None:
        """Return the bytes under a key."""
        rows = list(self.select("SELECT value FROM stored WHERE key = ?", key))
        return bytes(rows[0][0]) if rows else None

    def rows(self, table: str) -> int:
        """Return how many rows a table has."""
        return int(self._all(f"SELECT count(*) FROM {table}")[0][0])  # noqa: S608 - our own names

    def among(self, table: str, keys: Sequence[str]) -> set[str]:
        """Return which queries' keys a table has, such as `answers` or `inflight`."""
        found: set[str] = set()
        for at in range(0, len(keys), _AT_ONCE):
            part = keys[at : at + _AT_ONCE]
            marks = ",".join("?" * len(part))
            statement = f"SELECT query FROM {table} WHERE query IN ({marks})"  # noqa: S608 - our own names
            found.update(str(key) for (key,) in self.select(statement, *part))
        return found

    def fitted(self, examples: Sequence[str]) -> set[str]:
        """Return which examples, named by their digests, were trained or validated on."""
        found: set[str] = set()
        for at in range(0, len(examples), _AT_ONCE):
            part = examples[at : at + _AT_ONCE]
            marks = ",".join("?" * len(part))
            statement = (
                f"SELECT DISTINCT example FROM passes WHERE scope = ? AND sent > failed AND example IN ({marks})"  # noqa: S608 - marks alone
            )
            found.update(str(example) for (example,) in self.select(statement, FIT, *part))
        return found

    def meta(self) -> dict[str, str]:
        """Return what the ledger says about itself: its format and its model."""
        return {str(name): str(value) for name, value in self._all("SELECT name, value FROM meta")}

    def model(self) -> ModelIdentity:
        """Return the model whose answers the ledger holds."""
        return ModelIdentity.from_json(self.meta()["model"])

    def size(self) -> int:
        """Return how many bytes the ledger takes."""
        return self._view.size()

    def head(self) -> tuple[int, str]:
        """Return the last record's number and hash."""
        ((seq, chain),) = self._all("SELECT records, head FROM totals")
        if type(seq) is not int:
            raise LedgerCorrupted(f"{self.folder} counts {seq!r} records, which no ledger has; use another run folder")
        return seq, str(chain)

    def budgets(self) -> dict[str, QueryBudget]:
        """Return the budget of every session, in the order in which they opened the ledger."""
        rows = self.select("SELECT session, note FROM records WHERE state = 'opened' ORDER BY seq")
        return {str(session): QueryBudget.from_dict(json.loads(str(note))["budget"]) for session, note in rows}

    def remaining(self) -> tuple[int, dict[str, float]] | None:
        """Return what a server in front of the model last said is left there, and when; None if none ever did."""
        rows = self._all("SELECT time, note FROM records WHERE state = 'allowed' ORDER BY seq DESC LIMIT 1")
        return (int(rows[0][0]), {str(name): float(n) for name, n in json.loads(rows[0][1]).items()}) if rows else None

    def totals(self) -> Totals:
        """Return what is spent or reserved in all."""
        (row,) = self._all("SELECT passes, held + sent, failed, tokens FROM totals")
        return Totals(*map(int, row))

    def names(self) -> dict[str, str]:
        """Return the prompts' texts by their digests."""
        return {str(name): str(text) for name, text in self._all("SELECT digest, text FROM names ORDER BY digest")}

    def words(self) -> dict[int, str]:
        """Return what the tokens of an open vocabulary say, as far as answers showed them."""
        return {int(token): str(word) for token, word in self._all("SELECT token, word FROM words ORDER BY token")}

    def export(self, path: str | os.PathLike[str], *, answers: bool = False) -> None:
        """Write JSON lines: one about the ledger, then one per record, each answer's followed by its bytes if `answers`."""
        seq, chain = self.head()
        fields = [*FIELDS, "chain"]
        (totals,) = self._all("SELECT passes, held, sent, failed, tokens FROM totals")
        top = {
            "format": FORMAT,
            "records": seq,
            "head": chain,
            "genesis": GENESIS,
            "fields": fields,
            "model": self.meta()["model"],
            "prompts": self.names(),
            "totals": dict(zip(("passes", "held", "sent", "failed", "tokens"), totals, strict=True)),
            "answers": answers,
        }
        with Path(path).open("w", encoding="utf-8") as file:
            file.write(json.dumps(top) + "\n")
            for row in self.select("SELECT * FROM records ORDER BY seq"):
                record = dict(zip(fields, row, strict=True))
                file.write(json.dumps(record) + "\n")
                if answers and record["state"] == "done" and (data := self.stored(record["query"])) is not None:
                    file.write(json.dumps({"bytes": base64.b64encode(data).decode()}) + "\n")
