"""Recordings: what a run's answers become, and that a replay is the run again and nothing else."""

import json
import tracemalloc
import zlib
from dataclasses import replace

import numpy as np
import pytest

from pbsdk.backend import OpenVocabulary
from pbsdk.classifier import PromptBoostingClassifier
from pbsdk.connecting import connect
from pbsdk.data.tickets import load_tickets
from pbsdk.errors import InputError, LedgerMismatch, NotRecorded, QueryRefused, RecordingError
from pbsdk.metering.meter import MeteredBackend
from pbsdk.queries.examples import Example
from pbsdk.queries.templates import Template
from pbsdk.testing import BackendContract, FakeBackend, ReplayBackend, TopOnly, recording
from pbsdk.testing.recording import Recording, _checksum

PROMPTS = ["<input> So <mask>.", "<input> The <mask>"]
TICKETS = load_tickets()
TEXTS, LABELS = TICKETS.train.texts[::4], TICKETS.train.labels[::4]
NEW = TICKETS.test.texts[:12]


def trained(lm, path):
    clf = PromptBoostingClassifier(lm, PROMPTS, head="boosting", rounds=10, random_state=1).fit(TEXTS, LABELS)
    clf.save(path)
    return clf


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    with connect("fake", run=folder / "run") as lm:
        clf = trained(lm, folder / "model.json")
        labels = clf.predict(NEW).tolist()
        Recording.of(lm).save(folder / "all.pbrec")
        Recording.of(lm, ["predict"]).save(folder / "predict.pbrec")
    return folder, labels


class Words(FakeBackend):
    """A fake that shows words alone, as a provider without a vocabulary does."""

    def __init__(self):
        super().__init__(top=30)
        self._closed, self.vocabulary = self.vocabulary, OpenVocabulary()

    def fill(self, queries, tokens=None):
        answers = super().fill(queries, tokens)
        for answer in answers:
            for token in answer.tokens.tolist():
                self.vocabulary.learn(token, self._closed[token])
        return answers


@pytest.mark.parametrize(
    "make",
    [
        FakeBackend,
        lambda: FakeBackend(top=30),
        lambda: FakeBackend(chosen=True),
        lambda: TopOnly(FakeBackend(), 40),
        Words,
    ],
    ids=["whole", "top", "chosen", "top only", "open"],
)
def test_a_replay_is_the_run_again_bit_for_bit(make, tmp_path):
    with MeteredBackend(make(), tmp_path / "run") as lm:
        first = trained(lm, tmp_path / "model.json").predict_proba(NEW)
        Recording.of(lm).save(tmp_path / "answers.pbrec")
        bill = lm.audit()
    with connect("replay", file=tmp_path / "answers.pbrec", run=tmp_path / "replayed") as lm:
        clf = trained(lm, tmp_path / "again.json")
        assert (clf.predict_proba(NEW) == first).all()
        assert str(clf.explain())
        again = lm.audit()
        # Of a prediction's answers only what was asked for is kept, so the mass that the model showed beside it is gone.
        but = {"latency", "seconds", "throughput", "mass_seen"}
        assert [p.model_dump(exclude=but) for p in again.phases] == [p.model_dump(exclude=but) for p in bill.phases]
        loaded = PromptBoostingClassifier.load(tmp_path / "model.json", lm)  # a warning would be an error
        assert (loaded.predict_proba(NEW) == first).all()
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "model.json").read_bytes()


def test_predictions_alone_are_small_and_enough_for_a_saved_classifier(recorded, tmp_path):
    folder, labels = recorded
    file = folder / "predict.pbrec"
    assert file.stat().st_size < (folder / "all.pbrec").stat().st_size / 10
    with connect("replay", file=file, run=tmp_path / "run") as lm:
        clf = PromptBoostingClassifier.load(folder / "model.json", lm)
        assert clf.predict(NEW).tolist() == labels
        assert len(lm.vocabulary) == 1000
        assert lm.vocabulary.find("no such word") is None
        token, word = next(iter(lm.backend.recording.words.items()))
        assert lm.vocabulary.find(word) == token
        unseen = next(token for token in range(1000) if token not in lm.backend.recording.words)
        with pytest.raises(NotRecorded, match=f"no recorded answer shows token {unseen}"):
            lm.vocabulary[unseen]


