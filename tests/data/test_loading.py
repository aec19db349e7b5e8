"""Loading labelled texts: every format, and every way in which a table can be wrong."""

import json
import re
import sys
import types

import pytest
from helpers.hub import Dataset

from pbsdk.data.loading import LabelledTexts, load_table
from pbsdk.errors import InputError, MissingExtra

ROWS = [('Très bon, "vraiment"', "good"), ("line one\nline two", "bad"), ("", "bad")]
EXPECTED = LabelledTexts([text for text, _ in ROWS], [label for _, label in ROWS])


def write(path, content, encoding="utf-8"):
    path.write_bytes(content.encode(encoding))
    return path


def quoted(rows, mark):
    return "\r\n".join(mark.join('"' + field.replace('"', '""') + '"' for field in row) for row in rows) + "\r\n"


# Formats


def test_csv_and_tsv(tmp_path):
    rows = [("text", "label"), *ROWS]
    assert load_table(write(tmp_path / "a.csv", quoted(rows, ","))) == EXPECTED
    assert load_table(str(write(tmp_path / "a.tsv", quoted(rows, "\t")))) == EXPECTED
    assert load_table(write(tmp_path / "b.csv", quoted(rows, ";")), delimiter=";") == EXPECTED
    assert load_table(write(tmp_path / "a.data", quoted(rows, "|")), delimiter="|") == EXPECTED


def test_csv_without_header_or_with_plain_quotes(tmp_path):
    path = write(tmp_path / "a.tsv", '"Oh" he said\tgood\nno "quotes\tbad\n')
    data = load_table(path, columns=["text", "label"], quotes=False)
    assert data == LabelledTexts(['"Oh" he said', 'no "quotes'], ["good", "bad"])


def test_json_lines_and_a_json_list(tmp_path):
    rows = [{"text": text, "label": label} for text, label in ROWS]
    lines = "\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    assert load_table(write(tmp_path / "a.jsonl", lines)) == EXPECTED
    assert load_table(write(tmp_path / "a.json", json.dumps(rows))) == EXPECTED


def test_json_lines_may_hold_line_separators_inside_texts(tmp_path):
    text = "one\u2028two\u0085three"
    path = write(tmp_path / "a.jsonl", json.dumps({"text": text, "label": 1}, ensure_ascii=False))
    assert load_table(path) == LabelledTexts([text], [1])


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet needs pyarrow")
    table = pyarrow.table({"text": EXPECTED.examples, "label": EXPECTED.labels})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert load_table(tmp_path / "a.parquet") == EXPECTED
    (tmp_path / "b.parquet").write_bytes(b"PAR1 or not")
    with pytest.raises(InputError, match=r"b\.parquet can't be read as Parquet"):
        load_table(tmp_path / "b.parquet")


def test_parquet_without_a_library_names_the_cure(tmp_path, monkeypatch):
    for module in ("pyarrow", "pyarrow.parquet", "pandas"):
        monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(MissingExtra, match="pip install pyarrow"):
        load_table(tmp_path / "a.parquet")


def test_pandas():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame({"review": ["fine", "poor"], "stars": [5, 1]})
    data = load_table(frame, text="review", label="stars")
    assert data == LabelledTexts(["fine", "poor"], [5, 1])
    assert type(data.labels[0]) is int
    frame.loc[0, "review"] = None
    with pytest.raises(InputError, match="row 1 of the frame has no value in the column 'review'"):
        load_table(frame, text="review", label="stars")


def test_hugging_face_data_sets_give_classes_by_name():
    features = {"text": None, "label": types.SimpleNamespace(names=["bad", "good"])}
    train = Dataset(features, text=["x", "y", "z"], label=[1, 0, -1])
    assert load_table(train, missing="drop") == LabelledTexts(["x", "y"], ["good", "bad"])
    with pytest.raises(InputError, match="row 3 of the data set has no value in the column 'label'"):
        load_table(train)
    assert len(load_table({"train": train, "test": train}, split="test", missing="drop")) == 2
    with pytest.raises(InputError, match="has the splits train, test; choose one with split="):
        load_table({"train": train, "test": train})


def test_hugging_face_data_sets_by_name(hub):
    hub.answers["owner/name"] = Dataset(text=["x"], label=["good"])
    assert load_table("owner/name", split="train") == LabelledTexts(["x"], ["good"])
    assert hub.asked == [("owner/name", None, "train")]
    with pytest.raises(
        InputError, match=r"owner/other can't|owner/other, and the data set .* can't be loaded: .*not on the hub"
    ):
        load_table("owner/other")


def test_a_name_without_the_datasets_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtra, match="pip install datasets, or check the path"):
        load_table("owner/name")


# Columns


