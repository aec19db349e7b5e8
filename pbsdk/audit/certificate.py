"""The certificate: a checkpoint of the record and its counts, small enough to send to somebody.

A run folder can prove that none of its records was changed, unless all of them were rewritten, hashes
included. A certificate kept elsewhere detects that too: the records it covers must still have the same Merkle root,
and the counts up to there must be the same. The run may have continued since.

A certificate may be signed, which says whose it is, and time-stamped by an authority, which says since when it exists.
One made `since` an older one also holds the proof that nothing before was changed, which needs no ledger to check.

`docs/verify_ledger.py` makes the same checks on an exported ledger, without pbsdk.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from pbsdk.audit import timestamping
from pbsdk.audit.checkpoint import Checkpoint
from pbsdk.audit.signing import PrivateKey, PublicKey
from pbsdk.errors import InputError, LedgerCorrupted
from pbsdk.foreign import bounded_file, bounded_json
from pbsdk.ledger.budget import SCOPE_OF_PHASE
from pbsdk.ledger.lots import LotSums
from pbsdk.ledger.merkle import Runs, consistency_runs, is_consistent
from pbsdk.ledger.places import locate
from pbsdk.ledger.reader import LedgerReader
from pbsdk.ledger.verifier import Verification, verify_run

__all__ = ["Certificate", "Growth", "path_bytes", "read_file", "verified_runs"]

_ORIGIN_DIGITS = 32
_Kind = TypeVar("_Kind", bound=BaseModel)

LARGEST = 1 << 20
"""How many bytes a certificate or a proof may have; it takes some thousand."""


class Growth(BaseModel):
    """The proof that a record begins with all of an older one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: int
    """How many records the older one had."""
    path: tuple[str, ...]
    """The hashes of RFC 9162's consistency proof, in hexadecimal digits."""


