"""Templates: notation, rendering, pools, and what is refused before anything is sent."""

import json

import pytest

from pbsdk.backend import Abilities, Phase
from pbsdk.errors import InputError, TemplateError
from pbsdk.queries.examples import Example
from pbsdk.queries.templates import Template, escape_markers, fit_templates, pool_names, read_pool, refuse_markers

ANYWHERE, LAST = Abilities(), Abilities(mask="last")


def rendered(source, *texts, style="plain"):
    return Template(source).query(Example(*texts), style=style).text()


@pytest.mark.parametrize(
    ("paper", "ours"),
    [
        ("[Input] It's [MASK].", "<input> It's <mask>."),
        ("[Input1]. [MASK], [Input2]", "<input>. <mask>, <input2>"),
        ("<INPUT1> <Mask>", "<input> <mask>"),
    ],
)
def test_the_papers_notation_is_read(paper, ours):
    assert Template(paper).source == ours
    assert Template(paper) == Template(ours)


@pytest.mark.parametrize(
    ("source", "text", "expected"),
    [
        ("<input> It was <mask>.", "A fine day.", "A fine day. It was <mask>."),
        ("<input> It was <mask>.", "  A fine day.\n", "A fine day. It was <mask>."),
        ("<input> It was <mask>.", "", "It was <mask>."),
        ("<input>, that is <mask>.", "A fine day.", "A fine day, that is <mask>."),
        ("<input>? <mask>.", "Who goes there?!", "Who goes there? <mask>."),
        ("<mask>: <input>", "Keep  this   as it is...", "<mask>: Keep  this   as it is..."),
        ("So <input> is <mask>", "", "So is <mask>"),
        ("<input><mask>", "x", "x<mask>"),
    ],
)
def test_plain_rendering_is_sane_about_spaces_and_punctuation(source, text, expected):
    assert rendered(source, text) == expected


def test_plain_rendering_leaves_names_alone_and_paper_rendering_does_not():
    pair = ("It flew.", "NASA flies.")
    assert rendered("<input>? <mask>, <input2>", *pair) == "It flew? <mask>, NASA flies."
    assert rendered("<input>? <mask>, <input2>", *pair, style="paper") == "It flew? <mask>, nASA flies."
    assert rendered("<input>. <mask>. <input2>", *pair, style="paper") == "It flew. <mask>. NASA flies."


def test_paper_rendering_drops_one_punctuation_mark_only_before_punctuation():
    assert rendered("<input>. <mask>", "Well...", style="paper") == "Well... <mask>"
    assert rendered("<input> So <mask>", "Well...", style="paper") == "Well... So <mask>"
    assert rendered("<input>. <mask>", 'He said "no"', style="paper") == 'He said "no. <mask>'
    assert rendered("<input>. <mask>", "", style="paper") == ". <mask>"


def test_a_query_knows_which_part_is_input_and_whom_to_charge():
    query = Template("<input> It was <mask>.").query(Example("Fine."), Phase.VALIDATE)
    assert [(part.kind, part.text) for part in query.parts] == [
        ("input", "Fine."),
        ("prompt", " It was "),
        ("mask", ""),
        ("prompt", "."),
    ]
    assert (query.example, query.phase) == (Example("Fine.").id, Phase.VALIDATE)
    assert query.prompt == "<input> It was <mask>."
    assert Template("<input> <mask>").query(Example("x"), style="paper").prompt == "paper: <input> <mask>"


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("<input> no mask", "no <mask>; it needs exactly one"),
        ("<input> <mask> <mask>", "2 <mask>"),
        ("<input> <mask> [MASK]", "2 <mask>"),
        ("only a <mask>", "no <input>"),
        ("<input2> <mask>", "no <input>;"),
        ("<input> <input> <mask>", "2 <input>"),
        ("<input> <input2> <input2> <mask>", "2 <input2>; it may have one"),
        (17, "must be a string"),
    ],
)
def test_templates_that_cannot_work_are_refused(source, complaint):
    with pytest.raises(TemplateError, match=complaint):
        Template(source)


