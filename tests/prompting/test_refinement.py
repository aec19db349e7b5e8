"""Refinement: the same choice as by hand, the passes that were said before, and no money in vain."""

import warnings

import numpy as np
import pytest

from pbsdk.backend import Phase
from pbsdk.classifier import PromptBoostingClassifier
from pbsdk.data.tickets import load_tickets
from pbsdk.errors import BudgetExceeded, InputError
from pbsdk.learning.matrix import collect
from pbsdk.learning.voting import one_per_prompt
from pbsdk.ledger.budget import QueryBudget
from pbsdk.metering.meter import MeteredBackend
from pbsdk.prompting.generation import write_pool
from pbsdk.prompting.refinement import Rung, passes_needed, refine
from pbsdk.queries.examples import Example
from pbsdk.queries.pools import PromptPool, Provenance, load_pool
from pbsdk.queries.reuse import ReusedExamplesWarning
from pbsdk.queries.templates import Template
from pbsdk.testing import FakeBackend

WORDS = ["so", "then", "now", "here", "it", "this", "that", "which", "yes", "no", "well", "thus"]
PROMPTS = [f"<input> {word.capitalize()} {other} <mask>." for word in WORDS for other in WORDS[:2]]  # 24
FREE = QueryBudget(passes=100, predict=10)


@pytest.fixture(scope="module")
def tickets():
    data = load_tickets()
    # Eight a class and set, interleaved as they come.
    return [(list(part.texts), list(part.labels)) for part in (data.train, data.validation)]


def small(part, per_class):
    texts, labels = part
    rows = [
        row for label in sorted(set(labels)) for row in [r for r, one in enumerate(labels) if one == label][:per_class]
    ]
    return [texts[row] for row in rows], [labels[row] for row in rows]


@pytest.fixture(scope="module")
def sets(tickets):
    return [small(part, 8) for part in tickets]


def accuracies_by_hand(train, validation):
    fake = FakeBackend()
    classes = sorted(set(train[1]))
    found = []
    for prompt in PROMPTS:
        known, unseen = (
            collect(fake.stream([Template(prompt).query(Example(text)) for text in texts]), len(texts), 1)
            for texts, _ in (train, validation)
        )
        (learner,) = one_per_prompt(known, [classes.index(label) for label in train[1]], len(classes))
        right = [
            float((learner.says(matrices) == [classes.index(label) for label in labels]).mean())
            for matrices, (_, labels) in ((unseen, validation), (known, train))
        ]
        found.append((*right, prompt))
    return found


def test_the_papers_way_keeps_the_prompts_whose_learner_validates_best(sets):
    train, validation = sets
    by_hand = accuracies_by_hand(train, validation)
    refined = refine(FakeBackend(), PROMPTS, train, validation, keep=5)
    expected = sorted(by_hand, key=lambda row: (-row[0], -row[1], PROMPTS.index(row[2])))
    assert refined.pool.prompts == [prompt for *_, prompt in expected[:5]]
    assert [(s.validation_accuracy, s.train_accuracy, s.prompt) for s in refined.scores] == expected
    assert expected[0][0] > expected[-1][0]


@pytest.mark.parametrize("method", ["paper", "halving"])
def test_the_passes_are_those_said_before_and_training_needs_no_more(sets, tmp_path, method):
    train, validation = sets
    needed = passes_needed(len(PROMPTS), train[1], validation[1], keep=5, method=method)
    with MeteredBackend(FakeBackend(), tmp_path / "run", FREE) as lm:
        refined = refine(lm, PROMPTS, train, validation, keep=5, method=method)
        assert refined.needed == needed
        assert {query.phase for query in lm.backend.asked} == {Phase.REFINE}
        assert len(lm.backend.asked) == needed.total
        (phase,) = lm.audit().phases
        assert (phase.phase, phase.passes, phase.attempts) == ("refine", needed.total, needed.total)
        per_example = {query.example for query in lm.backend.asked}
        most = max(sum(query.example == example for query in lm.backend.asked) for example in per_example)
        assert most == needed.most == 24
        assert refine(lm, PROMPTS, train, validation, keep=5, method=method) == refined
        PromptBoostingClassifier(lm, refined.pool, head="boosting", rounds=5, random_state=0).fit(
            *train, validation=validation
        )
        assert len(lm.backend.asked) == needed.total


def test_halving_needs_a_fraction_and_its_rungs_grow():
    labels = np.repeat(np.arange(6), 16)
    paper = passes_needed(100, labels, labels)
    halving = passes_needed(100, labels, labels, method="halving")
    assert (paper.total, paper.per_example, paper.most) == (19200, 100, 100)
    assert halving.rungs == (Rung(100, 12, 12), Rung(50, 24, 24), Rung(25, 48, 48), Rung(13, 96, 96))
    assert halving.total == 100 * 24 + 50 * 24 + 25 * 48 + 13 * 96
    assert halving.total / paper.total == pytest.approx(0.315)


