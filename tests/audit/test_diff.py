"""Two runs side by side."""

from __future__ import annotations

import re

from helpers.meter import grid, metered

from pbsdk.audit.diff import AuditDiff


def runs(tmp_path):
    metered(tmp_path / "a").fill(grid(4, 2))
    lm = metered(tmp_path / "b", seed=3)
    lm.fill(grid(3, 3))
    lm.fill(grid(1, 2, "predict"))
    return AuditDiff.read(tmp_path / "a", tmp_path / "b")


def test_every_number_stands_beside_its_counterpart(tmp_path):
    found = runs(tmp_path)
    at = {(row.where, row.name): row for row in found.differences}
    passes = at["train", "passes"]
    assert (passes.a, passes.b, passes.difference) == (8, 9, 1)
    assert (at["predict", "hits"].a, at["predict", "hits"].b, at["predict", "hits"].difference) == (None, 2, None)
    assert at["all", "attempts"].difference == 1
    assert (found.passes_in_both, found.passes_only_a, found.passes_only_b) == (6, 2, 3)
    assert found.model == "seed: 0 here, 3 there"


def test_text_and_markdown_say_the_same(tmp_path):
    found = runs(tmp_path)
    words = next(line.split() for line in str(found).splitlines() if line.startswith("train: passes  "))
    assert words == ["train:", "passes", "8", "9", "+1"]
    assert "| train: passes | 8 | 9 | +1 |" in found.to_markdown()
    assert "6 in both, 2 only in A, 3 only in B" in str(found)
    assert found.to_dict()["a"]["verdict"] in str(found)


def test_differences_are_written_like_what_differs_and_a_phase_that_a_run_lacks_has_no_limit(tmp_path):
    found = runs(tmp_path)
    cells = {line.split("  ")[0]: line.split() for line in str(found).splitlines()}
    assert cells["predict: passes per example, limit"][-3:] == ["-", "10", "-"]
    assert cells["train: passes per example, limit"][-3:] == ["10", "10", "0"]
    assert re.search(r"\nall: on disk +[\d.]+ [KM]B +[\d.]+ [KM]B +(0|[+-][\d.]+ [KM]?B)", str(found))
    assert re.search(r"\ntrain: time at the model +[\d.e-]+ s +[\d.e-]+ s +(0|[+-][\d.e-]+ s)", str(found))


def test_a_run_against_itself_shows_no_difference(tmp_path):
    metered(tmp_path).fill(grid(2, 2))
    found = AuditDiff.read(tmp_path, tmp_path)
    assert {row.difference for row in found.differences} <= {0.0, None}
    assert "model: the same" in str(found)
