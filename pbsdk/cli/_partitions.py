"""Predictions of many files: a folder that gets one file for each, complete or not there at all.

A file of predictions is written beside its place and moved there when it is complete, so what is there can be skipped the next
time. A note in the folder says what the predictions were made with, and another model or other options are refused there.
"""

from __future__ import annotations

import glob
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pbsdk.backend import digest
from pbsdk.cli._answers import parquet_schema, refuse_unwritable, writer
from pbsdk.cli._common import naming_rows, rows_of
from pbsdk.cli._retry import beside
from pbsdk.data.files import SUFFIXES, Table
from pbsdk.data.loading import LabelledTexts
from pbsdk.data.streaming import stream_table
from pbsdk.errors import InputError
from pbsdk.foreign import bounded_file, bounded_json
from pbsdk.plugins import ENGINES
from pbsdk.progress import progress_steps

if TYPE_CHECKING:
    from pbsdk.cli._verdicts import Verdicts
    from pbsdk.predicting import Prediction

__all__ = ["Partition", "Partitions"]

Read = Callable[[Callable[[str], Iterator[LabelledTexts]], Sequence[str]], Iterator[tuple[int, LabelledTexts]]]
"""An engine: it reads files by the function given, and yields their chunks in order with the files' places."""

NOTE = "predictions.json"
"""The note that says what the predictions of a folder were made with."""


@dataclass
class Partition:
    """A file of texts, and the file that its predictions go to."""

    source: Path
    target: Path
    rows: int = field(default=0, init=False)
    """How many there are, once it was surveyed."""
    header: LabelledTexts = field(default_factory=lambda: LabelledTexts([], []), init=False)
    """No rows, but all columns that occur in it, and whether there are labels."""

    @property
    def done(self) -> bool:
        """Whether the predictions are there, and no older than the texts."""
        return self.target.is_file() and self.target.stat().st_mtime_ns >= self.source.stat().st_mtime_ns

    def survey(self, chunks: Iterable[LabelledTexts]) -> None:
        """Read the whole file, so that what is wrong with it is said before anything is asked."""
        columns: dict[str, Any] = {}
        labels: list[Any] = []
        for chunk in chunks:
            self.rows += len(chunk)
            columns |= dict.fromkeys(chunk.table, ())
            labels = chunk.labels[:1] or labels
        self.header = LabelledTexts([], labels, Table(columns))


