"""The adapter `kserve`, against `pbsdk serve` (texts) and a server in the manner of Triton's (token numbers)."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest
from helpers.servers import Reply, json_reply, query, scripted
from helpers.triton import Triton, write_tokenizer
from tokenizers import Tokenizer

from pbsdk.backend import MaskedQuery, Part
from pbsdk.errors import BadAnswer, InputError, ModelUnusable, QueryRefused
from pbsdk.testing import BackendContract, FakeBackend
from pbsdk_backends.kserve import KServeBackend
from pbsdk_backends.serve import serving


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(params=["texts", "bytes", "json", "mask only"], scope="module")
def backend(request, tokenizer):
    if request.param == "texts":
        with serving(FakeBackend()) as url, KServeBackend("fake", url=url) as backend:
            yield backend
        return
    script = Triton(binary=request.param != "json", every_place=request.param != "mask only")
    with (
        scripted(script) as server,
        KServeBackend("roberta", url=server.url, tokenizer=tokenizer, max_length=64) as backend,
    ):
        yield backend


class TestContract(BackendContract):
    tolerance = 0


def test_a_server_of_texts_gives_the_models_own_numbers():
    fake = FakeBackend()
    with serving(fake) as url, KServeBackend("fake", url=url) as backend:
        assert [backend.vocabulary[t] for t in range(1000)] == [fake.vocabulary[t] for t in range(1000)]
        (seen,) = backend.fill([query("fine")])
        (own,) = fake.fill([MaskedQuery((Part("input", "fine It was "), Part("mask"), Part("input", "")), "e", "p")])
        assert np.array_equal(seen.codes, own.codes)
        with pytest.raises(QueryRefused, match="mask"):
            backend.fill([query("a <mask> b")])


def test_a_causal_server_says_that_it_is_one():
    with serving(FakeBackend(mask="last")) as url, KServeBackend("fake", url=url) as backend:
        assert backend.abilities.mask == "last"


@pytest.mark.parametrize("datatype", ["FP32", "FP64", "FP16", "BF16"])
def test_the_row_at_the_mask_is_taken_and_normalised(tokenizer, datatype):
    script = Triton(datatype=datatype)
    with scripted(script) as server, KServeBackend("roberta", url=server.url, tokenizer=tokenizer) as backend:
        (answer,) = backend.fill([query("The weather")])
        ids = script.read[-1]
        logits = np.random.default_rng(np.random.SeedSequence(ids)).normal(size=(1, len(ids), 400)) * 3
        row = logits[0, ids.index(4)]
        expected = row - np.log(np.exp(row).sum())
        tolerance = {"FP32": 0.001, "FP64": 0.001, "FP16": 0.02, "BF16": 0.1}[datatype]
        assert np.abs(answer.logprobs - expected).max() < tolerance
        assert answer.read_tokens == len(ids)


def test_tokens_are_made_here_and_inputs_are_cut_inside_the_text(tokenizer):
    script = Triton()
    read = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    with scripted(script) as server:
        backend = KServeBackend("roberta", url=server.url, tokenizer=tokenizer / "tokenizer.json", max_length=20)
        with backend:
            backend.fill([query("fine")])
            assert script.read[-1] == read.encode("fine It was <mask>").ids
            (answer,) = backend.fill([query("Rain. " * 100)])
        ids = script.read[-1]
        assert len(ids) == 20
        assert read.decode(ids, skip_special_tokens=False).endswith(" It was <mask></s>")
        assert answer.cut_tokens > 50
        # A control token in a text is plain words.
        backend.fill([query("</s> <pad>")])
        assert script.read[-1].count(2) == 1
        assert 1 not in script.read[-1]


def test_what_else_the_model_wants_is_given(tokenizer):
    script = Triton(inputs=("input_ids", "attention_mask", "token_type_ids"))
    with scripted(script) as server, KServeBackend("roberta", url=server.url, tokenizer=tokenizer) as backend:
        assert len(backend.fill([query("x")])) == 1


def test_a_head_wider_than_the_tokenizer_is_padded_with_unused_words(tokenizer):
    with (
        scripted(Triton(columns=408)) as server,
        KServeBackend("roberta", url=server.url, tokenizer=tokenizer) as backend,
    ):
        assert len(backend.vocabulary) == 408
        assert backend.vocabulary[407] == "<unused>"
        assert backend.vocabulary.find("weather") is not None


def test_the_identity_holds_version_and_tokenizer(tokenizer, tmp_path):
    with scripted(Triton()) as server:
        first = KServeBackend("roberta", url=server.url, tokenizer=tokenizer)
        text = (tokenizer / "tokenizer.json").read_text()
        (tmp_path / "tokenizer.json").write_text(text + "\n")
        second = KServeBackend("roberta", url=server.url, tokenizer=tmp_path)
    assert first.identity.details["version"] == "3"
    assert "tokenizer" in first.identity.differences(second.identity)
    assert "127.0.0.1" not in first.identity.to_json()


def shape(answer, output):
    output["shape"] = [2, 2]


def other_model(answer, output):
    answer["model_name"] = "bert"


def other_version(answer, output):
    answer["model_version"] = "4"


def no_tensor(answer, output):
    output["name"] = "pooled"


def integers(answer, output):
    output["datatype"] = "INT64"


def less_than_nothing(answer, output):
    output["shape"] = [-1, *output["shape"][1:]]


def other_sizes(answer, output):
    for size in (-8, "x", [8]):
        answer["outputs"].insert(
            0, {"name": "first", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": size}}
        )


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize(
    "change", [shape, other_model, other_version, no_tensor, integers, less_than_nothing, other_sizes]
)
def test_an_answer_that_cannot_be_right_is_never_used(tokenizer, change, binary):
    script = Triton(binary=binary)
    with scripted(script) as server, KServeBackend("roberta", url=server.url, tokenizer=tokenizer) as backend:
        script.change = change
        with pytest.raises(BadAnswer):
            backend.fill([query("x")])


def test_a_length_of_thousands_of_digits_is_a_bad_answer(tokenizer):
    script = Triton(binary=True)

    def answer(asked):
        reply = script(asked)
        more = {"Inference-Header-Content-Length": "9" * 5000} if asked.path.endswith("/infer") else {}
        return Reply(reply.status, reply.body, {**reply.headers, **more})

    with scripted(script) as server, KServeBackend("roberta", url=server.url, tokenizer=tokenizer) as backend:
        assert len(backend.fill([query("x")])) == 1
        server.answer = answer
        with pytest.raises(BadAnswer, match="length"):
            backend.fill([query("x")])


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e400"])
def test_numbers_that_are_none_are_never_used(tokenizer, number):
    script = Triton(binary=False, every_place=False)
    with scripted(script) as server, KServeBackend("roberta", url=server.url, tokenizer=tokenizer) as backend:

        def spoiled(asked):
            reply = script(asked)
            at = reply.body.index(b'"data": [') + len(b'"data": [')
            return Reply(200, reply.body[:at] + number.encode() + b", " + reply.body[reply.body.index(b",", at) + 1 :])

        server.answer = spoiled
        with pytest.raises(BadAnswer):
            backend.fill([query("x")])


@pytest.mark.parametrize(
    ("script", "options", "message"),
    [
        (Triton(), {"tokenizer": None}, "tokenizer.json"),
        (Triton(), {"output": "pooled"}, "output="),
        (Triton(name="bert"), {}, "bert"),
        (Triton(inputs=("pixels",)), {}, "pixels"),
        (lambda _: json_reply({"error": "unknown model"}, 404), {}, "unknown model"),
        (lambda _: Reply(200, b"hello"), {}, "model of this server"),
    ],
)
def test_a_model_that_cannot_be_used_is_found_out_when_connecting(tokenizer, script, options, message):
    with scripted(script) as server, pytest.raises(ModelUnusable, match=message):
        KServeBackend("roberta", url=server.url, **{"tokenizer": tokenizer, **options})


class KServe:
    """A model on KServe 0.21, which answers in JSON whatever it is asked for, and says null where it has nothing to say."""

    def __init__(self, columns=400):
        self.columns = columns

    def __call__(self, asked):
        if asked.path == "/v2":
            return Reply(200, b'{"name":"kserve","version":"0.21.0","extensions":["model_repository_extension"]}')
        if not asked.path.startswith("/v2/models/roberta"):
            return Reply(404, b'{"error":"Model with name nope does not exist."}')
        if asked.method == "GET":
            return Reply(
                200,
                b'{"name":"roberta","versions":null,"platform":"","inputs":[{"name":"input_ids","datatype":"INT64",'
                b'"shape":[-1,-1]}],"outputs":[{"name":"logits","datatype":"FP32","shape":[-1,%d]}]}' % self.columns,
            )
        data = ",".join(f"{number}.0" for number in range(self.columns)).encode()
        return Reply(
            200,
            b'{"model_name":"roberta","model_version":null,"id":"1","parameters":null,"outputs":[{"name":"logits",'
            b'"shape":[1,%d],"datatype":"FP32","parameters":null,"data":[%b]}]}' % (self.columns, data),
        )


def test_nulls_of_kserve_are_nothing(tokenizer):
    with scripted(KServe()) as server, KServeBackend("roberta", url=server.url, tokenizer=tokenizer) as backend:
        assert backend.identity.details["version"] == ""
        (answer,) = backend.fill([query("x")])
        assert np.allclose(answer.logprobs[-3:], np.arange(-2, 1) - np.log(1 / (1 - np.exp(-1))), atol=0.001)


def test_a_wrong_model_and_a_wrong_address_are_told_apart(tokenizer):
    with scripted(KServe()) as server:
        with pytest.raises(ModelUnusable, match="this server has no model='nope'"):
            KServeBackend("nope", url=server.url, tokenizer=tokenizer)
        assert len(server.asked) == 2
        with pytest.raises(ModelUnusable, match=f"url='{server.url}/v2' its address, without /v2"):
            KServeBackend("roberta", url=f"{server.url}/v2", tokenizer=tokenizer)
        assert len(server.asked) == 4


def test_numbers_that_are_all_the_same_are_never_used(tokenizer):
    class Blank(KServe):
        def __call__(self, asked):
            reply = super().__call__(asked)
            return Reply(reply.status, re.sub(rb"[1-9]\d*\.0", b"0.0", reply.body))

    with scripted(Blank()) as server, pytest.raises(ModelUnusable, match="'logits' are 0, which says nothing"):
        KServeBackend("roberta", url=server.url, tokenizer=tokenizer)


def test_a_tokenizer_that_is_none_is_a_clear_error(tmp_path):
    with pytest.raises(ModelUnusable, match="read as a tokenizer"):
        KServeBackend("roberta", url="http://127.0.0.1:9", tokenizer=tmp_path)
    with pytest.raises(InputError, match="max_length"):
        KServeBackend("roberta", url="http://127.0.0.1:9", max_length=1)


def test_a_partial_model_is_not_served_as_whole_tensors():
    with serving(FakeBackend(top=5)) as url, pytest.raises(ModelUnusable, match="part of its vocabulary"):
        KServeBackend("fake", url=url)


def test_it_needs_no_torch():
    code = (
        "import sys\n"
        "import pbsdk_backends.kserve, pbsdk_backends.http, pbsdk_backends.openai\n"
        "import pbsdk_backends.huggingface, pbsdk_backends.serve\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
