"""Who may ask at a gate: one JSON file of names, allowances, and the hashes of their tokens.

A token is 32 random bytes, shown once when it is made and kept nowhere: the file has its SHA-256. A
token of that length can't be guessed, so a fast hash will do. Whoever holds the file can't ask in anybody's name, and
a digest shows an edit that isn't `pbsdk members`' own. A server reads the file again whenever it changes.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pbsdk.errors import InputError
from pbsdk.foreign import bounded_file, bounded_json, check_digest, digest_of

__all__ = ["MemberEntry", "MembersFile"]

_LARGEST = 16 << 20
_NAME = r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}"
_PREFIX = "pbsdk_"
"""What a token begins with, so that tools that look for leaked secrets know it."""


class MemberEntry(BaseModel):
    """One member: a name, the hash of a token, and limits; None is no limit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=f"^{_NAME}$")]
    token_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    made: str
    revoked: str | None = None
    passes: Annotated[int, Field(ge=0)] | None = None
    tokens: Annotated[int, Field(ge=0)] | None = None
    money: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    per_minute: Annotated[int, Field(ge=1)] | None = None
    """Requests in any 60 seconds."""


class _Content(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Annotated[int, Field(ge=1, le=1)] = 1
    members: list[MemberEntry] = Field(default_factory=list)
    digest: str | None = None


class MembersFile:
    """The file, read again whenever it changes."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser()
        self._read: tuple[int, int, int] | None = None  # what tells the version that was read from any other
        self._entries: dict[str, MemberEntry] = {}

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> Self:
        """Open a file that must exist."""
        found = cls(path)
        if not found.path.is_file():
            raise InputError(f"there is no file {found.path}; make it with `pbsdk members add {found.path} NAME`")
        found.entries()
        return found

    def entries(self) -> dict[str, MemberEntry]:
        """Return every member by name, revoked ones too."""
        try:
            stat = self.path.stat()
            version = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            if version != self._read:
                read = bounded_json(bounded_file(self.path, _LARGEST))
                content = _Content.model_validate(read)
                check_digest(read)
                self._entries, self._read = _by_name(content.members), version
        except FileNotFoundError:
            self._entries, self._read = {}, None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the whole"
            raise InputError(f"{self.path} is not a file of members: {where}: {first['msg']}") from None
        except (OSError, ValueError) as error:
            raise InputError(f"{self.path} can't be read as a file of members: {error}") from error
        return self._entries

    def find(self, token: str) -> MemberEntry | None:
        """Return whose token this is, or None if it is nobody's, or was revoked."""
        wanted = _hash(token)
        found = next((entry for entry in self.entries().values() if entry.token_sha256 == wanted), None)
        return found if found is not None and found.revoked is None else None

    def add(self, name: str, **limits: Any) -> str:
        """Give a new member a token, or a revoked one a new token, and return it: it can't be shown again."""
        if not re.fullmatch(_NAME, name):
            raise InputError(
                f"a member's name is up to 64 letters, digits and . _ @ -, beginning with one of the first two; not {name!r}"
            )
        token = _PREFIX + secrets.token_urlsafe(32)
        with self._changing() as entries:
            if name in entries and entries[name].revoked is None:
                raise InputError(
                    f"{name} has a token already; revoke it first: `pbsdk members revoke {self.path} {name}`"
                )
            entries[name] = _checked(name=name, token_sha256=_hash(token), made=_now(), **limits)
        return token

    def change(self, name: str, **limits: Any) -> MemberEntry:
        """Set limits of a member; those that aren't given stay."""
        with self._changing() as entries:
            entries[name] = _checked(**{**self._known(entries, name).model_dump(), **limits})
            return entries[name]

    def revoke(self, name: str) -> MemberEntry:
        """Take a member's token away; what was asked in their name stays in the record."""
        with self._changing() as entries:
            entry = self._known(entries, name)
            entries[name] = entry.model_copy(update={"revoked": entry.revoked or _now()})
            return entries[name]

    def _known(self, entries: dict[str, MemberEntry], name: str) -> MemberEntry:
        if name not in entries:
            raise InputError(f"{self.path} has no member {name!r}; it has {', '.join(sorted(entries)) or 'none'}")
        return entries[name]

    @contextmanager
    def _changing(self) -> Iterator[dict[str, MemberEntry]]:
        """Yield the entries to be changed, and write them as one new file; nobody else changes it meanwhile."""
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self.path.with_name(f".{self.path.name}.lock").open("w") as turn:
                fcntl.flock(turn, fcntl.LOCK_EX)
                entries = dict(self.entries())
                yield entries
                content = _Content(members=list(entries.values())).model_dump(exclude={"digest"})
                text = json.dumps({**content, "digest": digest_of(content)}, indent=2) + "\n"
                with open(os.open(beside, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:  # noqa: PTH123 - its mode from the start
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                beside.replace(self.path)
        except OSError as error:
            raise InputError(f"{self.path} can't be written: {error.strerror}") from error
        finally:
            with suppress(OSError):
                beside.unlink(missing_ok=True)


def _by_name(members: Sequence[MemberEntry]) -> dict[str, MemberEntry]:
    found = {entry.name: entry for entry in members}
    if len({entry.token_sha256 for entry in members}) != len(members) or len(found) != len(members):
        raise ValueError("two members have one name, or one token")
    return found


def _checked(**values: Any) -> MemberEntry:
    try:
        return MemberEntry(**values)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{first['loc'][0]}: {first['msg']}") from None


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
