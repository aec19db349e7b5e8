"""Templates: notation, rendering, and what is refused before anything is sent."""

import pytest

from pbsdk.backend import Abilities, Phase
from pbsdk.errors import TemplateError
from pbsdk.queries.examples import Example
from pbsdk.queries.templates import Demonstration, Template


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


SHOWN = [Demonstration.of(Example(" Paid twice. "), 0), Demonstration.of(Example("Where is it?"), 1)]


def filled(source, names=("billing", "shipping"), shown=SHOWN):
    return Template(source).filled(names, shown)


def test_classes_are_named_and_demonstrations_shown_as_what_follows_their_place():
    template = filled("Possible answers: <labels>.\n\n<examples><input> The topic is <mask>")
    assert template.query(Example("It broke.")).text() == (
        "Possible answers: billing, shipping.\n\nPaid twice. The topic is billing\n\n"
        "Where is it? The topic is shipping\n\nIt broke. The topic is <mask>"
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("<examples><mask>: <input>", "billing: Paid twice.\n\nshipping: Where is it?\n\n<mask>: Hm"),
        ("<examples>\n <input>: <mask>.", "Paid twice: billing.\n\nWhere is it: shipping.\n\nHm: <mask>."),
        ("<EXAMPLES>So <input> <mask>", "So Paid twice. billing\n\nSo Where is it? shipping\n\nSo Hm <mask>"),
        ("Of <labels>: <input> <mask>", "Of billing, shipping: Hm <mask>"),
        ("<examples>(<labels>) <mask><input>", "(A, B) APaid twice.\n\n(A, B) BWhere is it?\n\n(A, B) <mask>Hm"),
        ("<input> <mask>", "Hm <mask>"),
    ],
)
def test_demonstrations_follow_the_plain_rules_of_white_space_and_punctuation(source, expected):
    names = ("A", "B") if "(A" in expected else ("billing", "shipping")
    assert filled(source, names).query(Example(" Hm ")).text() == expected


def test_pairs_are_demonstrated_with_both_texts():
    shown = [Demonstration.of(Example("It rains.", "It is wet."), 1)]
    template = filled("<examples><input>? <mask>, <input2>", ("no", "yes"), shown)
    assert template.query(Example("a", "b")).text() == "It rains? yes, It is wet.\n\na? <mask>, b"


def test_no_demonstrations_leave_nothing_behind():
    assert filled("Of <labels>.\n\n<examples> <input> <mask>", shown=()).query(Example("Hm")).text() == (
        "Of billing, shipping.\n\nHm <mask>"
    )


def test_what_a_demonstration_says_is_prompt_and_never_read_as_a_marker():
    shown = [Demonstration.of(Example("write <input> and <labels>"), 0)]
    query = filled("<examples><input> is <mask>", shown=shown).query(Example("Hm"))
    assert [(part.kind, part.text) for part in query.parts] == [
        ("prompt", "write <input> and <labels> is billing\n\n"),
        ("input", "Hm"),
        ("prompt", " is "),
        ("mask", ""),
    ]


def test_for_a_causal_model_demonstrations_end_with_the_class_too():
    ended = Template("<examples><input> It was <mask>.").ending_at_mask()
    assert ended.filled(("good",), [Demonstration.of(Example("Fine."), 0)]).query(Example("Hm")).text() == (
        "Fine. It was good\n\nHm It was <mask>"
    )


def test_a_long_text_is_shown_cut_after_sixty_words():
    words = [f"w{at}" for at in range(61)]
    assert Demonstration.of(Example("  ".join(words[:60])), 0).texts == ("  ".join(words[:60]),)
    assert Demonstration.of(Example("  ".join(words)), 0).texts == ("  ".join(words[:60]),)


def test_an_example_is_recognised_by_its_text_whole_or_as_shown():
    long = " ".join(["word"] * 70)
    template = filled("<examples><input> <mask>", shown=[Demonstration.of(Example(long), 0), SHOWN[0]])
    assert template.shows(Example(long))
    assert template.shows(Example(" ".join(["word"] * 60)))
    assert template.shows(Example("Paid twice.\n"))
    assert not template.shows(Example("Paid twice"))
    assert template.without(Example(long)).demonstrations == (SHOWN[0],)
    assert not filled("Of <labels>: <input> <mask>").shows(Example("Paid twice."))