def test_halving_keeps_good_prompts(tickets):
    train, validation = tickets
    paper, halving = (
        refine(FakeBackend(), PROMPTS, train, validation, keep=5, method=method) for method in ("paper", "halving")
    )
    true = {score.prompt: score.validation_accuracy for score in paper.scores}
    assert np.mean([true[prompt] for prompt in halving.pool.prompts]) > np.mean(list(true.values()))
    assert sorted(score.prompt for score in halving.scores) == sorted(PROMPTS)
    assert [score.rung for score in halving.scores] == [3] * 6 + [2] * 6 + [1] * 12


@pytest.mark.parametrize("method", ["paper", "halving"])
@pytest.mark.parametrize("limit", ["passes", "total"])
def test_a_budget_that_lacks_one_pass_refuses_before_anything_is_sent(sets, tmp_path, method, limit):
    train, validation = sets
    needed = passes_needed(len(PROMPTS), train[1], validation[1], keep=5, method=method)
    enough = {"passes": needed.most} if limit == "passes" else {"passes": None, "total": needed.total}
    lacking = {name: value and value - 1 for name, value in enough.items()}
    with MeteredBackend(FakeBackend(), tmp_path / "run", QueryBudget(**lacking)) as lm:
        with pytest.raises(BudgetExceeded, match=f"{needed.total} passes"):
            refine(lm, PROMPTS, train, validation, keep=5, method=method)
        assert lm.backend.asked == []
    with MeteredBackend(FakeBackend(), tmp_path / "run", QueryBudget(**enough)) as lm:
        refine(lm, PROMPTS, train, validation, keep=5, method=method)
        refine(lm, PROMPTS, train, validation, keep=5, method=method)  # a replay needs no budget
        assert len(lm.backend.asked) == needed.total


def test_the_pool_remembers_how_it_was_made_and_chosen_through_a_file(sets, tmp_path):
    train, validation = sets
    made = Provenance(
        method="t5",
        model="{}",
        pbsdk="0",
        seed=0,
        texts=1,
        examples="",
        label_words={},
        beam=1,
        max_tokens=1,
        forwards=1,
        scores=[-float(at) for at in range(len(PROMPTS))],
    )
    source = PromptPool(name="mine", about="Some.", prompts=PROMPTS, made=made)
    pool = refine(FakeBackend(), source, train, validation, keep=3, method="halving", seed=4).pool
    assert pool.made.scores == [-float(PROMPTS.index(prompt)) for prompt in pool.prompts]
    assert (pool.refined.method, pool.refined.of, pool.refined.seed) == ("halving", 24, 4)
    assert len(pool.refined.scores) == 3
    assert pool.refined.chosen_by == sorted(Example(text).id for text in validation[0])
    assert load_pool(write_pool(pool, tmp_path / "pool.json")) == pool
    causal = refine(FakeBackend(mask="last"), write_pool(source, tmp_path / "all.json"), train, validation, keep=3).pool
    assert causal.prompts == []
    assert all(prompt.endswith("<mask>") for prompt in causal.prompts_mask_last)


def test_scoring_on_what_chose_prompts_and_rounds_warns_and_nothing_less_does(sets, tickets, tmp_path):
    train, validation = sets
    backend = FakeBackend()
    file = write_pool(refine(backend, PROMPTS, train, validation, keep=3).pool, tmp_path / "pool.json")
    test = (tickets[1][0][-4:], tickets[1][1][-4:])
    others = small(tickets[0], 16)[0][-3:], small(tickets[0], 16)[1][-3:]

    def fitted(prompts, **chosen):
        return PromptBoostingClassifier(backend, prompts, head="boosting", rounds=3, random_state=0).fit(
            *train, **chosen
        )

    clf = fitted(file, validation=validation)
    for scored in (lambda: clf.score(*validation), lambda: list(clf.staged_score(*validation))):
        with pytest.warns(ReusedExamplesWarning, match="32 of 32 scored examples chose"):
            scored()
    with pytest.warns(ReusedExamplesWarning, match="1 of 4"):
        clf.score([*test[0][:3], validation[0][0]], [*test[1][:3], validation[1][0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clf.score(*test)
        fitted(file).score(*validation)
        fitted(PROMPTS[:3], validation=validation).score(*validation)
        fitted(file, validation=others).score(*validation)


def test_what_cannot_be_refined_is_refused_before_anything_is_sent(sets):
    train, validation = sets
    fake = FakeBackend()
    for change, said in (
        ({"keep": 24}, "can't be refined"),
        ({"keep": 0}, "can't be refined"),
        ({"method": "best"}, "paper or halving"),
        ({"train": (train[0], ["one"] * len(train[0]))}, "two classes"),
        ({"train": ([], [])}, "no train texts"),
        ({"validation": (validation[0], ["new"] * len(validation[0]))}, "lacks"),
        ({"validation": (["a <mask> here"], ["billing"])}, "contains"),
    ):
        given = {"train": train, "validation": validation, "keep": 5, **change}
        with pytest.raises(InputError, match=said):
            refine(fake, PROMPTS, given.pop("train"), given.pop("validation"), **given)
    assert fake.asked == []
    marked = (["a <mask> here", *validation[0]], ["billing", *validation[1]])
    assert len(refine(fake, PROMPTS, train, marked, keep=5, markers="escape").pool.prompts) == 5
