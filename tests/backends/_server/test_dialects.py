"""The server in the manner of others: Hugging Face's fill-mask, and the Open Inference Protocol."""

from __future__ import annotations

import json

import numpy as np
import pytest
import requests
from helpers.servers import TOKEN, headers
from huggingface_hub import InferenceClient


def test_the_real_hugging_face_client_works_unchanged(url, fake):
    client = InferenceClient(url, token=TOKEN)
    best = client.fill_mask("The weather is <mask> today.", top_k=3)
    assert len(best) == 3
    assert [item.score for item in best] == sorted((item.score for item in best), reverse=True)
    assert all(fake.vocabulary[item.token] == item.token_str for item in best)
    assert best[0].sequence == f"The weather is{best[0].token_str} today."
    assert len(client.fill_mask("A [MASK].")) == 5
    words = [fake.vocabulary[t] for t in (7, 3)]
    chosen = client.fill_mask("The weather is <mask> today.", targets=[*words, "no-such-token"])
    assert sorted(item.token for item in chosen) == [3, 7]


def test_several_texts_give_several_lists_and_one_is_unwrapped(url):
    ask = {"headers": headers(), "timeout": 30}
    two = requests.post(url, json={"inputs": ["a <mask>", "b <mask>"], "parameters": {"top_k": 2}}, **ask).json()
    assert [len(found) for found in two] == [2, 2]
    one = requests.post(url, json={"inputs": ["a <mask>"], "parameters": {"top_k": 2}}, **ask).json()
    assert one == two[0]
    assert requests.post(f"{url}/models/any/name", json={"inputs": "a <mask>"}, **ask).json()[:2] == two[0]


@pytest.mark.parametrize("text", ["no mask", "two <mask> <mask>", "two <mask> [MASK]"])
def test_a_text_needs_one_mask(url, text):
    reply = requests.post(url, json={"inputs": text}, headers=headers(), timeout=30)
    assert reply.status_code == 400
    assert "mask_token" in reply.json()["error"]


def test_targets_that_are_no_tokens_are_refused(url):
    request = {"inputs": "a <mask>", "parameters": {"targets": ["zzz-none"]}}
    assert requests.post(url, json=request, headers=headers(), timeout=30).status_code == 400


def test_oip_tells_health_and_metadata(url, fake):
    assert requests.get(f"{url}/v2/health/live", timeout=30).json()["live"] is True
    assert requests.get(f"{url}/v2/health/ready", timeout=30).json()["ready"] is True
    ask = {"headers": headers(), "timeout": 30}
    assert requests.get(f"{url}/v2", **ask).json()["name"] == "pbsdk"
    assert requests.get(f"{url}/v2/models/fake/ready", **ask).json() == {"name": "fake", "ready": True}
    metadata = requests.get(f"{url}/v2/models/fake", **ask).json()
    assert metadata["versions"] == [fake.identity.digest]
    assert metadata["outputs"][0]["shape"] == [-1, 1000]
    assert requests.get(f"{url}/v2/models/other", **ask).status_code == 404


def test_oip_infers_in_json_and_in_bytes(url):
    texts = {"name": "text", "shape": [2], "datatype": "BYTES", "data": ["a <mask>", "b <mask>"]}
    ask = {"headers": headers(), "timeout": 30}
    plain = requests.post(f"{url}/v2/models/fake/infer", json={"id": "7", "inputs": [texts]}, **ask).json()
    assert plain["id"] == "7"
    (tensor,) = plain["outputs"]
    assert (tensor["shape"], tensor["datatype"]) == ([2, 1000], "FP32")
    request = {"inputs": [texts], "parameters": {"binary_data_output": True}}
    reply = requests.post(f"{url}/v2/models/fake/infer", json=request, **ask)
    length = int(reply.headers["Inference-Header-Content-Length"])
    (output,) = json.loads(reply.content[:length])["outputs"]
    values = np.frombuffer(reply.content[length:], "<f4")
    assert output["parameters"]["binary_data_size"] == values.nbytes
    assert values.tolist() == tensor["data"]
    wrong = [{**texts, "datatype": "INT64"}, {**texts, "shape": [3]}, {**texts, "name": "ids"}]
    for tensor in wrong:
        reply = requests.post(f"{url}/v2/models/fake/infer", json={"inputs": [tensor]}, **ask)
        assert reply.status_code == 400
