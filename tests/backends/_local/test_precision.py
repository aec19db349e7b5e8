"""Precision is measured, remembered and part of the identity; `exact` stays what it was."""

import numpy as np
import pytest
import torch
from helpers.tiny_models import ask
from torch import nn

from pbsdk.errors import InputError, ModelUnusable
from pbsdk_backends._local import int8, precision
from pbsdk_backends._local.int8 import Int8Linear, bearing, share_of
from pbsdk_backends._local.precision import choose_dtype, choose_precision, speeds
from pbsdk_backends.local import LocalBackend

CPU = torch.device("cpu")
QUERIES = [
    ask(text, prompt)
    for text in ("Rain.", "The sea is calm, and so is the weather.")
    for prompt in (" It was ", " So ")
]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PBSDK_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def measured(monkeypatch):
    """Let a machine be as fast as told."""

    def put(**known):
        monkeypatch.setattr(precision, "_measure", lambda _device: known)

    return put


def test_exact_is_float32_and_the_default(folder_of, backend_of):
    queries, plain = QUERIES, backend_of("roberta")
    named = LocalBackend(str(folder_of("roberta")), device="cpu", precision="float32")
    assert plain.identity == named.identity
    assert plain.identity.details["precision"] == "float32"
    assert {weight.dtype for weight in plain._model.parameters()} == {torch.float32}
    for one, other in zip(plain.fill(queries), named.fill(queries), strict=True):
        assert (one.codes == other.codes).all()


@pytest.mark.parametrize(
    ("known", "chosen"),
    [
        ({"bfloat16": 4.4, "int8": 1.1}, "bfloat16"),
        ({"bfloat16": 0.5, "int8": 7.0}, "int8"),
        ({"bfloat16": 0.5, "int8": 0.9}, "float32"),
        ({"bfloat16": 1.1}, "float32"),
        ({}, "float32"),
    ],
)
def test_fast_is_what_the_processor_is_fastest_in(folder_of, measured, known, chosen):
    measured(**known)
    with LocalBackend(str(folder_of("roberta")), device="cpu", precision="fast") as backend:
        assert backend.identity.details["precision"] == chosen


@pytest.mark.parametrize(
    ("known", "chosen"), [({"bfloat16": 1.9, "int8": 7.0}, "bfloat16"), ({"int8": 7.0}, "float32")]
)
def test_fast_leaves_a_causal_model_its_trie(folder_of, measured, known, chosen):
    measured(**known)
    with LocalBackend(str(folder_of("llama")), device="cpu", precision="fast") as backend:
        assert backend.identity.details["precision"] == chosen
        assert backend.way == "trie"


def test_int8_has_to_be_faster_for_the_whole_model(folder_of, measured, monkeypatch):
    measured(bfloat16=4.0, int8=8.0)
    monkeypatch.setattr(int8, "MOST_CHANGE", 0.0)
    with LocalBackend(str(folder_of("roberta")), device="cpu", precision="fast") as backend:
        assert backend.identity.details["precision"] == "bfloat16"


def test_a_machine_is_measured_once(monkeypatch):
    turns = []
    plain = precision._measure
    monkeypatch.setattr(precision, "_measure", lambda device: turns.append(device) or plain(device))
    first = speeds(CPU)
    assert speeds(CPU) == first
    assert len(turns) == 1
    assert set(first) <= {"bfloat16", "int8"}
    assert all(speed > 0 for speed in first.values())


@pytest.mark.parametrize("junk", [{"bfloat16": "fast"}, {"brain": 2.0}, {"bfloat16": -1.0}, [1], "x"])
def test_a_remembered_speed_that_is_none_is_measured_again(measured, junk):
    measured(bfloat16=2.0)
    speeds(CPU)
    (key,) = precision.recall("speeds")
    precision.remember("speeds", key, junk)
    assert speeds(CPU) == {"bfloat16": 2.0}


def test_measuring_leaves_the_threads_as_they_were():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        precision._measure(CPU)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_device_without_a_precision_does_without(monkeypatch):
    def fails(_layer):
        raise RuntimeError("no kernel")

    monkeypatch.setattr(precision, "Int8Linear", fails)
    assert set(speeds(CPU)) == {"bfloat16"}


def test_int8_is_near_and_says_so(folder_of, backend_of):
    full = backend_of("roberta")
    with LocalBackend(str(folder_of("roberta")), device="cpu", precision="int8") as backend:
        layers = [module for module in backend._model.modules() if isinstance(module, Int8Linear)]
        assert len(layers) > 5
        for one, other in zip(full.fill(QUERIES), backend.fill(QUERIES), strict=True):
            assert np.abs(np.exp(one.logprobs) - np.exp(other.logprobs)).max() < 0.05
        assert full.identity.differences(backend.identity) == "precision: float32 here, int8 there"
        assert backend.way == "packed"
    assert all(layer._packed is None for layer in layers)


def test_a_layer_that_does_not_bear_eight_bits_keeps_its_floats():
    torch.manual_seed(13)
    model = nn.Sequential(nn.Embedding(20, 64), nn.Linear(64, 64), nn.Linear(64, 64))
    model.device = CPU
    with torch.no_grad():
        model[0].weight[7] *= 10_000  # one token drowns all others
    assert bearing(_Named(model), [[1, 2, 3, 4, 5]]) == ["1", "2"]
    assert bearing(_Named(model), [[1, 2, 3, 4, 7]]) == []
    assert share_of(model, ["1"]) == 0.5


class _Named(nn.Sequential):
    """A model that is called by the name of its input."""

    def __init__(self, model):
        super().__init__(*model)
        self.device = CPU

    def forward(self, input_ids):
        return super().forward(input_ids)


def test_a_model_without_linear_layers_can_not_have_int8(folder_of, monkeypatch):
    monkeypatch.setattr(int8, "MOST_CHANGE", 0.0)
    with pytest.raises(ModelUnusable, match="none of the model's layers bears eight bits; use precision='bfloat16'"):
        LocalBackend(str(folder_of("roberta")), device="cpu", precision="int8")


def test_what_can_not_be_is_refused():
    with pytest.raises(InputError, match="precision='double' is not known; use 'exact', 'fast', 'float32'"):
        choose_precision("double", CPU)
    with pytest.raises(InputError, match="int8' runs on a CPU alone; use 'bfloat16'"):
        choose_precision("int8", torch.device("cuda"))
    with pytest.raises(InputError, match="answer at a mask"):
        choose_dtype("int8", CPU)


def test_a_writer_is_fast_in_floats(measured):
    measured(bfloat16=2.0, int8=9.0)
    assert choose_dtype("fast", CPU) is torch.bfloat16
    assert choose_dtype("exact", CPU) is torch.float32


def test_a_pickle_opens_with_the_precision_that_was_chosen(folder_of, measured):
    import pickle

    measured(bfloat16=4.0)
    with LocalBackend(str(folder_of("llama")), device="cpu", precision="fast") as backend:
        data = pickle.dumps(backend)
    measured(bfloat16=0.5)
    with pickle.loads(data) as again:
        assert again.identity.details["precision"] == "bfloat16"
