"""Templates: notation, rendering, and what is refused before anything is sent."""

import pytest

from pbsdk.backend import Phase
from pbsdk.errors import TemplateError
from pbsdk.queries.examples import Example
from pbsdk.queries.templates import Template


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
