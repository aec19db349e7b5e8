"""LM-BFF's sampler: the published draws, and what can go wrong."""

import json

import pytest

from pbsdk.data.loading import LabelledTexts
from pbsdk.data.sampling import SEEDS, few_shot, few_shot_rows, held_out, held_out_rows
from pbsdk.errors import InputError
from pbsdk.reproduce.benchmarks import data_folder, named


def whole_sets():
    folder = data_folder()
    metas = sorted(folder.glob("*/meta.json")) if folder else []
    return [meta.parent.name for meta in metas if json.loads(meta.read_text("utf-8"))["train_is_whole"]]


@pytest.mark.skipif(not whole_sets(), reason="the published draws are not on this machine: set PBSDK_DATA")
@pytest.mark.parametrize("name", whole_sets() or ["none"])
def test_the_sampler_gives_the_published_draws_row_for_row(name):
    rows = named(name, "train")
    for seed in SEEDS:
        draw = few_shot(rows, k=16, seed=seed)
        assert draw.train == named(name, f"16-{seed}/train")
        assert draw.validation == named(name, f"16-{seed}/dev")


@pytest.mark.skipif(data_folder() is None, reason="the published draws are not on this machine: set PBSDK_DATA")
def test_the_five_sets_with_whole_training_files_are_tested():
    assert {"mr", "rte", "sst2", "subj", "trec"} <= set(whole_sets())


LABELS = (["a"] * 300 + ["b"] * 300 + ["c"] * 300) * 1


@pytest.mark.parametrize("k", [1, 2, 16, 32, 256])
def test_each_class_gives_k_rows_and_validation_at_most_sixteen(k):
    train, dev = few_shot_rows(LABELS, k=k, seed=21)
    assert not set(train) & set(dev)
    for label in "abc":
        assert sum(LABELS[row] == label for row in train) == k
        assert sum(LABELS[row] == label for row in dev) == min(k, 16)


def test_a_larger_draw_contains_the_smaller_one():
    small, _ = few_shot_rows(LABELS, k=16, seed=42)
    large, _ = few_shot_rows(LABELS, k=64, seed=42)
    assert set(small) < set(large)


def test_seeds_differ_and_repeat():
    draws = {seed: few_shot_rows(LABELS, k=16, seed=seed) for seed in SEEDS}
    assert len({tuple(train) for train, _ in draws.values()}) == len(SEEDS)
    assert draws[13] == few_shot_rows(LABELS, k=16, seed=13)


@pytest.mark.parametrize("k", [0, 257])
def test_k_out_of_range_is_refused(k):
    with pytest.raises(InputError, match="1 to 256"):
        few_shot_rows(LABELS, k=k)


def test_a_class_with_too_few_rows_is_named():
    with pytest.raises(InputError, match=r"'rare' has 3 rows, but 4 \+ 2 were asked for; .*fewer=True"):
        few_shot_rows(["often"] * 20 + ["rare"] * 3, k=4, validation=2)


def test_fewer_takes_what_there_is_and_keeps_validation():
    labels = ["often"] * 20 + ["rare"] * 3
    train, dev = few_shot_rows(labels, k=4, validation=2, fewer=True)
    assert [labels[row] for row in sorted(train)] == ["often"] * 4 + ["rare"]
    assert [labels[row] for row in sorted(dev)] == ["often"] * 2 + ["rare"] * 2


def test_validation_may_be_left_out_but_not_negative():
    assert few_shot_rows(LABELS, k=4, validation=0)[1] == []
    with pytest.raises(InputError, match="0 or more"):
        few_shot_rows(LABELS, k=4, validation=-1)


def test_nothing_to_draw_from_is_refused():
    with pytest.raises(InputError, match="no labelled rows"):
        few_shot_rows([])


def test_full_data_holds_a_tenth_of_every_class_out():
    labels = ["a"] * 100 + ["b"] * 40 + ["c"] * 3
    train, dev = held_out_rows(labels, seed=87)
    assert sorted(train + dev) == list(range(143))
    assert [sum(labels[row] == label for row in dev) for label in "abc"] == [10, 4, 1]
    assert train == sorted(train)


def test_held_out_rows_keep_their_texts():
    data = LabelledTexts([f"text {row}" for row in range(20)], ["x", "y"] * 10)
    split = held_out(data, seed=100)
    for part in (split.train, split.validation):
        assert all(
            label == ("x", "y")[int(text.split()[1]) % 2]
            for text, label in zip(part.examples, part.labels, strict=True)
        )
    assert len(split.validation) == 2


@pytest.mark.parametrize("part", [0, 1, 1.5])
def test_a_part_out_of_range_is_refused(part):
    with pytest.raises(InputError, match="between 0 and 1"):
        held_out_rows(LABELS, part=part)


def test_a_class_of_one_row_cannot_be_split():
    with pytest.raises(InputError, match="'b' has only one row"):
        held_out_rows(["a", "a", "b"])
