"""What `make test-servers` does with servers that nobody here wrote, in brief and with llama.cpp's alone, which needs no environment of its own."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.needs import needs_model
from helpers.servers import Reply, scripted
from servers import __main__ as command
from servers import llamacpp
from servers.environment import Environment, LeftOut
from servers.process import figure, running
from servers.trial import MODEL, Row, Size, tried

from pbsdk_backends.openai import OpenAIBackend

ROW = Row("llama.cpp (`xllamacpp` 1)", "completions", "top 20", 10, 0.85, 0.8, 1240, 1240, 60.0)


class Here(Environment):
    """The environment of the tests themselves."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ())
        self.python = Path(sys.executable)


@needs_model
@pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="llama.cpp is not installed (xllamacpp)")
def test_a_classifier_learns_through_llama_cpps_own_server_which_counts_as_the_ledger_does(tmp_path):
    with llamacpp.start(Here(tmp_path), tmp_path) as server:
        with OpenAIBackend(MODEL, url=server.url) as found:
            assert (found.identity.details["api"], found.abilities.top) == ("completions", 5000)
            assert not found.abilities.chosen
        for number, way in enumerate(llamacpp.SERVER.ways[:2]):
            size = Size(labelled=24, tested=12, prompts=2, least=0.6)
            row = tried("llama.cpp", way, server, tmp_path / str(number), size)
            assert row.counted == row.ledger > 0
            assert row.shown == "top 20"
        off = replace(server, count=iter((0, 0)).__next__)
        with pytest.raises(AssertionError, match="the server counted 0 requests, and the ledger 72"):
            tried("llama.cpp", llamacpp.SERVER.ways[0], off, tmp_path / "off", replace(size, least=0))


def test_what_cannot_be_installed_is_left_out_with_the_reason(tmp_path):
    environment = Environment(tmp_path / "venv", (("--no-index", "no-such-server"),))
    with pytest.raises(LeftOut, match=r"pip install --no-index no-such-server failed: .*no-such-server"):
        environment.fill()
    assert not (tmp_path / "venv" / "filled").exists()


def test_what_does_not_start_is_left_out_with_its_last_words(tmp_path):
    command = [sys.executable, "-c", "print('starting'); raise SystemExit('no library')"]
    with (
        pytest.raises(LeftOut, match="the server ended \\(no library\\)"),
        running(command, "http://127.0.0.1:9/", tmp_path / "log"),
    ):
        pass


def test_a_counter_is_read_from_a_page_of_metrics():
    page = b'# TYPE asked counter\nasked{model="a",how="x"} 3.0\nasked{model="a",how="y"} 4.0\nasked{model="b"} 9\nasked_2 7\n'
    with scripted(lambda _: Reply(200, page)) as server:
        assert [figure(server.url, "asked", model="a")(), figure(server.url, "asked")(), figure(server.url, "no")()] == [
            7, 16, 0
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("outcome", "code", "said"),
    [
        (ROW, 0, "| completions | top 20 | 10 | 85.0% | 80.0% | 1,240 = 1,240 |"),
        (LeftOut("pip install failed"), 0, "| mine | left out: pip install failed |"),
        (AssertionError("counted 3"), 1, "| server |"),
    ],
)
def test_every_server_has_its_row_and_a_wrong_one_fails_the_command(tmp_path, monkeypatch, outcome, code, said):
    def try_it(name, folder, size):
        if isinstance(outcome, Exception):
            raise outcome
        yield outcome

    monkeypatch.setattr(command, "tried_all", try_it)
    monkeypatch.setattr(sys, "argv", ["servers", "mine", "--folder", str(tmp_path)])
    assert command.main() == code
    assert said in (tmp_path / "results.md").read_text()
