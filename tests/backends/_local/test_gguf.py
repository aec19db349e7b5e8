"""Unpacking a GGUF file, once, whoever comes first."""

import subprocess
import sys
from pathlib import Path

from pbsdk_backends._local import remembered


def test_two_processes_may_unpack_at_once(tmp_path):
    script = """
import sys, time
from pathlib import Path
from pbsdk_backends._local import gguf as _gguf
file, gate, mine = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
def unpack(_file, target):
    target.mkdir()
    (target / "whole").write_text(mine)
    (gate / mine).touch()
    while len(list(gate.iterdir())) < 2:
        time.sleep(0.01)
_gguf.unpack = unpack
print((_gguf.unpacked(file, "0" * 64) / "whole").read_text())
"""
    gate, file = tmp_path / "gate", tmp_path / "Tiny.gguf"
    gate.mkdir()
    file.touch()
    env = {"PBSDK_CACHE": str(tmp_path / "cache"), "PATH": ""}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(file), str(gate), name], env=env, stdout=subprocess.PIPE, text=True
        )
        for name in ("first", "second")
    ]
    answers = [process.communicate(timeout=120)[0].strip() for process in running]
    assert [process.returncode for process in running] == [0, 0]
    (folder,) = (tmp_path / "cache").iterdir()
    winner = (folder / "whole").read_text()
    assert winner in {"first", "second"}
    assert set(answers) == {winner}


def test_the_cache_is_the_users_unless_named(monkeypatch):
    monkeypatch.delenv("PBSDK_CACHE", raising=False)
    assert remembered.cache_folder().name == "pbsdk"
    monkeypatch.setenv("PBSDK_CACHE", "elsewhere")
    assert remembered.cache_folder() == Path("elsewhere")
