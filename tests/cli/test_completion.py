"""Shell completion through the real protocol: the shell asks, pbsdk answers."""

import shutil
import subprocess
import sys

import pytest
from helpers.commands import BIN, environment


def asking(**more):
    return environment(_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1", **more)


def script(shell):
    command = [str(BIN / "pbsdk"), "--show-completion", shell]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=asking()).stdout


def in_bash(folder, *lines):
    """Have bash complete each line with the script that pbsdk gives it; return what it found for each."""
    asked = ""
    for line in lines:
        last = ' ""' if line.endswith(" ") else ""
        asked += f"COMP_WORDS=({line}{last}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMPREPLY=()\n"
        asked += '_pbsdk_completion pbsdk; printf "%s\\n" "${COMPREPLY[@]}"; echo ---\n'
    shown = subprocess.run(
        ["bash", "--norc", "-c", script("bash") + "\n" + asked],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        env=asking(),
        timeout=120,
    )
    assert not shown.stderr
    return [found.split("\n")[:-1] for found in shown.stdout.split("---\n")[:-1]]


def test_bash_completes_commands_options_and_names(tmp_path):
    (tmp_path / "mine.json").write_text("{}")
    (tmp_path / "pools").mkdir()
    (tmp_path / "pools" / "two.json").write_text("{}")
    commands, data, sub, options, backends, prompts, files, below, pool, served, methods = in_bash(
        tmp_path,
        "pbsdk ",
        "pbsdk fit ",
        "pbsdk audit ver",
        "pbsdk fit --text",
        "pbsdk fit tickets.csv --backend h",
        "pbsdk fit tickets.csv --prompts to",
        "pbsdk fit tickets.csv --prompts mi",
        "pbsdk fit tickets.csv --prompts pools/",
        "pbsdk prompts show sent",
        "pbsdk serve smo",
        "pbsdk prompts refine topic tickets.csv --method ",
    )
    assert {"fit", "predict", "prompts", "audit", "doctor"} <= set(commands)
    assert data == [""]  # nothing, and so bash completes files
    assert "complete -o default" in script("bash")
    assert sub == ["verify"]
    assert options == ["--text-column"]
    assert backends == ["http", "huggingface"]
    assert prompts == ["topic", "topic-shown"]
    assert files == ["mine.json"]
    assert below == ["pools/two.json"]
    assert pool == ["sentiment", "sentiment-shown"]
    assert served == ["smollm2"]
    assert methods == ["paper", "halving"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_answered_and_accept_the_script(shell, tmp_path):
    given = script(shell)
    assert "_PBSDK_COMPLETE" in given
    question = {"_PBSDK_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": "pbsdk fit x.csv --backend sm"}
    asked = asking(**question, _TYPER_COMPLETE_FISH_ACTION="get-args")
    shown = subprocess.run([str(BIN / "pbsdk")], capture_output=True, text=True, check=True, env=asked, cwd=tmp_path)
    assert "smollm2" in shown.stdout
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=given, text=True, check=True, timeout=60)


def test_completion_imports_nothing_that_takes_long(tmp_path):
    code = (
        "import sys; from pbsdk.cli import _completion\n"
        "print(_completion.backend_names('f'), _completion.pools('to'))\n"
        "print([m for m in ('numba', 'sklearn', 'torch') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert shown.stdout == "['fake'] ['topic', 'topic-shown']\n[]\n"
