"""A tally counts what rendering every query would count, in memory that hardly grows with the texts."""

from __future__ import annotations

import itertools
import random
import tracemalloc

import numpy as np
import pytest

from pbsdk.backend import MaskedLMBackend
from pbsdk.classifier import PromptBoostingClassifier
from pbsdk.errors import InputError
from pbsdk.ledger.budget import QueryBudget
from pbsdk.metering.meter import MeteredBackend
from pbsdk.metering.plan import Step, plan_classifier, plan_steps
from pbsdk.metering.tally import COUNTED, Seen
from pbsdk.testing import FakeBackend

PLAIN = ["<input> So <mask>.", "<input>, the <mask>", "<input>; it is <mask>.", "<input> The <mask>"]
SHOWN = ["<examples><input> It is <mask>.", "<input>. <mask>"]
PAIRS = ["<input>, <mask>, <input2>", "<input> <mask> <input2>?", "<input>? <mask>, <input2>"]
BUDGETS = {
    "priced": QueryBudget(price_per_pass=0.5, price_per_1k_tokens=0.02),
    "limited": QueryBudget(passes=2, predict=3, tokens=90),
    "strict": QueryBudget(total=50, strict=True),
}
TRAIN = ["money is due", "a bank pays", "our team won", "a match was lost", "the bank", "the game."]
LABELS = ["a", "a", "b", "b", "a", "b"]


class Estimating(FakeBackend):
    """Estimates a query's tokens, as most remote adapters do."""

    count_tokens = MaskedLMBackend.count_tokens
    most_tokens = MaskedLMBackend.most_tokens


def classifier(run, prompts, budget, **parameters):
    lm = MeteredBackend(Estimating(vocabulary_size=100, batch_size=7), run, budget)
    return PromptBoostingClassifier(lm, prompts, head="boosting", rounds=5, random_state=0, **parameters)


def texts(generator, *, pairs=False):
    """Texts that repeat, that differ by their ends alone, that nothing is left of, and that the training set has."""
    stems = ["Grüße", "fine", "a bank pays", "money is due", "?", "", "the game", "Ⅷ \u0301"]
    made = [
        generator.choice(["", " "]) + generator.choice(stems) + generator.choice(["", ".", "!?", " ", ", "])
        for _ in range(80)
    ]
    return list(zip(made, reversed(made), strict=True)) if pairs else made


def rendered(clf, fit, predict, *, fitted):
    """Plan the same by rendering every query."""
    steps = [] if fit is None else [Step("fit", clf.fit_queries(*fit))]
    queries, tokens = clf.predict_queries(predict, fitted=fitted, fit=fit)
    return plan_steps(clf.backend, [*steps, Step("predict", queries, tokens, exact=fitted)])


def assert_same(one, other):
    assert one.to_dict() == other.to_dict()
    assert [str(step.refusal) for step in one.steps] == [str(step.refusal) for step in other.steps]


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize(
    ("prompts", "parameters"),
    [(PLAIN, {}), (PLAIN[:1], {"style": "paper"}), (SHOWN, {}), (PAIRS, {}), (PAIRS, {"style": "paper"})],
    ids=["plain", "paper", "demonstrations", "pairs", "pairs in the paper's style"],
)
def test_it_counts_what_rendering_would(tmp_path, prompts, parameters, budget):
    generator, pairs = random.Random(7), "<input2>" in prompts[0]
    train = [(text, text) for text in TRAIN] if pairs else TRAIN
    fit, predict = (train, LABELS), texts(generator, pairs=pairs)
    clf = classifier(tmp_path / budget, prompts, BUDGETS[budget], **parameters)
    assert_same(plan_classifier(clf, fit, predict=predict), rendered(clf, fit, predict, fitted=False))
    clf = classifier(tmp_path / "run", prompts, BUDGETS["priced"], **parameters)
    clf.fit(*fit)
    clf.predict(predict[:10])
    clf.backend.close()
    again = classifier(tmp_path / "run", prompts, BUDGETS[budget], **parameters)
    again.__dict__.update({name: value for name, value in vars(clf).items() if name.endswith("_")})
    assert_same(plan_classifier(again, predict=predict), rendered(again, None, predict, fitted=True))
    assert_same(plan_classifier(again, fit, predict=predict), rendered(again, fit, predict, fitted=False))


def test_chunks_make_no_difference(tmp_path, monkeypatch):
    clf = classifier(tmp_path, [*SHOWN, *PLAIN], BUDGETS["priced"])
    predict = texts(random.Random(3)) * 3
    whole = plan_classifier(clf, (TRAIN, LABELS), predict=predict)
    monkeypatch.setattr("pbsdk.foresight._CHUNK", 13)
    assert plan_classifier(clf, (TRAIN, LABELS), predict=iter(predict)) == whole


def test_texts_that_cannot_be_read_are_named_by_their_place_among_all(tmp_path, monkeypatch):
    monkeypatch.setattr("pbsdk.foresight._CHUNK", 4)
    clf = classifier(tmp_path, PLAIN, BUDGETS["priced"])
    for wrong, said in ((None, r"texts\[9\] is missing"), ("a <mask>", r"texts\[9\] contains '<mask>'")):
        with pytest.raises(InputError, match=said):
            plan_classifier(clf, predict=iter([*"abcdefghi", wrong]))


def test_tokens_of_many_texts_are_estimated_and_the_plan_says_by_how_much_they_may_be_off(tmp_path):
    generator = random.Random(1)
    many = [
        " ".join(generator.choices(["a", "word", "longer", "ß"], k=generator.randint(1, 60)))
        for _ in range(3 * COUNTED)
    ]
    limits = {"price": QueryBudget(price_per_1k_tokens=0.1), "limit": QueryBudget(tokens=10**9)}
    (guessed,), (counted,) = (
        plan_classifier(
            PromptBoostingClassifier(MeteredBackend(FakeBackend(), tmp_path / name, budget), PLAIN), predict=iter(many)
        ).steps
        for name, budget in limits.items()
    )
    assert counted.tokens_error == 0
    assert 0 < guessed.tokens_error < 0.02
    assert guessed.tokens == pytest.approx(counted.tokens, rel=2 * guessed.tokens_error)
    assert guessed.tokens != counted.tokens
    assert guessed.tokens_at_most == pytest.approx(counted.tokens_at_most, rel=2 * guessed.tokens_error)
    assert (guessed.passes, guessed.bytes_sent) == (counted.passes, counted.bytes_sent)


def test_memory_hardly_grows_with_the_texts(tmp_path):
    clf = classifier(tmp_path, PLAIN, QueryBudget())
    sizes = []
    for count in (20_000, 60_000):
        tracemalloc.start()
        (step,) = plan_classifier(clf, predict=(f"text {number}" for number in range(count))).steps
        sizes.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert step.passes == 4 * count
    assert (sizes[1] - sizes[0]) / 40_000 < 100  # bytes for each text more; as lists of queries, thousands


def test_what_was_seen_is_known_again():
    seen, known = Seen(), set()
    generator = np.random.default_rng(0)
    for size in itertools.chain([0, 1, 1, 7], generator.integers(0, 200, 60)):
        some = generator.integers(0, 3000, size).astype(np.uint64)
        expected = [value not in known and value not in some[:at] for at, value in enumerate(some)]
        assert seen.add(some).tolist() == expected
        known.update(some.tolist())
    everything = np.arange(3000, dtype=np.uint64)
    assert set(everything[seen.holds(everything)].tolist()) == known
