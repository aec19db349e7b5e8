"""Single bits flipped in the files that pbsdk reads, and what becomes of each.

A flip must be found (one of our errors, from whoever reads the file) or harmless, with the reason named: what is read is
the same to the last value. Anything else is a fault: an exception that isn't ours, or a change that nobody notices.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pbsdk.audit.certificate import Certificate
from pbsdk.audit.report import AuditReport
from pbsdk.audit.signing import PrivateKey
from pbsdk.classifier import PromptBoostingClassifier
from pbsdk.data.tickets import load_tickets
from pbsdk.errors import PbsdkError
from pbsdk.ledger.verifier import verify_run
from pbsdk.metering.members import MembersFile
from pbsdk.metering.meter import MeteredBackend
from pbsdk.prompting.generation import write_pool
from pbsdk.queries.pools import PromptPool, Refinement, load_pool
from pbsdk.testing import FakeBackend
from pbsdk.testing.recording import Recording

SIGNER = PrivateKey("example.com/flips", bytes(range(32)))
PROMPTS = ["<input> So <mask>.", "<input>\nÜber <mask>"]
FAKE = {"vocabulary_size": 120}
TICKETS = load_tickets()
TEXTS, LABELS, NEW = TICKETS.train.texts[:16], TICKETS.train.labels[:16], TICKETS.test.texts[:3]

SPELLING = "the same value in another spelling, such as 1E-7 for 1e-7"
UNUSED = "no row and no page that is in use changes: free space, or a number in the header that SQLite sets anew"
UNREAD = "diskcache's times and counts of use, which nobody reads"


@dataclass
class Tally:
    """What became of the flips of one kind of file."""

    found: int = 0
    harmless: Counter[str] = field(default_factory=Counter)
    crashed: list[str] = field(default_factory=list)
    unnoticed: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        named = "".join(f"\n    harmless, {count}: {reason}" for reason, count in self.harmless.items())
        faults = [f"\n    CRASHED {line}" for line in self.crashed] + [
            f"\n    UNNOTICED {line}" for line in self.unnoticed
        ]
        return (
            f"{self.found} found, {self.harmless.total()} harmless, {len(self.crashed)} crashed, "
            f"{len(self.unnoticed)} unnoticed{named}{''.join(faults)}"
        )


@dataclass(frozen=True)
class Kind:
    """A kind of file: how it is read, into what can be compared, and why a flip may be harmless."""

    make: Callable[[Path], Path]
    """Makes one in a folder."""
    read: Callable[[Path], Any]
    """Reads it by all who do, and returns what it says."""
    reason: Callable[[Any, Any], str | None]
    """Given what was read before and after, the reason why the flip is harmless; None if it isn't."""


def same(before: Any, after: Any) -> str | None:
    return SPELLING if before == after else None


