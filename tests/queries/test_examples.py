"""What users hand in, and what is refused before anything is sent."""

import datetime as dt

import numpy as np
import pandas as pd
import pytest

from pbsdk.errors import InputError
from pbsdk.queries.examples import Example, read_examples, read_labels


@pytest.mark.parametrize(
    "texts",
    [
        ["a", "b"],
        ("a", "b"),
        np.array(["a", "b"]),
        np.array([["a"], ["b"]], dtype=object),
        pd.Series(["a", "b"], index=[7, 3]),
        pd.Series(["a", "b"], dtype="string"),
        pd.DataFrame({"text": ["a", "b"]}),
        iter(["a", "b"]),
    ],
)
def test_single_texts_are_read_from_many_shapes(texts):
    assert read_examples(texts) == [Example("a"), Example("b")]


@pytest.mark.parametrize(
    "texts",
    [
        [("a", "x"), ("b", "y")],
        [["a", "x"], ["b", "y"]],
        np.array([["a", "x"], ["b", "y"]]),
        pd.DataFrame({"one": ["a", "b"], "two": ["x", "y"]}),
    ],
)
def test_pairs_are_read_from_many_shapes(texts):
    assert read_examples(texts) == [Example("a", "x"), Example("b", "y")]


@pytest.mark.parametrize(
    ("texts", "complaint"),
    [
        ("one text", "one string"),
        (["a", "b \ud83d"], r"texts\[1\] holds half of a character"),
        ([("a", "b"), ("c", "\ud83d")], r"texts\[1\]\[1\] holds half of a character"),
        (["a", None], r"texts\[1\] is missing"),
        (["a", float("nan")], r"texts\[1\] is missing"),
        (["a", 3], "is a int"),
        (["a", b"b"], "is a bytes"),
        (["a", ("b", "c")], "mixes single texts and pairs: row 0 and row 1"),
        ([("a", None)], r"texts\[0\]\[1\] is missing"),
        (np.zeros((2, 3)), r"shape \(2, 3\)"),
        (pd.DataFrame({"a": ["x"], "b": ["y"], "c": ["z"]}), "3 columns"),
        ({"a": 1}, "a dict"),
        (17, "a int"),
    ],
)
def test_texts_that_cannot_work_are_refused(texts, complaint):
    with pytest.raises(InputError, match=complaint):
        read_examples(texts)


def test_an_example_is_named_by_its_texts():
    assert Example("a").id == Example("a").id
    assert len({Example("a").id, Example("b").id, Example("a", "b").id, Example("", "").id, Example("").id}) == 5
    assert Example("a", "b").id != Example("b", "a").id


@pytest.mark.parametrize(
    ("labels", "complaint"),
    [
        (["x"], "2 texts and 1 labels"),
        (["x", None], r"labels\[1\] is missing"),
        ([1.0, float("nan")], r"labels\[1\] is missing"),
        ("xy", "one label per text"),
        ([0.5, 1.0], "continuous numbers, not classes"),
        ([["a", "b"], ["c", "d"]], "is a list, which can't be a label"),
        (np.array(["x", 1], dtype=object), "mixes types"),
        (["x", 1], r"mixes types \(int, str\)"),
        ([True, 1], r"mixes types \(bool, int\)"),
        ([1, 2.0], r"mixes types \(float, int\)"),
        (["x", float("nan")], r"labels\[1\] is missing"),
        (pd.Series(["x", pd.NA], dtype="string"), r"labels\[1\] is missing"),
        (pd.Series([1, None], dtype="Int64"), r"labels\[1\] is missing"),
        (np.ma.array([1, 2], mask=[False, True]), r"labels\[1\] is missing"),
        ([b"x", b"y"], r"labels\[0\] is a bytes"),
        (np.array([b"x", b"y"]), r"labels\[0\] is a bytes"),
        (pd.to_datetime(pd.Series(["2026-01-01", "2026-01-02"])), "can't be a label"),
        ([dt.date(2026, 1, 1)] * 2, "is a date, which can't be a label"),
        ([1.0, float("inf")], r"labels\[1\] is inf: continuous"),
        (["x", "\ud800"], "half of a character"),
        (["x", "x\0"], r"labels\[1\] is 'x\\x00', whose end an array would drop"),
        ([1, 2**64], "too large"),
        ([-1, 2**64 - 1], "too far apart"),
    ],
)
def test_labels_that_cannot_work_are_refused(labels, complaint):
    with pytest.raises(InputError, match=complaint):
        read_labels(labels, 2)


def test_labels_keep_their_type():
    assert read_labels(pd.Series(["x", "y"], dtype=object), 2).tolist() == ["x", "y"]
    assert read_labels([0, 1], 2).dtype.kind == "i"
    assert read_labels(np.array([0, 1], dtype=np.uint8), 2).dtype == np.uint8
    assert read_labels([np.uint64(2**64 - 1), np.uint64(1)], 2).tolist() == [2**64 - 1, 1]
    assert read_labels(pd.Series([3, 4], dtype="Int64"), 2).tolist() == [3, 4]
    assert read_labels(pd.Categorical(["x", "y"]), 2).tolist() == ["x", "y"]
    assert read_labels((label for label in "xy"), 2).tolist() == ["x", "y"]
    assert read_labels([1.0, 2.0], 2).tolist() == [1.0, 2.0]
    assert read_labels([[True], [False]], 2).tolist() == [True, False]
