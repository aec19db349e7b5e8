"""The first minutes: `pbsdk init` asks or is told, shows the plan, and writes what the other commands read."""

import json
import os
import pty
import subprocess
import sys

import pytest
from helpers.commands import called, environment, write_table
from hypothesis import given, settings
from hypothesis import strategies as st

from pbsdk.cli._settings import FILE, Settings, read_settings
from pbsdk.data.tickets import load_tickets
from pbsdk.errors import InputError

TICKETS = load_tickets()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write_table(tmp_path / "tickets.csv", TICKETS.train, ("text", "label"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PBSDK_BACKEND", "fake")
    return tmp_path


def test_it_shows_the_plan_sends_nothing_and_writes_what_the_others_read(folder):
    done = called("init", "tickets.csv", "--money", 5, "--price-per-1k-tokens", 0.02, "--no-ask")
    assert done.returncode == 0, done.stderr
    assert "64 texts of 4 classes: account (16)" in done.stdout
    assert "the budget allows it: 640 passes" in done.stdout
    assert json.loads(called("audit", "--json").stdout)["records"] == 1  # a session, and no query
    fit = called("fit", "--head", "soft", "--json")
    assert fit.returncode == 0, fit.stderr
    assert "what isn't typed is taken from pbsdk.toml" in fit.stderr
    result = json.loads(fit.stdout)
    assert (result["model"], result["run"], result["saved"]) == ("fake", "runs/tickets", "model.json")
    predicted = called("predict", "tickets.csv", "--output", "said.csv", "--json")
    assert predicted.returncode == 0, predicted.stderr
    assert json.loads(predicted.stdout)["run"] == "runs/tickets"
    assert "0.4173 of 5 money in all" in called("audit").stdout
    planned = called("plan", "--model", "model.json", "--predict", "tickets.csv")
    assert planned.returncode == 0, planned.stderr


def test_a_table_as_offices_write_it_is_read_as_it_is_told_and_so_it_stays(folder):
    rows = [f"Die Straße {at} ist dunkel;Amt für Straßen und Licht {at % 12}" for at in range(36)]
    content = "\n".join(["Anliegen;Stelle", *rows, "Ohne Amt;"])
    (folder / "odd.csv").write_text(content, encoding="cp1252")
    command = ("init", "odd.csv", "--no-ask")
    refused = called(*command)
    assert refused.stderr.endswith("name its encoding, such as --encoding cp1252\n")
    refused = called(*command, "--encoding", "cp1252")
    assert refused.stderr.endswith("name it with --label-column Stelle\n")
    refused = called(*command, "--encoding", "cp1252", "--label-column", "Stelle")
    assert refused.stderr.endswith("leave such rows out with --missing drop\n")
    done = called(*command, "--encoding", "cp1252", "--label-column", "Stelle", "--missing", "drop")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("36 texts of 12 classes\n  Amt für Straßen und Licht 0   3\n")
    fit = called("fit", "--head", "soft", "--n-prompts", "1", "--run", "runs/odd")
    assert "auto" not in fit.stdout
    assert "learned from 36 texts (1 without a text or a label left out: line 38), on fake" in fit.stdout
    (folder / "new.csv").write_text("Nr;Anliegen\n1;Die Laterne vor Nr. 7: kaputt\n", encoding="utf-8")
    predicted = called("predict", "new.csv", "--run", "runs/odd")
    assert predicted.returncode == 0, predicted.stderr
    assert json.loads(predicted.stdout)["Anliegen"] == "Die Laterne vor Nr. 7: kaputt"
    assert called("card", "--run", "runs/odd").stdout.startswith("# Model card")
    assert "Words by which a class is recognised" in called("explain").stdout


def test_what_is_typed_wins(folder):
    called("init", "tickets.csv", "--no-ask", "--budget", 10)
    done = called("fit", "--run", "runs/other", "--head", "voting", "--output", "other.json", "--budget", 3)
    assert done.returncode == 3
    assert "--budget 10" in done.stderr
    assert (folder / "runs/other").is_dir()
    done = called("plan", "--budget", 9)
    assert done.returncode == 3
    assert called("plan").returncode == 0


def test_commands_without_the_file_are_as_they_were(folder):
    assert called("fit").returncode == 2
    assert called("predict", "tickets.csv").returncode == 2
    assert "Show what a run asked" in called("audit").stdout
    called("init", "tickets.csv", "--no-ask")
    missing = called("predict")
    assert missing.returncode == 2
    assert "give the texts, as in" in missing.stderr


def test_it_asks_in_a_terminal_and_takes_the_answers(folder):
    write_table(folder / "odd.csv", TICKETS.train, ("what they wrote", "who does it"))
    ours, theirs = pty.openpty()
    answers = ["odd.csv", "", "fake", "", "7", "5", "0.02"]
    os.write(ours, "".join(f"{answer}\n" for answer in answers).encode())
    done = subprocess.run(
        [sys.executable, "-m", "pbsdk", "init"],
        stdin=theirs, capture_output=True, text=True, check=False, timeout=300, env=environment(),
    )  # fmt: skip
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 0, done.stderr
    found = read_settings()
    columns = {"text_column": "what they wrote", "label_column": "who does it"}
    assert found.data.model_dump(exclude_none=True) == {"file": "odd.csv", **columns}
    assert "Which column holds the label? [who does it]" in done.stdout  # whose values repeat
    assert (found.model.backend, found.fit.prompts) == ("fake", "topic")
    assert found.budget.model_dump(exclude_none=True) == {"passes": 7, "money": 5.0, "price_per_1k_tokens": 0.02}
    assert "allow" in done.stdout


def test_without_a_terminal_nothing_is_asked(folder):
    done = called("init")
    assert done.returncode == 1
    assert "name the file that holds your labelled texts, as in: pbsdk init tickets.csv" in done.stderr
    write_table(folder / "odd.csv", TICKETS.train, ("one", "two"))
    done = called("init", "odd.csv", "--no-ask")
    assert done.returncode == 1
    assert "--text-column" in done.stderr or "--label-column" in done.stderr
    assert not FILE.exists()


def test_a_file_that_is_there_is_replaced_only_if_told(folder):
    called("init", "tickets.csv", "--no-ask")
    before = FILE.read_text("utf-8")
    assert called("init", "tickets.csv", "--no-ask", "--budget", 3).returncode == 1
    assert FILE.read_text("utf-8") == before
    assert called("init", "tickets.csv", "--no-ask", "--budget", 3, "--force").returncode == 0
    assert read_settings().budget.passes == 3


def test_a_missing_extra_is_named_with_the_command_and_the_file_is_written(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pbsdk_backends.gguf", None)
    done = called("init", "tickets.csv", "--no-ask", "--backend", "gguf", "-o", "model=some.gguf")
    assert done.returncode == 0, done.stderr
    assert "No plan yet" in done.stdout
    assert "pip install" in done.stdout
    assert read_settings().model.options == {"model": "some.gguf"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[budget]\nmony = 5\n", r"budget\.mony is unknown \(did you mean 'money'\?\); it may have passes, total"),
        ("[bugdet]\npasses = 5\n", r"bugdet is unknown \(did you mean 'budget'\?\)"),
        ('[budget]\npasses = "many"\n', r"budget\.passes: Input should be a valid integer"),
        ("[budget\n", "is not TOML that can be read"),
        ('[model.options]\napi_key = "x"\n', "holds a secret, api_key; delete it there"),
    ],
)
def test_a_file_with_a_mistake_is_refused(folder, content, said):
    FILE.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=said):
        read_settings()
    assert called("fit", "tickets.csv").returncode == 1


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@settings(max_examples=25)
@given(name=TEXT, value=TEXT, option=st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True), number=st.integers(0, 10**9))
def test_what_is_written_is_read_as_it_was(tmp_path_factory, name, value, option, number):
    file = tmp_path_factory.getbasetemp() / "written.toml"
    options = (
        {} if option.endswith(("key", "token", "secret", "password")) else {option: value, "large": number, "half": 0.5}
    )
    made = Settings.model_validate(
        {"data": {"file": name}, "model": {"backend": value, "options": options}, "budget": {"money": number}}
    )
    file.write_text(made.to_toml(), encoding="utf-8", newline="")
    assert read_settings(file) == made
