"""Hidden states are the model's own, at the mask."""

import numpy as np
import pytest
import torch

from pbsdk.backend import HiddenStates, MaskedQuery, Part
from pbsdk.errors import BackendUnavailable
from pbsdk.testing import FakeBackend
from pbsdk_backends.local import LocalBackend

TEXTS = ("A short text.", "A much longer text, which is not as short as that one was.", "Fine.")


def query(text):
    return MaskedQuery((Part("input", text), Part("prompt", " It is "), Part("mask"), Part("prompt", ".")), text, "p")


@pytest.mark.parametrize("family", ["roberta", "llama"])
def test_they_are_those_of_each_text_alone(folder_of, family):
    backend = LocalBackend(model=str(folder_of(family)), device="cpu")
    assert isinstance(backend, HiddenStates)
    queries = [query(text) for text in TEXTS]
    found = backend.hidden_states(queries)
    for one, state in zip(queries, found, strict=True):
        reading = backend._reader.read(one)
        with torch.inference_mode():
            plain = backend._model(input_ids=torch.tensor([reading.ids]), output_hidden_states=True)
        np.testing.assert_allclose(state, plain.hidden_states[-1][0, reading.at], atol=1e-5)
    backend.close()
    with pytest.raises(BackendUnavailable, match="closed"):
        backend.hidden_states(queries)


def test_a_black_box_has_none():
    assert not isinstance(FakeBackend(), HiddenStates)
