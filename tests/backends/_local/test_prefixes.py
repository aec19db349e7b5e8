"""Beginnings: read once, kept within bounds, and never seen in the numbers."""

import numpy as np
import pytest
import torch
from helpers.tiny_models import CAUSAL, plain_logprobs

from pbsdk.backend import MaskedQuery, Part, digest
from pbsdk_backends._local.prefixes import Beginnings, Borrowed, States
from pbsdk_backends.local import LocalBackend

TEXTS = ["The weather is fine.", "Stocks fell on Monday.", "Rain.", "The weather was bad."]
PROMPTS = [" It was ", " It was all ", " The sea is "]
COMMON = "It was good; it was bad. All of it is about rain, soup, banks and boats. "
OTHER = "Scientists say that the new chip is ten times as fast as the old one. "


def ask(head, text, prompt):
    parts = (Part("prompt", head), Part("input", text), Part("prompt", prompt), Part("mask"))
    return MaskedQuery(parts, digest(text), f"{head}<input>{prompt}<mask>")


def all_of(*heads, texts=TEXTS):
    """Return queries whose prompts take turns with the heads."""
    return [ask(heads[at % len(heads)], text, prompt) for text in texts for at, prompt in enumerate(PROMPTS)]


HEADS = {
    "one for all": all_of(COMMON),
    "of two lengths": all_of(COMMON, COMMON[:25]),
    "one that goes on": all_of(COMMON, COMMON + OTHER[:30]),
    "none for some": all_of(COMMON, ""),
    "quite different": all_of(COMMON, OTHER, "A short text about a long day. " * 2),
}


@pytest.fixture
def backend(folder_of, request):
    return LocalBackend(str(folder_of(getattr(request, "param", "gpt2"))), device="cpu")


@pytest.fixture(autouse=True)
def _eager(monkeypatch):
    """Have beginnings read apart though texts as tiny as these would not pay for it."""
    monkeypatch.setattr("pbsdk_backends._local.tries.CUT", -20)


class Count:
    """How many tokens go through a model, padding included."""

    def __init__(self, backend):
        self.tokens = 0
        backend._model.get_input_embeddings().register_forward_pre_hook(self._add)

    def _add(self, _module, args):
        self.tokens += args[0].numel()

    def of(self, call):
        before = self.tokens
        call()
        return self.tokens - before


def logprobs(backend, queries):
    answers = {}
    for owners, values in backend._passes.run(backend._rows([backend._reader.read(query) for query in queries])):
        answers.update(zip(owners, values, strict=True))
    return torch.stack([answers[owner] for owner in range(len(queries))])


def steps(one, other):
    pairs = zip(one, other, strict=True)
    return max(np.abs(left.codes.astype(int) - right.codes.astype(int)).max() for left, right in pairs)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("backend", CAUSAL, indirect=True)
def test_queries_after_demonstrations_are_answered_as_transformers_does(backend, folder_of, heads, request):
    queries = HEADS[heads]
    family = request.node.callspec.params["backend"]
    theirs = torch.stack([plain_logprobs(folder_of(family), query, causal=True) for query in queries])
    fresh = logprobs(backend, queries)
    assert backend._forward.beginnings.size > 0
    assert (fresh - theirs).abs().max() < 1e-4
    assert (logprobs(backend, queries) - theirs).abs().max() < 1e-4


def test_demonstrations_run_through_the_model_once_and_in_the_next_call_not_at_all(backend):
    queries = all_of(COMMON)
    block = len(backend._reader.read(ask(COMMON, "", "")).ids)
    plain = sum(map(backend.count_tokens, queries))
    count = Count(backend)
    first, second = (count.of(lambda: backend.fill(queries)) for _ in range(2))
    assert plain > 12 * block
    assert first < block + 12 * 12
    assert second <= first - block + 2


def test_a_stream_of_single_examples_comes_to_share_its_demonstrations(backend, monkeypatch):
    monkeypatch.setattr("pbsdk_backends._local.tries.AGAIN", 16)
    count = Count(backend)
    spent = [count.of(lambda text=text: backend.fill(all_of(COMMON, texts=[text]))) for text in TEXTS]
    block = len(backend._reader.read(ask(COMMON, "", "")).ids)
    assert spent[0] > block
    assert max(spent[2:]) < block