def test_a_budget_in_tokens_is_the_models_own(recorded):
    folder, _ = recorded
    replay, fake = ReplayBackend(folder / "all.pbrec"), FakeBackend()
    queries = [Template(prompt).query(Example(text)) for text in (*TEXTS, *NEW) for prompt in PROMPTS]
    (answers,) = [fake.fill(queries)]
    assert [replay.count_tokens(query) for query in queries] == [answer.read_tokens for answer in answers]
    strange = Template(PROMPTS[0]).query(Example("never seen"))
    assert 0 < replay.count_tokens(strange) < replay.most_tokens(strange)


def test_the_same_run_gives_the_same_bytes(recorded, tmp_path):
    folder, _ = recorded
    with connect("fake", run=folder / "run") as lm:
        Recording.of(lm).save(tmp_path / "again.pbrec")
    assert (tmp_path / "again.pbrec").read_bytes() == (folder / "all.pbrec").read_bytes()
    Recording.load(folder / "all.pbrec").save(tmp_path / "copy.pbrec")
    assert (tmp_path / "copy.pbrec").read_bytes() == (folder / "all.pbrec").read_bytes()


def test_a_file_says_what_it_is_and_holds_no_text_and_no_key(tmp_path, monkeypatch):
    monkeypatch.setenv("PBSDK_API_KEY", "secret-key")
    text = "Zanzibar is the text that nobody else may read"
    with MeteredBackend(FakeBackend(top=5), tmp_path / "run") as lm:
        lm.fill([Template(PROMPTS[0]).query(Example(text))])
        Recording.of(lm).save(tmp_path / "answers.pbrec")
    line, _, body = (tmp_path / "answers.pbrec").read_bytes().partition(b"\n")
    header = json.loads(line.removeprefix(b"pbsdk-recording "))
    assert json.loads(header["model"])["name"] == "fake"
    assert (header["format"], header["answers"], header["prompts"]) == (1, 1, [PROMPTS[0]])
    content = line + zlib.decompress(body)
    for hidden in (b"Zanzibar", b"nobody", b"secret-key", str(tmp_path).encode()):
        assert hidden not in content


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("all", "a new text", PROMPTS[0], None), "This prompt is recorded with other texts, 28 of them"),
        (("all", TEXTS[0], "<input> So, <mask>.", None), "the closest is '<input> So <mask>.'"),
        (
            ("all", "a new text", "<input> These <mask>", None),
            "Neither the text nor the prompt is recorded; there are 28",
        ),
        (("predict", NEW[0], PROMPTS[0], None), "recorded only for a prediction's tokens, but training needs all"),
        (("predict", NEW[0], PROMPTS[0], np.array([997, 998])), "for other tokens or rendered otherwise"),
    ],
    ids=["text", "prompt", "both", "whole", "tokens"],
)
def test_what_is_not_recorded_is_refused_with_what_is_closest(recorded, asked, said):
    file, text, prompt, tokens = asked
    replay = ReplayBackend(recorded[0] / f"{file}.pbrec")
    with pytest.raises(NotRecorded) as refused:
        replay.fill([Template(prompt).query(Example(text))], tokens)
    told = str(refused.value)
    assert said in told
    assert text[:20] in told
    assert repr(Template(prompt).source) in told
    assert "pytest --pbsdk-record" in told
    assert f"{file}.pbrec" in told
    assert isinstance(refused.value, QueryRefused)
    assert not refused.value.retryable
    assert not refused.value.may_have_run


def test_through_the_meter_a_refusal_is_not_paid_for(recorded, tmp_path):
    with connect("replay", file=recorded[0] / "all.pbrec", run=tmp_path / "run") as lm:
        queries = [Template(PROMPTS[0]).query(Example(text)) for text in (TEXTS[0], "new", "newer")]
        with pytest.raises(NotRecorded, match="nor to 1 more of this batch"):
            lm.fill(queries)
        assert sum(phase.passes for phase in lm.audit().phases) == 0
        lm.fill(queries[:1])


