"""Answers where not everything was asked: gaps for predictions, stand-ins for matrices."""

import pytest

from pbsdk.errors import BadAnswer
from pbsdk.learning.gaps import with_gaps, with_stand_ins
from pbsdk.learning.matrix import collect


def test_gaps_are_none_and_stand_ins_are_answers_of_the_same_template():
    asked = [False, False, False, True, True, False, True, False]
    assert list(with_gaps("abc", asked)) == [None, None, None, "a", "b", None, "c", None]
    assert list(with_stand_ins("abc", asked, 2)) == ["b", "a", "b", "a", "b", "a", "c", "a"]


def test_nothing_waits_longer_than_it_must():
    stream = with_stand_ins(iter("abcd"), [True, True, False, True, True], 2)
    assert next(stream) == "a"
    assert next(stream) == "b"
    assert next(stream) == "a"


@pytest.mark.parametrize("answers", ["ab", "abcd"])
def test_too_few_and_too_many_answers_are_still_noticed(answers):
    assert len(list(with_gaps(answers[:2], [True, False, True, True]))) == 3
    assert len(list(with_stand_ins(answers, [True, False, True, True], 2))) != 4


def test_collect_says_that_an_answer_is_missing():
    with pytest.raises(BadAnswer, match="4 answers were asked for, and 0 came"):
        collect(with_stand_ins([], [True, False, True, True], 2), 2, 2)
