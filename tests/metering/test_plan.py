"""The plan equals what the run then spends."""

from __future__ import annotations

import pytest
from helpers.meter import grid, metered, rows

from pbsdk.audit.report import AuditReport
from pbsdk.backend import MaskedLMBackend
from pbsdk.classifier import PromptBoostingClassifier
from pbsdk.data.tickets import load_tickets
from pbsdk.errors import BudgetExceeded, InputError
from pbsdk.ledger.budget import QueryBudget
from pbsdk.metering.meter import MeteredBackend
from pbsdk.metering.plan import Step, plan_classifier, plan_steps
from pbsdk.testing import FakeBackend

PROMPTS = ["<input> So <mask>.", "<input> The <mask>", "<input> Topic: <mask>."]


class Estimating(FakeBackend):
    """Has only an estimate of a query's tokens, as most remote adapters do."""

    count_tokens = MaskedLMBackend.count_tokens
    most_tokens = MaskedLMBackend.most_tokens


def classifier(run, budget=None, prompts=PROMPTS, **fake):
    limits = budget or QueryBudget(price_per_pass=0.5, price_per_1k_tokens=0.02)
    return PromptBoostingClassifier(
        MeteredBackend(FakeBackend(vocabulary_size=200, **fake), run, limits),
        prompts,
        head="boosting",
        rounds=30,
        random_state=0,
    )


def spent(clf):
    """Return what the run folder has spent so far, in the plan's words."""
    lm = clf.backend
    report = lm.audit()
    ((stored,),) = rows(lm, "SELECT coalesce(sum(length(value)), 0) FROM Cache")
    return {
        "passes": next(total.used for total in report.totals if total.name == "passes"),
        "attempts": sum(phase.attempts for phase in report.phases),
        "requests": report.requests,
        "tokens": sum(phase.tokens_read for phase in report.phases),
        "bytes_sent": sum(len(query.text(lm.mask_token).encode()) for query in lm.backend.asked),
        "bytes_stored": stored,
        "money": next(total.used for total in report.totals if total.name == "money"),
    }


def assert_it_costs(step, clf, work):
    before, calls = spent(clf), len(clf.backend.backend.calls)
    hits = sum(phase.hits for phase in clf.backend.audit().phases)
    work()
    after = spent(clf)
    for name, value in after.items():
        assert getattr(step, name) == pytest.approx(value - before[name]), name
    assert len(clf.backend.backend.calls) - calls == step.requests
    assert sum(phase.hits for phase in clf.backend.audit().phases) - hits >= step.recalled


@pytest.fixture(scope="module")
def tickets():
    return load_tickets()


@pytest.mark.parametrize("fake", [{}, {"batch_size": 7}, {"top": 20}, {"chosen": True}, {"mask": "last"}], ids=str)
def test_a_fit_and_a_prediction_cost_what_was_planned(tmp_path, tickets, fake):
    prompts = [prompt.removesuffix(".") for prompt in PROMPTS]
    clf = classifier(tmp_path, prompts=prompts, **fake)
    train, held_out = tickets.train, tickets.validation
    texts, labels = train.texts[:40], train.labels[:40]
    validation = (held_out.texts[:10], held_out.labels[:10])
    planned = plan_classifier(clf, (texts, labels), validation=validation)
    (step,) = planned.steps
    assert (step.exact, step.allowed, step.recalled, step.queries) == (True, True, 0, 150)
    assert_it_costs(step, clf, lambda: clf.fit(texts, labels, validation=validation))
    fresh = tickets.test.texts[:13]
    (step,) = plan_classifier(clf, predict=fresh).steps
    assert step.exact
    if "top" in fake:  # how many of the chosen tokens are among the top is not known before
        before = spent(clf)["bytes_stored"]
        clf.predict(fresh)
        assert 0 < spent(clf)["bytes_stored"] - before <= step.bytes_stored
    else:
        assert_it_costs(step, clf, lambda: clf.predict(fresh))


def test_what_the_cache_holds_costs_nothing(tmp_path, tickets):
    clf = classifier(tmp_path)
    texts, labels = tickets.train.texts, tickets.train.labels
    clf.fit(texts[:40], labels[:40])
    (step,) = plan_classifier(clf, (texts, labels)).steps
    assert (step.recalled, step.passes) == (120, 72)
    assert_it_costs(step, clf, lambda: clf.fit(texts, labels))
    (step,) = plan_classifier(clf, (texts, labels)).steps
    assert (step.recalled, step.passes, step.attempts, step.requests, step.money) == (192, 0, 0, 0, 0)


