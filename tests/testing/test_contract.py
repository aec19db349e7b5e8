"""The fake model, and that the contract finds out backends that break it."""

import numpy as np
import pytest

from pbsdk.backend import MaskDistribution, MaskedQuery, Part
from pbsdk.errors import BackendTimeout, InputError
from pbsdk.queries.examples import Example
from pbsdk.queries.templates import Template
from pbsdk.testing import BackendContract, FakeBackend

PROMPT = Template("<input> It was <mask>.")


def ask(backend, *texts, tokens=None):
    return backend.fill([PROMPT.query(Example(text)) for text in texts], tokens)


@pytest.mark.parametrize("options", [{}, {"mask": "last"}, {"top": 7}, {"chosen": True}, {"batch_size": 1}], ids=str)
class TestFakeBackend(BackendContract):
    tolerance = 0

    @pytest.fixture
    def backend(self, options):
        return FakeBackend(**options)


def test_it_is_deterministic_and_another_seed_is_another_model():
    (one,), (same,) = ask(FakeBackend(), "a fine day"), ask(FakeBackend(), "a fine day")
    assert (one.codes == same.codes).all()
    (other,) = ask(FakeBackend(seed=1), "a fine day")
    assert (one.codes != other.codes).any()
    assert FakeBackend().identity != FakeBackend(seed=1).identity


def test_it_remembers_fails_and_waits_as_scripted():
    waits = []
    error = BackendTimeout("scripted")
    fake = FakeBackend(failures=[None, error], latency=0.5, sleep=waits.append)
    ask(fake, "one", "two")
    with pytest.raises(BackendTimeout, match="scripted"):
        ask(fake, "three")
    ask(fake, "four")
    assert [query.parts[0].text for query in fake.asked] == ["one", "two", "three", "four"]
    assert fake.calls == [2, 1, 1]
    assert waits == [0.5] * 3


def test_texts_about_one_theme_make_its_tokens_likely():
    def preference(fake):
        bill, match = ask(fake, "my refund was not paid", "our team won the match")
        return np.exp(bill.logprobs)[:6].sum() / np.exp(match.logprobs)[:6].sum()

    assert preference(FakeBackend()) > 2 * preference(FakeBackend(signal=0))


def test_its_words_are_all_different():
    fake = FakeBackend(vocabulary_size=7000)
    assert len({fake.vocabulary[token] for token in range(7000)}) == 7000


@pytest.mark.parametrize("options", [{"mask": "first"}, {"vocabulary_size": 1}, {"batch_size": 0}, {"top": 0}])
def test_options_that_cannot_work_are_refused(options):
    with pytest.raises(InputError):
        FakeBackend(**options)


class _Broken(FakeBackend):
    def __init__(self, fault):
        super().__init__()
        self.fault = fault

    def fill(self, queries, tokens=None):
        answers = super().fill(queries, tokens)
        if self.fault == "order" and len(answers) > 1:
            return sorted(answers, key=lambda answer: answer.codes.tobytes())
        if self.fault == "count":
            return answers[:1]
        if self.fault == "deaf":
            return [super(_Broken, self).fill([MaskedQuery((Part("mask"),), "e", "p")])[0] for _ in queries]
        if self.fault == "partial":
            return [answer.narrowed(np.arange(5)) for answer in answers]
        if self.fault == "tokens" and tokens is not None:
            return [MaskDistribution(answer.codes[::-1].copy()) for answer in answers]
        return answers


@pytest.mark.parametrize(
    ("fault", "test"),
    [
        ("order", "test_answers_come_in_the_order_of_the_queries"),
        ("count", "test_answers_come_in_the_order_of_the_queries"),
        ("deaf", "test_different_texts_have_different_answers"),
        ("deaf", "test_what_follows_the_mask_matters_as_promised"),
        ("partial", "test_answers_are_distributions"),
        ("tokens", "test_chosen_tokens_are_answered"),
    ],
)
def test_the_contract_finds_faults(fault, test):
    getattr(BackendContract(), test)(FakeBackend())
    with pytest.raises((AssertionError, ValueError)):
        getattr(BackendContract(), test)(_Broken(fault))
