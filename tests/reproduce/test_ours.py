"""Our own rows and the references: on the same answers, on part of them, on texts alone, and past the interface."""

import json

import numpy as np
import pytest

from pbsdk import PromptBoostingClassifier
from pbsdk.backend import Abilities
from pbsdk.errors import InputError
from pbsdk.metering.meter import MeteredBackend
from pbsdk.queries.pools import load_pool
from pbsdk.reproduce.benchmarks import few_shot_of, named
from pbsdk.reproduce.figures import OWN_POOLS, TOPS
from pbsdk.reproduce.methods import BLACK_BOX, METHODS
from pbsdk.reproduce.prompt_sets import pools_of
from pbsdk.reproduce.runner import Reproduction
from pbsdk.reproduce.settings import Settings
from pbsdk.testing import FakeBackend, TopOnly

SEEDS = (13, 21)


def run(folder, pool, *methods, backend=None, **more):
    fake = backend or FakeBackend()
    given = {"datasets": ("desk",), "seeds": SEEDS, "prompts": (pool,), "test_rows": 40, "rounds": 20, **more}
    with Reproduction(fake, folder, Settings(methods=methods, **given)) as work:
        return work.results(), fake


def scores(results):
    return {(cell.method, cell.seed): cell.score for cell in results.cells}


class OpenFake(FakeBackend):
    """A fake whose hidden states say how often a text has each letter, and a little about the prompt."""

    def hidden_states(self, queries):
        self.seen = [*getattr(self, "seen", ()), *queries]
        letters = "abcdefghijklmnopqrstuvwxyz"
        return np.array([[query.text().lower().count(letter) for letter in letters] for query in queries], dtype=float)


def test_our_heads_learn_from_the_same_ten_passes(tmp_path, pool):
    ours = ("soft", "auto", "auto-text", "boosting-top20", "soft-top20", "auto-top20", "auto-text-top20")
    results, fake = run(tmp_path, pool, "boosting", *ours)
    assert {cell.method for cell in results.cells} == {"boosting", *ours}
    assert {cell.passes for cell in results.cells} == {10 * 128}
    draws = [few_shot_of("desk", seed=seed) for seed in SEEDS]
    texts = {text for draw in draws for part in (draw.train, draw.validation) for text in part.examples}
    assert len(fake.asked) == 10 * (len(texts) + 40)
    assert all(0 <= cell.calibration_error <= 1 for cell in results.cells)
    mean = {summary.method: summary.mean for summary in results.summaries()}
    assert min(mean[name] for name in ours) > 40  # four classes


def test_the_estimator_gives_the_same_scores_from_all_labelled_texts(tmp_path, pool):
    results, _ = run(tmp_path / "cells", pool, "soft", "auto", test_rows=None, seeds=(13,))
    draw, test = few_shot_of("desk", seed=13), named("desk", "test")
    for head, more in (("soft", {}), ("auto", {"text_features": False})):
        made = METHODS[head].head(None) if more else head
        clf = PromptBoostingClassifier(
            MeteredBackend(FakeBackend(), tmp_path / "run"), pool, head=made, n_prompts=10, random_state=13
        )
        clf.fit([*draw.train.examples, *draw.validation.examples], [*draw.train.labels, *draw.validation.labels])
        assert clf.score(test.examples, test.labels) == scores(results)[head, 13]


def test_what_sees_the_top_does_as_on_a_model_that_shows_no_more(tmp_path, pool):
    for top in TOPS:
        part, _ = run(tmp_path / "part", pool, f"boosting-top{top}", f"soft-top{top}", f"auto-top{top}")
        fewer, _ = run(tmp_path / f"top{top}", pool, "boosting", "soft", "auto", backend=TopOnly(FakeBackend(), top))
        there = {(f"{method}-top{top}", seed): score for (method, seed), score in scores(fewer).items()}
        assert scores(part) == there
    with pytest.raises(InputError, match="shows only its top 7; leave the method soft-top20 out"):
        run(tmp_path / "less", pool, "soft-top20", backend=TopOnly(FakeBackend(), 7))


