"""The seam for rivals: anybody's row, its settings, its budget, its curve, and what is refused."""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata

import numpy as np
import pytest
from helpers.commands import called

from pbsdk.errors import BudgetExceeded, InputError, MissingExtra
from pbsdk.ledger.lots import LotSums
from pbsdk.plugins import METHODS_GROUP
from pbsdk.reproduce.figures import FIGURES, ROWS
from pbsdk.reproduce.methods import METHODS, Method
from pbsdk.reproduce.results import Results
from pbsdk.reproduce.rivals import Access, Contest, Passes, Point, Rival, find_method, method_names
from pbsdk.reproduce.runner import Reproduction
from pbsdk.reproduce.settings import Settings
from pbsdk.testing import FakeBackend

OURS = METHODS_GROUP.names()


@dataclass(frozen=True)
class Guess(Rival):
    """Guesses better with every step: a rival that needs no torch."""

    name = "guess"
    title = "Educated guess"
    access = Access.TEXT

    steps: int = 4
    luck: float = 0.5
    loud: bool = False

    def schedule(self, contest: Contest) -> Iterator[Passes]:
        for _ in range(self.steps):
            yield Passes.of(contest.train.examples, 2, 1)

    def compete(self, contest: Contest) -> Iterator[Point]:
        for step, passes in enumerate(self.schedule(contest), 1):
            contest.meter.charge(passes.forward, passes.backward)
            scores = np.full((len(contest.test), len(contest.classes)), -2.0)
            scores[:, min(step, 2)] = -0.1  # what is guessed changes once
            yield Point(2.0 * step, step, 0.1 * step, accuracy=step / 10, loss=1.0, scores=scores)

    def parameters(self, contest: Contest) -> int:
        return 7


@pytest.fixture
def guess(monkeypatch):
    """Register the rival, and a head, as somebody's package would."""
    found = metadata.entry_points
    entries = [
        metadata.EntryPoint("guess", f"{__name__}:Guess", "pbsdk.methods"),
        metadata.EntryPoint("mine", f"{__name__}:MINE", "pbsdk.methods"),
        metadata.EntryPoint("odd", "collections:Counter", "pbsdk.methods"),
        metadata.EntryPoint("lost", "nowhere:Nothing", "pbsdk.methods"),
    ]
    monkeypatch.setattr(
        metadata, "entry_points", lambda **k: entries if k.get("group") == "pbsdk.methods" else found(**k)
    )
    monkeypatch.setattr(metadata.EntryPoint, "load", load)


def load(entry):
    module, _, name = entry.value.partition(":")
    if module == __name__:
        return globals()[name]
    if module == "nowhere":
        raise ModuleNotFoundError("No module named 'nowhere'")
    return __import__(module, fromlist=[name]).__dict__[name]


MINE = Method("mine", METHODS["voting"].head)


def settings(pool, *methods, **more):
    return Settings(
        **{
            "datasets": ("desk",),
            "seeds": (13,),
            "prompts": (pool,),
            "test_rows": 40,
            "rounds": 20,
            "methods": methods,
            **more,
        }
    )


def run(folder, chosen, **more):
    with Reproduction(FakeBackend(), folder, chosen, **more) as work:
        return work.results(), work.backend.audit()


@pytest.mark.usefixtures("guess")
def test_anybody_adds_a_rival_and_a_head(tmp_path, pool):
    results, report = run(tmp_path, settings(pool, "voting", "mine", "guess"))
    cells = {cell.method: cell for cell in results.cells}
    assert cells["mine"].score == cells["voting"].score
    rival = cells["guess"]
    assert (rival.forward, rival.backward, rival.parameters, rival.access) == (8.0, 4.0, 7, "text")
    assert rival.passes == 8 * 64  # the training examples'; it asks nothing of the others
    assert [(point.forward, point.validation) for point in rival.curve] == [(2, 0.1), (4, 0.2), (6, 0.3), (8, 0.4)]
    assert rival.settings == {"steps": 4, "luck": 0.5, "loud": False}
    assert rival.score == rival.curve[-1].score
    assert {total.limit for total in report.scopes if total.scope == "forward"} == {8}
    assert "8 of 8 passes per example (forward)" in report.verdict
    assert [
        prompt.passes for prompt in report.prompts if prompt.prompt.startswith("Educated guess: desk, draw 13")
    ] == [64 * 12]


@pytest.mark.usefixtures("guess")
def test_tables_and_picture_show_what_each_needed(tmp_path, pool):
    results, _ = run(tmp_path, settings(pool, "voting", "guess"))
    voting = results.cells[0]
    results = Results((*results.cells, voting.model_copy(update={"method": "tf-idf", "n_prompts": 0})), "fake")
    text = results.to_markdown()
    assert "| Educated guess |" in text
    assert "| Educated guess | desk | text | 7 | 8 | 4 |" in text
    assert "| PromptVoting | desk | text | - | 10 | 0 |" in text
    ax, *_ = results.plot_passes().axes
    lines = {line.get_label(): line.get_xydata() for line in ax.get_lines()}
    assert lines["PromptVoting"][0][0] == 10
    assert lines["Educated guess"][:, 0].tolist() == [3, 6, 9, 12]  # forward and backward
    assert (
        lines["TF-IDF + logistic regression (no model)"][0][1] == lines["TF-IDF + logistic regression (no model)"][1][1]
    )
    assert ax.get_xscale() == "log"
    assert Results((voting,), "fake").plot_passes() is None
    told = json.loads(json.dumps(results.to_dict()))
    assert {cell["method"]: len(cell["curve"]) for cell in told["cells"]} == {"voting": 0, "guess": 4, "tf-idf": 0}


