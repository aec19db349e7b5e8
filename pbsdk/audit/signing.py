"""Keys and signatures: Ed25519, in the formats of signed notes (C2SP).

A public key is one line, `name+id+key`, and so is a private one; the id is the start of a hash of both name and key.
Tools that read signed notes read them too. A private key lies in a file of its own that only its owner can read, and
never in a run folder: whoever could rewrite the folder could then sign what was rewritten.

Signing needs the package `cryptography` (`pip install "pbsdk[sign]"`); everything else about certificates doesn't.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pbsdk.errors import InputError, MissingExtra
from pbsdk.ledger.folder_view import DATABASE

__all__ = ["PrivateKey", "PublicKey", "Signature"]

_ED25519 = b"\x01"
"""The kind of key, in a signed note's encoding."""
_SECRET = "PRIVATE+KEY+"  # noqa: S105 - what a private key's line begins with
_KEY = re.compile(r"(?P<name>[^\s+]+)\+(?P<id>[0-9a-f]{8})\+(?P<data>[A-Za-z0-9+/=]+)")
_LINE = re.compile(r"— (?P<name>[^\s+]+) (?P<data>[A-Za-z0-9+/=]+)")


def _ed25519() -> Any:
    """Return the module of keys, or say which package it is in."""
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtra(f'signatures need cryptography ({error}); pip install "pbsdk[sign]"') from error
    return ed25519


def _id_of(name: str, public: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\n" + _ED25519 + public).digest()[:4]


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return b""


@dataclass(frozen=True)
class Signature:
    """A line under a note: who signed it, and with which key."""

    name: str
    id: str
    """The first of the key's hash, in hexadecimal digits."""
    data: bytes

    @classmethod
    def read(cls, line: str) -> Self | None:
        """Read a line, or return None if it is none."""
        match = _LINE.fullmatch(line)
        data = _decoded(match["data"]) if match else b""
        return cls(match["name"], data[:4].hex(), data[4:]) if match and len(data) > 4 else None

    def __str__(self) -> str:
        return f"— {self.name} {base64.b64encode(bytes.fromhex(self.id) + self.data).decode()}"


@dataclass(frozen=True)
class PublicKey:
    """What checks a signature."""

    name: str
    data: bytes

    @property
    def id(self) -> str:
        """What tells the key from others, in hexadecimal digits."""
        return _id_of(self.name, self.data).hex()

    def __str__(self) -> str:
        return f"{self.name}+{self.id}+{base64.b64encode(_ED25519 + self.data).decode()}"

    @classmethod
    def read(cls, text: str) -> Self:
        """Read a key from its line, or from the file that holds it."""
        path = Path(text)
        if not _KEY.fullmatch(text):
            text = _content(path)
            if text.startswith(_SECRET):
                raise InputError(f"{path} is a private key; give the public one, {path}.pub")
        match = _KEY.fullmatch(text)
        data = _decoded(match["data"]) if match else b""
        key = cls(match["name"], data[1:]) if match and data[:1] == _ED25519 and len(data) == 33 else None
        if match is None or key is None or key.id != match["id"]:
            raise InputError(f"{path} is not a public key such as `pbsdk keys new` writes")
        return key

    def accepts(self, text: str, signature: Signature) -> bool:
        """Return whether a signature under this text is this key's."""
        if (signature.name, signature.id) != (self.name, self.id):
            return False
        ed25519 = _ed25519()
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - an extra

        try:
            ed25519.Ed25519PublicKey.from_public_bytes(self.data).verify(signature.data, text.encode())
        except InvalidSignature:
            return False
        return True


class PrivateKey:
    """What makes a signature."""

    def __init__(self, name: str, seed: bytes) -> None:
        if not name or re.search(r"[\s+]", name):
            raise InputError(f"a key's name must have no space and no plus, such as example.com/alice; not {name!r}")
        self._seed = seed
        self._key = _ed25519().Ed25519PrivateKey.from_private_bytes(seed)
        self.public = PublicKey(name, self._key.public_key().public_bytes_raw())

    def __repr__(self) -> str:
        return f"PrivateKey({str(self.public)!r})"

    @classmethod
    def new(cls, name: str) -> Self:
        """Make a new key."""
        return cls(name, os.urandom(32))

    def sign(self, text: str) -> Signature:
        """Sign a text."""
        return Signature(self.public.name, self.public.id, self._key.sign(text.encode()))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the private key to a new file, for its owner alone, and the public one beside it; return where that is."""
        file = _outside(Path(path))
        beside = file.with_name(f"{file.name}.pub")
        line = f"{_SECRET}{self.public.name}+{self.public.id}+{base64.b64encode(_ED25519 + self._seed).decode()}"
        for made, text, mode in ((file, line, 0o600), (beside, str(self.public), 0o644)):
            try:
                with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as out:
                    out.write(f"{text}\n")
            except FileExistsError as error:
                raise InputError(
                    f"{made} exists already, and keys are never overwritten; choose another name"
                ) from error
            except OSError as error:
                raise InputError(f"the key {made} can't be written: {error.strerror}; choose another place") from error
        return beside

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a private key from its file."""
        file = _outside(Path(path))
        text = _content(file)
        match = _KEY.fullmatch(text.removeprefix(_SECRET))
        data = _decoded(match["data"]) if match and text.startswith(_SECRET) else b""
        if match is None or data[:1] != _ED25519 or len(data) != 33:
            raise InputError(f"{file} is not a private key such as `pbsdk keys new` writes")
        if file.stat().st_mode & 0o077:
            raise InputError(f"others can read the private key {file}; chmod 600 {file}, or make a new one")
        key = cls(match["name"], data[1:])
        if key.public.id != match["id"]:
            raise InputError(f"the private key {file} is damaged: its id doesn't fit; make a new one")
        return key


def _content(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InputError(f"the key {path} can't be read: {reason}") from error


def _outside(path: Path) -> Path:
    """Refuse a place in a run folder."""
    for folder in path.expanduser().absolute().parents, path.expanduser().resolve().parents:
        for above in folder:
            if (above / DATABASE).is_file():
                raise InputError(
                    f"a private key must not lie in the run folder {above}: whoever can rewrite the folder could sign it too; "
                    "choose another place"
                )
    return path.expanduser()
