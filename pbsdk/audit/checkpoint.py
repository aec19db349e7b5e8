"""The checkpoint: which record, how long, and the root of its tree, in five lines that can be signed.

It is a signed note as transparency logs use it (C2SP tlog-checkpoint): a text, an empty line, and a line for each
signature, none if it is unsigned. The text is the origin, which names the run; the number of records; the root
of the Merkle tree over them, in base64; the time; and a digest of the counts in the certificate, so that a signature
covers them without showing them.

>>> print(Checkpoint("pbsdk/run/00", 1, bytes(32), "2026-11-18T20:00:00Z", "c0ffee").note(), end="")
pbsdk/run/00
1
AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=
time 2026-11-18T20:00:00Z
counts c0ffee
<BLANKLINE>
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, replace
from typing import Self

from pbsdk.audit.signing import PrivateKey, PublicKey, Signature
from pbsdk.errors import LedgerCorrupted

__all__ = ["Checkpoint"]

_NOTE = re.compile(
    r"(?P<origin>pbsdk/run/[0-9a-f]+)\n(?P<size>[1-9][0-9]*)\n(?P<root>[A-Za-z0-9+/]{43}=)\n"
    r"time (?P<time>[0-9TZ:-]+)\ncounts (?P<counts>[0-9a-f]+)\n\n(?P<signatures>(?:— [^\n]+\n)*)"
)


@dataclass(frozen=True)
class Checkpoint:
    """The head of a ledger's Merkle tree at some moment."""

    origin: str
    size: int
    root: bytes
    time: str
    counts: str
    signatures: tuple[Signature, ...] = ()

    @property
    def text(self) -> str:
        """What is signed."""
        root = base64.b64encode(self.root).decode()
        return f"{self.origin}\n{self.size}\n{root}\ntime {self.time}\ncounts {self.counts}\n"

    def note(self) -> str:
        """Return the text with its signatures."""
        return "".join([self.text, "\n", *(f"{signature}\n" for signature in self.signatures)])

    @classmethod
    def read(cls, note: str) -> Self:
        """Read a note; what is none is a ValueError."""
        match = _NOTE.fullmatch(note)
        signatures = [Signature.read(line) for line in match["signatures"].splitlines()] if match else []
        if match is None or None in signatures:
            raise ValueError("it holds no checkpoint")
        return cls(
            match["origin"],
            int(match["size"]),
            base64.b64decode(match["root"]),
            match["time"],
            match["counts"],
            tuple(signature for signature in signatures if signature),
        )

    def signed(self, key: PrivateKey) -> Self:
        """Return the checkpoint with another signature."""
        return replace(self, signatures=(*self.signatures, key.sign(self.text)))

    def check_signature(self, key: PublicKey | None) -> str:
        """Say who signed it, and whether that was checked.

        Raises:
            LedgerCorrupted: a key was given, and no signature is its own.
        """
        if key is None:
            names = ", ".join(f"{each.name} ({each.id})" for each in self.signatures)
            return f"signed by {names}, not checked: that needs the public key" if names else "unsigned"
        if not any(key.accepts(self.text, signature) for signature in self.signatures):
            raise LedgerCorrupted(f"the checkpoint of {self.size} records is not signed by {key.name} ({key.id})")
        return f"signed by {key.name} ({key.id})"
