"""The engine `ray`: files are read by Ray Data on a cluster, and arrive here in order, a chunk at a time.

Reading is a task for each file, on whichever machine has time for it; Ray Data holds back the reading of what nobody takes. Machines read the
files by their paths, so all of them need to see the same folder.
"""

from __future__ import annotations

import logging
import pickle
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from pbsdk.errors import MissingExtra, PbsdkError

try:
    import ray.data
    from ray.exceptions import RayTaskError

    from pbsdk_backends._ray.cluster import join
except ImportError as error:
    raise MissingExtra(
        f'the engine `ray` needs ray, pandas and pyarrow ({error}); install them: pip install "pbsdk[ray]"'
    ) from error

__all__ = ["read_files"]

Chunk = TypeVar("Chunk")
READERS = 4
"""How many files are read at a time at most."""
BLOCK = 2**24
"""Bytes that a reader hands over at a time."""


def read_files(read: Callable[[str], Iterable[Chunk]], files: Sequence[str]) -> Iterator[tuple[int, Chunk]]:
    """Yield the chunks of all files in order, each with its file's place among them."""
    join("auto")
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"ray\.")  # about Ray's own future
    places = ray.data.from_items([{"place": place, "file": file} for place, file in enumerate(files)])
    # No processor is set aside for reading: where the model's actors have all of them, it would wait for ever.
    chunks = places.map_batches(_reader(read), batch_size=1, num_cpus=0, concurrency=min(READERS, len(files)))
    chunks.context.execution_options.preserve_order = True
    chunks.context.target_max_block_size = BLOCK
    chunks.context.enable_progress_bars = False
    try:
        for batch in chunks.iter_batches(batch_size=1, prefetch_batches=1):
            yield int(batch["place"][0]), pickle.loads(batch["chunk"][0])  # noqa: S301 - made by a reader of ours
    except RayTaskError as error:
        if isinstance(error.cause, PbsdkError):
            raise error.cause from None
        raise


def _reader(read: Callable[[str], Iterable[Any]]) -> Callable[[dict[str, Any]], Iterator[dict[str, list[Any]]]]:
    def chunks_of(batch: dict[str, Any]) -> Iterator[dict[str, list[Any]]]:
        for place, file in zip(batch["place"], batch["file"], strict=True):
            for chunk in read(str(file)):
                yield {"place": [int(place)], "chunk": [pickle.dumps(chunk)]}

    return chunks_of