def spoiled(data, how):
    line, _, body = data.partition(b"\n")
    return {
        "cut": data[:-20],
        "flipped": data[:-20] + bytes([data[-20] ^ 1]) + data[-19:],
        "header": data.replace(b'"answers": 56', b'"answers": 57'),
        "newer": data.replace(b'"format": 1', b'"format": 2'),
        "json": b"pbsdk-recording {" + b"\n" + body,
        "empty": b"",
        "another": b"PK\x03\x04 a zip file",
        "no body": line,
    }[how]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("cut", "was changed or cut off"),
        ("flipped", "was changed or cut off"),
        ("header", "was changed or cut off"),
        ("no body", "was changed or cut off"),
        ("newer", "newer pbsdk.*upgrade"),
        ("json", "can't be read.*record it again"),
        ("empty", "not a pbsdk recording"),
        ("another", "not a pbsdk recording"),
    ],
)
def test_a_broken_file_is_named_with_the_cure(recorded, tmp_path, how, said):
    data = (recorded[0] / "all.pbrec").read_bytes()
    assert spoiled(data, how) != data
    (tmp_path / "x.pbrec").write_bytes(spoiled(data, how))
    with pytest.raises(RecordingError, match=said):
        connect("replay", file=tmp_path / "x.pbrec", run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_files_that_are_not_there_or_cannot_be_written_are_named(recorded, tmp_path):
    with pytest.raises(RecordingError, match=r"nothing\.pbrec can't be read"):
        Recording.load(tmp_path / "nothing.pbrec")
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordingError, match="can't be written"):
        Recording.load(recorded[0] / "all.pbrec").save(tmp_path / "file" / "x.pbrec")
    assert {entry.name for entry in tmp_path.iterdir()} == {"file"}


def test_a_run_of_another_model_and_phases_that_are_none_are_refused(recorded):
    folder, _ = recorded
    with pytest.raises(LedgerMismatch, match="seed"):
        Recording.of_run(folder / "run", FakeBackend(seed=1))
    with pytest.raises(InputError, match="not tests"):
        Recording.of_run(folder / "run", FakeBackend(), ["tests"])
    with pytest.raises(InputError, match="holds no answer of the phases refine"):
        Recording.of_run(folder / "run", FakeBackend(), ["refine"])


def test_two_recordings_of_one_model_become_one(tmp_path):
    parts = []
    for name, text in (("a", "one text"), ("b", "another")):
        with MeteredBackend(FakeBackend(), tmp_path / name) as lm:
            lm.fill([Template(PROMPTS[0]).query(Example(text))])
            parts.append(Recording.of(lm))
    both = parts[0].merged(parts[1])
    assert both.answers.keys() == parts[0].answers.keys() | parts[1].answers.keys()
    assert both == parts[1].merged(parts[0])
    with MeteredBackend(FakeBackend(seed=1), tmp_path / "c") as lm:
        lm.fill([Template(PROMPTS[0]).query(Example("one text"))])
        with pytest.raises(RecordingError, match="two models can't share"):
            both.merged(Recording.of(lm))


@pytest.mark.parametrize("options", [{}, {"mask": "last"}, {"top": 7}], ids=str)
class TestReplayBackend(BackendContract):
    """The contract's own queries, recorded by holding a fake to it, and then replayed."""

    tolerance = 0

    @pytest.fixture
    def backend(self, options, tmp_path):
        tests = [name for name in dir(BackendContract) if name.startswith("test_")]
        with MeteredBackend(FakeBackend(**options), tmp_path / "run", None) as lm:
            for name in tests:
                getattr(BackendContract(), name)(lm)
            Recording.of(lm).save(tmp_path / "contract.pbrec")
        return ReplayBackend(tmp_path / "contract.pbrec")


@pytest.mark.parametrize("options", [{}, {"mask": "last"}], ids=str)
class TestTopOnly(BackendContract):
    tolerance = 0

    @pytest.fixture
    def backend(self, options):
        return TopOnly(FakeBackend(**options), 7)


def test_the_top_of_a_model_is_another_model_with_its_numbers():
    whole, top = FakeBackend(), TopOnly(FakeBackend(), 20)
    query = Template(PROMPTS[0]).query(Example("a fine day"))
    (all_of_it,), (part,) = whole.fill([query]), top.fill([query])
    assert (part.codes == all_of_it.codes[part.tokens]).all()
    assert part.rest == np.sort(all_of_it.codes)[19]
    assert top.identity.differences(whole.identity) == "shown: top 20 here, nothing there"
    assert top.count_tokens(query) == whole.count_tokens(query)
    with pytest.raises(InputError, match="already shows only its top 5"):
        TopOnly(FakeBackend(top=5), 3)
    for wrong in (0, 1001, True, 2.5):
        with pytest.raises(InputError, match="whole number from 1 to 1000"):
            TopOnly(FakeBackend(), wrong)


