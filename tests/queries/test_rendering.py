"""The order of queries, which `collect` and causal models rely on."""

from pbsdk.backend import Phase
from pbsdk.queries.examples import Example
from pbsdk.queries.rendering import render, render_unshown
from pbsdk.queries.templates import Demonstration, Template


def test_all_prompts_of_an_example_come_before_the_next_example():
    examples = [Example(text) for text in ("one", "two", "three")]
    templates = [Template("<input> A <mask>"), Template("<input> B <mask>")]
    queries = render(iter(examples), templates, Phase.PREDICT, "paper")
    assert [(query.example, query.prompt) for query in queries] == [
        (example.id, f"paper: {template.source}") for example in examples for template in templates
    ]
    assert {query.phase for query in queries} == {Phase.PREDICT}


def test_a_prompt_never_asks_about_what_it_shows_unless_nothing_else_is_left():
    fine, dull, new = (Example(text) for text in ("fine", "dull", "new"))
    shown = [Demonstration.of(fine, 0), Demonstration.of(dull, 1)]
    plain = Template("<input> <mask>")
    both, one = (Template("<examples><input> <mask>").filled("ab", some) for some in (shown, shown[:1]))
    rows = render_unshown([fine, dull, new], [both, one, plain], Phase.PREDICT, "plain", needs=[[0, 1], [0, 2]])
    texts = [None if query is None else query.text() for query in rows]
    assert texts == [
        "dull b\n\nfine <mask>", "fine <mask>", "fine <mask>",  # both of the first need show it
        None, "fine a\n\ndull <mask>", "dull <mask>",
        "fine a\n\ndull b\n\nnew <mask>", "fine a\n\nnew <mask>", "new <mask>",
    ]  # fmt: skip
    assert render_unshown([new], [both], Phase.TRAIN, "plain") == render([new], [both])
    assert render_unshown([fine], [both], Phase.TRAIN, "plain") == [None]
