"""Pools: those that come with pbsdk, those that users hand in, and what is refused before anything is sent."""

import json
import re
import warnings
from importlib import resources

import pytest

from pbsdk.backend import Abilities
from pbsdk.errors import InputError, TemplateError
from pbsdk.prompting.generation import distinct, write_pool
from pbsdk.queries.pools import PromptPool, fit_templates, load_pool, pool_names, read_pool
from pbsdk.queries.templates import Template
from pbsdk.reproduce.benchmarks import data_folder

PAPER = ["sst2", "mr", "agnews", "trec", "snli", "mnli", "qnli", "rte"]
OWN = ["sentiment", "topic", "question-type", "intent", "nli", "similarity", "spam", "register"]
SHOWN = [f"{name}-shown" for name in (*PAPER, *OWN)]
PAIRS = {"snli", "mnli", "qnli", "rte", "nli", "similarity"}
PAIRS |= {f"{name}-shown" for name in PAIRS}
CAUSAL = Abilities(mask="last")
MASKED = Abilities(mask="anywhere")
CHAT = Abilities(mask="last", turns=True)


def pool(name):
    return PromptPool.model_validate(
        json.loads((resources.files("pbsdk") / "prompts" / f"{name}.json").read_text("utf-8"))
    )


def test_the_pools_are_the_papers_eight_and_eight_of_our_own_each_with_one_that_shows_demonstrations():
    assert pool_names() == sorted(PAPER + OWN + SHOWN)


@pytest.mark.parametrize("name", PAPER + OWN + SHOWN)
@pytest.mark.parametrize("abilities", [MASKED, CAUSAL, CHAT], ids=["masked", "causal", "chat"])
def test_each_pool_gives_ten_prompts_to_each_kind_of_model(name, abilities):
    templates = read_pool(name, abilities)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of prompts that are one to this model
        fitted = fit_templates(templates, abilities, pairs=name in PAIRS)
    assert len(set(fitted)) == 10


@pytest.mark.parametrize("name", PAPER + OWN + SHOWN)
def test_prompts_for_causal_models_are_of_their_own_and_end_at_the_mask(name):
    prompts = pool(name).prompts_mask_last
    assert all(Template(prompt).ending_at_mask().source == prompt for prompt in prompts)
    if name not in SHOWN:
        assert distinct(prompts) == prompts


@pytest.mark.parametrize("name", PAPER + OWN)
@pytest.mark.parametrize("kind", ["prompts", "prompts_mask_last"])
def test_a_pool_that_shows_demonstrations_is_three_plain_five_that_say_more_and_two_of_a_general_layout(name, kind):
    plain, shown = getattr(pool(name), kind), getattr(pool(f"{name}-shown"), kind)
    assert shown[:3] == plain[:3]
    assert shown[3:8] == [f"Possible answers: <labels>.\n\n<examples>{prompt}" for prompt in plain[:5]]
    assert shown[8:] == getattr(pool("nli-shown" if name in PAIRS else "topic-shown"), kind)[8:]
    assert [Template(prompt).has_examples for prompt in shown] == [False] * 3 + [True] * 7


@pytest.mark.parametrize("name", sorted({*PAPER, *OWN} - PAIRS))
def test_prompts_for_causal_models_begin_with_the_text_so_that_it_is_read_once(name):
    assert all(prompt.startswith("<input>") for prompt in pool(name).prompts_mask_last)


@pytest.mark.parametrize("name", sorted({*PAPER, *OWN} & PAIRS))
def test_prompts_of_pairs_begin_with_both_texts_in_few_layouts_so_that_they_are_read_few_times(name):
    prompts = pool(name).prompts_mask_last
    layouts = {prompt.partition("<input2>")[0] for prompt in prompts}
    assert all(layout.startswith("<input>") for layout in layouts)
    assert len(layouts) <= 3
    assert sum(len(prompt.partition("<input2>")[2].split()) for prompt in prompts) < 60


@pytest.mark.parametrize("name", OWN)
def test_our_own_pools_have_no_near_duplicates(name):
    assert distinct(pool(name).prompts) == pool(name).prompts


@pytest.mark.parametrize("name", PAPER + OWN + SHOWN)
def test_each_pool_says_what_it_is(name):
    assert pool(name).name == name
    assert pool(name).about.endswith(".")
    assert ("PromptBoosting" in pool(name).about) == (name in PAPER)
    assert ("demonstrations" in pool(name).about) == (name in SHOWN)
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


def test_prompts_that_take_another_number_of_texts_than_the_examples_are_refused():
    single, pair = Template("<input> <mask>"), Template("<input> <mask> <input2>")
    with pytest.raises(TemplateError, match="takes two texts, and the examples are single texts"):
        fit_templates([single, pair], MASKED, pairs=False)
    with pytest.raises(TemplateError, match="takes one text, and the examples are pairs"):
        fit_templates([pair, single], MASKED, pairs=True)


