"""The file of members: tokens are shown once and stored hashed, and changes are seen at once."""

import json
import multiprocessing
import stat

import pytest

from pbsdk.errors import InputError
from pbsdk.metering.members import MembersFile


@pytest.fixture
def file(tmp_path):
    return MembersFile(tmp_path / "team.json")


def test_a_token_is_found_and_is_nowhere_in_the_file(file):
    token = file.add("ana", passes=5)
    assert file.find(token).name == "ana"
    assert file.find(token + "x") is None
    text = file.path.read_text()
    assert token not in text
    assert token.removeprefix("pbsdk_") not in text
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600


def test_no_two_tokens_are_alike(file):
    assert len({file.add(f"m{i}") for i in range(50)}) == 50


def test_another_process_sees_what_was_added_and_revoked(file):
    token = file.add("ana")
    other = MembersFile.of(file.path)
    assert other.find(token).name == "ana"
    file.revoke("ana")
    assert other.find(token) is None
    again = file.add("ana", passes=3)
    assert other.find(token) is None
    assert other.find(again).passes == 3


def test_limits_are_changed_one_at_a_time(file):
    token = file.add("ana", passes=3, per_minute=10)
    file.change("ana", passes=30)
    found = file.find(token)
    assert (found.passes, found.per_minute) == (30, 10)


def _add(path, first):
    for i in range(first, first + 10):
        MembersFile(path).add(f"m{i}")


def test_members_added_at_the_same_time_are_all_there(file):
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_add, args=(file.path, first)) for first in (0, 10, 20)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert set(file.entries()) == {f"m{i}" for i in range(30)}


@pytest.mark.parametrize("name", ["", "a b", "../x", "ä", "x" * 65, "-a"])
def test_a_name_that_could_mislead_is_refused(file, name):
    with pytest.raises(InputError, match="a member's name"):
        file.add(name)


def test_what_cannot_be_is_refused_with_the_cure(file, tmp_path):
    with pytest.raises(InputError, match="make it with"):
        MembersFile.of(tmp_path / "none.json")
    file.add("ana")
    with pytest.raises(InputError, match="revoke it first"):
        file.add("ana")
    with pytest.raises(InputError, match="has no member 'ben'; it has ana"):
        file.revoke("ben")
    with pytest.raises(InputError, match="passes"):
        file.change("ana", passes=-1)


def _entry(name, digit):
    return {"name": name, "token_sha256": digit * 64, "made": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{",
        '{"format": 2, "members": []}',
        json.dumps({"members": [{"name": "ana", "token_sha256": "x", "made": ""}]}),
        json.dumps({"members": [], "more": 1}),
        json.dumps({"members": [], "digest": "0" * 64}),
        json.dumps({"members": [_entry("ana", "a"), _entry("ana", "b")]}),
        json.dumps({"members": [_entry("ana", "a"), _entry("ben", "a")]}),
        "[" * 200,
        '{"members": ' + "9" * 5000 + "}",
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path, content):
    path = tmp_path / "team.json"
    path.write_text(content)
    with pytest.raises(InputError, match=r"team\.json"):
        MembersFile.of(path)