def flipped(data: bytes, flips: int, seed: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield the place, the bit and the changed bytes of random flips."""
    random = np.random.default_rng(seed)
    for _ in range(flips):
        at, bit = int(random.integers(len(data))), int(random.integers(8))
        yield at, bit, data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def judged(kind: str, folder: Path, flips: int, seed: int) -> Tally:
    """Flip bits of a file of one kind, one at a time, and say what became of them."""
    what, tally = KINDS[kind], Tally()
    original = what.make(folder)
    before = what.read(original)  # which may write to it
    data = original.read_bytes()
    changed = original.parent.parent / "flipped" / original.name
    for at, bit, content in flipped(data, flips, seed):
        shutil.rmtree(changed.parent, ignore_errors=True)
        shutil.copytree(original.parent, changed.parent, ignore=shutil.ignore_patterns("flipped"))
        changed.write_bytes(content)
        place = f"{kind}: byte {at} of {len(data)}, bit {bit}"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a warning isn't a refusal
                after = what.read(changed)
        except PbsdkError:
            tally.found += 1
        except Exception as error:  # noqa: BLE001 - which is the question
            tally.crashed.append(f"{place}: {type(error).__name__}: {error}")
        else:
            reason = what.reason(before, after)
            if reason is None:
                tally.unnoticed.append(place)
            else:
                tally.harmless[reason] += 1
    return tally


def _run(folder: Path) -> Path:
    with MeteredBackend(FakeBackend(**FAKE, top=30), folder / "run", 10) as lm:
        clf = PromptBoostingClassifier(lm, PROMPTS, head="boosting", rounds=4, random_state=1).fit(TEXTS, LABELS)
        clf.predict(NEW)
        clf.save(folder / "model.json")
        Recording.of(lm).save(folder / "answers.pbrec")
        Certificate.of(lm.ledger.folder).signed(SIGNER).save(folder / "certificate.json")
    return folder / "run" / "cache.db"


def _beside(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        _run(folder / "made")
        (folder / "one").mkdir()
        return Path(shutil.copy(folder / "made" / name, folder / "one"))

    return make


def _pool(folder: Path) -> Path:
    chosen = Refinement(
        method="paper",
        model='{"name": "fake"}',
        pbsdk="0.1.0",
        seed=3,
        of=9,
        passes=40,
        scores=[0.5, 1e-7],
        chosen_by=["a"],
    )
    (folder / "one").mkdir()
    return write_pool(
        PromptPool(name="mine", about="free text", prompts=PROMPTS, refined=chosen), folder / "one" / "p.json"
    )


def _read_run(path: Path) -> Any:
    """Read a run folder by all who do, whoever finds the flip first; return its rows, those that nobody reads last."""
    run, found, counts = path.parent, [], {}
    for read in (AuditReport.read, verify_run, _opened, verify_run):  # to open it is to write to it
        try:
            said = read(run)
        except PbsdkError as error:
            found.append(error)
        else:
            if isinstance(said, AuditReport):
                counts = said.model_dump(exclude={"run", "timeline", "records", "head"})
    if found:
        raise found[0]
    with closing(sqlite3.connect(path)) as con:
        names = [name for (name,) in con.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        rows = {name: con.execute(f"SELECT * FROM {name}").fetchall() for name in names}
        opened = rows.pop("records"), rows.pop("totals")  # the meter above has opened the folder once more
        used = con.execute("SELECT key, raw, expire_time, tag, size, mode, filename, value FROM Cache").fetchall()
    return [[row for row in opened[0] if row[4] != "opened"], counts, used, rows]


def _opened(run: Path) -> None:
    with MeteredBackend(FakeBackend(**FAKE, top=30), run, 10) as lm:
        Recording.of(lm)


def _reason_of_run(before: Any, after: Any) -> str | None:
    if before[:-1] != after[:-1]:
        return None
    return UNUSED if before == after else UNREAD


def _read_model(path: Path) -> Any:
    clf = PromptBoostingClassifier.load(path, FakeBackend(**FAKE, top=30))
    content = json.loads(path.read_bytes())
    return content, clf.predict_proba(NEW).tolist(), clf.explain().to_dict()


def _read_recording(path: Path) -> Any:
    read = Recording.load(path)
    sets = {name: tokens.tolist() for name, tokens in read.sets.items()}
    return read.identity, read.abilities, read.mask_token, read.size, read.words, sets, read.answers


def _read_certificate(path: Path) -> Any:
    certificate = Certificate.load(path)
    certificate.check(next(folder for folder in path.parents if (folder / "made").is_dir()) / "made" / "run")
    certificate.check_signature(SIGNER.public)  # without one, its time is whatever it says
    return certificate


def _members(folder: Path) -> Path:
    (folder / "one").mkdir()
    file = MembersFile(folder / "one" / "team.json")
    file.add("ana", passes=5000, per_minute=60)
    file.add("ben", tokens=10**6, money=2.5)
    file.revoke("ben")
    return file.path


def _read_members(path: Path) -> Any:
    return MembersFile.of(path).entries()


KINDS: dict[str, Kind] = {
    "run folder": Kind(_run, _read_run, _reason_of_run),
    "model": Kind(_beside("model.json"), _read_model, same),
    "recording": Kind(_beside("answers.pbrec"), _read_recording, same),
    "certificate": Kind(_beside("certificate.json"), _read_certificate, same),
    "members": Kind(_members, _read_members, same),
    "pool": Kind(_pool, load_pool, same),
}
