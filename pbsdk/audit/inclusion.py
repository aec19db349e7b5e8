"""The inclusion proof: one record of a ledger, and the hashes that lead from it to a checkpoint; nothing else.

Whoever has the checkpoint, or trusts the key that signed it, can check that this record is the one at this place, and
learns nothing about the others.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

from pbsdk.audit import timestamping
from pbsdk.audit.certificate import Certificate, path_bytes, read_file, verified_runs
from pbsdk.audit.checkpoint import Checkpoint
from pbsdk.audit.signing import PublicKey
from pbsdk.errors import InputError, LedgerCorrupted
from pbsdk.ledger.chain import FIELDS, canonical
from pbsdk.ledger.merkle import inclusion_runs, leaf_hash, root_from_path
from pbsdk.ledger.places import locate
from pbsdk.ledger.reader import LedgerReader

__all__ = ["InclusionProof"]


class InclusionProof(BaseModel):
    """That a record is part of a ledger, without the ledger."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal[1] = 1
    record: dict[str, int | str]
    """The record's fields in order, without its hash in the chain, which would cover those before it."""
    path: list[str]
    """The hashes of RFC 9162's inclusion proof, in hexadecimal digits, the nearest first."""
    checkpoint: str
    timestamp: str = ""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        Checkpoint.read(self.checkpoint)
        if tuple(self.record) != FIELDS or not isinstance(self.record["seq"], int):
            raise ValueError(f"a record's fields are {', '.join(FIELDS)}")
        return self

    @classmethod
    def of(cls, run: str | os.PathLike[str], query: int | str, certificate: Certificate) -> Self:
        """Prove that a query's record is covered by a certificate; verifies the run.

        Args:
            run: the folder.
            query: the record's number, or the key of a query that was answered: its answer's record.
            certificate: it covers the record.

        Raises:
            LedgerCorrupted: the run doesn't verify, or doesn't begin with what the certificate covers.
        """
        checkpoint = certificate.read_checkpoint()
        run = locate(run)
        with LedgerReader(run) as reader:
            seq = query if isinstance(query, int) else _answered(reader, query)
            rows = list(reader.select(f"SELECT {', '.join(FIELDS)} FROM records WHERE seq = ?", seq))  # noqa: S608 - our own names
        if not rows or seq > checkpoint.size:
            raise InputError(f"{run}: there is no record {seq} among the {checkpoint.size} that the checkpoint covers")
        record = dict(zip(FIELDS, rows[0], strict=True))
        _, (root, *path) = verified_runs(run, [(0, checkpoint.size)], inclusion_runs(seq - 1, checkpoint.size))
        if root != checkpoint.root:
            raise LedgerCorrupted(
                f"{run}: the certificate's checkpoint is not that of its first {checkpoint.size} records"
            )
        return cls(
            record=record,
            path=[each.hex() for each in path],
            checkpoint=certificate.checkpoint,
            timestamp=certificate.timestamp,
        )

    def check(self, certificate: Certificate | None = None, key: PublicKey | None = None) -> str:
        """Check that the record's path leads to the checkpoint's root; return whose checkpoint that is.

        Raises:
            LedgerCorrupted: it doesn't, or the checkpoint is not the certificate's or not signed by the key.
        """
        told, seq = self.read_checkpoint(), int(self.record["seq"])
        path = path_bytes(self.path)
        leaf = leaf_hash(canonical(self.record.values()).encode())
        if path is None or root_from_path(leaf, seq - 1, told.size, path) != told.root:
            raise LedgerCorrupted(f"record {seq} is not the one in the checkpoint's tree: it, or its path, was changed")
        if certificate is not None:
            kept = certificate.read_checkpoint()
            if (kept.origin, kept.size, kept.root) != (told.origin, told.size, told.root):
                raise LedgerCorrupted("the proof is not one for this certificate: their checkpoints differ")
        return told.check_signature(key)

    def read_checkpoint(self) -> Checkpoint:
        """Return the checkpoint."""
        return Checkpoint.read(self.checkpoint)

    def check_timestamp(self, roots: Path | None) -> str:
        """Say when the checkpoint was time-stamped, as `Certificate.check_timestamp` does."""
        return timestamping.check(self.timestamp, self.checkpoint, roots)

    def to_json(self) -> str:
        """Return the proof as JSON."""
        return self.model_dump_json(indent=2) + "\n"

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a proof."""
        return read_file(cls, path, "proof", "pbsdk audit prove")


def _answered(reader: LedgerReader, query: str) -> int:
    rows = list(reader.select("SELECT seq FROM answers WHERE query = ?", query))
    if not rows:
        raise InputError(f"{reader.folder} holds no answer to {query!r}; give a record's number, or the key of a query")
    return int(rows[0][0])