class Certificate(BaseModel):
    """A ledger's checkpoint and counts up to some record."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1, 2] = 2
    """Format 1 has counts and the chain's hash, but no checkpoint."""
    checkpoint: str = ""
    """A signed note; see `pbsdk/audit/checkpoint.py`."""
    timestamp: str = ""
    """An authority's response (RFC 3161) about the checkpoint as it stands here, in base64; empty if there is none."""
    since: Growth | None = None
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

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.format == 1 and (self.checkpoint or self.timestamp or self.since):
            raise ValueError("a certificate of format 1 has no checkpoint")
        if self.format != 1 and Checkpoint.read(self.checkpoint).size != self.records:
            raise ValueError("the checkpoint is of another number of records")
        return self

    @classmethod
    def of(cls, run: str | os.PathLike[str], records: int | None = None, *, since: Certificate | None = None) -> Self:
        """Verify a run folder and certify it, up to the record numbered `records` if that is given.

        With `since` an older certificate, it holds the proof that nothing up to there was changed.

        Raises:
            LedgerCorrupted: naming the first record that doesn't match.
        """
        run = locate(run)
        with LedgerReader(run) as reader:
            size = reader.head()[0] if records is None else records
            if size < 1:
                raise InputError(f"{reader.folder} has no record yet, so there is nothing to certify")
        if since is None:
            root = verified_runs(run, [(0, size)])[1][0]
            growth = None
        else:
            since.covered_by(size, str(run))
            old = since.read_checkpoint()
            _, (root, before, *path) = verified_runs(
                run, [(0, size)], [(0, old.size)], consistency_runs(old.size, size)
            )
            if before != old.root:
                raise LedgerCorrupted(f"{run}: a record up to {old.size} was rewritten since that certificate")
            growth = Growth(size=old.size, path=tuple(each.hex() for each in path))
        with LedgerReader(run) as reader:
            counted = cls._count(reader, size)
            checkpoint = Checkpoint(
                origin=_origin(reader),
                size=size,
                root=root,
                time=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
                counts=_digest_of(counted),
            )
        return cls(checkpoint=checkpoint.note(), since=growth, **counted)

    def read_checkpoint(self) -> Checkpoint:
        """Return the checkpoint."""
        if not self.checkpoint:
            raise InputError("a certificate of format 1 has no checkpoint to prove anything against; make a new one")
        return Checkpoint.read(self.checkpoint)

    def signed(self, key: PrivateKey) -> Self:
        """Return the certificate signed, before it is time-stamped."""
        if self.timestamp:
            raise InputError("sign a certificate before it is time-stamped: the time stamp covers the signatures")
        return self.model_copy(update={"checkpoint": self.read_checkpoint().signed(key).note()})

    def stamped(self, url: str) -> Self:
        """Return the certificate with a time stamp of the authority at this address (RFC 3161)."""
        return self.model_copy(update={"timestamp": timestamping.ask(url, self.checkpoint)})

    def check_signature(self, key: PublicKey | None) -> str:
        """Say who signed it; raise `LedgerCorrupted` if it should be signed by this key and isn't."""
        if self.format == 1 and key is None:
            return "unsigned"
        return self.read_checkpoint().check_signature(key)

    def check_timestamp(self, roots: Path | None) -> str:
        """Say when it was time-stamped; with trusted certificates of authorities, raise `LedgerCorrupted` if that is wrong."""
        return timestamping.check(self.timestamp, self.checkpoint, roots)

    @classmethod
    def _count(cls, reader: LedgerReader, records: int) -> dict[str, Any]:
        heads = list(reader.select("SELECT chain FROM records WHERE seq = ?", records))
        states = dict(
            reader.select("SELECT state, count(*) FROM records WHERE seq <= ? GROUP BY state ORDER BY state", records)
        )
        ((tokens,),) = reader.select(
            "SELECT coalesce(sum(read), 0) FROM records WHERE state = 'done' AND seq <= ?", records
        )
        passes, most = {}, {}
        for scope, total, dearest in reader.select(
            "SELECT scope, sum(n), max(n) FROM (SELECT scope, count(*) AS n FROM (SELECT"  # noqa: S608 - constants only
            f" {SCOPE_OF_PHASE} AS scope, example, prompt FROM records WHERE state IN ('sent', 'failed') AND seq <= ? GROUP BY 1, 2, 3"
            " HAVING count(*) FILTER (WHERE state = 'sent') > count(*) FILTER (WHERE state = 'failed')) AS passes"
            " GROUP BY scope, example) AS examples GROUP BY scope ORDER BY scope",
            records,
        ):
            passes[str(scope)], most[str(scope)] = int(total), int(dearest)
        for phase, spread in LotSums(reader, records).spreads().items():
            passes[phase], most[phase] = sum(n * examples for n, examples in spread.items()), max(spread)
        return {
            "model": reader.meta()["model"],
            "records": records,
            "head": heads[0][0] if heads else "",
            "answers": states.get("done", 0),
            "hits": states.get("hit", 0),
            "attempts": states.get("sent", 0),
            "failed": states.get("failed", 0),
            "unknown": states.get("unknown", 0),
            "tokens_read": tokens,
            "passes": passes,
            "most": most,
        }

    def check(self, run: str | os.PathLike[str]) -> Verification:
        """Verify a run folder against this certificate.

        Raises:
            LedgerCorrupted: naming the first record that doesn't match, or what contradicts the certificate.
        """
        run = locate(run)
        verified, (root,) = verified_runs(run, [(0, self.records)])
        self.covered_by(verified.records, str(verified.run))
        with LedgerReader(run) as reader:
            here, origin = self._count(reader, self.records), _origin(reader)
        for name, found in here.items():
            if found != getattr(self, name):
                what = (
                    f"record {self.records} has a different hash: it, or one before it, was rewritten"
                    if name == "head"
                    else f"{name} up to record {self.records} is {found}, but the certificate says {getattr(self, name)}"
                )
                raise LedgerCorrupted(f"{run}: {what}")
        if self.checkpoint:
            told = self.read_checkpoint()
            if (told.origin, told.root, told.counts) != (origin, root, _digest_of(here)):
                raise LedgerCorrupted(
                    f"{run}: the certificate's checkpoint is not that of its first {self.records} records"
                )
        return verified

    def covered_by(self, records: int, where: str) -> None:
        """Raise `LedgerCorrupted` if a ledger has fewer records than this certificate."""
        if records < self.records:
            raise LedgerCorrupted(
                f"{where}: record {records + 1} is missing: the certificate covers {self.records} records"
            )

    def check_growth(self, old: Certificate) -> int:
        """Check, without the ledger, that it only grew since an older certificate; return by how many records.

        Raises:
            LedgerCorrupted: it is another ledger's, or the proof doesn't hold.
        """
        for each in (old, self):
            if _digest_of(each.counts()) != each.read_checkpoint().counts:
                raise LedgerCorrupted(
                    f"the counts of the certificate of {each.records} records are not those it was made with"
                )
        before, after = old.read_checkpoint(), self.read_checkpoint()
        if before.origin != after.origin:
            raise LedgerCorrupted(f"the certificates are of two different runs: {before.origin} and {after.origin}")
        if old.records > self.records:
            raise InputError(f"the certificate given as older covers more records: {old.records} and {self.records}")
        growth = self.since
        if before.size == after.size:
            growth = Growth(size=before.size, path=())
        if growth is None or growth.size != before.size:
            raise InputError(
                f"the newer certificate holds no proof since the one of {before.size} records; make it with "
                "`pbsdk audit certify --since OLD`"
            )
        path = path_bytes(growth.path)
        if path is None or not is_consistent(before.size, after.size, before.root, after.root, path):
            raise LedgerCorrupted(f"the record didn't only grow: its first {before.size} records were rewritten since")
        return after.size - before.size

    def counts(self) -> dict[str, Any]:
        """Return all but the checkpoint: what its digest of the counts covers."""
        return self.model_dump(exclude={"format", "checkpoint", "timestamp", "since"})

    def to_json(self) -> str:
        """Return the certificate as JSON."""
        return self.model_dump_json(indent=2) + "\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the certificate as JSON."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a certificate."""
        return read_file(cls, path, "certificate", "pbsdk audit certify")


def read_file(kind: type[_Kind], path: str | os.PathLike[str], name: str, command: str) -> _Kind:
    """Read a file that a command wrote."""
    try:
        return kind.model_validate(bounded_json(bounded_file(path, LARGEST)))
    except OSError as error:
        raise InputError(f"the {name} {path} can't be read: {error.strerror}") from error
    except ValueError as error:
        what = f" ({error})" if not isinstance(error, ValidationError) else ""
        raise InputError(f"the {name} {path} can't be read: it is not what `{command}` writes{what}") from error


def _digest_of(counts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(counts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _origin(reader: LedgerReader) -> str:
    """Return what names a run: the hash of its first record, which holds its session's random name."""
    ((first,),) = reader.select("SELECT chain FROM records WHERE seq = 1")
    return f"pbsdk/run/{first[:_ORIGIN_DIGITS]}"


def verified_runs(run: str | os.PathLike[str], *runs: Sequence[tuple[int, int]]) -> tuple[Verification, list[bytes]]:
    """Verify a run folder, and return the tree's hashes over these runs of records, found on the same walk."""
    found = [Runs(each) for each in runs]

    def leaf(hashed: bytes) -> None:
        for each in found:
            each.add(hashed)

    verified = verify_run(run, leaf)
    return verified, [hashed for each in found for hashed in each.hashes()]


def path_bytes(path: Sequence[str]) -> list[bytes] | None:
    """Return the hashes of a proof, or None if they are none."""
    try:
        return [bytes.fromhex(each) for each in path]
    except ValueError:
        return None