def test_duplicates_and_empty_pools_are_refused():
    with pytest.raises(TemplateError, match="is in the pool twice"):
        fit_templates([Template("<input> <mask>"), Template("[Input] [MASK]")], MASKED, pairs=False)
    with pytest.raises(InputError, match="pool is empty"):
        fit_templates([], MASKED, pairs=False)


def test_prompts_that_are_one_for_a_causal_model_are_one_and_it_is_said():
    pool = [Template(f"<input> A <mask> {noun}.") for noun in ("movie", "film")] + [Template("<input> It's <mask>!")]
    assert fit_templates(pool, MASKED, pairs=False) == pool
    with pytest.warns(UserWarning, match=r"of 3 prompts 2 are different \('<input> A <mask> movie.' and"):
        fitted = fit_templates(pool, CAUSAL, pairs=False)
    assert [template.source for template in fitted] == ["<input> A <mask>", "<input> It's <mask>"]


def test_a_causal_model_refuses_a_text_after_the_mask():
    with pytest.raises(TemplateError, match=r"<input2> after the mask.*put the mask last"):
        fit_templates([Template("<input>? <mask>, <input2>")], CAUSAL, pairs=True)
    with pytest.raises(TemplateError, match=r"<input> after the mask"):
        Template("<mask> News: <input>").ending_at_mask()


def test_pools_are_lists_names_or_files(tmp_path):
    prompts = ["<input> It was <mask>.", "<input> So <mask>!"]
    expected = [Template(prompt) for prompt in prompts]
    assert read_pool(prompts, MASKED) == expected
    assert read_pool(tuple(expected), MASKED) == expected
    plain = tmp_path / "plain.json"
    plain.write_text(json.dumps(prompts))
    assert read_pool(plain, MASKED) == expected
    both = tmp_path / "both.json"
    both.write_text(json.dumps({"name": "x", "prompts": prompts, "prompts_mask_last": ["<input> Then <mask>"]}))
    assert read_pool(str(both), MASKED) == expected
    assert read_pool(both, CAUSAL) == [Template("<input> Then <mask>")]


def test_pools_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(InputError, match="no pool and no file is called 'nonesuch'"):
        read_pool("nonesuch", MASKED)
    with pytest.raises(InputError, match="give a list of prompts"):
        read_pool("<input> <mask>", MASKED)
    with pytest.raises(InputError, match="must be a list"):
        read_pool(17, MASKED)
    for content in (b"{", b'{"prompts": 3}', b'{"wrong": []}', b"\xff\xfe"):
        path = tmp_path / "broken.json"
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"broken\.json"):
            read_pool(path, MASKED)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[" * 100_000, "nests more than 100 deep"),
        (b'{"prompts": [' + b"7" * 5000 + b"]}", "whole number of 5,000 digits"),
        (b'{"prompts": ["\\ud800 <mask>"], "prompts": []}', "twice"),
        (b'["<input> \xff"]', "not UTF-8"),
        (b'{"' + b"x" * 100_000 + b'": 1}', "can't be read"),
        (b'["' + b"x" * (1 << 24) + b'"]', "more than 16,777,216 bytes"),
    ],
    ids=["nested", "number", "twice", "encoding", "name", "size"],
)
def test_a_file_made_to_harm_is_one_clear_error(tmp_path, content, said):
    (tmp_path / "pool.json").write_bytes(content)
    with pytest.raises(InputError, match=said) as caught:
        load_pool(tmp_path / "pool.json")
    assert len(str(caught.value)) < 1000


def test_a_written_pool_that_was_edited_is_refused_until_its_digest_is_deleted(tmp_path):
    file = write_pool(PromptPool(name="mine", prompts=["<input> So <mask>"]), tmp_path / "pool.json")
    text = file.read_text("utf-8").replace("So", "Now")
    file.write_text(text, "utf-8")
    with pytest.raises(InputError, match='delete the line "digest"'):
        load_pool(file)
    file.write_text("".join(line for line in text.splitlines(keepends=True) if '"digest"' not in line), "utf-8")
    assert load_pool(file).prompts == ["<input> Now <mask>"]


@pytest.mark.parametrize("name", PAPER + OWN + SHOWN)
def test_a_conversation_names_the_classes_first_and_shows_demonstrations(name):
    for template in read_pool(name, CHAT):
        instruction, examples, question = template.source.partition("<examples>")
        assert examples
        assert "<labels>" in instruction
        assert question.startswith(("<input>", "First: <input>")) or re.match(r"[A-Z][a-z ]+: <input>", question)
    assert pool(name).prompts_turns == pool(name.removesuffix("-shown")).prompts_turns


def test_a_pool_without_conversations_gives_a_chat_model_what_it_has():
    own = PromptPool(prompts_mask_last=["<input> So <mask>"])
    assert [template.source for template in own.templates(CHAT)] == ["<input> So <mask>"]
    assert [template.turns for template in fit_templates(own.templates(CHAT), CHAT, pairs=False)] == [True]
