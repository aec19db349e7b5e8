"""What was found out once is not found out again, and whatever is wrong with the file, it is never in the way."""

import os

import pytest

from pbsdk_backends._local import files, remembered


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PBSDK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def file(tmp_path):
    """A file that was written an hour ago."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"weights")
    os.utime(path, ns=(0, path.stat().st_mtime_ns - 3600 * 10**9))
    return path


@pytest.fixture
def reads(monkeypatch):
    """How often a file's contents were read for a digest."""
    counted = []
    plain = files.hashlib.file_digest

    def digest(opened, kind):
        counted.append(opened.name)
        return plain(opened, kind)

    monkeypatch.setattr(files.hashlib, "file_digest", digest)
    monkeypatch.setattr(files, "SETTLED", -1)
    return counted


def test_a_file_is_read_for_its_digest_once(file, reads):
    assert files.digest_files([file]) == files.digest_files([file])
    assert len(reads) == 1


def test_it_is_read_again_on_demand(file, reads):
    first = files.digest_files([file])
    assert files.digest_files([file], again=True) == first
    assert len(reads) == 2


def test_another_content_of_the_same_size_and_age_is_noticed(file, reads):
    first, told = files.digest_files([file]), file.stat()
    file.write_bytes(b"Weights")
    os.utime(file, ns=(told.st_atime_ns, told.st_mtime_ns))
    assert files.digest_files([file]) != first


def test_a_file_that_was_written_just_now_is_not_remembered(file, reads, monkeypatch):
    monkeypatch.setattr(files, "SETTLED", 3600 * 10**9)
    files.digest_files([file])
    files.digest_files([file])
    assert len(reads) == 2


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b'{"digests": 1', b"[" * 100_000])
def test_a_broken_file_is_begun_again(cache, file, content):
    cache.mkdir()
    (cache / "digests.json").write_bytes(content)
    first = files.digest_files([file])
    assert files.digest_files([file]) == first


def test_a_folder_that_can_not_be_written_is_no_hindrance(cache, file):
    cache.write_text("a file stands in the folder's place")
    remembered.remember("speeds", "key", 1.0)
    assert remembered.recall("speeds") == {}
    assert files.digest_files([file]) == files.digest_files([file])


def test_only_the_latest_are_kept(cache):
    for number in range(remembered.KEPT + 3):
        remembered.remember("speeds", str(number), number)
    known = remembered.recall("speeds")
    assert len(known) == remembered.KEPT
    assert list(known)[-1] == str(remembered.KEPT + 2)
    assert [path.name for path in cache.iterdir()] == ["speeds.json"]
