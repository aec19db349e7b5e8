"""The certificate: the head of the record and its counts, small enough to send to somebody.

A run folder can prove that none of its records was changed, unless all of them were rewritten, hashes
included. A certificate kept elsewhere detects that too: the record that was the last one when the
certificate was made must still have the same hash, and the counts up to it must be the same. The run may
have continued since.

`docs/verify_ledger.py` makes the same check on an exported ledger, without pbsdk.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from pbsdk.errors import InputError, LedgerCorrupted
from pbsdk.ledger.budget import SCOPE_OF_PHASE
from pbsdk.ledger.reader import LedgerReader
from pbsdk.ledger.verifier import Verification, verify_run

__all__ = ["Certificate"]


class Certificate(BaseModel):
    """A ledger's counts up to some record, and that record's hash."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    model: str
    """The model's identity, as JSON."""
    records: int
    head: str
    answers: int
    hits: int
    attempts: int
    failed: int
    unknown: int
    tokens_read: int
    passes: dict[str, int]
    """By scope, the distinct (example, prompt) pairs that ran or may have run."""
    most: dict[str, int]
    """By scope, the most passes that one example had."""

    @classmethod
    def of(cls, run: str | os.PathLike[str], records: int | None = None) -> Self:
        """Verify a run folder and certify it, up to the record numbered `records` if that is given.

        Raises:
            LedgerCorrupted: naming the first record that doesn't match.
        """
        verify_run(run)
        with LedgerReader(run) as reader:
            return cls._count(reader, reader.head()[0] if records is None else records)

    @classmethod
    def _count(cls, reader: LedgerReader, records: int) -> Self:
        heads = list(reader.select("SELECT chain FROM records WHERE seq = ?", records))
        states = dict(reader.select("SELECT state, count(*) FROM records WHERE seq <= ? GROUP BY state", records))
        ((tokens,),) = reader.select(
            "SELECT coalesce(sum(read), 0) FROM records WHERE state = 'done' AND seq <= ?", records
        )
        passes, most = {}, {}
        for scope, total, dearest in reader.select(
            "SELECT scope, sum(n), max(n) FROM (SELECT scope, count(*) n FROM (SELECT"  # noqa: S608 - constants only
            f" {SCOPE_OF_PHASE} scope, example, prompt"
            " FROM records WHERE state IN ('sent', 'failed') AND seq <= ? GROUP BY 1, 2, 3"
            " HAVING sum(state = 'sent') > sum(state = 'failed')) GROUP BY scope, example) GROUP BY scope",
            records,
        ):
            passes[str(scope)], most[str(scope)] = int(total), int(dearest)
        return cls(
            model=reader.meta()["model"],
            records=records,
            head=heads[0][0] if heads else "",
            answers=states.get("done", 0),
            hits=states.get("hit", 0),
            attempts=states.get("sent", 0),
            failed=states.get("failed", 0),
            unknown=states.get("unknown", 0),
            tokens_read=tokens,
            passes=passes,
            most=most,
        )

    def check(self, run: str | os.PathLike[str]) -> Verification:
        """Verify a run folder against this certificate.

        Raises:
            LedgerCorrupted: naming the first record that doesn't match, or what contradicts the certificate.
        """
        verified = verify_run(run)
        with LedgerReader(run) as reader:
            if verified.records < self.records:
                raise LedgerCorrupted(
                    f"{reader.folder}: record {verified.records + 1} is missing: the certificate covers {self.records} records"
                )
            here = self._count(reader, self.records)
        for name in type(self).model_fields:
            if getattr(here, name) != getattr(self, name):
                what = (
                    f"record {self.records} has a different hash: it, or one before it, was rewritten"
                    if name == "head"
                    else f"{name} up to record {self.records} is {getattr(here, name)}, "
                    f"but the certificate says {getattr(self, name)}"
                )
                raise LedgerCorrupted(f"{run}: {what}")
        return verified

    def to_json(self) -> str:
        """Return the certificate as JSON."""
        return self.model_dump_json(indent=2) + "\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the certificate as JSON."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a certificate."""
        try:
            return cls.model_validate_json(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, ValidationError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not what `pbsdk audit certify` writes"
            raise InputError(f"the certificate {path} can't be read: {reason}") from error