def remade(data, change):
    """Return a recording whose header, index and answers were changed by somebody who knows the format."""
    line, _, body = data.partition(b"\n")
    header, content = json.loads(line.removeprefix(b"pbsdk-recording ")), zlib.decompress(body)
    del header["sha256"]
    front = 8 + int.from_bytes(content[:8], "little")
    index = json.loads(content[8:front])
    made = change(header, index)
    inside = made if isinstance(made, bytes) else json.dumps(index).encode()
    body = zlib.compress(len(inside).to_bytes(8, "little") + inside + content[front:], 9)
    return b"pbsdk-recording " + json.dumps({**header, "sha256": _checksum(header, body)}).encode() + b"\n" + body


def in_index(at, value):
    return lambda header, index: index["answers"][0].__setitem__(at, value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (in_index(3, -2000), "greater than or equal to 0"),
        (in_index(3, 10**15), "less than"),
        (in_index(3, 10), "not as long as its index says"),
        (in_index(2, -1), "greater than or equal to 0"),
        (in_index(2, 99), "out of range"),
        (in_index(2, "0"), "valid integer"),
        (in_index(0, None), "valid string"),
        (lambda header, index: b"[" * 1_000_000, "nests more than 100 deep"),
        (lambda header, index: b'{"sets":' + b"7" * 5000 + b"}", "whole number of 5,000 digits"),
        (lambda header, index: b"{}", "Field required"),
        (lambda header, index: index.update(words=[[1001, " w"]]), "beyond its vocabulary of 1000"),
        (lambda header, index: index.update(words=[[-1, " w"]]), "words"),
        (lambda header, index: index.update(sets={"ab": "0000000000000000"}), "doesn't match its name"),
        (lambda header, index: index.update(sets={"ab": "zz"}), "can't be read"),
        (lambda header, index: header.update(vocabulary=-5), "vocabulary"),
        (lambda header, index: header["abilities"].update(batch_size=0), "abilities.batch_size"),
        (lambda header, index: header["abilities"].update(mask="first"), "abilities.mask"),
        (lambda header, index: header.update(model="{}"), "has a name"),
        (lambda header, index: header.update(prompts=[1]), "prompts.0"),
    ],
)
def test_a_file_made_to_harm_is_one_clear_error(recorded, tmp_path, change, said):
    (tmp_path / "x.pbrec").write_bytes(remade((recorded[0] / "predict.pbrec").read_bytes(), change))
    with pytest.raises(RecordingError, match=said) as refused:
        Recording.load(tmp_path / "x.pbrec")
    assert "record it again" in str(refused.value)
    assert len(str(refused.value)) < 1000


def test_a_header_that_nests_is_refused(tmp_path):
    (tmp_path / "x.pbrec").write_bytes(b"pbsdk-recording " + b"[" * 100_000 + b"\n")
    with pytest.raises(RecordingError, match="nests more than 100 deep"):
        Recording.load(tmp_path / "x.pbrec")


def test_a_file_that_unpacks_to_a_thousand_times_its_size_is_refused_before_it_does(recorded, tmp_path):
    line, _, _ = (recorded[0] / "predict.pbrec").read_bytes().partition(b"\n")
    header = json.loads(line.removeprefix(b"pbsdk-recording "))
    del header["sha256"]
    body = zlib.compress(bytes(100_000_000), 9)
    line = b"pbsdk-recording " + json.dumps({**header, "sha256": _checksum(header, body)}).encode() + b"\n"
    (tmp_path / "x.pbrec").write_bytes(line + body)
    tracemalloc.start()
    try:
        with pytest.raises(RecordingError, match="unpacks to more than"):
            Recording.load(tmp_path / "x.pbrec")
        assert tracemalloc.get_traced_memory()[1] < 60_000_000
    finally:
        tracemalloc.stop()


def test_answers_that_are_all_alike_are_stored_so_that_they_can_be_read(recorded, tmp_path, monkeypatch):
    whole = Recording.load(recorded[0] / "all.pbrec")
    alike = replace(whole, answers={key: next(iter(whole.answers.values())) for key in whole.answers})
    monkeypatch.setattr(recording, "_LEAST_BOUND", 0)
    monkeypatch.setattr(recording, "_MOST_SHRUNK", 2)
    alike.save(tmp_path / "alike.pbrec")
    assert Recording.load(tmp_path / "alike.pbrec").answers == alike.answers