def test_both_are_planned_before_the_first_query(tmp_path, tickets):
    clf = classifier(tmp_path)
    texts, labels = tickets.train.texts, tickets.train.labels
    asked = [*tickets.test.texts[:20], *texts[:5]]  # five are answered by the fit
    fit, predict = plan_classifier(clf, (texts, labels), predict=asked).steps
    assert (fit.exact, predict.exact) == (True, False)
    assert (predict.queries, predict.repeated, predict.passes) == (75, 15, 60)
    clf.fit(texts, labels)
    assert set(clf.ensemble_.templates) == {0, 1, 2}
    before = spent(clf)
    clf.predict(asked)
    after = spent(clf)
    for name in ("passes", "attempts", "requests", "tokens", "money"):
        assert getattr(predict, name) == pytest.approx(after[name] - before[name])
    assert after["bytes_stored"] - before["bytes_stored"] <= predict.bytes_stored


def test_the_same_text_twice_is_one_pass(tmp_path, tickets):
    clf = classifier(tmp_path)
    texts, labels = [*tickets.train.texts[:20]] * 2, [*tickets.train.labels[:20]] * 2
    (step,) = plan_classifier(clf, (texts, labels)).steps
    assert (step.queries, step.repeated, step.passes) == (120, 60, 60)
    assert_it_costs(step, clf, lambda: clf.fit(texts, labels))


@pytest.mark.parametrize(
    "budget",
    [
        QueryBudget(passes=2),
        QueryBudget(total=100),
        QueryBudget(attempts=100),
        QueryBudget(tokens=100),
        QueryBudget(money=1.0, price_per_pass=0.5),
    ],
    ids=["passes", "total", "attempts", "tokens", "money"],
)
def test_a_plan_that_is_not_allowed_says_what_the_run_would_say(tmp_path, tickets, budget):
    clf = classifier(tmp_path, budget)
    texts, labels = tickets.train.texts, tickets.train.labels
    planned = plan_classifier(clf, (texts, labels))
    assert not planned.allowed
    assert planned.steps[0].passes == 192
    with pytest.raises(BudgetExceeded) as refused:
        clf.fit(texts, labels)
    assert planned.steps[0].reason == str(refused.value)
    assert str(refused.value) in planned.verdict
    with pytest.raises(BudgetExceeded) as rehearsed:
        planned.check()
    for fact in ("limit", "allowed", "asked", "left", "needed"):
        assert getattr(rehearsed.value, fact) == getattr(refused.value, fact)
    assert rehearsed.value.problem == f"the budget doesn't allow the step 'fit': {refused.value.problem}"


def test_the_fit_counts_when_the_prediction_is_planned(tmp_path, tickets):
    clf = classifier(tmp_path, QueryBudget(total=200))
    planned = plan_classifier(clf, (tickets.train.texts, tickets.train.labels), predict=tickets.test.texts[:10])
    assert [step.allowed for step in planned.steps] == [True, False]
    assert "8 left" in planned.steps[1].reason


def test_a_plan_says_how_much_is_reserved_and_by_how_much_a_limit_can_be_exceeded(tmp_path):
    limits = QueryBudget(money=1.0, price_per_1k_tokens=0.1)
    exact = plan_steps(MeteredBackend(FakeBackend(), tmp_path / "exact", limits), [Step("ask", grid(4, 3))])
    (step,) = exact.steps
    assert (step.tokens, step.money) == (step.tokens_at_most, pytest.approx(step.money_at_most))
    assert "the limit on them can't be exceeded" in str(exact)
    assert "tokens, at most" not in str(exact)
    guessed = plan_steps(
        MeteredBackend(Estimating(batch_size=2), tmp_path / "guessed", limits), [Step("ask", grid(4, 3))]
    )
    (step,) = guessed.steps
    assert step.tokens < step.tokens_at_most
    assert step.money < step.money_at_most == pytest.approx(step.tokens_at_most * 0.1 / 1000)
    assert f"one batch of 2 queries costs beyond the {step.tokens_at_most // 6} tokens reserved for it" in str(guessed)
    assert "tokens, at most" in str(guessed)
    free = plan_steps(MeteredBackend(Estimating(), tmp_path / "free", 10), [Step("ask", grid(4, 3))])
    assert (free.overrun, free.steps[0].tokens_at_most) == ("", None)


