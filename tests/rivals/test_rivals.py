"""The rivals on tiny models: each learns a planted signal, counts exactly, is seeded, goes on, and refuses what shows too little."""

import dataclasses
import signal
from collections import Counter
from itertools import islice

import numpy as np
import pytest
import torch

from pbsdk import QueryBudget
from pbsdk.errors import BudgetExceeded, InputError
from pbsdk.ledger.lots import LotSums
from pbsdk.reproduce.rivals import chosen_point
from pbsdk.testing import FakeBackend
from pbsdk_rivals.bbt import Bbt, BbtV2
from pbsdk_rivals.dart import Dart
from pbsdk_rivals.features import FeatureMlp, LinearProbe
from pbsdk_rivals.fine_tuning import FineTuning
from pbsdk_rivals.lm_bff import LmBff, LmBffDemo
from pbsdk_rivals.rlprompt import POLICY, RlPrompt, soft_q_loss

SMALL = [
    FineTuning(epochs=4),
    LmBff(max_updates=24, batch_size=4, candidates=2),
    LmBff(max_updates=4, batch_size=8, words="search"),
    LmBffDemo(max_updates=8, batch_size=8, samples=2),
    Dart(epochs=3),
    FeatureMlp(epochs=3),
    LinearProbe(),
    Bbt(tokens=4, dimension=10, population=4, evaluations=12),
    BbtV2(tokens=4, dimension=10, population=4, evaluations=24),
    RlPrompt(max_steps=5, prompts=3, hidden=8, prompt_tokens=2, top=50),
]
IDS = [f"{rival.name}{'-search' if getattr(rival, 'words', '') == 'search' else ''}" for rival in SMALL]
every_rival = pytest.mark.parametrize("rival", SMALL, ids=IDS)

LEARNED = [
    (FineTuning(epochs=8, learning_rate=1e-3), 0.8),
    (LmBff(max_updates=64, batch_size=8, learning_rate=1e-3), 0.8),
    (LmBffDemo(max_updates=64, batch_size=8, learning_rate=1e-3, samples=2), 0.8),
    (Dart(epochs=8, learning_rate=1e-3), 0.8),
    (FeatureMlp(), 0.8),
    (LinearProbe(), 0.8),
]


@pytest.mark.parametrize(("rival", "least"), LEARNED, ids=[rival.name for rival, _ in LEARNED])
def test_it_learns_what_is_planted(rival, least, model, enter, accuracy):
    points = list(rival.compete(enter(model)))
    assert accuracy(chosen_point(points)) >= least


@pytest.mark.parametrize("kind", [Bbt, BbtV2])
def test_evolution_finds_prompts_that_undo_what_random_ones_spoil(kind, model, enter, monkeypatch):
    losses = []
    search = kind.learner(kind(tokens=8, dimension=20, population=10, evaluations=120, points=1), enter(model))
    told = type(search)._tell
    monkeypatch.setattr(type(search), "_tell", lambda self, *a: (losses.append(min(a[2])), told(self, *a))[1])
    list(kind(tokens=8, dimension=20, population=10, evaluations=120, points=1).compete(enter(model)))
    assert np.mean(losses[-3:]) < np.mean(losses[:3])


def test_the_policy_says_prompts_that_earn_more(model, enter, monkeypatch):
    earned = []
    plain = RlPrompt.learner(RlPrompt(), enter(model)).__class__._earned
    monkeypatch.setattr(
        "pbsdk_rivals.rlprompt.Policy._earned", staticmethod(lambda *a: (earned.append(float(plain(*a))), plain(*a))[1])
    )
    rival = RlPrompt(max_steps=20, prompts=8, hidden=64, prompt_tokens=2, learning_rate=1e-2, batch_size=32, points=1)
    list(rival.compete(enter(model)))
    assert np.mean(earned[-40:]) > np.mean(earned[:40])


