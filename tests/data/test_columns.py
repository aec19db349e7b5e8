"""Columns are found by name, or the error names the one that the cells speak for."""

import pytest

from pbsdk.data.loading import load_table
from pbsdk.data.streaming import stream_table
from pbsdk.errors import InputError

REQUESTS = {
    "id": ["R-1", "R-2", "R-3", "R-4"],
    "request": ["Lamp is out.", "Bin was missed.", "Lamp flickers.", "Order a bin."],
    "team": ["light", "waste", "light", "waste"],
}


def refusal(table, **options):
    with pytest.raises(InputError) as said:
        load_table(table, **options)
    return str(said.value)


def test_the_column_that_looks_like_labels_or_texts_is_named_in_the_cure():
    assert refusal(REQUESTS).endswith("none has a usual name for the label; name it with label='team'")
    assert refusal(REQUESTS, label="team").endswith("for the text; name it with text='request'")
    assert load_table(REQUESTS, label="team", text="request").classes == ["light", "waste"]


def test_where_two_columns_look_alike_none_is_named():
    table = {
        **REQUESTS,
        "urgent": ["yes", "no", "no", "no"],
        "answer": ["We came.", "We will.", "Not ours.", "Sent it."],
    }
    assert refusal(table).endswith("name it with label=")
    assert refusal(table, label="team").endswith("name it with text=")


def test_a_familiar_column_goes_before_the_usual_names_and_after_what_is_named(tmp_path):
    table = {"message": ["Subject"], **{name: cells[:1] for name, cells in REQUESTS.items()}}
    reading = {"labelled": False, "familiar": ["request"]}
    assert load_table(table, **reading).examples == ["Lamp is out."]
    assert load_table(table, text="id", **reading).examples == ["R-1"]
    assert load_table({"text": ["a"]}, **reading).examples == ["a"]
    assert load_table(table, labelled=False, familiar=["request", "team"]).examples == [("Lamp is out.", "light")]
    (tmp_path / "a.csv").write_text("message,request\nSubject,Lamp is out.\n", encoding="utf-8")
    (chunk,) = stream_table(tmp_path / "a.csv", **reading)
    assert (chunk.examples, chunk.roles.text) == (["Lamp is out."], "request")


def test_the_rows_that_were_left_out_are_known():
    table = {"text": ["a", None, "b", "c"], "label": ["x", "y", None, "x"]}
    data = load_table(table, missing="drop")
    assert (data.examples, data.left_out) == (["a", "c"], ["row 2", "row 3"])
    assert load_table(REQUESTS, text="request", label="team").left_out == []
