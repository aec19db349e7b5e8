import numpy as np
import pytest
import torch
from helpers.tiny_models import CAUSAL, MASKED, ask, build, plain_logprobs

from pbsdk.backend import MaskedQuery, Part, digest
from pbsdk.errors import BackendUnavailable, InputError
from pbsdk.testing import BackendContract
from pbsdk_backends._local.sharing import single
from pbsdk_backends.local import LocalBackend

TEXTS = ["The weather is fine.", "", "Stocks fell on Monday as oil prices rose to a record, analysts said.", "Rain."]
PROMPTS = [" It was ", " It was all ", " The sea is ", ", and ", " It ", " All of it is about the "]
WAYS = {"roberta": "packed", "xlm-roberta": "packed", "bert": "packed", "electra": "packed", "gpt2": "trie"}
WAYS |= {"llama": "trie", "mistral": "shared", "bloom": "padded", "fnet": "alone", "distilbert": "padded"}
WAYS |= {"albert": "padded", "deberta": "padded", "deberta-v2": "padded", "modernbert": "padded"}


def logprobs(backend, queries):
    """Return a backend's float values, as they are before they go on the grid."""
    readings = [backend._reader.read(query) for query in queries]
    answers = {}
    for owners, values in backend._passes.run(backend._rows(readings)):
        answers.update(zip(owners, values, strict=True))
    return torch.stack([answers[owner] for owner in range(len(queries))])


@pytest.fixture(params=[*MASKED, *CAUSAL], scope="module")
def family(request):
    return request.param


class TestTheContract(BackendContract):
    @pytest.fixture
    def backend(self, backend_of, family):
        return backend_of(family)


@pytest.mark.parametrize("name", [*MASKED, *CAUSAL, "fnet", "bloom", "mistral"])
def test_every_family_answers_as_transformers_does(folder_of, backend_of, name):
    causal = name in {*CAUSAL, "bloom", "mistral"}
    queries = [ask(text, prompt) for text in TEXTS for prompt in PROMPTS]
    ours = logprobs(backend_of(name), queries)
    theirs = torch.stack([plain_logprobs(folder_of(name), query, causal=causal) for query in queries])
    assert (ours - theirs).abs().max() < 1e-4


@pytest.mark.parametrize("name", WAYS)
def test_each_architecture_runs_the_fastest_way_that_is_right(backend_of, name):
    assert backend_of(name).way == WAYS[name]


@pytest.mark.parametrize("name", CAUSAL)
def test_sharing_the_text_changes_no_number(backend_of, name):
    queries = [ask(text, prompt) for text in TEXTS for prompt in PROMPTS]
    plain = backend_of(name, share_text=False)
    assert plain.way == "padded"
    assert (logprobs(backend_of(name), queries) - logprobs(plain, queries)).abs().max() < 1e-4


def test_sharing_reads_the_text_once(backend_of):
    backend = backend_of("gpt2")
    queries = [ask(TEXTS[2], prompt) for prompt in PROMPTS]
    readings = [backend._reader.read(query) for query in queries]
    (row,) = backend._rows(readings)
    longest = max(len(reading.ids) for reading in readings)
    assert len(row.ids) < longest + 3 * len(PROMPTS)
    assert sum(len(reading.ids) for reading in readings) > 3 * len(row.ids)


def test_a_sliding_window_is_never_overlooked(backend_of):
    backend = backend_of("mistral")
    queries = [ask(text, prompt) for text in TEXTS for prompt in PROMPTS]
    rows = backend._rows([backend._reader.read(query) for query in queries])
    assert any(row.sight is not None for row in rows)
    assert all(len(row.ids) <= 16 for row in rows if row.sight is not None)


def test_codes_are_the_rounded_log_probabilities(backend_of):
    backend = backend_of("roberta")
    queries = [ask(text) for text in TEXTS]
    for answer, values in zip(backend.fill(queries), logprobs(backend, queries), strict=True):
        expected = np.clip(np.rint(values.double().numpy() * -1024), 0, 65535)
        assert np.abs(answer.codes - expected).max() <= 1
        assert answer.codes.dtype == np.uint16


def test_chosen_tokens_are_answered_alone(backend_of):
    backend = backend_of("roberta")
    tokens = np.array([3, 50, 200])
    (whole,), (part,) = backend.fill([ask("Rain.")]), backend.fill([ask("Rain.")], tokens)
    assert part.tokens is not None
    assert part.tokens.tolist() == [3, 50, 200]
    assert part.codes.tolist() == whole.codes[tokens].tolist()


@pytest.mark.parametrize("name", [*MASKED, *CAUSAL])
def test_the_longest_texts_run_and_say_what_was_cut(backend_of, name):
    backend = backend_of(name)
    short, long = backend.fill([ask("Rain."), ask("rain and sea, " * 200)])
    assert (short.cut_tokens, long.read_tokens) == (0, backend.max_length)
    assert long.cut_tokens > 100
    assert short.read_tokens == backend.count_tokens(ask("Rain.")) < long.read_tokens


