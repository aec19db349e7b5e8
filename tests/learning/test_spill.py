"""Matrices on disk: nothing is left behind, and a disk that fails is named."""

import errno
import os
import tempfile

import numpy as np
import pytest
from helpers.problems import drawn, stream

from pbsdk.errors import InputError
from pbsdk.learning.matrix import collect
from pbsdk.learning.verbalizer import VerbalizerSearch, uniform_weights


def test_spilled_matrices_leave_nothing_behind(tmp_path):
    with collect(stream(drawn(20, 2, 30)), 20, 2, max_memory=100, folder=tmp_path) as matrices:
        search = VerbalizerSearch(matrices[0], np.arange(20) % 2, 2)
        search.best(uniform_weights(20))
        descriptors = [matrix._spill._file for matrix in matrices]
    assert all(file.closed for file in descriptors)
    assert list(tmp_path.iterdir()) == []
    search.close()
    matrices = collect(stream(drawn(20, 2, 30)), 20, 2, max_memory=100, folder=tmp_path)
    file = matrices[0]._spill._file
    del matrices  # forgotten without being closed
    assert file.closed


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(InputError, match=r"missing.*choose another folder"):
        collect(stream(drawn(2, 1, 4)), 2, 1, max_memory=0, folder=tmp_path / "missing")


def test_a_full_disk_is_named(monkeypatch):
    class Full:
        closed = False

        def seek(self, offset):
            return offset

        def write(self, data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def close(self):
            self.closed = True

    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Full())
    with pytest.raises(InputError, match=r"No space left.*make room"):
        collect(stream(drawn(2, 1, 4)), 2, 1, max_memory=0)