def test_strict_budgets_plan_by_their_own_unit(tmp_path):
    lm = metered(tmp_path, budget=QueryBudget(passes=5, strict=True))
    lm.fill(grid(2, 2))
    (step,) = plan_steps(lm, [Step("again", grid(2, 4))]).steps
    assert (step.passes, step.recalled, step.allowed) == (4, 4, True)


def test_planning_leaves_no_trace(tmp_path, tickets):
    clf = classifier(tmp_path)
    clf.fit(tickets.train.texts[:20], tickets.train.labels[:20])
    before = clf.backend.audit()
    plan_classifier(clf, (tickets.train.texts, tickets.train.labels), predict=tickets.test.texts)
    assert clf.backend.audit() == before
    clf.backend.ledger.verify()


def test_time_comes_from_a_measured_rate(tmp_path, tickets):
    clf = classifier(tmp_path / "one")
    texts, labels = tickets.train.texts, tickets.train.labels
    planned = plan_classifier(clf, (texts, labels))
    assert planned.steps[0].seconds is None
    assert "No rate is known yet" in str(planned)
    clf.fit(texts, labels)
    (phase,) = AuditReport.read(tmp_path / "one").phases
    (step,) = plan_classifier(clf, predict=tickets.test.texts[:10]).steps
    assert step.seconds == pytest.approx(step.attempts / phase.throughput)
    other = classifier(tmp_path / "two")
    (step,) = plan_classifier(other, (texts, labels), like=tmp_path / "one").steps
    assert step.seconds == pytest.approx(192 / phase.throughput)


def test_the_text_shows_every_step_and_the_sum(tmp_path, tickets):
    clf = classifier(tmp_path)
    planned = plan_classifier(clf, (tickets.train.texts, tickets.train.labels), predict=tickets.test.texts[:10])
    text = str(planned)
    assert "predict, at most" in text
    assert next(line.split() for line in text.splitlines() if line.startswith("passes")) == [
        "passes",
        "192",
        "30",
        "222",
    ]
    assert text.splitlines()[-1] == "the budget allows it: 222 passes"
    assert planned.to_dict()["steps"][0]["passes"] == planned.total("passes") - 30


def test_what_cannot_be_planned_is_said(tmp_path):
    with pytest.raises(InputError, match="to fit, or texts to predict"):
        plan_classifier(classifier(tmp_path))
    with pytest.raises(InputError, match="metered"):
        plan_steps(FakeBackend(), [Step("x", grid(1, 1))])


def test_an_early_exit_is_foretold_and_costs_no_more_than_planned(tmp_path, tickets):
    lm = MeteredBackend(FakeBackend(), tmp_path / "run", QueryBudget(price_per_pass=0.5))
    clf = PromptBoostingClassifier(lm, PROMPTS, early_exit=True, random_state=0)
    clf.fit(tickets.train.texts, tickets.train.labels)
    planned = plan_classifier(clf, predict=tickets.test.texts, max_changed=0.05)
    (step,) = planned.steps
    assert not step.exact
    assert 0 < step.expected_passes < step.passes == len(tickets.test) * len(PROMPTS)
    assert f"about {step.expected_passes} of the {step.passes} passes of predict are expected" in str(planned)
    taken = clf.predict_early(tickets.test.texts, max_changed=0.05).saved.asked
    assert taken == pytest.approx(step.expected_passes, rel=0.4)


def test_votes_stop_early_too_but_nobody_knows_when(tmp_path, tickets):
    clf = classifier(tmp_path)
    clf.fit(tickets.train.texts, tickets.train.labels)
    planned = plan_classifier(clf, predict=tickets.test.texts[:10], early_exit=True)
    assert planned.steps[0].expected_passes is None
    assert "predict, at most" in str(planned)


def test_an_early_exit_is_planned_for_what_is_fitted_alone(tmp_path, tickets):
    fit = (tickets.train.texts, tickets.train.labels)
    with pytest.raises(InputError, match="fit it first"):
        plan_classifier(classifier(tmp_path), fit, predict=tickets.test.texts, max_changed=0.01)