def test_max_length_cuts_earlier_and_is_part_of_the_identity(backend_of):
    backend = backend_of("roberta", max_length=20)
    (answer,) = backend.fill([ask("rain and sea " * 20)])
    assert answer.read_tokens == 20
    assert backend.identity.differences(backend_of("roberta").identity) == "max_length: 20 here, 96 there"


def test_pairs_are_read_with_both_texts(backend_of):
    backend = backend_of("roberta")
    one, other = backend.fill([ask("Rain.", pair="Sun."), ask("Rain.", pair="The soup was cold.")])
    assert (one.codes != other.codes).any()


def test_equal_prompts_of_one_example_share_everything(backend_of):
    backend = backend_of("gpt2")
    first, second = ask("Rain.", " A ", " movie."), ask("Rain.", " A ", " film.")
    one, other = backend.fill([first, second])
    assert (one.codes == other.codes).all()


def test_two_texts_with_one_example_name_are_still_told_apart(backend_of):
    backend = backend_of("gpt2")
    queries = [
        MaskedQuery((Part("input", text), Part("prompt", " is "), Part("mask")), digest("same"), "p")
        for text in ("Rain", "The sea", "Rain and sea")
    ]
    together = backend.fill(queries)
    for query, answer in zip(queries, together, strict=True):
        steps = np.abs(backend.fill([query])[0].codes.astype(int) - answer.codes.astype(int))
        assert steps.max() <= 1


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["roberta", "llama"])
def test_half_precision_is_near_and_is_part_of_the_identity(backend_of, name, precision):
    full, half = backend_of(name), backend_of(name, precision=precision)
    (one,), (other,) = full.fill([ask("Rain.")]), half.fill([ask("Rain.")])
    assert np.abs(np.exp(one.logprobs) - np.exp(other.logprobs)).max() < 0.1
    assert full.identity.differences(half.identity) == f"precision: float32 here, {precision} there"


def test_the_gpu_path_pads_and_gives_the_same_numbers(folder_of, monkeypatch):
    monkeypatch.setattr("pbsdk_backends._local.forward.Forward.can_pack", lambda _self: False)
    gpu_way = LocalBackend(str(folder_of("roberta")), device="cpu")
    monkeypatch.undo()
    cpu_way = LocalBackend(str(folder_of("roberta")), device="cpu")
    assert (gpu_way.way, cpu_way.way) == ("padded", "packed")
    queries = [ask(text) for text in TEXTS]
    assert (logprobs(gpu_way, queries) - logprobs(cpu_way, queries)).abs().max() < 1e-4


def test_the_head_runs_only_at_the_mask(backend_of):
    for name in ("roberta", "distilbert", "gpt2"):
        backend = backend_of(name)
        shapes = []
        head = backend._model.get_output_embeddings()
        hook = head.register_forward_hook(lambda _m, _i, output, seen=shapes: seen.append(output.numel()))
        backend.fill([ask(text) for text in TEXTS])
        hook.remove()
        assert sum(shapes) == len(TEXTS) * len(backend.vocabulary)


def test_rows_of_one_reading_ask_once(backend_of):
    backend = backend_of("roberta")
    reading = backend._reader.read(ask("Rain."))
    assert single(4, reading).owners == [4]


def test_the_model_may_be_named_by_a_folder_and_the_path_stays_private(folder_of, tmp_path):
    one = LocalBackend(str(folder_of("bert")), device="cpu")
    twin = build(tmp_path / "elsewhere" / "tiny-bert", "bert")
    assert LocalBackend(str(twin), device="cpu").identity == one.identity
    other = build(tmp_path / "changed" / "tiny-bert", "bert", hidden_act="relu")
    assert "config" in LocalBackend(str(other), device="cpu").identity.differences(one.identity)
    assert str(tmp_path) not in one.identity.to_json()
    assert one.identity.name == "tiny-bert"
    assert one.mask_token == "[MASK]"


def test_a_closed_backend_says_so(folder_of):

    with LocalBackend(str(folder_of("roberta")), device="cpu") as backend:
        backend.fill([ask("Rain.")])
    with pytest.raises(BackendUnavailable, match="closed; connect again"):
        backend.fill([ask("Rain.")])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 97}, "between 1 and the model's 96"),
        ({"max_length": 0}, "between 1 and"),
        ({"batch_tokens": 0}, "at least 1"),
        ({"precision": "int4"}, "precision='int4' is not known; use"),
        ({"threads": 0}, "threads=0 must be at least 1"),
        ({"device": "toaster"}, "is not a device; use"),
        ({"revision": "main"}, "only hub models have revisions"),
    ],
)
def test_options_that_can_not_work_are_refused(folder_of, options, message):
    with pytest.raises(InputError, match=message):
        LocalBackend(str(folder_of("roberta")), **{"device": "cpu", **options})