def test_pairs_and_single_texts_are_not_mixed_up():
    single, pair = Template("<input> <mask>"), Template("<input> <mask> <input2>")
    with pytest.raises(TemplateError, match="takes one text, not pairs"):
        single.query(Example("a", "b"))
    with pytest.raises(TemplateError, match="takes two texts"):
        pair.query(Example("a"))
    with pytest.raises(TemplateError, match="takes two texts, and the examples are single texts"):
        fit_templates([single, pair], ANYWHERE, pairs=False)
    with pytest.raises(TemplateError, match="takes one text, and the examples are pairs"):
        fit_templates([pair, single], ANYWHERE, pairs=True)


def test_duplicates_and_empty_pools_are_refused():
    with pytest.raises(TemplateError, match="stands in the pool twice"):
        fit_templates([Template("<input> <mask>"), Template("[Input] [MASK]")], ANYWHERE, pairs=False)
    with pytest.raises(InputError, match="pool is empty"):
        fit_templates([], ANYWHERE, pairs=False)


def test_prompts_that_are_one_for_a_causal_model_are_one_and_it_is_said():
    pool = [Template(f"<input> A <mask> {noun}.") for noun in ("movie", "film")] + [Template("<input> It's <mask>!")]
    assert fit_templates(pool, ANYWHERE, pairs=False) == pool
    with pytest.warns(UserWarning, match=r"of 3 prompts 2 are different \('<input> A <mask> movie.' and"):
        fitted = fit_templates(pool, LAST, pairs=False)
    assert [template.source for template in fitted] == ["<input> A <mask>", "<input> It's <mask>"]


def test_a_causal_model_refuses_a_text_after_the_mask():
    with pytest.raises(TemplateError, match=r"<input2> after the mask.*put the mask last"):
        fit_templates([Template("<input>? <mask>, <input2>")], LAST, pairs=True)
    with pytest.raises(TemplateError, match=r"<input> after the mask"):
        Template("<mask> News: <input>").ending_at_mask()


def test_texts_with_a_mask_in_them_are_refused_or_written_apart():
    for text, mask in (("a <mask> b", "[MASK]"), ("a [MASK] b", "<mask>"), ("a <|m|> b", "<|m|>")):
        with pytest.raises(InputError, match=r'texts\[1\] contains .*markers="escape"'):
            refuse_markers([Example("fine"), Example("x", text)], mask)
        escaped = escape_markers(Example(text, "y"), mask)
        refuse_markers([escaped], mask)
        assert escaped.text.replace(" ", "") == text.replace(" ", "")
        assert escaped.pair == "y"
    refuse_markers([Example("a mask, <masks> and [mask] are words")], "<mask>")


def test_pools_are_lists_names_or_files(tmp_path):
    prompts = ["<input> It was <mask>.", "<input> So <mask>!"]
    expected = [Template(prompt) for prompt in prompts]
    assert read_pool(prompts, ANYWHERE) == expected
    assert read_pool(tuple(expected), ANYWHERE) == expected
    plain = tmp_path / "plain.json"
    plain.write_text(json.dumps(prompts))
    assert read_pool(plain, ANYWHERE) == expected
    both = tmp_path / "both.json"
    both.write_text(json.dumps({"name": "x", "prompts": prompts, "prompts_mask_last": ["<input> Then <mask>"]}))
    assert read_pool(str(both), ANYWHERE) == expected
    assert read_pool(both, LAST) == [Template("<input> Then <mask>")]


def test_pools_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(InputError, match="no pool and no file is called 'nonesuch'"):
        read_pool("nonesuch", ANYWHERE)
    with pytest.raises(InputError, match="give a list of prompts"):
        read_pool("<input> <mask>", ANYWHERE)
    with pytest.raises(InputError, match="must be a list"):
        read_pool(17, ANYWHERE)
    for content in (b"{", b'{"prompts": 3}', b'{"wrong": []}', b"\xff\xfe"):
        path = tmp_path / "broken.json"
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"broken\.json"):
            read_pool(path, ANYWHERE)


@pytest.mark.parametrize("name", pool_names())
@pytest.mark.parametrize("abilities", [ANYWHERE, LAST], ids=["anywhere", "last"])
def test_the_pools_that_ship_have_ten_prompts_for_either_kind_of_model(name, abilities):
    templates = read_pool(name, abilities)
    pairs = templates[0].is_pair
    assert len(fit_templates(templates, abilities, pairs=pairs)) == 10