@pytest.mark.usefixtures("guess")
def test_a_second_run_charges_nothing_and_other_settings_do(tmp_path, pool):
    first, _ = run(tmp_path, settings(pool, "guess"))
    again, report = run(tmp_path, settings(pool, "guess"))
    assert again == first
    assert {prompt.passes for prompt in report.prompts} == {64 * 12}
    changed, report = run(tmp_path, settings(pool, "guess", changes={"guess": {"steps": "2", "loud": "true"}}))
    assert changed.cells[0].settings == {"steps": 2, "luck": 0.5, "loud": True}
    assert sum(prompt.passes for prompt in report.prompts) == 64 * 18
    assert "12 of 12 passes per example (forward)" in report.verdict  # what was made and what was needed


@pytest.mark.usefixtures("guess")
def test_the_plan_says_what_will_run_inside(tmp_path, pool):
    given = (
        "--datasets",
        "desk",
        "--prompts",
        pool,
        "--seeds",
        "13",
        "--test-rows",
        "40",
        "--model",
        "fake",
        "--folder",
        tmp_path,
    )
    done = called("reproduce", *given, "--methods", "guess", "--set", "guess.steps=3", "--plan")
    assert "and inside the model: 384 forward, 192 backward" in done.stdout
    told = json.loads(called("reproduce", *given, "--methods", "guess", "--plan", "--json").stdout)
    assert told["inside"] == {"forward": 512, "backward": 256}
    assert "inside" not in json.loads(called("reproduce", *given, "--methods", "voting", "--plan", "--json").stdout)


@pytest.mark.usefixtures("guess")
def test_a_rival_that_takes_more_than_it_said_is_stopped(tmp_path, pool, monkeypatch):
    monkeypatch.setattr(
        Guess,
        "compete",
        lambda self, contest: iter([contest.meter.charge(Passes.of(contest.train.examples, 9).forward)]),
    )
    with Reproduction(FakeBackend(), tmp_path, settings(pool, "guess")) as work:
        with pytest.raises(BudgetExceeded, match="8 passes per example forward"):
            work.results()
        with work.backend.ledger.reader() as reader:
            assert LotSums(reader).total == 0


@pytest.mark.usefixtures("guess")
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"guess": {"stebs": "2"}},
            r"guess has no setting 'stebs' \(did you mean 'steps'\?\); it has steps, luck, loud",
        ),
        ({"guess": {"steps": "two"}}, "guess.steps must be a whole number, not 'two'"),
        ({"guess": {"luck": "much"}}, "guess.luck must be a number, not 'much'"),
        ({"guess": {"loud": "yes"}}, "guess.loud must be true or false, not 'yes'"),
        ({"voting": {"steps": "2"}}, "voting is no rival among the methods"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(pool, changes, said):
    with pytest.raises(InputError, match=said):
        settings(pool, "voting", "guess", changes=changes)


@pytest.mark.usefixtures("guess")
def test_names_are_found_or_explained():
    assert method_names() == [*METHODS, "guess", "lost", "mine", "odd"]
    with pytest.raises(
        InputError, match=r"no method is called 'gess' \(did you mean 'guess'\?\); available: boosting, .*guess"
    ):
        find_method("gess")
    with pytest.raises(InputError, match="neither a Rival nor a Method"):
        find_method("odd")
    with pytest.raises(
        MissingExtra, match=r"the method 'lost' can't be imported .*; install what nowhere:Nothing needs"
    ):
        find_method("lost")


def test_a_missing_extra_is_named(monkeypatch):
    entry = metadata.EntryPoint("bbt", "pbsdk_rivals_absent:Bbt", "pbsdk.methods")
    monkeypatch.setattr(metadata, "entry_points", lambda **_: [entry])
    with pytest.raises(MissingExtra, match=r'pip install "pbsdk\[rivals\]"'):
        find_method("bbt")


def test_a_model_that_runs_elsewhere_is_refused_before_anything_else(tmp_path, pool, monkeypatch):
    monkeypatch.setattr(Guess, "access", Access.GRADIENTS)
    monkeypatch.setattr("pbsdk.reproduce.settings.find_method", lambda _: Guess())
    with pytest.raises(
        InputError, match="guess needs gradients, and fake is only asked from outside; leave guess out, or use"
    ):
        Reproduction(FakeBackend(), tmp_path / "new", settings(pool, "guess"))
    assert not (tmp_path / "new").exists()


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize("given", ["bbt", "bbt.evaluations", "evaluations=3", ".x=3", "bbt.=3"])
def test_the_command_explains_set(given):
    done = called("reproduce", "--datasets", "desk", "--set", given)
    assert done.returncode
    assert "--set takes METHOD.SETTING=VALUE, such as bbt.evaluations=400" in " ".join(done.stderr.split())


def test_every_system_of_the_paper_has_a_row_and_figures():
    if not OURS:
        pytest.skip("the entry points are not installed")
    assert set(OURS) == {
        "bbt", "bbtv2", "dart", "feature-mlp", "fine-tuning", "linear-probe", "lm-bff", "lm-bff-demo", "rlprompt"
    }  # fmt: skip
    for name in OURS:
        rival = find_method(name)
        assert (rival.name, rival.title) == (name, ROWS[name])
        assert dataclasses.is_dataclass(rival)
    assert {"fine-tuning", "lm-bff", "dart", "bbt", "bbtv2", "rlprompt"} <= set(FIGURES)