@pytest.mark.parametrize(
    ("columns", "text", "label"),
    [
        (["text", "label"], "text", "label"),
        (["id", "Sentence", "Category"], "Sentence", "Category"),
        (["label", "anything"], "anything", "label"),
        (["review", "stars"], "review", "stars"),
    ],
)
def test_columns_are_found_by_their_names(columns, text, label):
    table = {column: [column.upper()] for column in columns}
    assert load_table(table) == LabelledTexts([text.upper()], [label.upper()])


@pytest.mark.parametrize("pair", [("premise", "hypothesis"), ("text", "text_pair"), ("question", "sentence")])
def test_pairs_are_found_by_their_names(pair):
    data = load_table({pair[0]: ["a"], pair[1]: ["b"], "label": ["yes"]})
    assert data == LabelledTexts([("a", "b")], ["yes"])
    assert data.pairs
    assert not load_table({pair[0]: ["a"], pair[1]: ["b"], "label": ["yes"]}, text=pair[0]).pairs


def test_named_columns_make_pairs():
    data = load_table({"x": ["a"], "y": ["b"], "z": ["yes"]}, text="x", pair="y", label="z")
    assert data == LabelledTexts([("a", "b")], ["yes"])


def test_doubtful_columns_are_asked_for():
    with pytest.raises(InputError, match=r"text and review could each be the text; name it with text="):
        load_table({"text": ["a"], "review": ["b"], "label": ["c"]})
    with pytest.raises(InputError, match=r"x, y, z, and none has a usual name for the label; name it with label="):
        load_table({"x": ["a"], "y": ["b"], "z": ["c"]}, text="x")


def test_texts_without_labels():
    assert load_table({"text": ["a"], "note": ["b"]}, labelled=False) == LabelledTexts(["a"], [])
    assert load_table({"text": ["a", "b"]}, labelled=False).take([1]) == LabelledTexts(["b"], [])


# What can be wrong


def test_a_missing_file_and_a_folder(tmp_path):
    write(tmp_path / "train.csv", "text,label\n")
    with pytest.raises(InputError, match=r"trian\.csv doesn't exist \(did you mean 'train\.csv'\?\)"):
        load_table(tmp_path / "trian.csv")
    with pytest.raises(InputError, match="is a folder, not a file"):
        load_table(tmp_path)


def test_a_missing_column_names_those_there_are(tmp_path):
    path = write(tmp_path / "a.csv", "text,label\nx,y\n")
    with pytest.raises(InputError, match=r"no column 'txt' \(did you mean 'text'\?\); it has text, label"):
        load_table(path, text="txt")
    with pytest.raises(InputError, match="no column 'mood'; it has text, label"):
        load_table(path, label="mood")
    with pytest.raises(InputError, match="no column 'second'"):
        load_table(path, text="text", pair="second")


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_what_separates_the_fields_of_a_csv_is_found(tmp_path, mark):
    path = write(tmp_path / "a.csv", f"text{mark}label\nx, or not, y{mark}z\n")
    assert load_table(path) == LabelledTexts(["x, or not, y"], ["z"])
    write(path, f"text{mark}label\nx{mark}z\n")
    with pytest.raises(InputError, match=f"separates its fields, say delimiter={re.escape(repr(mark))}"):
        load_table(path, text="text", delimiter=",")


def test_an_unknown_label():
    table = {"text": ["a", "b"], "label": ["good", "bda"]}
    with pytest.raises(InputError, match=r"row 2 of the table has the unknown label 'bda' \(did you mean 'bad'\?\)"):
        load_table(table, labels=["good", "bad"])
    assert len(load_table(table, labels=["good", "bad", "bda"])) == 2


def test_an_encoding_that_does_not_fit(tmp_path):
    path = write(tmp_path / "a.csv", "text,label\ncafé,x\n", "cp1252")
    with pytest.raises(InputError, match=r"a\.csv is not utf-8 text: byte 14 \(e9\).*encoding='cp1252'"):
        load_table(path)
    assert load_table(path, encoding="cp1252").examples == ["café"]
    wide = write(tmp_path / "b.csv", "text,label\ncafé,x\n", "utf-16")
    assert load_table(wide).examples == load_table(wide, encoding="utf-16").examples == ["café"]
    with pytest.raises(InputError, match="no encoding is called 'utf-88'"):
        load_table(path, encoding="utf-88")


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path):
    assert load_table(write(tmp_path / "a.csv", "text,label\nx,y\n", "utf-8-sig")) == LabelledTexts(["x"], ["y"])


def test_empty_files_and_files_without_rows(tmp_path):
    with pytest.raises(InputError, match=r"a\.csv is empty"):
        load_table(write(tmp_path / "a.csv", " \n"))
    with pytest.raises(InputError, match=r"b\.csv has no rows"):
        load_table(write(tmp_path / "b.csv", "text,label\n"))
    with pytest.raises(InputError, match="the table has no rows"):
        load_table({"text": [], "label": []})