def test_soft_q_learning_prefers_what_is_rewarded():
    torch.manual_seed(0)
    values = torch.nn.Parameter(torch.zeros(2, 6))  # two tokens, six words each; the third is the good one
    slow, optimizer = torch.zeros(2, 6), torch.optim.Adam([values], lr=0.05)
    for _ in range(200):
        logits = values.unsqueeze(0).expand(16, -1, -1)
        actions = torch.distributions.Categorical(logits=logits.detach()).sample()
        rewards = 3.0 * (actions == 2).float().mean(dim=1)
        loss = soft_q_loss(logits, slow.unsqueeze(0).expand(16, -1, -1), actions, rewards)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        slow = slow.lerp(values.detach(), 0.05)
    assert values.argmax(dim=1).tolist() == [2, 2]


TRAIN, HELD_OUT, TEST = 32, 32, 40
FORMULAS = {
    # name: forward and backward passes of all training examples, and how often the others are asked in all
    "fine-tuning": (4 * TRAIN, 4 * TRAIN, 3),
    "lm-bff": (2 * TRAIN + 24 * 4, 24 * 4, 2),
    "lm-bff-search": (2 * TRAIN + 4 * 8, 4 * 8, 1),
    "lm-bff-demo": (2 * TRAIN + 8 * 8, 8 * 8, 2 * 2),
    "dart": (2 * 3 * TRAIN, 2 * 3 * TRAIN, 2),
    "feature-mlp": (TRAIN, 0, 1),
    "linear-probe": (TRAIN, 0, 1),
    "bbt": (12 * TRAIN, 0, 2),
    "bbtv2": (TRAIN + 24 * TRAIN, 0, 3),
    "rlprompt": (5 * 3 * 16, 0, 3),
}
PROMPTS_READ = {"bbt": 12 + 2, "bbtv2": 24 + 3}
"""How many soft prompts are evaluated or tested."""
OWN_GRADIENTS = {"feature-mlp", "rlprompt"}
"""What trains something of its own, and not the model."""


class Hooked:
    """What really runs: the rows of every call of the model, and the calls of backward."""

    def __init__(self, model, monkeypatch):
        self.rows = self.backwards = 0
        self._hook = model.inside().model.base_model.register_forward_pre_hook(self._count, with_kwargs=True)
        backward = torch.Tensor.backward
        monkeypatch.setattr(
            torch.Tensor, "backward", lambda tensor, *a, **k: (self._back(), backward(tensor, *a, **k))[1]
        )

    def _count(self, _module, args, given):
        read = [*args[:1], given.get("input_ids"), given.get("inputs_embeds")]
        ids = next(one for one in read if one is not None)
        self.rows += len(ids)

    def _back(self):
        self.backwards += 1


@pytest.mark.parametrize(("rival", "name"), list(zip(SMALL, IDS, strict=True)), ids=IDS)
def test_the_ledger_has_the_passes_of_its_formula(rival, name, model, enter, monkeypatch):
    contest = enter(model)
    monkeypatch.setattr("pbsdk_rivals.box.WhiteBox.trainable", lambda box: box.model)  # so that its passes are seen too
    hooked = Hooked(model, monkeypatch)
    list(rival.compete(contest))
    ledger = enter.ledgers["run"].ledger
    with ledger.reader() as reader:
        sums = LotSums(reader)
        forward, backward = (sums.passes_of(phase) for phase in ("forward", "backward"))
    trained, back, asked = FORMULAS[name]
    learned = {example.id for example in contest.train.examples}
    others = {example.id for example in [*contest.validation.examples, *contest.test]}
    assert sum(forward[one] for one in learned) == trained
    assert {forward[one] for one in others} == {asked}
    assert (sum(backward.values()), set(backward) - learned) == (back, set())
    said = sum((Counter(passes.forward) for passes in rival.schedule(contest)), Counter())
    assert forward == said
    assert contest.meter.unspent == 0
    # A causal model reads a soft prompt once for all rows that it stands before.
    prompts = PROMPTS_READ.get(name, 0) if model.inside().causal else 0
    assert hooked.rows == sum(forward.values()) + prompts
    if name not in OWN_GRADIENTS:
        assert (hooked.backwards > 0) == (back > 0)
    assert ledger.verify().records > 1


@every_rival
def test_it_is_seeded(rival, model, enter):
    first, second = (list(rival.compete(enter(model, run=run)))[-1] for run in ("one", "two"))
    assert np.array_equal(first.scores, second.scores)
    assert (first.forward, first.backward) == (second.forward, second.backward)


