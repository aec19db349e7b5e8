import numpy as np
import pytest
import torch
from helpers.tiny_models import ask
from torch.utils._python_dispatch import TorchDispatchMode

from pbsdk.errors import BackendUnavailable, BadAnswer
from pbsdk_backends._local import model
from pbsdk_backends._local.passes import Passes, batches
from pbsdk_backends._local.sharing import Beginning, Row, tree
from pbsdk_backends._tokens.reading import Reading
from pbsdk_backends.local import LocalBackend


def rows_of(*lengths):
    return [Row([0] * length, [0], [owner]) for owner, length in enumerate(lengths)]


def owners_as_logits(batch):
    """Stand in for a model: each row's answer names its owner."""
    logits = torch.full((len(batch), 50), -50.0)
    for index, row in enumerate(batch):
        logits[index, row.owners[0]] = 50.0
    return logits


def answered(passes, rows):
    return {
        owner: int(line.argmax())
        for owners, lines in passes.run(rows)
        for owner, line in zip(owners, lines, strict=True)
    }


LENGTHS = [5, 40, 7, 33, 8, 8, 12, 90, 6, 31, 30, 9, 200]


@pytest.mark.parametrize("padded", [True, False])
def test_batches_hold_every_row_once_within_the_budget(padded):
    cut = list(batches(rows_of(*LENGTHS), 100, padded=padded))
    assert sorted(row.owners[0] for batch in cut for row in batch) == list(range(len(LENGTHS)))
    for batch in cut:
        lengths = [len(row.ids) for row in batch]
        used = max(lengths) * len(lengths) if padded else sum(lengths)
        assert len(batch) == 1 or used <= (100 if padded else max(LENGTHS))


def test_there_is_little_padding():
    lengths = [30 + (37 * index) % 60 for index in range(64)]
    cut = list(batches(rows_of(*lengths), 512, padded=True))
    spent = sum(len(batch) * max(len(row.ids) for row in batch) for batch in cut)
    assert spent < 1.1 * sum(lengths)


def test_trees_and_plain_rows_never_share_a_batch():
    trees = [tree([0, 1], [Reading([1, 2, 3], 2, 0), Reading([1, 2, 4], 2, 0)])]
    for batch in batches([*rows_of(3, 4, 5), *trees], 1000, padded=True):
        assert len({row.sight is None for row in batch}) == 1


def test_rows_with_one_beginning_run_together_and_what_they_see_counts():
    def after(beginning, *lengths):
        return [
            tree([0], [Reading([beginning] * 80 + [1] * own, 79 + own, 0)], Beginning((beginning,) * 80))
            for own in lengths
        ]

    rows = after(1, 10, 50, 30) + after(2, 12, 52, 32)
    (one,) = batches(rows[::2] + rows[1::2], 10_000, padded=True)
    assert [len(row.ids) for row in one] == [50, 30, 10, 12, 32, 52]
    assert [row.after.ids[0] for row in one] == [1, 1, 1, 2, 2, 2]
    few = list(batches(after(1, *[10] * 8), 40, padded=True))
    assert [len(batch) for batch in few] == [2] * 4


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("MPS backend out of memory (MPS allocated: 5 GB)"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory"),
    ],
    ids=["cuda", "mps", "cpu"],
)
def test_out_of_memory_halves_the_batch_and_goes_on(error):
    sizes = []

    def way(batch):
        sizes.append(len(batch))
        if len(batch) > 3:
            raise error
        return owners_as_logits(batch)

    passes = Passes(way, batch_tokens=1000, padded=True)
    assert answered(passes, rows_of(*[8] * 13)) == {owner: owner for owner in range(13)}
    assert sizes[0] == 13
    assert passes.batch_tokens < 1000


def test_memory_that_never_suffices_names_the_cure():
    def way(batch):
        raise torch.OutOfMemoryError("out of memory")

    with pytest.raises(BackendUnavailable, match="one text of 8 tokens; lower max_length"):
        list(Passes(way, batch_tokens=100, padded=True).run(rows_of(8, 8, 8)))


def test_another_failure_is_not_taken_for_a_lack_of_memory():
    def way(batch):
        raise RuntimeError("shapes do not match")

    with pytest.raises(BackendUnavailable, match="shapes do not match") as caught:
        list(Passes(way, batch_tokens=100, padded=True).run(rows_of(8, 8)))
    assert not caught.value.retryable


@pytest.mark.parametrize("tokens", [None, [3, 5]])
def test_an_answer_that_is_no_number_is_not_used(folder_of, tokens):
    backend = LocalBackend(str(folder_of("gpt2")), device="cpu")
    way = backend._passes.way
    backend._passes.way = lambda batch: way(batch).index_fill(1, torch.tensor([7]), float("nan"))
    with pytest.raises(BadAnswer, match="not a number; try precision='exact'"):
        backend.fill([ask("Rain."), ask("Sea.")], None if tokens is None else np.array(tokens))


@pytest.mark.parametrize("name", ["gpt2", "llama", "roberta"])
def test_the_host_looks_at_no_answer_before_all_batches_are_on_their_way(folder_of, monkeypatch, name):
    events = []
    fetched = model._fetched
    monkeypatch.setattr(model, "_fetched", lambda codes: events.append("fetched") or fetched(codes))
    monkeypatch.setattr(model.Forward, "can_pack", lambda _self: False)  # as on a GPU
    monkeypatch.setattr(model, "TREE_LIMIT", 8)  # or short texts are one row
    backend = LocalBackend(str(folder_of(name)), device="cpu", batch_tokens=8)
    way = backend._passes.way
    looks = Looks()

    def watched(batch):
        events.append("begun")
        seen = len(looks.taken)
        logits = way(batch)
        del looks.taken[seen:]  # what transformers does in a pass is its own
        return logits

    backend._passes.way = watched
    with looks:
        backend.fill([ask(text) for text in ("Rain.", "The sea is calm.", "All of it is about boats and banks.")])
    assert events.count("begun") == events.count("fetched") > 1
    assert events == sorted(events)
    assert looks.taken == []


class Looks(TorchDispatchMode):
    """Notes what makes the host wait for a device: reading a number, or asking where numbers are."""

    def __init__(self):
        super().__init__()
        self.taken = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in {torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero, torch.ops.aten.item}:
            self.taken.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_real_model_answers_the_same_after_memory_ran_out(folder_of):
    backend = LocalBackend(str(folder_of("gpt2")), device="cpu")
    queries = [ask(f"{word} of the sea. " * 4, prompt) for word in "ABCDEF" for prompt in (" It is ", " The ")]
    expected = [answer.codes.astype(int) for answer in backend.fill(queries)]
    way, failed = backend._passes.way, []

    def short_of_memory(batch):
        if len(batch) > 2:
            failed.append(len(batch))
            raise torch.OutOfMemoryError("out of memory")
        return way(batch)

    backend._passes.way = short_of_memory
    again = backend.fill(queries)
    assert failed
    assert max(abs(one.codes.astype(int) - other).max() for one, other in zip(again, expected, strict=True)) <= 1
