"""Demonstrations: balanced, shuffled, seeded, others for every prompt, and never all that a class has."""

from collections import Counter

import numpy as np
import pytest

from pbsdk.errors import InputError
from pbsdk.queries.demonstrations import check_demonstrations, fill_templates, name_classes, shown
from pbsdk.queries.examples import read_examples
from pbsdk.queries.problem import Problem
from pbsdk.queries.templates import Template

TEN = [Template(f"<examples><input> {cue} <mask>") for cue in "abcdefghij"]


def problem(per_class, n_classes=3, texts=None):
    labels = np.repeat(np.arange(n_classes), per_class)
    texts = texts or [f"text {row}" for row in range(len(labels))]
    classes = np.array([f"c{label}" for label in range(n_classes)])
    return Problem(classes, read_examples(texts), labels, [], labels[:0])


def draw(given, templates=TEN, per_class=1, seed=13):
    names = [f"name {label}" for label in range(len(given.classes))]
    return fill_templates(templates, given, names, per_class=per_class, seed=seed)


def test_every_prompt_shows_as_many_of_each_class_and_only_its_own_texts():
    given = problem(8)
    owner = {example.text: label for example, label in zip(given.train, given.train_labels.tolist(), strict=True)}
    for template in draw(given, per_class=2):
        assert Counter(one.label for one in template.demonstrations) == {0: 2, 1: 2, 2: 2}
        assert len({one.texts for one in template.demonstrations}) == 6
        assert all(owner[one.texts[0]] == one.label for one in template.demonstrations)


def test_the_seed_decides_and_prompts_differ():
    one, again, other = (draw(problem(16), seed=seed) for seed in (13, 13, 14))
    assert one == again
    assert one != other
    assert len({frozenset(template.demonstrations) for template in one}) == 10
    assert len({tuple(d.label for d in template.demonstrations) for template in one}) > 1  # the order is shuffled


def test_each_text_is_shown_before_any_comes_again_so_that_each_is_asked_most_often():
    times = shown(problem(5).train, draw(problem(5))).sum(axis=1)
    assert times.tolist() == [2] * 15


def test_a_longer_pool_begins_as_the_shorter_one():
    assert draw(problem(16), TEN[:4]) == draw(problem(16))[:4]


def test_sixteen_are_shown_at_most():
    assert {len(template.demonstrations) for template in draw(problem(9, 3), per_class=8)} == {15}
    many = draw(problem(3, 20), per_class=2)
    assert {len(template.demonstrations) for template in many} == {16}
    classes = [frozenset(one.label for one in template.demonstrations) for template in many]
    assert {len(some) for some in classes} == {16}
    assert len(set(classes)) > 5
    assert frozenset().union(*classes) == frozenset(range(20))


def test_plain_prompts_and_a_number_of_zero_get_no_demonstrations():
    plain, labels, shows = draw(problem(4), [Template("<input> <mask>"), Template("<labels> <input> <mask>"), TEN[0]])
    assert plain == Template("<input> <mask>")
    assert labels.labels == ("name 0", "name 1", "name 2")
    assert (len(labels.demonstrations), len(shows.demonstrations)) == (0, 3)
    assert draw(problem(1), per_class=0)[0].demonstrations == ()


def test_a_text_that_comes_twice_is_shown_once_and_both_its_rows_are_recognised():
    given = problem(3, 2, ["a", "a ", "b", "c", "d", "e"])
    for template in draw(given, per_class=1):
        assert len(template.demonstrations) == 2
        rows = shown(given.train, [template])[:, 0]
        assert rows[0] == rows[1]


@pytest.mark.parametrize(
    ("given", "per_class"),
    [
        (problem(1), 1),
        (problem(3), 3),
        (problem(2, 2, ["a", "a", "b", "c"]), 1),
        (problem(2, 2, ["a", "b", "a", "b"]), 1),
    ],
)
def test_a_class_that_keeps_no_text_is_refused_with_the_cure(given, per_class):
    with pytest.raises(InputError, match=r"shows all of them as demonstrations.*or use demonstrations=0"):
        draw(given, per_class=per_class)


def test_classes_are_called_by_their_labels_unless_told():
    assert name_classes(["card_lost", "top-up"], None, "<mask>") == ("card lost", "top up")
    assert name_classes([0, 1], {1: " good "}, "<mask>") == ("0", "good")


@pytest.mark.parametrize(
    ("classes", "given", "complaint"),
    [
        (["a", "b"], {"c": "x"}, "label_names has 'c', which is no label; the labels are 'a', 'b'"),
        (["a", "b"], ["x", "y"], "must map labels to names"),
        (["a", "b"], {"a": 3}, "is called 3 in prompts"),
        (["a", "b"], {"a": "  "}, "is called '  ' in prompts"),
        (["a", "b"], {"a": "an [Input]"}, "contains a marker"),
        (["a", "<mask>"], None, "contains a marker"),
        (["a", "<|m|>"], None, "contains a marker"),
        (["a", "b"], {"a": "the <labels>"}, "contains a marker; give it a name with label_names="),
        (["a_b", "a-b"], None, "two classes are called 'a b'"),
    ],
)
def test_names_that_cannot_work_are_refused(classes, given, complaint):
    with pytest.raises(InputError, match=complaint):
        name_classes(classes, given, "<|m|>")


@pytest.mark.parametrize("value", [-1, 1.5, True, "2"])
def test_numbers_that_cannot_work_are_refused(value):
    with pytest.raises(InputError, match="demonstrations must be a whole number"):
        check_demonstrations(value)
