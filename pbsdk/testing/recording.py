"""Recordings: a real model's answers in one file, to be replayed where there is no model.

A run folder already holds every answer. A recording is the part of it that a replay needs: the answers as the ledger
keeps them, bit for bit, under the same keys; which model gave them and what it can do; and the words of the tokens
they show. It holds no texts: as in the ledger, an answer is stored under a digest of its text; prompts are stored as
written. It holds no times, no addresses and no API keys. The same run gives the same bytes.

    with connect("smollm2", run="runs/tickets") as lm:      # or: pbsdk record runs/tickets tickets.pbrec
        ...
        Recording.of(lm).save("tickets.pbrec")
    lm = connect("replay", file="tickets.pbrec", run="runs/replayed")

The file is a line of JSON that anybody can read (`head -1`), then the answers, compressed. The sixteen bits per token
are nearly all noise, so a whole answer hardly shrinks: from 98 KB to about 85 KB for 49,152 tokens. Training asks for
whole answers, prediction for about a hundred bytes. `docs/how-to/testing.md` explains how to keep a recording small.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, InstanceOf, StrictBool, StrictStr, ValidationError

from pbsdk.backend import (
    Abilities,
    MaskDistribution,
    MaskedLMBackend,
    ModelIdentity,
    OpenVocabulary,
    Phase,
    Tokens,
    Vocabulary,
)
from pbsdk.errors import InputError, LedgerCorrupted, NotRecorded, RecordingError
from pbsdk.foreign import LISTS, bounded_file, bounded_json
from pbsdk.ledger.codec import SET_PREFIX, answer_digest, decode, pack_tokens, set_digest, unpack_tokens
from pbsdk.ledger.reader import LedgerReader
from pbsdk.ledger.schema import check_format
from pbsdk.metering.meter import MeteredBackend
from pbsdk.version import __version__

__all__ = ["RecordedAnswer", "RecordedVocabulary", "Recording"]

FORMAT = 1
FILE_BYTES = 1 << 34
"""How large a recording may be."""
_MAGIC = b"pbsdk-recording "
_LEAST_BOUND = 1 << 24
_MOST_SHRUNK = 32
"""How many times its size a file may unpack to; real answers are nearly all noise, and hardly shrink."""

_Count = Annotated[int, Field(strict=True, ge=1, lt=1 << 32)]
_Place = Annotated[int, Field(strict=True, ge=0, lt=1 << 32)]
_Word = InstanceOf[str]  # half a character too, which pydantic's own check refuses
_Token = Annotated[int, Field(strict=True, ge=0, lt=1 << 63)]


@dataclass(frozen=True)
class RecordedAnswer:
    """An answer's bytes, as in the ledger, and what was asked: the example's digest and the prompt."""

    data: bytes
    example: str
    prompt: str


class RecordedVocabulary(Vocabulary):
    """The tokens that recorded answers show, of a vocabulary of `size`."""

    def __init__(self, size: int, words: Mapping[int, str]) -> None:
        super().__init__(())
        self._size = size
        self._shown = dict(sorted(words.items()))

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, token: int) -> str:
        if token not in self._shown:
            raise NotRecorded(f"no recorded answer shows token {token}, so its word is unknown; record again")
        return self._shown[token]

    @cached_property
    def _by_word(self) -> dict[str, int]:
        return {word: token for token, word in reversed(self._shown.items())}  # the first token of a word stands


@dataclass(frozen=True)
class Recording:
    """A model's answers, and everything that a replay needs to know about the model."""

    identity: ModelIdentity
    abilities: Abilities
    mask_token: str
    size: int | None
    """How many tokens the vocabulary has; None for an open one."""
    words: Mapping[int, str]
    """The words of the tokens that answers show."""
    sets: Mapping[str, Tokens]
    """The token sets that answers name."""
    answers: Mapping[str, RecordedAnswer]
    """The answers by their keys."""

    @classmethod
    def of(cls, lm: MeteredBackend, phases: Collection[str] | None = None) -> Self:
        """Record what a metered model's run folder holds; `phases`, such as ("predict",), restricts it to these."""
        return cls.of_run(lm.ledger.folder, lm, phases)

    @classmethod
    def of_run(
        cls, run: str | os.PathLike[str], backend: MaskedLMBackend, phases: Collection[str] | None = None
    ) -> Self:
        """Record what a run folder holds; `backend` is its model, for the vocabulary, and is asked nothing."""
        known = [str(phase) for phase in Phase if phase is not Phase.PROBE]  # canaries are always asked again
        wanted = known if phases is None else sorted(phases)
        strange = [phase for phase in wanted if phase not in known]
        if strange or not wanted:
            raise InputError(f"phases are some of {', '.join(known)}; not {', '.join(strange) or 'none'}")
        with LedgerReader(run) as reader:
            check_format(reader.meta(), backend.identity, reader.folder)
            answers = _read_answers(reader, wanted)
            if not answers:
                raise InputError(f"{reader.folder} holds no answer of the phases {', '.join(wanted)} to record")
            sets = _read_sets(reader, answers.values())
            words = reader.words()
        open_ended = isinstance(backend.vocabulary, OpenVocabulary)
        shown = _shown(answers.values(), sets, len(backend.vocabulary))
        if not open_ended:
            words = {token: backend.vocabulary[token] for token in shown}
        return cls(
            identity=backend.identity,
            abilities=backend.abilities,
            mask_token=backend.mask_token,
            size=None if open_ended else len(backend.vocabulary),
            words={token: words[token] for token in sorted(shown) if token in words},
            sets=sets,
            answers=answers,
        )

    def vocabulary(self) -> Vocabulary:
        """Return the tokens, as far as answers show them."""
        if self.size is None:
            learned = OpenVocabulary()
            for token, word in self.words.items():
                learned.learn(token, word)
            return learned
        return (
            Vocabulary(self.words.values())
            if len(self.words) == self.size
            else RecordedVocabulary(self.size, self.words)
        )

    def answer(self, key: str) -> MaskDistribution:
        """Return the answer under a key."""
        return decode(self.answers[key].data, self.sets.get)

    def merged(self, other: Recording) -> Recording:
        """Return the answers of both, which must come from the same model."""
        difference = self.identity.differences(other.identity)
        if difference:
            raise RecordingError(f"two models can't share a recording ({difference}); give each a file of its own")
        return Recording(
            self.identity,
            self.abilities,
            self.mask_token,
            self.size,
            dict(sorted({**self.words, **other.words}.items())),
            {**self.sets, **other.sets},
            dict(sorted({**self.answers, **other.answers}.items())),
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, whole or not at all."""
        file = Path(path)
        if len(self.answers) + len(self.words) + 8 > LISTS:
            raise RecordingError(
                f"{file} would hold more than {LISTS:,} answers and words; record the phases one by one"
            )
        prompts = sorted({answer.prompt for answer in self.answers.values()})
        number = {prompt: at for at, prompt in enumerate(prompts)}
        index = {
            "sets": {name: pack_tokens(tokens).hex() for name, tokens in sorted(self.sets.items())},
            "answers": [
                [key, answer.example, number[answer.prompt], len(answer.data)]
                for key, answer in sorted(self.answers.items())
            ],
            "words": list(self.words.values())
            if len(self.words) == self.size
            else [[*item] for item in self.words.items()],
        }
        front = json.dumps(index, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
        data = b"".join(answer.data for _, answer in sorted(self.answers.items()))
        # Codes are two bytes: the high ones are similar, the low ones are noise; stored apart they compress better.
        content = len(front).to_bytes(8, "little") + front + data[1::2] + data[::2]
        body = zlib.compress(content, 9)
        if len(content) > _most_unpacked(len(body)):  # answers that are all alike: stored as they are, they can be read
            body = zlib.compress(content, 0)
        header = {
            "format": FORMAT,
            "model": self.identity.to_json(),
            "abilities": asdict(self.abilities),
            "mask_token": self.mask_token,
            "vocabulary": self.size,
            "answers": len(self.answers),
            "prompts": prompts,
            "pbsdk": __version__,
        }
        line = _MAGIC + json.dumps({**header, "sha256": _checksum(header, body)}).encode() + b"\n"
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            scratch = file.with_name(f".{file.name}.{os.getpid()}")
            scratch.write_bytes(line + body)
            scratch.replace(file)
        except OSError as error:
            raise RecordingError(f"{file} can't be written: {error.strerror}; choose another place") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file, and check that it is unchanged."""
        try:
            line, _, body = bounded_file(path, FILE_BYTES).partition(b"\n")
        except OSError as error:
            raise RecordingError(f"the recording {path} can't be read: {error.strerror}") from error
        except ValueError as error:
            raise RecordingError(
                f"the recording {path} can't be read: {error}; record fewer phases or texts"
            ) from error
        if not line.startswith(_MAGIC):
            raise RecordingError(f"{path} is not a pbsdk recording; `pbsdk record RUN FILE` makes one")
        try:
            header = bounded_json(line[len(_MAGIC) :])
            written = header["format"]
            if isinstance(written, int) and written > FORMAT:
                raise RecordingError(
                    f"{path} was written by a newer pbsdk (format {written}; this one knows {FORMAT}); upgrade pbsdk, "
                    "or record it again"
                )
            if header.pop("sha256") != _checksum(header, body):
                raise RecordingError(f"{path} was changed or cut off: it doesn't match its checksum; record it again")
            return cls._parsed(_Header.model_validate(header), memoryview(_unpacked(body)))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))[:100]
            raise RecordingError(f"{path} can't be read ({where}: {first['msg']}); record it again") from error
        except (ValueError, KeyError, IndexError, TypeError, zlib.error, LedgerCorrupted) as error:
            raise RecordingError(f"{path} can't be read ({error}); record it again") from error

    @classmethod
    def _parsed(cls, header: _Header, content: memoryview) -> Self:
        front = 8 + int.from_bytes(content[:8], "little")
        index = _Index.model_validate(bounded_json(str(content[8:front], "utf-8", "surrogatepass")))
        packed = content[front:]
        if sum(size for *_, size in index.answers) != len(packed):
            raise ValueError("its answers are not as long as its index says")
        data = bytearray(len(packed))
        data[1::2], data[::2] = packed[: len(packed) // 2], packed[len(packed) // 2 :]
        answers, at = {}, 0
        for key, example, prompt, size in index.answers:
            answers[key] = RecordedAnswer(bytes(memoryview(data)[at : at + size]), example, header.prompts[prompt])
            at += size
        sets = {name: unpack_tokens(bytes.fromhex(tokens)) for name, tokens in index.sets.items()}
        if any(set_digest(tokens) != name for name, tokens in sets.items()):
            raise ValueError("a token set doesn't match its name")
        words = dict(sorted(index.numbered()))
        if header.vocabulary is not None and any(token >= header.vocabulary for token in words):
            raise ValueError(f"it names a token beyond its vocabulary of {header.vocabulary}")
        return cls(
            identity=ModelIdentity.from_json(header.model),
            abilities=Abilities(**dict(header.abilities)),
            mask_token=header.mask_token,
            size=header.vocabulary,
            words=words,
            sets=sets,
            answers=answers,
        )


class _Abilities(BaseModel):
    model_config = ConfigDict(extra="forbid")

    whole: StrictBool
    top: _Count | None
    chosen: StrictBool
    mask: Literal["anywhere", "last"]
    batch_size: _Count
    turns: StrictBool = False


class _Header(BaseModel):
    """The line that anybody can read, without its checksum."""

    model_config = ConfigDict(extra="forbid")

    format: Literal[1]
    model: StrictStr
    abilities: _Abilities
    mask_token: StrictStr
    vocabulary: _Count | None
    answers: int
    prompts: list[StrictStr]
    pbsdk: StrictStr


class _Index(BaseModel):
    """What the file holds, before the answers' bytes."""

    model_config = ConfigDict(extra="forbid")

    sets: dict[str, str]
    answers: list[tuple[str, str, _Place, _Place]]
    """Key, example, the place of the prompt, bytes."""
    words: list[_Word] | list[tuple[_Token, _Word]]
    """All of them in their order, or each with its number."""

    def numbered(self) -> Iterable[tuple[int, str]]:
        """Return each word with its token."""
        return (word if isinstance(word, tuple) else (at, word) for at, word in enumerate(self.words))


def _unpacked(body: bytes) -> bytes:
    """Decompress a body, within what `save` makes of it."""
    most = _most_unpacked(len(body))
    stream = zlib.decompressobj()
    content = stream.decompress(body, most)
    if stream.unconsumed_tail or not stream.eof:
        raise ValueError(f"it unpacks to more than {most:,} bytes, or is cut off")
    return content


def _most_unpacked(packed: int) -> int:
    return _LEAST_BOUND + _MOST_SHRUNK * packed


def _checksum(header: dict[str, Any], body: bytes) -> str:
    return hashlib.sha256(json.dumps(header, sort_keys=True).encode() + b"\n" + body).hexdigest()


def _read_answers(reader: LedgerReader, phases: Collection[str]) -> dict[str, RecordedAnswer]:
    names = reader.names()
    marks = ", ".join("?" * len(phases))
    rows = reader.select(
        "SELECT a.query, a.digest, r.example, r.prompt, s.value FROM answers a JOIN records r ON r.seq = a.seq"  # noqa: S608 - question marks only
        " LEFT JOIN stored s ON s.key = a.query WHERE a.query IN"
        f" (SELECT query FROM records WHERE state IN ('done', 'hit') AND phase IN ({marks})) ORDER BY a.query",
        *phases,
    )
    answers = {}
    for key, name, example, prompt, data in rows:
        if not isinstance(data, bytes) or answer_digest(data) != name:
            raise LedgerCorrupted(f"{reader.folder}: the answer to {key} is missing or was changed")
        answers[str(key)] = RecordedAnswer(data, str(example), names.get(prompt, ""))
    return answers


def _read_sets(reader: LedgerReader, answers: Collection[RecordedAnswer]) -> dict[str, Tokens]:
    stored = {
        str(key).removeprefix(SET_PREFIX): unpack_tokens(value)
        for key, value in reader.select("SELECT key, value FROM stored WHERE key LIKE ?", f"{SET_PREFIX}%")
    }
    used: dict[str, Tokens] = {}

    def find(name: str) -> Tokens | None:
        tokens = stored.get(name)
        if tokens is not None and set_digest(tokens) == name:
            used[name] = tokens
            return tokens
        return None

    for answer in answers:
        decode(answer.data, find)
    return used


def _shown(answers: Collection[RecordedAnswer], sets: Mapping[str, Tokens], size: int) -> Collection[int]:
    """Return the tokens that any answer shows, or was asked to show."""
    shown = {int(token) for tokens in sets.values() for token in tokens}
    for answer in answers:
        tokens = decode(answer.data, sets.get).tokens
        if tokens is None:
            return range(size)
        shown.update(tokens.tolist())
    return shown