def test_ragged_rows_and_broken_quotes(tmp_path):
    with pytest.raises(InputError, match=r"line 3 of a\.csv has 3 fields, but the header has 2; quote fields"):
        load_table(write(tmp_path / "a.csv", "text,label\nx,y\nx, and more,y\n"))
    with pytest.raises(InputError, match=r"b\.csv can't be read near line 2.*quotes=False"):
        load_table(write(tmp_path / "b.csv", 'text,label\n"x" he said,y\n'))
    with pytest.raises(InputError, match="two columns called 'text'"):
        load_table(write(tmp_path / "c.csv", "text,text\nx,y\n"))


def test_json_lines_that_are_no_objects(tmp_path):
    with pytest.raises(InputError, match=r"line 3 of a\.jsonl is not an object"):
        load_table(write(tmp_path / "a.jsonl", '{"text": "x", "label": 1}\n\n["x", 1]\n'))
    with pytest.raises(InputError, match=r"line 2 of b\.jsonl is not JSON"):
        load_table(write(tmp_path / "b.jsonl", '{"text": "x", "label": 1}\n{"text": \n'))
    with pytest.raises(InputError, match=r"row 1 of c\.json is not an object"):
        load_table(write(tmp_path / "c.json", '["x"]'))


def test_missing_values(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "x", "label": "y"}\n{"text": null, "label": "y"}\n{"text": "z"}\n')
    with pytest.raises(
        InputError, match=r"line 2 of the file a.jsonl has no value in the column 'text'.*missing=\"drop\""
    ):
        load_table(path)
    assert load_table(path, missing="drop") == LabelledTexts(["x"], ["y"])
    with pytest.raises(InputError, match="no value in the column 'label'"):
        load_table(write(tmp_path / "a.csv", "text,label\nx,\n"))
    with pytest.raises(InputError, match="no complete row"):
        load_table(write(tmp_path / "a.csv", "text,label\nx,\n"), missing="drop")
    with pytest.raises(InputError, match="no value"):
        load_table({"text": ["x"], "label": [float("nan")]})


@pytest.mark.parametrize("nothing", ["NaN", "nan", " ", ""])
def test_a_label_cell_that_says_nothing_is_no_class_and_its_line_is_named(tmp_path, nothing):
    path = write(tmp_path / "a.csv", f'text,label\n"one\ntwo",x\n\nthree,{nothing}\n')
    with pytest.raises(InputError, match=r"line 5 of the file a\.csv has .*no (value|label,) in the column 'label'"):
        load_table(path)
    assert load_table(path, missing="drop").labels == ["x"]


def test_what_looks_like_a_missing_number_is_a_text_where_a_text_is(tmp_path):
    path = write(tmp_path / "a.csv", "text,label\nNaN,x\nNA,y\nNone,None\n,x\n")
    assert load_table(path) == LabelledTexts(["NaN", "NA", "None", ""], ["x", "y", "None", "x"])


def test_the_same_text_under_two_labels_is_warned_of_with_the_rows(tmp_path):
    path = write(tmp_path / "a.csv", "text,label\na,x\nb,x\na,y\nb,x\n")
    with pytest.warns(UserWarning, match=r"two labels: line 2 \('x'\) and line 4 \('y'\); keep the right one"):
        load_table(path)


def test_texts_and_labels_of_the_wrong_kind():
    with pytest.raises(InputError, match="row 1 of the table has a int where its text should be: 7"):
        load_table({"text": [7], "label": ["x"]})
    with pytest.raises(InputError, match="row 1 of the table has a list as its label"):
        load_table({"text": ["x"], "label": [["y"]]})
    with pytest.raises(InputError, match="can't be loaded from a int"):
        load_table(7)
    with pytest.raises(InputError, match="differ in length"):
        load_table({"text": ["x", "y"], "label": ["z"]})


def test_an_unknown_suffix(tmp_path):
    with pytest.raises(InputError, match=r"a\.ods ends in \.ods; give one of \.csv"):
        load_table(write(tmp_path / "a.ods", "x"))


@pytest.mark.parametrize("value", ["[" * 100_000, "9" * 5000, "1e999", "NaN"])
def test_rows_made_to_harm_are_one_clear_error(tmp_path, value):
    file = tmp_path / "t.jsonl"
    file.write_text('{"text": "a", "label": "x"}\n{"text": "b", "label": ' + value + "}\n")
    with pytest.raises(InputError, match=r"line 2 of t\.jsonl is not JSON that can be read") as caught:
        load_table(file)
    assert len(str(caught.value)) < 500


def test_a_column_that_nobody_asks_for_may_hold_long_numbers(tmp_path):
    file = tmp_path / "t.jsonl"
    file.write_text("".join(f'{{"text": "a{at}", "label": "x", "id": {10**60}}}\n' for at in range(2)))
    assert list(load_table(file).examples) == ["a0", "a1"]