def test_tokens_are_counted_as_if_nothing_were_shared(backend):
    queries = all_of(COMMON)
    for query, answer in zip(queries, backend.fill(queries), strict=True):
        assert answer.read_tokens == backend.count_tokens(query) == len(backend._reader.read(query).ids)


def test_an_answer_does_not_depend_on_what_is_kept_or_asked_beside_it(backend):
    queries = all_of(COMMON, OTHER)
    together = backend.fill(queries)
    again = backend.fill(queries[::-1])[::-1]
    one_by_one = [backend.fill([query])[0] for query in queries]
    backend._forward.beginnings.clear()
    assert steps(together, again) <= 1
    assert steps(together, one_by_one) <= 1
    assert steps(together, backend.fill(queries)) <= 1


@pytest.mark.parametrize("room", [0, 20_000])
def test_memory_is_bounded_and_nothing_else_changes(backend, room):
    heads = [f"{word} {COMMON}" for word in ("One", "Two", "Three", "Four", "Five")]
    expected = [backend.fill(all_of(head)) for head in heads]
    assert backend._forward.beginnings.size > 20_000
    backend._forward.beginnings.clear()
    backend._forward.beginnings.room = room
    for head, answers in zip(heads, expected, strict=True):
        assert steps(backend.fill(all_of(head)), answers) <= 1
        assert backend._forward.beginnings.size <= room


def test_the_bound_grows_with_the_weights(backend, monkeypatch):
    assert backend._forward.beginnings.room == 2**28
    from pbsdk_backends._local import forward

    monkeypatch.setattr(forward, "LEAST_ROOM", 0)
    weights = sum(weight.nbytes for weight in backend._model.parameters())
    assert forward.Forward(backend._model, causal=True).beginnings.room == weights // 4


def states(tokens):
    return States([torch.zeros(1, tokens, 2)], [torch.zeros(1, tokens, 2)])


def test_the_beginnings_used_last_are_kept():
    kept = Beginnings(room=states(10).size)
    for ids in ((1, 2, 3, 4), (5, 6, 7, 8)):
        kept.put(ids, states(4))
    assert kept.get((1, 2, 3, 4)) is not None
    kept.put((9, 9, 9, 9), states(4))
    assert [kept.lengths(ids) for ids in ([1, 2, 3, 4, 5], [5, 6, 7, 8], [9, 9, 9, 9])] == [[4], [], [4]]
    kept.put((0,), states(11))
    assert kept.size == 0


def test_a_closed_backend_keeps_no_beginnings(backend):
    backend.fill(all_of(COMMON))
    backend.close()
    assert backend._forward.beginnings.size == 0


def test_a_model_that_does_not_see_the_cache_shares_trees_alone(folder_of, monkeypatch):
    monkeypatch.setattr(Borrowed, "update", lambda _self, keys, values, *_args: (keys, values))
    assert LocalBackend(str(folder_of("llama")), device="cpu").way == "shared"


def test_layers_that_look_only_near_share_trees_alone(tmp_path):
    from helpers.tiny_models import build

    kinds = ["sliding_attention", "full_attention"]
    folder = build(tmp_path / "mixed", "llama", causal=True, layer_types=kinds)
    assert LocalBackend(str(folder), device="cpu").way == "shared"


def test_memory_that_runs_out_while_demonstrations_are_read_is_found_in_smaller_batches(backend, monkeypatch):
    queries = all_of(COMMON, OTHER, "A short text about a long day. " * 2)
    expected = backend.fill(queries)
    backend._forward.beginnings.clear()
    failed = []
    read = backend._forward._read

    def short_of_memory(beginnings, held):
        if len(beginnings) > 1:
            failed.append(len(beginnings))
            raise torch.OutOfMemoryError("out of memory")
        return read(beginnings, held)

    monkeypatch.setattr(backend._forward, "_read", short_of_memory)
    assert steps(backend.fill(queries), expected) <= 1
    assert failed
