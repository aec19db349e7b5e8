"""Why a query was not recalled: the part of the key that differs is named."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.meter import grid, metered, query

from pbsdk.audit.misses import why_miss
from pbsdk.backend import MaskedQuery, Part
from pbsdk.queries.examples import Example
from pbsdk.queries.templates import Template

TOKENS = np.array([1, 2, 5])


def test_the_first_time_nothing_was_known(tmp_path):
    metered(tmp_path).fill(grid(3, 2))
    (miss,) = why_miss(tmp_path).misses
    assert (miss.part, miss.queries, miss.nearest) == ("nothing like it was known", 6, None)


def test_a_run_without_a_query_has_no_miss(tmp_path):
    metered(tmp_path).close()
    assert why_miss(tmp_path).misses == []
    assert "nothing was sent" in str(why_miss(tmp_path))


def asked_after(tmp_path, first, then, tokens=None, then_tokens=None):
    lm = metered(tmp_path)
    lm.fill(first, tokens)
    known = lm.audit().records
    lm.fill(then, then_tokens)
    later = [miss for miss in why_miss(tmp_path).misses if miss.record > known]
    assert len(later) == 1
    return later[0]


def test_another_token_set(tmp_path):
    miss = asked_after(tmp_path, [query(1)], [query(1)], TOKENS, np.array([1, 2, 7, 9]))
    assert (miss.part, miss.queries) == ("token set", 1)
    assert miss.detail == "4 tokens were asked for, 2 of which are not among the 3 known"
    assert miss.nearest == 4


def test_all_tokens_after_chosen_ones(tmp_path):
    miss = asked_after(tmp_path, [query(1)], [query(1)], TOKENS)
    assert miss.part == "token set"
    assert "all tokens were asked for" in miss.detail


def test_another_prompt_names_the_nearest_one(tmp_path):
    example = Example("a text")
    prompts = [Template("<input> Quite different <mask>"), Template("<input> It was <mask>.")]
    first = [template.query(example) for template in prompts]
    miss = asked_after(tmp_path, first, [Template("<input> It was <mask>!").query(example)])
    assert miss.part == "prompt"
    assert miss.detail == "'<input> It was <mask>!' here, '<input> It was <mask>.' known"


def test_another_style_of_rendering(tmp_path):
    template, example = Template("<input>? <mask>"), Example("a text...")
    miss = asked_after(tmp_path, [template.query(example)], [template.query(example, style="paper")])
    assert miss.part == "rendering style"
    assert "'paper: <input>? <mask>' here" in miss.detail


def test_another_text_under_a_known_prompt(tmp_path):
    miss = asked_after(tmp_path, [query(1)], [query(2)])
    assert miss.part == "text"


def test_the_same_text_and_prompt_with_other_characters(tmp_path):
    def asked(text):
        return MaskedQuery((Part("input", text), Part("mask")), "0" * 32, "<input><mask>")

    miss = asked_after(tmp_path, [asked("a")], [asked("a ")])
    assert miss.part == "text as rendered"


def test_another_model_is_compared_run_against_run(tmp_path):
    metered(tmp_path / "one").fill(grid(2, 2))
    metered(tmp_path / "two", seed=7).fill(grid(2, 3))
    report = why_miss(tmp_path / "two", against=tmp_path / "one")
    assert {miss.part: miss.queries for miss in report.misses} == {
        "model identity": 4,
        "model identity and prompt": 2,
    }
    assert "seed: 7 here, 0 there" in report.misses[0].detail
    assert report.queries == 6


def test_the_same_model_in_another_folder(tmp_path):
    for name in ("one", "two"):
        metered(tmp_path / name).fill(grid(2, 2))
    (miss,) = why_miss(tmp_path / "two", against=tmp_path / "one").misses
    assert (miss.part, miss.queries) == ("run folder", 4)


def test_a_retry_is_not_another_miss(tmp_path):
    from pbsdk.errors import BackendUnavailable

    lm = metered(tmp_path, failures=[BackendUnavailable("busy")])
    lm.fill([query(1)])
    assert why_miss(tmp_path).queries == 1


@pytest.mark.parametrize("against", [None, "one"])
def test_the_text_says_part_count_and_record(tmp_path, against):
    metered(tmp_path / "one").fill(grid(2, 2))
    text = str(why_miss(tmp_path / "one", against and tmp_path / against))
    assert "4 queries were sent" in text
    assert "first in record 2" in text