@every_rival
def test_it_goes_on_where_it_was_interrupted(rival, model, enter, monkeypatch):
    whole = list(rival.compete(enter(model, run="whole")))
    monkeypatch.setattr("pbsdk_rivals.training.SAVE_EVERY", 0.0)
    broken = rival.steps(enter(model)) - 1
    contest = enter(model, run="parts")
    made = type(rival).learner

    def interrupted(self, given):
        """Return a learner that is interrupted in its last step."""
        learner = made(self, given)
        learner.step = lambda number, step=learner.step: (
            step(number) if number < broken else signal.raise_signal(signal.SIGINT)
        )
        return learner

    with monkeypatch.context() as patch:
        patch.setattr(type(rival), "learner", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(rival.compete(contest))
    parts = list(rival.compete(enter(model, run="parts")))
    assert len(parts) == len(whole)
    for one, other in zip(parts, whole, strict=True):
        assert np.allclose(one.scores, other.scores, atol=1e-6)
        assert (one.forward, one.backward, one.accuracy) == (other.forward, other.backward, other.accuracy)
    with enter.ledgers["parts"].ledger.reader() as reader, enter.ledgers["whole"].ledger.reader() as other:
        repeated = rival.step_passes(contest, broken)
        assert LotSums(reader).total == LotSums(other).total + sum(map(Counter.total, repeated))


def test_a_checkpoint_of_other_settings_is_not_used(model, enter):
    contest = enter(model)
    next(FineTuning(epochs=4).compete(contest))
    assert contest.checkpoint.is_file()
    points = list(FineTuning(epochs=2).compete(contest))
    assert [point.forward for point in points] == [1, 2]


@every_rival
def test_what_is_only_asked_from_outside_is_refused(rival):
    wanted = {"gradients", "embeddings", "layers", "hidden states"}
    assert rival.access in wanted
    with pytest.raises(
        InputError, match=rf"{rival.name} needs {rival.access}, and fake is only asked from outside; leave .* out"
    ):
        rival.check(FakeBackend())


def test_a_budget_is_enforced_before_anything_runs(model, enter, monkeypatch):
    contest = enter(model, budget=QueryBudget(forward=3, backward=2))
    hooked = Hooked(model, monkeypatch)
    points = FineTuning(epochs=4).compete(contest)
    with pytest.raises(BudgetExceeded, match="2 passes per example backward, inside the model"):
        list(islice(points, 10))
    with enter.ledgers["run"].ledger.reader() as reader:
        assert LotSums(reader).passes_of("backward")[contest.train.examples[0].id] == 2
    assert hooked.backwards == 4  # two epochs of two batches


def test_a_rival_without_the_words_of_the_classes_is_refused(model, enter):
    contest = dataclasses.replace(enter(model), words=("unspeakably", "old"))
    for rival in SMALL:
        if rival.name in {"bbt", "bbtv2", "rlprompt", "dart", "lm-bff-demo"}:
            with pytest.raises(InputError, match="no single token for 'unspeakably'"):
                rival.check_contest(contest)
    LmBff(words="search").check_contest(contest)


def test_searched_words_tell_the_classes_apart(model, enter, accuracy):
    rival = LmBff(max_updates=32, batch_size=8, words="search", learning_rate=1e-3)
    learner = rival.learner(enter(model))
    learner._contest.meter.charge(rival.step_passes(learner._contest, 0).forward)
    learner.step(0)
    assert len(set(learner._words)) == 2
    assert all(model.vocabulary[token].strip().isalpha() for token in learner._words)


def test_trained_numbers_are_counted(model, enter):
    contest = enter(model)
    count = {rival.name: rival.parameters(contest) for rival in SMALL}
    whole = sum(weight.numel() for weight in model.inside().model.parameters())
    assert count["lm-bff"] == whole
    assert count["dart"] > whole
    assert (count["bbt"], count["bbtv2"]) == (10, 20)
    assert count["linear-probe"] == 2 * 33
    assert POLICY not in {example.id for example in contest.train.examples}
