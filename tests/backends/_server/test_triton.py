"""The server, asked by NVIDIA's own client; and by requests like those it sends."""

from __future__ import annotations

import json

import numpy as np
import pytest
import requests

from pbsdk.backend import MaskedQuery, Part
from pbsdk.testing import FakeBackend
from pbsdk_backends.serve import serving

TEXTS = ["The weather is <mask> today.", "\u00dcber <mask>"]


@pytest.fixture(scope="module")
def url():
    with serving(FakeBackend()) as address:
        yield address


@pytest.fixture(scope="module")
def expected():
    parts = [text.partition("<mask>") for text in TEXTS]
    answers = FakeBackend().fill(
        [MaskedQuery((Part("input", a), Part("mask"), Part("input", b)), "e", "p") for a, _, b in parts]
    )
    return np.stack([answer.logprobs for answer in answers]).astype("<f4")


@pytest.mark.parametrize("binary_out", [True, False])
@pytest.mark.parametrize("binary_in", [True, False])
def test_the_real_triton_client_works_unchanged(url, expected, binary_in, binary_out):
    triton = pytest.importorskip("tritonclient.http", reason="NVIDIA's client is not installed (tritonclient[http])")
    with triton.InferenceServerClient(url.removeprefix("http://")) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("fake")
        assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
        assert client.get_model_metadata("fake")["inputs"][0]["datatype"] == "BYTES"
        texts = triton.InferInput("text", [2], "BYTES")
        texts.set_data_from_numpy(np.array(TEXTS, dtype=np.object_), binary_data=binary_in)
        wishes = [triton.InferRequestedOutput(name, binary_data=binary_out) for name in ("logprobs", "vocabulary")]
        found = client.infer("fake", [texts], outputs=wishes, request_id="7")
        assert np.array_equal(found.as_numpy("logprobs"), expected)
        words = [word if isinstance(word, str) else word.decode() for word in found.as_numpy("vocabulary").tolist()]
        assert words == [FakeBackend().vocabulary[token] for token in range(1000)]
        assert np.array_equal(client.infer("fake", [texts]).as_numpy("logprobs"), expected)
        with pytest.raises(
            triton.InferenceServerException if hasattr(triton, "InferenceServerException") else Exception,
            match="this server has",
        ):
            client.infer("other", [texts])


def packed(*texts):
    return b"".join(len(text).to_bytes(4, "little") + text for text in (text.encode() for text in texts))


def ask(url, request, data=b"", **headers):
    head = json.dumps(request).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))} | headers if data else headers
    return requests.post(f"{url}/v2/models/fake/infer", data=head + data, headers=headers, timeout=30)


def tensor(size, **changes):
    return {
        "inputs": [
            {"name": "text", "shape": [2], "datatype": "BYTES", "parameters": {"binary_data_size": size}} | changes
        ]
    }


@pytest.mark.parametrize("binary_out", [True, False])
@pytest.mark.parametrize("binary_in", [True, False])
def test_bytes_and_json_go_together_in_every_way(url, expected, binary_in, binary_out):
    """No content type, as NVIDIA's client sends none."""
    data = packed(*TEXTS) if binary_in else b""
    request = tensor(len(data)) if binary_in else tensor(0, data=TEXTS, parameters={})
    request["outputs"] = [{"name": "logprobs", "parameters": {"binary_data": binary_out}}]
    reply = ask(url, request, data)
    assert reply.status_code == 200, reply.text
    if binary_out:
        values = np.frombuffer(reply.content[int(reply.headers["Inference-Header-Content-Length"]) :], "<f4")
    else:
        values = np.array(reply.json()["outputs"][0]["data"], dtype="<f4")
    assert np.array_equal(values.reshape(2, -1), expected)


GOOD = packed(*TEXTS)


@pytest.mark.parametrize(
    ("request_", "data", "headers", "message"),
    [
        (tensor(len(GOOD)), GOOD + b"x", {}, "longer"),
        (tensor(len(GOOD) + 1), GOOD, {}, "shorter"),
        (tensor(len(GOOD) - 1), GOOD[:-1], {}, "inside an element"),
        (tensor(3), b"\x01\x00\x00", {}, "inside an element"),
        (tensor(4), b"\xff\xff\xff\xff", {}, "inside an element"),
        (tensor(5), b"\x01\x00\x00\x00\xff", {}, "UTF-8"),
        (tensor(-1), GOOD, {}, "number of bytes"),
        (tensor("8"), GOOD, {}, "number of bytes"),
        (tensor(len(GOOD), shape=[3]), GOOD, {}, "shape"),
        (tensor(len(GOOD), shape=[1 << 32, 1 << 32]), GOOD, {}, "shape"),
        (tensor(len(GOOD), datatype="FP32"), GOOD, {}, "BYTES"),
        (tensor(len(GOOD)), GOOD, {"Inference-Header-Content-Length": "99999"}, "doesn't match"),
        (tensor(len(GOOD)), GOOD, {"Inference-Header-Content-Length": "-1"}, "doesn't match"),
        (tensor(len(GOOD)), GOOD, {"Inference-Header-Content-Length": "9"}, "JSON"),
        ({"inputs": 7}, b"", {}, "inputs"),
    ],
)
def test_bytes_that_make_no_sense_are_the_clients_mistake(url, request_, data, headers, message):
    reply = ask(url, request_, data, **headers)
    assert (reply.status_code, message in reply.json()["error"]) == (400, True), reply.text
