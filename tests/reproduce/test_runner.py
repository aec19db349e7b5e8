"""The paper's tables: methods that share answers, cells that are remembered, and runs that go on."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest
from helpers.benchmarks import PROMPTS
from sklearn.metrics import f1_score

from pbsdk import PromptBoostingClassifier
from pbsdk.errors import BudgetExceeded, InputError, LedgerError
from pbsdk.ledger.folder_view import DATABASE
from pbsdk.ledger.reader import LedgerReader
from pbsdk.ledger.verifier import verify_run
from pbsdk.metering.meter import MeteredBackend
from pbsdk.queries.pools import load_pool
from pbsdk.reproduce.benchmarks import few_shot_of, named
from pbsdk.reproduce.methods import BLACK_BOX
from pbsdk.reproduce.runner import Reproduction
from pbsdk.reproduce.settings import Settings
from pbsdk.testing import FakeBackend


def settings(pool, **more):
    return Settings(
        **{"datasets": ("desk",), "seeds": (13, 21), "prompts": (pool,), "test_rows": 40, "rounds": 20, **more}
    )


def run(folder, chosen, backend=None, **more):
    fake = backend or FakeBackend()
    with Reproduction(fake, folder, chosen, **more) as work:
        results = work.results()
        report = work.backend.audit()
    return results, report, fake


def passes(report):
    return sum(phase.passes for phase in report.phases)


def test_every_method_has_a_row_and_all_share_the_passes_of_the_largest(tmp_path, pool):
    methods = tuple(name for name in BLACK_BOX if name not in {"k-64", "k-128", "k-256"})
    results, report, fake = run(tmp_path / "all", settings(pool, methods=methods))
    assert {(cell.method, cell.seed) for cell in results.cells} == {(m, seed) for m in methods for seed in (13, 21)}
    # Every training row under all twelve prompts, for refinement asks for all; forty test rows under those it chose too.
    fit = [phase for phase in report.phases if phase.phase in {"train", "validate", "refine"}]
    assert sum(phase.passes for phase in fit) <= 128 * 12
    assert len({(query.example, query.prompt) for query in fake.asked}) == len(fake.asked)
    boosting = {cell.seed: cell.score for cell in results.cells if cell.method == "boosting"}
    assert boosting == {cell.seed: cell.score for cell in results.cells if cell.method == "boosting-10"}
    mean = {summary.method: summary.mean for summary in results.summaries()}
    assert mean["boosting"] > mean["random"] + 20
    assert mean["manual"] > mean["random"]
    assert verify_run(tmp_path / "all" / "run").answers == len(fake.asked)


def test_without_refinement_they_cost_ten_passes_an_example(tmp_path, pool):
    results, report, fake = run(
        tmp_path / "ten", settings(pool, methods=("boosting", "boosting-32", "voting", "random"))
    )
    draws = [few_shot_of("desk", seed=seed) for seed in (13, 21)]
    texts = {text for draw in draws for part in (draw.train, draw.validation) for text in part.examples}
    assert len(fake.asked) == passes(report) == 10 * (len(texts) + 40)
    assert "10 of 10 passes per example (fit)" in report.verdict
    assert {cell.passes for cell in results.cells} == {10 * 128}
    assert all(cell.asking_seconds > 0 for cell in results.cells)


def test_a_second_run_asks_nothing_and_a_method_added_later_neither(tmp_path, pool):
    first, *_ = run(tmp_path, settings(pool, methods=("boosting", "voting")))
    again, _, fake = run(tmp_path, settings(pool, methods=("boosting", "voting")))
    assert again == first
    assert not fake.asked
    more, _, fake = run(tmp_path, settings(pool, methods=("boosting", "voting", "best-single", "boosting-5", "manual")))
    assert not fake.asked
    assert {cell.key for cell in first.cells} < {cell.key for cell in more.cells}


def test_a_cell_is_made_anew_when_anything_that_it_depends_on_changes(tmp_path, pool):
    base, *_ = run(tmp_path, settings(pool, methods=("boosting",), seeds=(13,)))
    keys = {base.cells[0].key}
    for change in ({"test_rows": 30}, {"rounds": 3}, {"on_perfect": "vote"}, {"style": "paper"}, {"seeds": (21,)}):
        changed, *_ = run(tmp_path, settings(pool, **{"methods": ("boosting",), "seeds": (13,), **change}))
        keys.add(changed.cells[0].key)
    assert len(keys) == 6


def test_the_estimator_gives_the_same_score(tmp_path, pool):
    results, *_ = run(
        tmp_path / "cells", settings(pool, methods=("boosting", "boosting-32", "boosting-5"), test_rows=None)
    )
    score = {(cell.method, cell.seed): cell.score for cell in results.cells}
    test = named("desk", "test")
    for seed in (13, 21):
        draw = few_shot_of("desk", seed=seed)
        for method, more in (
            ("boosting", {}),
            ("boosting-5", {"n_prompts": 5}),
            ("boosting-32", {"merge_validation": True, "rounds": 50}),
        ):
            given = {
                "head": "boosting",
                "rounds": 20,
                "n_prompts": 10,
                "on_perfect": "best",
                "random_state": seed,
                **more,
            }
            clf = PromptBoostingClassifier(MeteredBackend(FakeBackend(), tmp_path / "run"), PROMPTS, **given)
            validation = (draw.validation.examples, draw.validation.labels)
            clf.fit(draw.train.examples, draw.train.labels, validation=validation)
            assert clf.score(test.examples, test.labels) == score[method, seed]


def test_refinement_chooses_prompts_and_halving_asks_for_less(tmp_path, pool):
    chosen = {"seeds": (13,), "test_rows": 20}
    paper, whole, _ = run(tmp_path / "paper", settings(pool, methods=("refinement",), **chosen))
    halving, part, _ = run(tmp_path / "halving", settings(pool, methods=("halving",), **chosen))
    refined = [next(p.passes for p in report.phases if p.phase == "refine") for report in (whole, part)]
    assert refined[0] == 128 * 12 == paper.cells[0].passes
    assert refined[1] <= refined[0]
    assert paper.cells[0].n_prompts == halving.cells[0].n_prompts == 10


def test_a_budget_that_is_too_small_is_refused_before_anything_is_sent(tmp_path, pool):
    fake = FakeBackend()
    with Reproduction(fake, tmp_path, settings(pool), budget=9) as work:
        assert not work.plan.allowed
        with pytest.raises(BudgetExceeded):
            work.results()
    assert not fake.asked


def test_the_plan_is_what_is_asked(tmp_path, pool):
    fake = FakeBackend()
    with Reproduction(fake, tmp_path, settings(pool, methods=("boosting-5", "k-32"))) as work:
        planned = work.plan.total("passes")
        assert not fake.asked
        work.results()
    assert len(fake.asked) == planned
    with Reproduction(FakeBackend(), tmp_path, settings(pool, methods=("boosting-5", "k-32"))) as work:
        assert work.plan.total("passes") == 0


def test_pairs_are_scored_by_f1_and_take_our_own_pool_where_the_paper_prints_none(tmp_path, pool):
    results, *_ = run(tmp_path, settings("paper", datasets=("mrpc",), methods=("voting",), seeds=(13,)))
    (cell,) = results.cells
    assert (cell.measure, cell.prompts, cell.pool, cell.test) == ("F1", "paper", "similarity", 40)
    assert "MRPC, F1" in results.to_markdown()
    with Reproduction(
        FakeBackend(), tmp_path / "again", settings("paper", datasets=("mrpc",), methods=("voting",))
    ) as work:
        data = work._data["mrpc"]
        right = f1_score(data.test.labels, data.test.labels[::-1], pos_label=data.classes.index("equivalent"))
        assert data.score(data.test.labels[::-1]) == right


def test_generated_prompts_are_written_once_for_each_draw(tmp_path, pool):
    chosen = settings("generated", methods=("boosting-5",), per_class=1, test_rows=10)
    fake = FakeBackend(mask="last", vocabulary_size=200)
    first, report, _ = run(tmp_path, chosen, fake)
    written = sorted(path.name for path in (tmp_path / "pools").iterdir())
    assert written == ["desk-13-5-1.json", "desk-21-5-1.json"]
    assert load_pool(tmp_path / "pools" / written[0]).made.method == "causal"
    assert next(phase for phase in report.phases if phase.phase == "generate").passes > 0
    again, _, fake = run(tmp_path, chosen, FakeBackend(mask="last", vocabulary_size=200))
    assert again == first
    assert not fake.asked


def test_what_cannot_work_is_said_before_anything_is_sent(tmp_path, pool, monkeypatch):
    for wrong, said in (
        ({"methods": ("bosting",)}, "did you mean 'boosting'"),
        ({"methods": ()}, "no methods"),
        ({"seeds": (13, 13)}, "twice"),
        ({"test_rows": 0}, "test_rows is 0"),
        ({"prompts": ("nowhere",)}, "no pool and no file"),
    ):
        with pytest.raises(InputError, match=said):
            settings(pool, **wrong)
    fake = FakeBackend()
    for chosen, said in (
        (settings(pool, datasets=("disk",)), "no data set is called 'disk'"),
        (settings("own"), "no pool for desk"),
        (settings(pool, datasets=("mrpc",), methods=("voting",)), "takes one text"),
        (settings("paper", datasets=("mrpc",), methods=("manual",)), "no single token for 'Yes'"),
        (settings("generated"), "isn't causal"),
        (settings("intent", methods=("refinement",)), "10 prompts can't be refined to 10"),
    ):
        with pytest.raises(InputError, match=said):
            Reproduction(fake, tmp_path / "wrong", chosen)
    assert not fake.asked


def test_a_line_that_was_cut_off_is_made_anew(tmp_path, pool):
    first, *_ = run(tmp_path, settings(pool, methods=("boosting",)))
    file = tmp_path / "results.jsonl"
    file.write_text(file.read_text("utf-8")[:-40], "utf-8")
    again, _, fake = run(tmp_path, settings(pool, methods=("boosting",)))
    assert not fake.asked
    assert [cell.score for cell in again.cells] == [cell.score for cell in first.cells]
    third, *_ = run(tmp_path, settings(pool, methods=("boosting",)))
    assert third == again


def command(*arguments):
    return [sys.executable, "-m", "pbsdk", "reproduce", *map(str, arguments), "--model", "fake", "--no-progress"]


def reproduced(benchmarks, *arguments):
    environment = {**os.environ, "PBSDK_DATA": str(benchmarks)}
    return subprocess.run(
        command(*arguments), env=environment, capture_output=True, text=True, check=False, timeout=300
    )


def answers(folder):
    if not (folder / DATABASE).is_file():
        return 0
    with suppress(LedgerError), LedgerReader(folder) as reader:  # it is being made
        return reader.rows("answers")
    return 0


def test_a_killed_run_goes_on_where_it_was(tmp_path, benchmarks, pool):
    arguments = (
        "--datasets",
        "desk",
        "--prompts",
        pool,
        "--seeds",
        "13,21",
        "--test-rows",
        40,
        "--methods",
        "boosting,voting",
    )
    environment = {**os.environ, "PBSDK_DATA": str(benchmarks)}
    slow = command(*arguments, "--folder", tmp_path / "killed", "-o", "latency=0.05", "-o", "batch_size=16")
    with subprocess.Popen(slow, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while answers(tmp_path / "killed" / "run") < 200:
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    held = verify_run(tmp_path / "killed" / "run").answers
    again = reproduced(benchmarks, *arguments, "--folder", tmp_path / "killed", "--json")
    assert again.returncode == 0, again.stderr
    straight, report, _ = run(tmp_path / "straight", settings(pool, methods=("boosting", "voting"), rounds=200))
    assert 0 < held < passes(report) == verify_run(tmp_path / "killed" / "run").answers
    found = json.loads(again.stdout)
    assert [cell["score"] for cell in found["cells"]] == [cell.score for cell in straight.cells]