@dataclass
class Partitions:
    """The files that a command predicts, and how they are read."""

    out: Path
    every: list[Partition]
    reading: Mapping[str, Any]
    """How `stream_table` reads them."""
    engine: str | None = None
    """What reads them, if not this process."""
    open: list[Partition] = field(default_factory=list, init=False)
    """Those without predictions, once they are prepared."""

    @classmethod
    def find(cls, data: str, out: Path, reading: Mapping[str, Any], engine: str | None = None) -> Partitions:
        """Find the files that a pattern, a folder or a file's name means; each keeps its place below their common folder."""
        sources = _sources(data)
        root = Path(os.path.commonpath([source.parent for source in sources]))
        every = [Partition(source, _target(out / source.relative_to(root))) for source in sources]
        counts = Counter(one.target for one in every)
        twice = next((target for target, count in counts.items() if count > 1), None)
        if twice is not None:
            raise InputError(f"two files would both become {twice}; predict them with two commands, or rename one")
        for one in every:
            if one.target.resolve() == one.source.resolve():
                raise InputError(
                    f"--out {out} holds the texts themselves, and would overwrite them; choose another folder"
                )
        return cls(out, every, reading, engine)

    def chunks(self, one: Partition) -> Iterator[LabelledTexts]:
        """Read a file a chunk at a time."""
        return stream_table(one.source, **self.reading)

    def prepare(self, verdicts: Verdicts, model: Path, **options: Any) -> None:
        """Find what is wrong with the files that have no predictions yet, and whether they can be written here."""
        self.open = [one for one in self.every if not one.done]
        for one in self.open:
            one.survey(self.chunks(one))
            verdicts.texts = one.header
            verdicts.columns  # noqa: B018 - refuses a column that is there already
            refuse_unwritable(one.target)
        self._note(
            {
                "model": digest(model.read_bytes()),
                **options,
                "probabilities": verdicts.probabilities,
                "on_error": verdicts.on_error,
            }
        )

    def write(
        self,
        verdicts: Verdicts,
        ask: Callable[[LabelledTexts], Iterator[Prediction]],
        *,
        spreadsheet: bool = False,
        progress: bool | None = None,
    ) -> None:
        """Write the files that have no predictions yet, each as a whole, with a chunk of it in memory."""
        rows = sum(one.rows for one in self.open)
        with progress_steps(rows, what="predicting", unit="text", show=progress) as step:
            for one, chunks in self._streams():
                verdicts.texts = one.header
                columns, schema = verdicts.columns, None
                if one.source.suffix.lower() == ".parquet":
                    schema = parquet_schema(one.source, verdicts.added)
                with (
                    beside(one.target) as target,
                    writer(target, columns, spreadsheet=spreadsheet, schema=schema) as write,
                ):
                    for chunk in chunks:
                        verdicts.texts, verdicts.source = chunk, one.source.name
                        with naming_rows(texts=rows_of(one.source, chunk)):
                            for row in verdicts.rows(ask(chunk)):
                                write({**dict.fromkeys(columns), **row})
                                step()

    def _streams(self) -> Iterator[tuple[Partition, Iterator[LabelledTexts]]]:
        """Yield each file that has no predictions yet with its chunks."""
        if self.engine is None or not self.open:
            yield from ((one, self.chunks(one)) for one in self.open)
            return
        read: Read = ENGINES.load(self.engine)
        found = read(partial(stream_table, **self.reading), [str(one.source.resolve()) for one in self.open])
        for place, numbered in groupby(found, key=itemgetter(0)):
            yield self.open[place], map(itemgetter(1), numbered)

    @property
    def counts(self) -> dict[str, int]:
        """How many files were written, and how many were there already."""
        return {"files_written": len(self.open), "files_skipped": len(self.every) - len(self.open)}

    def __str__(self) -> str:
        written, skipped = self.counts.values()
        return f"{written} of {len(self.every)} files written to {self.out}" + (
            f", {skipped} were there already" if skipped else ""
        )

    def _note(self, settings: Mapping[str, Any]) -> None:
        """Write down what the predictions are made with, or refuse what differs from the note that is there."""
        path = self.out / NOTE
        said = json.dumps(settings, ensure_ascii=False, sort_keys=True, indent=2)
        if not path.is_file():
            path.write_text(said + "\n", encoding="utf-8")
            return
        try:
            before = bounded_json(bounded_file(path, most=2**20).decode())
        except ValueError as error:
            raise InputError(f"{path} can't be read: {error}; delete it to go on in this folder") from error
        now = json.loads(said)
        changed = [name for name in now if not isinstance(before, dict) or before.get(name) != now[name]]
        if changed:
            raise InputError(
                f"the predictions in {self.out} were made with something else ({', '.join(changed)} differs); name another folder with "
                f"--out, give the options of {path}, or delete the folder"
            )


def _sources(data: str) -> list[Path]:
    path = Path(data)
    if path.is_file():
        return [path]
    if path.is_dir():
        found = [entry for entry in path.iterdir() if entry.suffix.lower() in SUFFIXES]
    else:
        found = [Path(name) for name in glob.glob(data, recursive=True)]  # noqa: PTH207 - the pattern may be absolute
    files = sorted(entry for entry in found if entry.is_file() and not entry.name.startswith("."))
    if not files:
        raise InputError(
            f"there are no files {data}; with --out give a file, a folder of files ({', '.join(SUFFIXES)}), or a pattern in "
            "quotation marks, such as 'data/*.parquet'"
        )
    return files


_WRITTEN_AS = {".json": ".jsonl", ".xlsx": ".csv"}


def _target(path: Path) -> Path:
    """Return where predictions go: a list in JSON becomes lines, and a sheet a table in text.

    >>> _target(Path("out/new.xlsx")).name
    'new.csv'
    """
    return path.with_suffix(_WRITTEN_AS.get(path.suffix.lower(), path.suffix))
