"""Loading in chunks: the same as loading all at once, in the memory of one chunk."""

import json
import tracemalloc

import pytest

from pbsdk.data.loading import load_table
from pbsdk.data.streaming import stream_table
from pbsdk.errors import InputError

ROWS = [(f'text "{at}"\nof two lines' if at % 3 else f"été {at}", "ab"[at % 2]) for at in range(25)]


def write(path, rows=ROWS):
    if path.suffix == ".parquet":
        arrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet needs pyarrow")
        parquet.write_table(arrow.table({"text": [t for t, _ in rows], "label": [k for _, k in rows]}), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps([{"text": text, "label": label} for text, label in rows]), encoding="utf-8")
    elif path.suffix == ".jsonl":
        lines = [json.dumps({"text": text, "label": label}, ensure_ascii=False) for text, label in rows]
        path.write_text("\n\n".join(lines), encoding="utf-8")
    else:
        mark = "\t" if path.suffix == ".tsv" else ";"
        lines = [mark.join('"' + field.replace('"', '""') + '"' for field in row) for row in [("text", "label"), *rows]]
        path.write_text("\r\n".join(lines), encoding="utf-16" if path.suffix == ".tsv" else "utf-8", newline="")
    return path


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".json", ".parquet"])
def test_chunks_joined_are_the_whole(tmp_path, suffix):
    path = write(tmp_path / f"a{suffix}")
    whole, chunks = load_table(path), list(stream_table(path, rows=10))
    assert [len(chunk) for chunk in chunks] == [10, 10, 5]
    assert [text for chunk in chunks for text in chunk.examples] == whole.examples == [text for text, _ in ROWS]
    assert [label for chunk in chunks for label in chunk.labels] == whole.labels
    places = [chunk.table.place(row) for chunk in chunks for row in chunk.rows]
    assert places == [whole.table.place(row) for row in whole.rows]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_row_is_named_by_its_place_in_the_file(tmp_path, suffix):
    rows = [*ROWS[:12], ("text", None if suffix != ".csv" else ""), *ROWS[12:]]
    chunks = stream_table(write(tmp_path / f"a{suffix}", rows), rows=5)
    assert [len(next(chunks)) for _ in range(2)] == [5, 5]
    place = {".csv": "line 22", ".jsonl": "line 25", ".parquet": "row 13"}[suffix]
    with pytest.raises(InputError, match=f"^{place} of .* has no value in the column 'label'"):
        next(chunks)


def test_columns_that_appear_late_are_there_from_then_on(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n{"text": "b", "id": 1}\n{"id": 2, "text": "c"}\n{"text": "d"}', encoding="utf-8")
    chunks = list(stream_table(path, rows=1, text="text", labelled=False))
    assert [dict(chunk.table) for chunk in chunks[1:]] == [
        {"text": ["b"], "id": [1]},
        {"text": ["c"], "id": [2]},
        {"text": ["d"], "id": [None]},
    ]


def test_a_byte_that_cannot_be_decoded_is_named_by_its_place_in_the_file(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xef\xbb\xbftext\n" + "été\n".encode() * 30_000 + b"caf\xe9\n")
    chunks = stream_table(path, rows=10_000, labelled=False)
    for _ in range(2):
        assert len(next(chunks)) == 10_000
    at = path.read_bytes().index(b"caf\xe9") + 3
    with pytest.raises(InputError, match=rf"not utf-8 text: byte {at} \(e9\) can't be read"):
        list(chunks)


def test_nothing_to_load_is_an_error(tmp_path):
    for suffix, content in ((".csv", "text\n"), (".jsonl", "\n \n"), (".csv", "")):
        path = tmp_path / f"a{suffix}"
        path.write_text(content, encoding="utf-8")
        with pytest.raises(InputError, match=r"has no rows|is empty"):
            list(stream_table(path, labelled=False))
    with pytest.raises(InputError, match="doesn't exist"):
        next(stream_table(tmp_path / "none.csv"))


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_memory_holds_one_chunk(tmp_path, suffix):
    path = write(tmp_path / f"a{suffix}", [(f"text {at} " + "x" * 1000, "a") for at in range(4_000)])
    tracemalloc.start()
    assert sum(map(len, stream_table(path, rows=250))) == 4_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < path.stat().st_size / 2
