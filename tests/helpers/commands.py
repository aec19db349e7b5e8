"""The command line, run as a user runs it, or in this process where that does; and the tables that commands read."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from unittest import mock

import pytest

from pbsdk.audit.report import AuditReport
from pbsdk.cli import main
from pbsdk.errors import LedgerError

BIN = Path(sys.executable).parent


def pbsdk(*arguments, cwd=None, **environment):
    """Run a command in a process of its own; a PYTHONPATH that is given stands before the present one."""
    if "PYTHONPATH" in environment:
        paths = [environment["PYTHONPATH"], os.environ.get("PYTHONPATH")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return subprocess.run(
        [sys.executable, "-m", "pbsdk", *map(str, arguments)],
        capture_output=True, text=True, cwd=cwd, env={**os.environ, **environment}, check=False, timeout=600,
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


@contextmanager
def served(*arguments):
    """Run `pbsdk serve` on any free port, yield its address, and see it end well."""
    command = [sys.executable, "-m", "pbsdk", "serve", *map(str, arguments), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stderr.readline()
            yield re.search(r"at (http://\S+)", line).group(1)
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
        finally:
            process.kill()


def environment(**more):
    """Return an environment in which `pbsdk` is found, and nothing says how a terminal looks."""
    told = ("NO_COLOR", "FORCE_COLOR")
    plain = {name: value for name, value in os.environ.items() if name not in told and not name.startswith("_TYPER")}
    return {**plain, "PATH": f"{BIN}:{os.environ['PATH']}", **more}


def write_table(path, part, head=("text", "label")):
    """Write labelled texts as CSV or as JSON lines, as the file's name says."""
    rows = list(zip(part.texts, part.labels, strict=True))
    with path.open("w", encoding="utf-8", newline="") as file:
        if path.suffix == ".csv":
            csv.writer(file).writerows([head, *rows])
        else:
            file.writelines(json.dumps(dict(zip(head, row, strict=True))) + "\n" for row in rows)
    return path


def columns(*more):
    """Return the options for the tables of the fixture `work`."""
    return ("--text-column", "message", "--label-column", "department", "--backend", "fake", *more)


def passes(run):
    """Count the passes of a run folder, which may just be being made."""
    if (run / "cache.db").is_file():
        with suppress(LedgerError):
            return sum(phase.passes for phase in AuditReport.read(run).phases)
    return 0


def interrupted_and_resumed(*arguments, run):
    """Interrupt a command that asks slowly after some answers, and check that the same command goes on from there."""
    slow = ("-o", "latency=0.1", "-o", "batch_size=4", "--run", run)
    line = [sys.executable, "-m", "pbsdk", *map(str, (*arguments, *slow))]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while passes(run) < 8:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command continues from there" in complaint
    assert "Traceback" not in complaint
    kept = passes(run)
    done = pbsdk(*arguments, "-o", "latency=0", *slow[2:], "--json")
    assert done.returncode == 0, done.stderr
    total, sent = passes(run), json.loads(done.stdout)["sent_now"]
    assert 8 <= kept < total
    assert total - kept <= sent <= total - kept + 4  # the batch that was interrupted may have run, and is asked again