def test_the_name_tells_fillings_apart_and_says_no_text():
    source = "Of <labels>.\n<examples><input> <mask>"
    names = [
        filled(source).name(),
        filled(source, shown=SHOWN[::-1]).name(),
        filled(source, shown=SHOWN[:1]).name(),
        filled(source, shown=()).name(),
        filled(source, ("money", "parcels")).name(),
    ]
    assert len(set(names)) == len(names)
    assert all(name.startswith(source + " (") for name in names)
    assert "(2 demonstrations, " in names[0]
    assert "(1 demonstration, " in names[2]
    assert "(class names, " in names[3]
    assert not any("Paid" in name or "billing" in name for name in names)
    assert filled(source).query(Example("Hm")).prompt == names[0]
    assert "Paid" not in repr(filled(source))


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("<labels> <labels> <input> <mask>", "2 <labels>; it may have one"),
        ("<examples><examples><input> <mask>", "2 <examples>; it may have one"),
        ("<input> of <labels>: <mask>", "<labels> after <input>; put it in front"),
        ("<input> <examples> <mask>", "<examples> after <input>; put it in front"),
        ("<mask> <examples> <input>", "<examples> after <mask>; put it in front"),
    ],
)
def test_markers_in_the_wrong_place_are_refused(source, complaint):
    with pytest.raises(TemplateError, match=complaint):
        Template(source)


def test_an_unfilled_template_and_the_papers_style_are_refused():
    with pytest.raises(TemplateError, match=r"has <examples>, which a classifier fills"):
        Template("<labels> <examples><input> <mask>").query(Example("x"))
    with pytest.raises(TemplateError, match=r"has <labels>, which style='paper' doesn't know.* style=\"plain\""):
        filled("<labels> <input> <mask>").query(Example("x"), style="paper")


CHAT = Abilities(mask="last", turns=True)
TOLD = [Demonstration.of(Example("Ten euros!"), 1), Demonstration.of(Example("It's late."), 0)]


def parts_of(source, text, shown=TOLD):
    template = Template(source).put_to(CHAT).filled(["shipping", "billing", "other"], shown)
    return [(part.kind, part.text) for part in template.query(Example(text)).parts]


def test_in_a_conversation_demonstrations_are_turns_and_classes_are_named_as_they_are_shown():
    assert parts_of("One of: <labels>.\n\n<examples>Text: <input>\nKind: <mask>", "Where?") == [
        ("prompt", "One of: billing, shipping, other."),
        ("turn", "\n\n"),
        ("prompt", "Text: Ten euros!\nKind:"),
        ("turn", " "),
        ("prompt", "billing"),
        ("turn", "\n\n"),
        ("prompt", "Text: It's late.\nKind:"),
        ("turn", " "),
        ("prompt", "shipping"),
        ("turn", "\n\n"),
        ("prompt", "Text: "),
        ("input", "Where?"),
        ("prompt", "\nKind: "),
        ("mask", ""),
    ]


def test_a_conversation_may_lack_an_instruction_or_demonstrations():
    assert parts_of("<examples><input> <mask>", "Where?")[:3] == [("turn", ""), ("prompt", "Ten euros!"), ("turn", " ")]
    bare = parts_of("One of: <labels>.<examples><input> <mask>", "Where?", [])
    assert bare[:3] == [("prompt", "One of: shipping, billing, other."), ("turn", "\n\n"), ("input", "Where?")]
    assert parts_of("<input> So <mask>", "Where?") == [("input", "Where?"), ("prompt", " So "), ("mask", "")]


@pytest.mark.parametrize(
    "source", ["One of: <labels>.\n\n<examples>Text: <input>\nKind: <mask>", "<examples><input> So <mask>"]
)
def test_a_conversation_read_as_one_text_says_the_same(source):
    plain, chat = (
        Template(source).put_to(abilities).filled(["a", "b"], TOLD[::-1]).query(Example("Where?")).text()
        for abilities in (Abilities(mask="last"), CHAT)
    )
    assert chat == plain
