"""Tables out of Excel, and out of a pipe."""

import datetime as dt
import io
import sys
import types
import zipfile

import pytest
from helpers.commands import called

from pbsdk.data import excel
from pbsdk.data.files import TextFormat, read_chunks
from pbsdk.data.loading import load_table
from pbsdk.errors import InputError, MissingExtra

ROWS = [("text", "label", "when"), ("late", "post", dt.datetime(2026, 1, 2)), ("won", "sport", None)]  # noqa: DTZ001 - as Excel has it


def workbook(path, rows=ROWS, *, more=()):
    book = pytest.importorskip("openpyxl").Workbook()
    for row in rows:
        book.active.append(row)
    for title in more:
        book.create_sheet(title)
    book.save(path)
    return path


def piped(monkeypatch, content):
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(content)))


def test_the_first_sheet_is_read_with_the_numbers_that_excel_shows(tmp_path):
    path = workbook(tmp_path / "a.xlsx", [*ROWS[:2], (None, None, None), ("lost", None, None)])
    with pytest.raises(InputError, match=r"row 4 of the file a\.xlsx has no value in the column 'label'"):
        load_table(path)
    data = load_table(path, missing="drop")
    assert (data.examples, data.labels) == (["late"], ["post"])
    assert data.table["when"][0] == ROWS[1][2]


def test_excel_is_read_in_chunks_too(tmp_path):
    chunks = list(read_chunks(workbook(tmp_path / "a.xlsx"), TextFormat(), 1))
    assert [list(chunk["text"]) for chunk in chunks] == [["late"], ["won"]]
    assert chunks[1].place(0) == "row 3"


def test_other_sheets_are_mentioned(tmp_path):
    with pytest.warns(UserWarning, match="has 2 sheets, and the first is read, 'Sheet'"):
        load_table(workbook(tmp_path / "a.xlsx", more=["notes"]))


def test_columns_without_a_name_get_one_and_two_of_one_name_are_refused(tmp_path):
    table = load_table(workbook(tmp_path / "a.xlsx", [("text", None), ("a", 7)]), labelled=False).table
    assert list(table) == ["text", "column 2"]
    with pytest.raises(InputError, match="two columns called 'text'"):
        load_table(workbook(tmp_path / "b.xlsx", [("text", "text"), ("a", "b")]))


def test_without_openpyxl_the_error_has_both_cures(tmp_path, monkeypatch):
    path = workbook(tmp_path / "a.xlsx")
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(MissingExtra, match=r'pip install "pbsdk\[excel\]", or save it as CSV'):
        load_table(path)


def test_what_is_no_workbook_or_too_large_a_one_is_refused(tmp_path, monkeypatch):
    pytest.importorskip("openpyxl")
    (tmp_path / "a.xlsx").write_text("text,label\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"a\.xlsx can't be read as an Excel file .*save it as CSV"):
        load_table(tmp_path / "a.xlsx")
    with zipfile.ZipFile(tmp_path / "b.xlsx", "w") as archive:
        archive.writestr("xl/workbook.xml", "<broken")
    with pytest.raises(InputError, match="can't be read as an Excel file"):
        load_table(tmp_path / "b.xlsx")
    monkeypatch.setattr(excel, "MOST", 1000)
    with pytest.raises(InputError, match=r"unpacks to .* more than 1,000"):
        load_table(workbook(tmp_path / "c.xlsx"))


@pytest.mark.parametrize(
    "content",
    [
        b"text,label\nlate,post\nwon,sport\n",
        b"text;label\r\nlate;post\r\nwon;sport\r\n",
        b'{"text": "late", "label": "post"}\n{"text": "won", "label": "sport"}\n',
        b'\n [{"text": "late", "label": "post"}, {"text": "won", "label": "sport"}]',
        "text,label\nlate,post\nwon,sport\n".encode("utf-16"),
    ],
)
def test_standard_input_is_what_it_looks_like(monkeypatch, content):
    piped(monkeypatch, content)
    data = load_table("-")
    assert (data.examples, data.labels) == (["late", "won"], ["post", "sport"])


def test_workbooks_and_parquet_come_through_a_pipe_too(tmp_path, monkeypatch):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"text": ["late", "won"], "label": ["post", "sport"]}), tmp_path / "a.parquet")
    for path in (tmp_path / "a.parquet", workbook(tmp_path / "a.xlsx")):
        piped(monkeypatch, path.read_bytes())
        assert load_table("-").examples == ["late", "won"]


def test_an_empty_pipe_is_an_error_and_a_row_is_named(monkeypatch):
    piped(monkeypatch, b" \n")
    with pytest.raises(InputError, match="standard input is empty; pipe a table into it"):
        load_table("-")
    piped(monkeypatch, b"text,label\nlate,\n")
    with pytest.raises(InputError, match="line 2 of standard input has no value in the column 'label'"):
        load_table("-")


def test_a_workbook_is_fitted_and_a_pipe_predicted(tmp_path, monkeypatch):
    words = [(f"{word} {at}", label) for at in range(4) for word, label in (("post", "a"), ("goal", "b"))]
    path = workbook(tmp_path / "a.xlsx", [ROWS[0][:2], *words])
    where = ("--run", tmp_path / "run", "--backend", "fake")
    fit = called("fit", path, "--head", "soft", "--n-prompts", 2, *where, "--output", tmp_path / "m.json")
    assert fit.returncode == 0, fit.stderr
    piped(monkeypatch, b"text\npost 9\n")
    done = called("predict", tmp_path / "m.json", "-", *where)
    assert done.returncode == 0, done.stderr
    assert '"text": "post 9"' in done.stdout
