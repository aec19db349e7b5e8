"""That help teaches, and that what it teaches is true: every example is typed as it stands."""

import csv
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
from helpers.commands import called, environment, pbsdk

from pbsdk.cli import app
from pbsdk.data.tickets import load_tickets
from pbsdk.testing import FakeBackend

FRAMES = re.compile(r"[\u2500-\u257f\x1b]")
NEEDS_MORE = {
    "pbsdk demo": "a model, for a minute; `make demo` and its own test run it",
    "pbsdk demo --folder runs/another --json": "the same",
    "pbsdk serve smollm2": "it serves until it is stopped; tests of serving do that",
    "pbsdk serve smollm2 --members team.json --run runs/team": "it serves until it is stopped; a gate's own tests do that",
    "pbsdk serve local -o model=roberta-large --port 8001": "the hub",
    "pbsdk parity smollm2 http --b url=http://127.0.0.1:8000": "a server",
    "pbsdk parity smollm2 openai --b model=smollm2 --texts new.csv --model model.json": "the same",
    "pbsdk doctor --connect openai -o model=gpt-4o-mini": "a key",
    "pbsdk prompts generate tickets.csv --method t5 -o model=google/t5-v1_1-large --output prompts.json": "the hub",
    "pbsdk reproduce --datasets sst2,trec --seeds 13,21,42 --test-rows 500": "benchmark data; tests of reproduction run it",
    "pbsdk reproduce --datasets sst2 --methods all --plan": "the same",
    "pbsdk reproduce --datasets rte --model roberta-large -o device=cuda --prompts paper,own": "the hub",
    "pbsdk init tickets.csv --no-ask --force": "it writes pbsdk.toml, which other examples would read; its own tests run it",
    "pbsdk init tickets.csv --backend fake --money 5 --price-per-1k-tokens 0.02 --no-ask --force": "the same",
    "pbsdk fit ag_news --split train": "the hub",
    "pbsdk doctor": "seconds; the doctor's own tests run it",
    "pbsdk doctor --json": "the same",
    "pbsdk doctor --connect fake": "the same",
}
ENDS = {"pbsdk parity fake fake --b seed=1": 1}
"""Examples that end with another exit code than 0, as they say."""


def commands(group, path=("pbsdk",)):
    """Yield every command and group with the words that call it."""
    yield path, group
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*path, name))


ALL = dict(commands(typer.main.get_command(app)))
EXAMPLES = [
    line.partition(" #")[0].rstrip()
    for path, command in ALL.items()
    if path != ("pbsdk",)
    for line in command.sections.get("Examples:", [])
    if line
]


def shell(line, folder, **more):
    command = ["bash", "-euo", "pipefail", "-c", line]
    given = environment(**{"PBSDK_BACKEND": "fake", **more})
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=given, check=False, timeout=120)


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_says_what_it_does_and_shows_how(path):
    command = ALL[path]
    assert command.help
    assert command.sections["Examples:"]
    if path != ("pbsdk",):
        assert all(line.startswith("pbsdk ") for line in command.sections["Examples:"] if line)
        assert any(line.startswith(" ".join(path[:2])) for line in command.sections["Examples:"])


