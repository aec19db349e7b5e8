"""The command line, run as a user runs it, or in this process where that does."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from unittest import mock

import pytest

from pbsdk.cli import main


def pbsdk(*arguments, cwd=None, **environment):
    """Run a command in a process of its own; a PYTHONPATH that is given stands before the present one."""
    if "PYTHONPATH" in environment:
        paths = [environment["PYTHONPATH"], os.environ.get("PYTHONPATH")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return subprocess.run(
        [sys.executable, "-m", "pbsdk", *map(str, arguments)],
        capture_output=True, text=True, cwd=cwd, env={**os.environ, **environment}, check=False, timeout=300,
    )  # fmt: skip


def called(*arguments):
    """Run a command in this process, which saves the time to start one."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["pbsdk", *map(str, arguments)]),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    return subprocess.CompletedProcess(arguments, ended.value.code or 0, out.getvalue(), err.getvalue())
