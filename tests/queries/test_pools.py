"""The pools that come with pbsdk: whole, distinct, and the paper's as the paper prints them."""

import json
import re
import warnings
from importlib import resources

import pytest

from pbsdk.backend import Abilities
from pbsdk.prompting.generation import distinct
from pbsdk.queries.templates import PromptPool, Template, fit_templates, pool_names, read_pool
from pbsdk.reproduce.benchmarks import data_folder

PAPER = ["sst2", "mr", "agnews", "trec", "snli", "mnli", "qnli", "rte"]
OWN = ["sentiment", "topic", "question-type", "intent", "nli", "similarity", "spam", "register"]
PAIRS = {"snli", "mnli", "qnli", "rte", "nli", "similarity"}
CAUSAL = Abilities(mask="last")
MASKED = Abilities(mask="anywhere")


def pool(name):
    return PromptPool.model_validate(
        json.loads((resources.files("pbsdk") / "prompts" / f"{name}.json").read_text("utf-8"))
    )


def test_the_pools_are_the_papers_eight_and_eight_of_our_own():
    assert pool_names() == sorted(PAPER + OWN)


@pytest.mark.parametrize("name", PAPER + OWN)
@pytest.mark.parametrize("abilities", [MASKED, CAUSAL], ids=["masked", "causal"])
def test_each_pool_gives_ten_prompts_to_each_kind_of_model(name, abilities):
    templates = read_pool(name, abilities)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of prompts that are one to this model
        fitted = fit_templates(templates, abilities, pairs=name in PAIRS)
    assert len(set(fitted)) == 10


@pytest.mark.parametrize("name", PAPER + OWN)
def test_prompts_for_causal_models_are_of_their_own_and_end_at_the_mask(name):
    prompts = pool(name).prompts_mask_last
    assert all(Template(prompt).ending_at_mask().source == prompt for prompt in prompts)
    assert distinct(prompts) == prompts


@pytest.mark.parametrize("name", sorted({*PAPER, *OWN} - PAIRS))
def test_prompts_for_causal_models_begin_with_the_text_so_that_it_is_read_once(name):
    assert all(prompt.startswith("<input>") for prompt in pool(name).prompts_mask_last)


@pytest.mark.parametrize("name", OWN)
def test_our_own_pools_have_no_near_duplicates(name):
    assert distinct(pool(name).prompts) == pool(name).prompts


@pytest.mark.parametrize("name", PAPER + OWN)
def test_each_pool_says_what_it_is(name):
    assert pool(name).name == name
    assert pool(name).about.endswith(".")
    assert ("PromptBoosting" in pool(name).about) == (name in PAPER)
    assert pool(name).made is None


def test_the_papers_pools_are_its_last_table():
    folder = data_folder()
    paper = folder.parent / "paper" / "promptboosting.tex" if folder else None
    if paper is None or not paper.is_file():
        pytest.skip("the paper's source is not on this machine")
    table = paper.read_text("utf-8").rpartition(r"\begin{table}")[2]
    rows = re.findall(r"^ +\d+ *&(.*?)&(.*?)\\\\", table, flags=re.MULTILINE)
    cells = [[re.search(r"\\texttt\{(.*)\}", cell).group(1) for cell in row] for row in rows]
    for block, (left, right) in enumerate([("sst2", "mr"), ("agnews", "trec"), ("snli", "mnli"), ("qnli", "rte")]):
        for column, name in enumerate((left, right)):
            printed = [Template(row[column]).source for row in cells[10 * block : 10 * block + 10]]
            assert [bare(prompt) for prompt in pool(name).prompts] == [bare(prompt) for prompt in printed]


def bare(prompt):
    return "".join(prompt.split())  # the table has slips of spacing, such as "at[MASK]"
