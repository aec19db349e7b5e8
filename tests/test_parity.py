"""Parity: two backends compared through the interface alone."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers.servers import OpenAIScript, scripted

from pbsdk.backend import MaskDistribution
from pbsdk.classifier import PromptBoostingClassifier
from pbsdk.data.tickets import load_tickets
from pbsdk.errors import InputError
from pbsdk.parity import parity
from pbsdk.testing import FakeBackend
from pbsdk.testing.top_only import TopOnly
from pbsdk_backends.http import HttpBackend
from pbsdk_backends.openai import OpenAIBackend
from pbsdk_backends.serve import serving

TEXTS = ["a fine day", "the bank pays well", "rain & <wind>"]


def test_a_model_and_its_server_are_the_same():
    with serving(FakeBackend()) as url, HttpBackend(url) as remote:
        report = parity(FakeBackend(), remote, TEXTS)
    assert (report.verdict, report.identical) == ("same", True)
    assert (report.largest_difference, report.shared, report.agreement) == (0, 1, 1)
    assert len(report.rows) == 6
    assert all(row.compared == 20 for row in report.rows)


def test_another_model_is_different():
    report = parity(FakeBackend(), FakeBackend(seed=1), TEXTS)
    assert (report.verdict, report.identical) == ("different", False)
    assert report.largest_difference > 1
    assert report.agreement < 0.5


class Nearly(FakeBackend):
    """The same model with a little noise."""

    def __init__(self, noise):
        super().__init__()
        self.noise = noise

    def fill(self, queries, tokens=None):
        draw = np.random.default_rng(0)
        return [
            MaskDistribution.from_logprobs(answer.logprobs + draw.uniform(-self.noise, self.noise, 1000))
            for answer in super().fill(queries, tokens)
        ]


def test_a_little_noise_is_alike_and_measured():
    report = parity(FakeBackend(), Nearly(0.01), TEXTS)
    assert report.verdict == "alike"
    assert 0.004 < report.largest_difference < 0.0125
    assert 0.002 < report.mean_difference < 0.009


def test_providers_that_number_tokens_differently_are_compared_by_words():
    with (
        scripted(OpenAIScript(completions=40)) as server,
        OpenAIBackend("tiny", url=f"{server.url}/v1", top=40) as remote,
    ):
        report = parity(remote, remote, TEXTS, prompts=["<input> It was <mask> indeed."])
        assert report.verdict == "same"
        assert [row.prompt for row in report.rows] == ["<input> It was <mask>"] * 3
        other = parity(FakeBackend(mask="last"), remote, TEXTS)
    assert sum(row.compared for row in other.rows) > 0


def test_the_verdict_is_among_the_words_if_words_are_given():
    fake = FakeBackend()
    words = [fake.vocabulary[t].strip() for t in (3, 4, 5)]
    report = parity(fake, FakeBackend(seed=1), TEXTS, words=words)
    assert {verdict for row in report.rows for verdict in row.verdicts} <= set(words)
    (row,) = parity(fake, fake, ["x"], prompts=["<input> <mask>"], words=words).rows
    assert row.agree
    with pytest.raises(InputError, match="not a token"):
        parity(fake, fake, ["x"], words=["no-such-word"])


def test_tokens_shown_by_one_alone_are_not_compared():
    report = parity(FakeBackend(), FakeBackend(top=5), TEXTS)
    assert all(row.compared == 5 for row in report.rows)
    apart = parity(FakeBackend(top=1), FakeBackend(top=1, seed=3), ["a fine day"], prompts=["<input> <mask>"])
    assert apart.rows[0].mean_difference is None
    assert apart.verdict == "different"


def test_the_report_can_be_read_by_people_and_machines():
    report = parity(FakeBackend(), FakeBackend(seed=1), TEXTS)
    assert report.conclusion in str(report)
    assert json.loads(json.dumps(report.to_dict()))["verdict"] == "different"
    page = report._repr_html_()
    assert "rain &amp; &lt;wind&gt;" in page
    assert "<wind>" not in page


def test_pairs_work_with_prompts_of_their_own():
    report = parity(
        FakeBackend(), FakeBackend(), [("It rains.", "It is wet.")], prompts=["<input> ? <mask> , <input2>"]
    )
    assert report.verdict == "same"


@pytest.mark.parametrize(("texts", "options"), [([], {}), (["x"], {"top": 0}), (["a <mask>"], {}), ("x", {})])
def test_bad_input_is_refused_before_anything_is_sent(texts, options):
    fake = FakeBackend()
    with pytest.raises(InputError):
        parity(fake, fake, texts, **options)
    assert fake.asked == []


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A classifier that was trained on the whole vocabulary."""
    path = tmp_path_factory.mktemp("parity") / "model.json"
    train = load_tickets().train
    prompts = ["<input> So <mask>.", "<input> The <mask>"]
    clf = PromptBoostingClassifier(FakeBackend(), prompts, head="soft", random_state=0)
    clf.fit(train.texts, train.labels).save(path)
    return path


def test_a_model_that_hides_most_tokens_is_not_the_same_as_one_that_shows_all():
    report = parity(FakeBackend(), TopOnly(FakeBackend(), 100), TEXTS)
    assert report.largest_difference == 0
    assert report.verdict == "different"
    assert report.shown == ("the whole vocabulary", "the top 100 tokens")
    assert report.overlap == pytest.approx(0.1)
    assert "one shows the whole vocabulary, the other the top 100 tokens" in report.conclusion
    assert parity(TopOnly(FakeBackend(), 9), TopOnly(FakeBackend(), 9), TEXTS).verdict == "same"


def test_answering_for_chosen_tokens_is_showing_more():
    report = parity(FakeBackend(top=20), FakeBackend(top=20, chosen=True), TEXTS)
    assert report.verdict == "different"


def test_a_classifier_labels_decide(saved):
    texts = load_tickets().test.texts[:40]
    apart = parity(FakeBackend(), TopOnly(FakeBackend(), 5), texts, model=saved)
    clf = [PromptBoostingClassifier.load(saved, backend) for backend in (FakeBackend(), FakeBackend())]
    clf[1].backend = TopOnly(FakeBackend(), 5)
    expected = [one.predict(texts).tolist() for one in clf]
    assert [[one for _, one, _ in apart.classified], [other for _, _, other in apart.classified]] == expected
    equal = sum(one == other for one, other in zip(*expected, strict=True))
    assert apart.equal_labels == equal / 40 < 0.9
    assert apart.verdict == "different"
    assert f"{equal} of 40 texts the same label; retrain" in apart.conclusion
    assert "labelled differently" in str(apart)
    assert "labelled differently" in apart._repr_html_()


def test_equal_labels_let_a_model_that_shows_less_stand_in(saved):
    report = parity(FakeBackend(), TopOnly(FakeBackend(), 1000), TEXTS, model=saved)
    assert (report.equal_labels, report.verdict) == (1, "alike")
    assert "3 of 3 texts the same label" in report.conclusion
    same = parity(FakeBackend(), FakeBackend(), TEXTS, model=saved)
    assert same.verdict == "same"
    assert json.loads(json.dumps(same.to_dict()))["equal_labels"] == 1


def test_a_classifier_for_other_texts_is_refused_before_anything_is_sent(saved):
    fake = FakeBackend()
    with pytest.raises(InputError, match="pair"):
        parity(fake, fake, [("a", "b")], prompts=["<input> <mask> <input2>"], model=saved)
    assert fake.asked == []