def test_tf_idf_asks_nothing(tmp_path, pool):
    results, fake = run(tmp_path, pool, "tf-idf")
    assert not fake.asked
    assert {(cell.passes, cell.n_prompts, cell.metered) for cell in results.cells} == {(0, 0, True)}
    assert min(cell.score for cell in results.cells) > 0.5
    assert "| TF-IDF + logistic regression (no model) |" in results.to_markdown()


def test_a_white_box_is_said_to_be_one_and_not_metered(tmp_path, pool):
    results, fake = run(tmp_path, pool, "hidden-state", backend=OpenFake(), seeds=(13,))
    assert not fake.asked
    (cell,) = results.cells
    assert (cell.passes, cell.n_prompts, cell.metered) == (10 * 128, 10, False)
    assert len(fake.seen) == 10 * (128 + 40)
    assert cell.score > 0.3
    text = results.to_markdown()
    assert "| Hidden states + logistic regression (white box, not metered) |" in text
    assert "its passes are not in the ledger" in text


def test_a_black_box_refuses_to_be_a_white_one(tmp_path, pool):
    with pytest.raises(InputError, match="fake doesn't show its hidden states; leave the method hidden-state out"):
        run(tmp_path, pool, "hidden-state")
    assert set(METHODS) - set(BLACK_BOX) == {"hidden-state"}


@pytest.fixture
def showing(tmp_path):
    prompts = [f"One of: <labels>.\n\n<examples><input> {said} <mask>." for said in ("So", "My", "The")]
    path = tmp_path / "showing.json"
    path.write_text(json.dumps({"prompts": ["<input> A <mask>.", *prompts], "prompts_mask_last": []}))
    return str(path)


@pytest.mark.usefixtures("pool")
def test_demonstrations_are_drawn_anew_in_each_draw_and_never_asked_about(tmp_path, showing):
    methods = ("boosting", "boosting-32", "soft", "auto", "auto-top20", "tf-idf")
    results, fake = run(tmp_path / "shown", showing, *methods)
    # Three of four prompts show a text of each of four classes, which they don't ask about.
    assert {cell.method: cell.passes for cell in results.cells} == {
        **dict.fromkeys(methods, 4 * 128 - 3 * 4), "tf-idf": 0
    }  # fmt: skip
    for query in fake.asked:
        inputs = [part.text for part in query.parts if part.kind == "input"]
        before = "".join(part.text for part in query.parts if part.kind == "prompt")
        assert inputs[0] not in before
    # The plain prompt serves both draws; the others are asked about the test rows once for each draw.
    assert sum(query.phase == "predict" for query in fake.asked) == 40 * (1 + 2 * 3)
    again, fake = run(tmp_path / "shown", showing, *methods)
    assert again == results
    assert not fake.asked


@pytest.mark.usefixtures("pool")
def test_the_plan_knows_the_demonstrations_and_the_estimator_agrees(tmp_path, showing):
    fake = FakeBackend()
    given = Settings(datasets=("desk",), methods=("soft",), seeds=SEEDS, prompts=(showing,))
    with Reproduction(fake, tmp_path / "run", given) as work:
        planned = work.plan.total("passes")
        results = work.results()
    assert len(fake.asked) == planned
    draw, test = few_shot_of("desk", seed=13), named("desk", "test")
    clf = PromptBoostingClassifier(
        MeteredBackend(FakeBackend(), tmp_path / "own"), showing, head="soft", random_state=13
    )
    clf.fit(draw.train.examples, draw.train.labels, validation=(draw.validation.examples, draw.validation.labels))
    # The estimator's views are of the training texts alone, the table's of all labelled ones.
    assert clf.score(test.examples, test.labels) == pytest.approx(scores(results)["soft", 13], abs=0.1)


@pytest.mark.usefixtures("pool")
def test_demonstrations_cannot_be_refined(tmp_path, showing):
    with pytest.raises(InputError, match="show demonstrations can't be chosen by refinement"):
        run(tmp_path / "x", showing, "halving")


def test_the_set_shown_has_a_pool_for_every_data_set():
    for dataset in OWN_POOLS:
        (name,) = pools_of(dataset, "shown")
        assert any(template.has_examples for template in load_pool(name).templates(Abilities()))
