"""The white box: what it computes is the model's own, in every way of running it, and nothing runs unpaid."""

import numpy as np
import pytest
import torch

from pbsdk.errors import InputError, LedgerError
from pbsdk_backends.local import LocalBackend
from pbsdk_rivals.box import SoftPrompt, WhiteBox
from pbsdk_rivals.prompted import rows_of, texts_of


@pytest.fixture
def contest(model, enter):
    contest = enter(model)
    names = [example.id for example in contest.train.examples]
    contest.meter.charge(dict.fromkeys(names, 50), dict.fromkeys(names, 5))
    return contest


def rows(box, contest, count=5):
    return rows_of(box, contest.train.examples[:count], contest.templates[0], "plain")


def test_logits_are_those_of_the_adapter(contest, model):
    box = WhiteBox(model, contest.meter)
    logits = box.each(rows(box, contest), box.logits).log_softmax(dim=-1)
    answers = model.fill([contest.templates[0].query(example) for example in contest.train.examples[:5]])
    told = torch.from_numpy(np.array([answer.codes for answer in answers]) / -1024.0)
    seen = told > -20
    assert (logits - told)[seen].abs().max() < 2e-3


def test_a_soft_prompt_of_words_is_those_words(contest, model):
    """Embeddings of tokens before every row give what the tokens themselves give."""
    tokens = [7, 11, 13]
    box = WhiteBox(model, contest.meter, room=3)
    plain = rows(box, contest)
    prompt = SoftPrompt(box.embeddings[tokens])
    first = box.opening
    spelled = [type(row)(row.example, (*row.ids[:first], *tokens, *row.ids[first:]), row.at + 3) for row in plain]
    expected = box.each(spelled, box.logits)
    assert torch.allclose(box.each(plain, lambda some: box.logits(some, prompt=prompt)), expected, atol=1e-4)
    assert torch.allclose(box.prompted(plain, prompt), expected, atol=1e-4)


def test_a_prompt_for_every_layer_is_the_same_read_once_or_for_each_row(contest, model):
    box = WhiteBox(model, contest.meter, room=3)
    torch.manual_seed(1)
    deep = SoftPrompt(box.embeddings[[7, 11, 13]], torch.randn(len(box.layers()), 3, box.width))
    some = rows(box, contest)
    once, each = box.prompted(some, deep), box.each(some, lambda batch: box.logits(batch, prompt=deep))
    assert torch.allclose(once, each, atol=1e-4)
    shallow = box.prompted(some, SoftPrompt(deep.embeddings))
    assert not torch.allclose(once, shallow, atol=1e-2)


def test_hidden_states_are_those_of_the_model(contest, model):
    box = WhiteBox(model, contest.meter)
    read = texts_of(box, contest.train.examples[:3])
    states = box.each(read, lambda some: box.logits(some, states=True))
    with torch.inference_mode():
        for row, state in zip(read, states, strict=True):
            own = box.model.base_model(input_ids=torch.tensor([row.ids]))[0][0]
            assert torch.allclose(state, own[-1 if box.causal else 0], atol=1e-4)


def test_gradients_change_a_copy_and_never_the_model(contest, model):
    box = WhiteBox(model, contest.meter)
    before = [weight.clone() for weight in model.inside().model.parameters()]
    copy = box.trainable()
    some = rows(box, contest)
    box.backward(box.logits(some, model=copy).square().mean(), some)
    assert any(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in copy.parameters())
    torch.optim.SGD(copy.parameters(), lr=1.0).step()
    assert all(torch.equal(one, other) for one, other in zip(before, model.inside().model.parameters(), strict=True))


def test_nothing_runs_unpaid(model, enter):
    contest = enter(model)
    box = WhiteBox(model, contest.meter)
    some = rows(box, contest, 1)
    with pytest.raises(LedgerError, match=r"a forward pass of example .* was not charged"):
        box.logits(some)
    contest.meter.charge({some[0].example: 1})
    logits = box.logits(some, model=box.trainable())
    with pytest.raises(LedgerError, match=r"a backward pass of example .* was not charged"):
        box.backward(logits.sum(), some)


def test_texts_leave_room_for_a_soft_prompt(model, enter):
    contest = enter(model)
    long = type(contest.train.examples[0])("the day was fine and the sea was old " * 40)
    query = contest.templates[0].query(long)
    for room in (0, 30):
        assert len(WhiteBox(model, contest.meter, room=room).row(query).ids) == model.max_length - room


def test_eight_bits_have_no_gradients(models, enter):
    model = LocalBackend(str(models["llama"]), precision="int8")
    with pytest.raises(InputError, match="loaded in int8; use precision='exact' or 'bfloat16'"):
        WhiteBox(model, enter(model).meter).trainable()


def test_a_copy_of_a_model_in_bfloat16_is_trained_in_float32(models, enter):
    model = LocalBackend(str(models["llama"]), precision="bfloat16")
    box = WhiteBox(model, enter(model).meter)
    assert {weight.dtype for weight in box.trainable().parameters()} == {torch.float32}
    assert {weight.dtype for weight in box.model.parameters()} == {torch.bfloat16}
