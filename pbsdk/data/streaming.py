r"""Streaming: labelled texts from files that are larger than memory, a chunk at a time.

`stream_table` is `load_table` for one long file. What it yields are the same `LabelledTexts`, each with its own part of the
table, and a row's place in an error is its place in the file.

>>> import tempfile
>>> path = Path(tempfile.mkdtemp()) / "new.csv"
>>> _ = path.write_text("text\nLovely.\nDull.\nFine.\n", encoding="utf-8")
>>> [chunk.examples for chunk in stream_table(path, rows=2, labelled=False)]
[['Lovely.', 'Dull.'], ['Fine.']]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pbsdk.data.columns import Roles
from pbsdk.data.files import TextFormat, read_chunks
from pbsdk.data.loading import LabelledTexts, Missing, existing_file, texts_of
from pbsdk.errors import InputError

__all__ = ["CHUNK", "stream_table"]

CHUNK = 10_000
"""How many rows are loaded at a time."""


def stream_table(  # noqa: PLR0913 - independent settings, all keywords
    source: str | Path,
    *,
    rows: int = CHUNK,
    text: str | None = None,
    label: str | None = None,
    pair: str | None = None,
    labels: Iterable[Any] | None = None,
    labelled: bool = True,
    missing: Missing = "refuse",
    encoding: str = "utf-8",
    delimiter: str | None = None,
    quotes: bool = True,
    columns: Sequence[str] | None = None,
    familiar: Sequence[str] = (),
) -> Iterator[LabelledTexts]:
    """Load a file's labelled texts a chunk at a time, so that memory holds one chunk however long the file is.

    The settings are those of `load_table`. What is wrong with a row is said when its chunk is read.

    Args:
        source: a file.
        rows: how many rows a chunk has.
        text: the column of texts.
        label: the column of labels.
        pair: the column of second texts.
        labels: the labels that may occur.
        labelled: False for texts without labels.
        missing: what to do with a row whose text or label is missing.
        encoding: how a text file is encoded.
        delimiter: what separates a text file's fields.
        quotes: False if quotation marks are plain characters.
        columns: the columns' names, for a file without a header.
        familiar: the column of texts, or both for pairs, to take if they are there and no other is named.
    """
    path = existing_file(source)
    name = f"the file {path.name}"
    found, known, count = None, None if labels is None else list(labels), 0
    for table in read_chunks(path, TextFormat(encoding, delimiter, quotes, columns), rows):
        found = found or Roles.choose(
            name, list(table), text=text, label=label, pair=pair, labelled=labelled, familiar=familiar
        )
        loaded = texts_of(name, table, found, labels=known, missing=missing)
        count += len(loaded)
        yield loaded
    if not count:
        raise InputError(f"{name} has no rows; there must be at least one text")
