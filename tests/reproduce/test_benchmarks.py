"""The benchmarks: from a data folder or the hub, with the literature's names and draws."""

import json
import sys
import types

import pytest
from helpers.hub import Dataset
from helpers.needs import needs_data

from pbsdk.data.loading import LabelledTexts
from pbsdk.errors import InputError
from pbsdk.queries.pools import load_pool
from pbsdk.queries.templates import Template
from pbsdk.reproduce.benchmarks import BENCHMARKS, LABEL_WORDS, data_folder, few_shot_of, named, published_prompts


@pytest.fixture
def no_data(monkeypatch, tmp_path):
    empty = tmp_path / "no-data"
    empty.mkdir()
    monkeypatch.setenv("PBSDK_DATA", str(empty))


def test_benchmarks_are_read_from_the_data_folder(tmp_path, monkeypatch):
    (tmp_path / "toy" / "16-13").mkdir(parents=True)
    (tmp_path / "toy" / "meta.json").write_text(json.dumps({"labels": ["no", "yes"], "pair": True}))
    row = json.dumps({"text": "a", "text_pair": "b", "label": 1})
    (tmp_path / "toy" / "train.jsonl").write_text(row)
    (tmp_path / "toy" / "16-13" / "dev.jsonl").write_text(row)
    monkeypatch.setenv("PBSDK_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    assert named("toy") == named("toy", "16-13/dev") == LabelledTexts([("a", "b")], ["yes"])
    with pytest.raises(InputError, match="toy has no split 'dev'; it has 16-13/dev, train"):
        named("toy", "dev")
    with pytest.raises(InputError, match=r"no data set is called 'toi' \(did you mean 'toy'\?\)"):
        named("toi")
    (tmp_path / "toy" / "meta.json").write_text("{}")
    with pytest.raises(InputError, match=r"meta.json can't be read"):
        named("toy")


def test_a_data_folder_that_is_not_there_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("PBSDK_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match=r"PBSDK_DATA is .*nowhere, which is not a folder"):
        data_folder()


def test_without_the_variable_there_is_no_data_folder_and_the_error_names_it(tmp_path, monkeypatch):
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "meta.json").write_text(json.dumps({"labels": ["no", "yes"]}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PBSDK_DATA", raising=False)
    assert data_folder() is None
    with pytest.raises(InputError, match=r"no data set is called 'toy'.*set PBSDK_DATA to a folder that holds them"):
        named("toy")


@pytest.mark.usefixtures("no_data")
def test_benchmarks_come_from_the_hub_with_the_literatures_names(hub):
    names = types.SimpleNamespace(names=["ABBR", "ENTY", "DESC", "HUM", "LOC", "NUM"])
    features = {"text": None, "coarse_label": names, "fine_label": None}
    hub.answers["CogComp/trec"] = Dataset(features, text=["Who?", "Where?"], coarse_label=[3, 4], fine_label=[1, 2])
    assert named("trec", "test") == LabelledTexts(["Who?", "Where?"], ["human", "location"])
    hub.answers["stanfordnlp/snli"] = Dataset(premise=["a", "b"], hypothesis=["c", "d"], label=[2, -1])
    assert named("snli", "test") == LabelledTexts([("a", "c")], ["contradiction"])
    hub.answers["SetFit/subj"] = Dataset(text=["x"], label=[0], label_text=["objective"])
    assert named("subj") == LabelledTexts(["x"], ["objective"])
    assert hub.asked == [
        ("CogComp/trec", None, "test"),
        ("stanfordnlp/snli", None, "validation"),
        ("SetFit/subj", None, "train"),
    ]
    with pytest.raises(InputError, match=r"the hub has no split '16-13/train'.*few_shot.*PBSDK_DATA"):
        named("trec", "16-13/train")


@pytest.mark.usefixtures("no_data")
def test_a_benchmark_that_is_nowhere_names_both_cures(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"qnli is not on this machine; set PBSDK_DATA .*, or pip install datasets"):
        named("qnli")


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_class_of_a_benchmark_has_a_label_word_of_its_own(name):
    words = LABEL_WORDS[name]
    assert len(set(words.values())) == len(words)
    if BENCHMARKS[name].names:
        assert set(BENCHMARKS[name].names) == set(words)


@needs_data
@pytest.mark.parametrize("name", ["sst2", "mr", "agnews", "trec", "snli", "rte"])
def test_the_published_pool_begins_with_the_papers_ten(name):
    prompts = published_prompts(name)
    assert prompts[:10] == load_pool(name).prompts
    assert len(prompts) >= 50
    assert all(Template(prompt).is_pair == (name in {"snli", "rte"}) for prompt in prompts)


@needs_data
def test_published_draws_are_taken_where_they_are():
    draw = few_shot_of("agnews", seed=21)
    assert draw.train == named("agnews", "16-21/train")
    assert draw.validation == named("agnews", "16-21/dev")
    larger = few_shot_of("trec", k=128, seed=13)
    assert larger.train.labels.count("abbreviation") == 70  # all 86 but the sixteen for validation
    assert larger.validation.labels.count("abbreviation") == 16
