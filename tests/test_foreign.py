"""JSON and files from elsewhere: what is in bounds is read, and bombs are refused."""

import json
import os
import threading

import pytest

from pbsdk import foreign
from pbsdk.foreign import bounded_file, bounded_json, check_digest, digest_of


@pytest.mark.parametrize(
    "value", [{"a": [1, -2.5, None, True, "[{" * 300]}, [], "x", 2**64 - 1, -(2**63), 1e-300, "\ud800", '\\"[']
)
def test_json_in_bounds_is_read_as_it_is(value):
    assert bounded_json(json.dumps(value)) == value
    assert bounded_json(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    ("bomb", "said"),
    [
        ("[" * 100_000, "nests more than 100 deep"),
        ('{"a":' * 101 + "1" + "}" * 101, "nests more than 100 deep"),
        ("[" * 101 + "]" * 101, "nests more than 100 deep"),
        ('"' + '\\"' * 1_000_000, "Unterminated"),
        ("9" * 5000, "whole number of 5,000 digits"),
        ("-" + "9" * 25, "whole number of 26 digits"),
        ("[1e999]", "too large"),
        ("[NaN]", "not a number"),
        ('{"a": 1, "a": 2}', "twice"),
        (b"\xff\xfe[\x00]\x00", "codec can't decode"),
        ("", "Expecting value"),
    ],
)
def test_json_out_of_bounds_is_refused(bomb, said):
    with pytest.raises(ValueError, match=said):
        bounded_json(bomb)


def test_the_number_of_lists_is_bounded(monkeypatch):
    monkeypatch.setattr(foreign, "LISTS", 200)
    assert bounded_json("[" + "[]," * 198 + "{}]")
    with pytest.raises(ValueError, match="more than 200 lists and objects"):
        bounded_json("[" + "[]," * 199 + "{}]")
    assert bounded_json(json.dumps(["[" * 1000]))


def test_no_more_of_a_file_is_read_than_it_may_have(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    assert bounded_file(file, 5) == b"12345"
    with pytest.raises(ValueError, match="more than 4 bytes"):
        bounded_file(file, 4)
    with pytest.raises(ValueError, match="more than 1,000 bytes"):
        bounded_file("/dev/zero", 1000)
    os.mkfifo(tmp_path / "pipe")
    thread = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(b"x" * 100_000))
    thread.start()
    assert len(bounded_file(tmp_path / "pipe", 1 << 20)) == 100_000
    thread.join()


def test_a_digest_covers_everything_but_the_layout():
    content = {"name": "x", "numbers": [1, 2.5, "\ud800"]}
    sealed = {"digest": digest_of(content), **content}
    check_digest(sealed)
    check_digest(json.loads(json.dumps(sealed, indent=3)))
    check_digest(content)
    for change in ({"name": "y"}, {"more": 1}, {"numbers": [1, 2.5000001]}, {"digest": ""}, {"digest": None}):
        with pytest.raises(ValueError, match='delete the line "digest"'):
            check_digest({**sealed, **change})