@pytest.mark.parametrize("line", sorted(set(EXAMPLES)))
def test_every_example_parses(line):
    words = shlex.split(line.partition(">")[0])
    path = max((path for path in ALL if path == tuple(words[: len(path)])), key=len)
    if path == ("pbsdk", "audit"):  # `show` may be left out
        ALL[*path, "show"].make_context("show", words[2:])
    else:
        ALL[path].make_context(path[-1], words[len(path) :])


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A folder like that of somebody who read the help from top to bottom."""
    folder = tmp_path_factory.mktemp("examples")
    tickets = load_tickets()
    for name, part in (("tickets", tickets.train), ("dev", tickets.validation), ("new", tickets.test)):
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            rows = list(zip(part.texts, part.labels, strict=True))[::4]
            csv.writer(file).writerows([("text", "label"), *rows])
    (folder / "new").mkdir()
    shutil.copy(folder / "new.csv", folder / "new" / "monday.csv")
    return folder


def run(line):
    """Run a line in this process, and write its file if it names one."""
    command, _, file = line.partition(" > ")
    shown = called(*shlex.split(command)[1:])
    if file:
        Path(file).write_text(shown.stdout)
    return shown


def test_every_example_that_needs_no_model_does_what_it_says(work, monkeypatch):
    monkeypatch.chdir(work)
    monkeypatch.setenv("PBSDK_BACKEND", "fake")
    assert set(EXAMPLES) >= set(NEEDS_MORE) | set(ENDS), "an exception for an example that is gone"
    first = [  # what later examples read
        "pbsdk fit tickets.csv --prompts intent --validation dev.csv --run runs/tickets --output model.json",
        "pbsdk fit tickets.csv --text-column text --label-column label --json",
        "pbsdk predict model.json new.csv --run runs/tickets --output predictions.csv",
        "pbsdk prompts generate tickets.csv --per-class 4 --count 3 --beam 4 --max-tokens 3 --budget 500",
        "pbsdk audit certify runs/tickets certificate.json",
        "pbsdk audit certify runs/tickets --since certificate.json certificate2.json",
        "pbsdk keys new alice.key --name example.com/alice",
        "pbsdk record runs/tickets predictions.pbrec --phase predict",
    ]
    assert set(first) <= set(EXAMPLES)
    rest = [line for line in dict.fromkeys(EXAMPLES) if line not in first and line not in NEEDS_MORE]
    other = "pbsdk fit tickets.csv --n-prompts 2 --run runs/other --output other.json"
    # A causal model writes prompts, and the labels are words of its; the fake is one if told so.
    words = [FakeBackend().vocabulary[token].strip() for token in range(4)]
    labels = ",".join(map("=".join, zip(("account", "billing", "shipping", "technical"), words, strict=True)))
    as_writer = f" -o mask=last --label-words {labels}"
    failed = []
    for line in [*first, other, *rest]:
        shown = run(line + (as_writer if " generate " in line else ""))
        if shown.returncode != ENDS.get(line, 0):
            failed.append((line, shown.returncode, shown.stderr))
    assert not failed
    assert (work / "report.html").is_file()


def test_the_walk_through_works_when_pasted(tmp_path):
    lines = ALL["pbsdk",].sections["Examples:"]
    shown = shell("\n".join(lines), tmp_path, PBSDK_BACKEND="nonesuch")
    assert (shown.returncode, shown.stderr.count("error")) == (0, 0), shown.stderr
    assert (tmp_path / "mine.json").is_file()
    assert '"label": "shipping"' in shown.stdout
    assert "within budget" in shown.stdout


def test_commands_stand_in_groups_and_exit_codes_are_told(tmp_path):
    shown = shell("pbsdk", tmp_path).stdout
    heads = [
        "Start here:",
        "Train and predict:",
        "Prompts:",
        "Budget and proof:",
        "Models and servers:",
        "Research:",
        "Help:",
    ]
    places = [shown.index(f"\n{head}\n") for head in [*heads, "Examples:", "Exit codes:"]]
    assert places == sorted(places)
    for code in ("0 ", "1 ", "2 ", "3 ", "4 ", "70 ", "130 "):
        assert f"\n  {code}" in shown


@pytest.mark.parametrize(
    "line", ["pbsdk --help", "pbsdk fit --help", "pbsdk audit --help", "pbsdk nonesuch", "pbsdk fit"]
)
def test_a_pipe_gets_plain_text(line, tmp_path):
    shown = shell(line, tmp_path)
    assert not FRAMES.search(shown.stdout + shown.stderr)
    assert max(map(len, shown.stdout.splitlines()), default=0) <= 120


def in_terminal(line, folder, **more):
    """Run a command with a terminal on every end."""
    code = f"import pty, sys; sys.exit(pty.spawn({shlex.split(line)!r}) >> 8)"
    shown = subprocess.run(
        [sys.executable, "-c", code],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd=folder,
        env=environment(**{"PBSDK_BACKEND": "fake", "TERM": "xterm", "COLUMNS": "100", **more}),
        check=False,
        timeout=120,
    )
    return shown.stdout.decode()


def test_a_terminal_gets_colours_unless_the_environment_says_no(tmp_path):
    assert "\x1b[" in in_terminal("pbsdk fit --help", tmp_path)
    plain = in_terminal("pbsdk fit --help", tmp_path, NO_COLOR="1")
    assert "Fit a classifier" in plain
    assert not FRAMES.search(plain)
    assert not FRAMES.search(in_terminal("pbsdk fit --help", tmp_path, TERM="dumb"))
    assert "\x1b[" in shell("pbsdk fit --help", tmp_path, FORCE_COLOR="1").stdout
    for shown in (plain, in_terminal("pbsdk fit --help", tmp_path)):
        assert "pbsdk fit tickets.csv --prompts intent" in shown


def test_help_and_version_import_neither_scikit_learn_nor_numba_nor_numpy(tmp_path):
    code = (
        "import sys; from pbsdk.cli import main; sys.argv = ['pbsdk', *sys.argv[1:]]\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([m for m in ('numba', 'sklearn', 'numpy', 'torch', 'diskcache') if m in sys.modules])"
    )
    for words in (["--help"], ["--version"], ["fit", "--help"], ["prompts"]):
        shown = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
        assert shown.stdout.splitlines()[-1] == "[]"


def test_help_teaches():
    shown = pbsdk("--help")
    assert shown.returncode == 0
    for command in ("demo", "audit", "plan", "why-miss", "explain", "backends"):
        assert command in shown.stdout
    assert pbsdk().stdout.strip() == shown.stdout.strip()
