"""The budget: short forms, limits, and what it says when it refuses."""

from __future__ import annotations

import math
import pickle

import pytest

from pbsdk.errors import BudgetExceeded, InputError
from pbsdk.ledger.budget import FIT, PREDICT, Need, QueryBudget, Totals, scope_of


def test_short_forms():
    assert QueryBudget.of(3) == QueryBudget(passes=3, predict=3)
    assert QueryBudget.of(None) == QueryBudget(passes=None, predict=None)
    budget = QueryBudget(total=5)
    assert QueryBudget.of(budget) is budget
    assert QueryBudget() == QueryBudget.of(10)


@pytest.mark.parametrize("budget", ["10", 1.5, [10], True])
def test_what_is_not_a_budget_is_refused(budget):
    with pytest.raises(InputError):
        QueryBudget.of(budget)


@pytest.mark.parametrize(
    "wrong",
    [
        {"passes": -1},
        {"predict": 1.0},
        {"total": True},
        {"attempts": "3"},
        {"tokens": -5},
        {"money": -1.0, "price_per_pass": 1.0},
        {"price_per_pass": None},
        {"price_per_1k_tokens": math.nan},
        {"money": math.inf, "price_per_pass": 1.0},
        {"strict": 1},
    ],
)
def test_values_that_make_no_sense_are_named(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        QueryBudget(**wrong)


def test_money_needs_a_price():
    with pytest.raises(InputError, match=r"needs a price.*price_per_1k_tokens="):
        QueryBudget(money=5.0)


def test_prediction_has_its_own_scope():
    assert [scope_of(phase) for phase in ("train", "validate", "refine", "predict")] == [FIT, FIT, FIT, PREDICT]
    budget = QueryBudget(passes=1, predict=2)
    nothing = Totals()
    budget.check([Need(FIT, "e", 0, 1), Need(PREDICT, "e", 0, 2)], nothing, nothing)
    with pytest.raises(BudgetExceeded, match="training"):
        budget.check([Need(FIT, "e", 1, 1)], nothing, nothing)
    with pytest.raises(BudgetExceeded, match=r"prediction.*predict=3"):
        budget.check([Need(PREDICT, "e", 1, 2)], nothing, nothing)


def test_a_refusal_says_what_was_asked_what_is_left_and_how_to_raise_it():
    with pytest.raises(BudgetExceeded) as caught:
        QueryBudget().check([Need(FIT, "e", 8, 4), Need(FIT, "f", 0, 4)], Totals(), Totals())
    message = str(caught.value)
    assert "1 of 2 examples" in message
    assert "4 more asked" in message
    assert "2 are left" in message
    assert "connect(..., budget=QueryBudget(passes=12))" in message


def test_a_refusal_carries_its_numbers_and_each_front_names_its_own_cure():
    with pytest.raises(BudgetExceeded) as caught:
        QueryBudget(predict=3).check([Need(PREDICT, "e", 2, 4)], Totals(), Totals())
    refused = pickle.loads(pickle.dumps(caught.value))
    assert (refused.limit, refused.per_example) == ("predict", True)
    assert (refused.allowed, refused.asked, refused.left, refused.needed) == (3, 4, 1, 6)
    assert str(refused) == refused.with_cure("connect(..., budget=QueryBudget(predict=6))")
    assert refused.with_cure("--budget 6").endswith("To allow it: --budget 6, or use fewer prompts")
    later = refused.during("while testing")
    assert str(later) == f"while testing: {refused}"
    assert vars(later) == {**vars(refused), "problem": f"while testing: {refused.problem}"}


@pytest.mark.parametrize(
    ("limit", "after", "cure"),
    [
        ({"total": 10}, Totals(passes=11), "total=11"),
        ({"attempts": 10}, Totals(sends=11), "attempts=11"),
        ({"tokens": 10}, Totals(tokens=11), "tokens=11"),
        ({"money": 10, "price_per_pass": 1.0}, Totals(sends=12, failed=1), "money=11"),
        ({"money": 10, "price_per_1k_tokens": 1000.0}, Totals(tokens=11), "money=11"),
    ],
)
def test_each_total_is_limited_and_its_cure_works(limit, after, cure):
    budget = QueryBudget(**limit)
    before = Totals(passes=1, sends=1, tokens=1)
    with pytest.raises(BudgetExceeded, match=cure) as caught:
        budget.check([], before, after)
    name, value = cure.split("=")
    refused = caught.value
    assert (refused.limit, refused.allowed, refused.needed, refused.per_example) == (name, 10, int(value), False)
    assert (refused.asked, refused.left) == (10, 9)
    QueryBudget(**{**limit, name: int(value)}).check([], before, after)


def test_what_adds_nothing_is_allowed_even_over_the_limit():
    budget = QueryBudget(passes=1, total=1)
    assert budget.check([Need(FIT, "e", 5, 0)], Totals(passes=5), Totals(passes=5)) is None
    with pytest.raises(BudgetExceeded):
        budget.check([Need(FIT, "e", 5, 1)], Totals(passes=5), Totals(passes=6))


def test_failed_sends_cost_no_money_and_strict_counts_every_send():
    spent = Totals(passes=2, sends=5, failed=1, tokens=2000)
    assert QueryBudget(price_per_pass=1.0, price_per_1k_tokens=0.5).cost(spent) == 5.0
    assert QueryBudget().counted(spent) == 2
    assert QueryBudget(strict=True).counted(spent) == 5


def test_the_sentence_names_unit_scope_and_every_limit():
    text = QueryBudget(total=7, attempts=8, tokens=9, money=1.5, price_per_pass=1.0).describe()
    for part in (
        "10 passes per example",
        "7 passes in all",
        "8 attempts",
        "9 tokens",
        "1.5 units of currency",
        "one prompt",
    ):
        assert part in text
    assert "counts again" in QueryBudget(strict=True).describe()
    assert "any number of passes" in QueryBudget.of(None).describe()


def test_a_budget_survives_its_dictionary():
    budget = QueryBudget(passes=None, money=2.5, price_per_pass=0.1, strict=True)
    assert QueryBudget.from_dict(budget.to_dict()) == budget
    assert QueryBudget.from_dict({**budget.to_dict(), "from_the_future": 1}) == budget
