"""Drift: answers of a model with other output weights leave the span of those before, and nothing else does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from helpers.meter import grid, metered
from helpers.tiny_models import ask, build

from pbsdk.backend import LEAST, Abilities, MaskDistribution, MaskedLMBackend, ModelIdentity, Vocabulary
from pbsdk.ledger.drift import find_drift
from pbsdk.ledger.reader import LedgerReader
from pbsdk.metering.meter import MeteredBackend
from pbsdk_backends._local.weights import quiet
from pbsdk_backends.local import LocalBackend

WORDS = ("weather", "sea", "rain", "soup", "banks", "boats", "stocks", "oil", "team", "game", "chip", "day", "calm")
FAMILIES = {"roberta": False, "llama": True}
DIMENSIONS = {"roberta": 31, "llama": 32}
"""Both are 32 wide; a layer norm that takes the mean away, as RoBERTa's, leaves 31 dimensions."""
OUTPUT = {"roberta": "lm_head.decoder.weight", "llama": "lm_head.weight"}
HIDDEN = {"roberta": "roberta.encoder.layer.0.output.dense.weight", "llama": "model.layers.0.mlp.down_proj.weight"}
COUNT = 150


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def original(family, tmp_path_factory):
    return build(tmp_path_factory.mktemp(family) / "model", family, causal=FAMILIES[family])


@pytest.fixture(scope="module")
def asked(family):
    random = np.random.default_rng(1)
    texts = [f"{at} {' '.join(random.choice(WORDS, 6))}" for at in range(COUNT)]
    return [ask(text, after="" if FAMILIES[family] else ".") for text in texts]


@pytest.fixture(scope="module")
def answers(original, asked):
    return answers_of(original, asked)


def answers_of(folder, asked):
    model = LocalBackend(model=str(folder), device="cpu")
    return [answer for at in range(0, COUNT, 30) for answer in model.fill(asked[at : at + 30])]


@pytest.fixture
def otherwise(original, family, asked, tmp_path):
    """Return a function that gives the answers of a model that differs in one weight."""

    def changed(name, by):
        auto = transformers.AutoModelForCausalLM if FAMILIES[family] else transformers.AutoModelForMaskedLM
        with quiet(), torch.no_grad():
            model = auto.from_pretrained(original)
            dict(model.named_parameters(remove_duplicate=False))[name][7, 3] += by
            model.save_pretrained(tmp_path / "other")
            transformers.AutoTokenizer.from_pretrained(original).save_pretrained(tmp_path / "other")
        return answers_of(tmp_path / "other", asked)

    return changed


class Provider(MaskedLMBackend):
    """A provider that gives these answers, from whichever model they are, under one name."""

    def __init__(self, asked, answers):
        self.identity = ModelIdentity("provider")
        self.vocabulary = Vocabulary(str(token) for token in range(len(answers[0].codes)))
        self.abilities = Abilities(batch_size=32)
        self._answers = {query.content: answer for query, answer in zip(asked, answers, strict=True)}

    def fill(self, queries, tokens=None):
        return [self._answers[query.content] for query in queries]


@pytest.fixture
def run(tmp_path, asked):
    """Return a function that records answers in a run folder."""

    def recorded(answers):
        with MeteredBackend(Provider(asked[: len(answers)], answers), tmp_path / "run") as lm:
            lm.fill(asked[: len(answers)])
        return tmp_path / "run"

    return recorded


def furthest(some, others):
    """Return by how many steps of the grid answers differ at most."""
    pairs = zip(some, others, strict=True)
    return max(np.abs(one.codes.astype(int) - other.codes.astype(int)).max() for one, other in pairs)


def test_answers_of_one_model_lie_in_a_span_as_wide_as_the_model(run, family, answers):
    found = find_drift(run(answers))
    wide = DIMENSIONS[family]
    assert (found.answers, found.dimension, found.leaving, found.changed) == (COUNT, wide, 0, False)
    assert str(found) == f"drift: none; 150 of 150 whole answers lie in one span of {wide} dimensions"


@pytest.mark.parametrize("at", [110, 40])
def test_one_other_output_weight_is_found_whether_it_came_late_or_early(run, family, answers, otherwise, at):
    folder = run(answers[:at] + otherwise(OUTPUT[family], 0.5)[at:])
    found = find_drift(folder)
    late = at == 110
    assert found.changed
    assert found.leaving >= 0.9 * (COUNT - at if late else at)
    assert str(found).startswith(f"THE MODEL CHANGED: {found.leaving} of 150 whole answers, from record ")
    with LedgerReader(folder) as reader:
        records = [seq for (seq,) in reader.select("SELECT seq FROM records WHERE state = 'done' ORDER BY seq")]
    left = [records.index(found.first), records.index(found.last)]
    assert left == pytest.approx([at, COUNT - 1] if late else [0, at - 1], abs=3)


def test_a_change_within_the_rounding_is_not_reported(run, family, answers, otherwise):
    others = otherwise(OUTPUT[family], 1e-4)
    assert 0 < furthest(answers, others) <= 1
    found = find_drift(run(answers[:110] + others[110:]))
    assert (found.dimension, found.leaving) == (DIMENSIONS[family], 0)


def test_a_change_of_the_hidden_layers_alone_stays_within_the_span(run, family, answers, otherwise):
    others = otherwise(HIDDEN[family], 2.0)
    assert furthest(answers, others) > 100
    found = find_drift(run(answers[:110] + others[110:]))
    assert (found.dimension, found.leaving) == (DIMENSIONS[family], 0)


def coarse(answers):
    return [MaskDistribution.from_logprobs((answer.logprobs * 64).round() / 64) for answer in answers]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda answers: answers[:20], "20 distinct whole answers are too few"),
        (lambda answers: answers[:66], "66 distinct whole answers show no span"),  # fewer than the width needs
        (coarse, "150 distinct whole answers show no span"),
        (lambda answers: [answers[at % 70] for at in range(COUNT)], "70 distinct whole answers show no span"),
    ],
)
def test_nothing_is_claimed_where_no_span_shows(run, answers, made, said):
    found = find_drift(run(made(answers)))
    assert (found.dimension, found.changed) == (None, False)
    assert str(found).startswith(f"drift: can't be told; {said}")


def test_answers_of_chosen_tokens_and_of_the_top_are_said_not_to_serve(tmp_path):
    with metered(tmp_path / "chosen") as lm:
        lm.fill(grid(5, 2), np.array([1, 2, 5]))
        lm.fill(grid(2, 1))
    found = find_drift(tmp_path / "chosen")
    assert (found.answers, found.others, found.dimension) == (2, 10, None)
    assert "10 answers that don't show the whole vocabulary" in str(found)
    with metered(tmp_path / "top", top=5) as lm:
        lm.fill(grid(5, 2))
    assert (find_drift(tmp_path / "top").answers, find_drift(tmp_path / "top").others) == (0, 10)


def test_answers_that_reach_the_grid_s_end_are_set_aside(run, family, answers):
    sunken = [replace(answer, codes=answer.codes.copy()) for answer in answers]
    for answer in sunken[100:104]:
        answer.codes[9] = LEAST
    found = find_drift(run(sunken))
    assert (found.answers, found.others, found.leaving) == (146, 4, 0)
