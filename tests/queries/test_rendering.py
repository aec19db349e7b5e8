"""The order of queries, which `collect` and causal models rely on."""

from pbsdk.backend import Phase
from pbsdk.queries.examples import Example
from pbsdk.queries.rendering import render
from pbsdk.queries.templates import Template


def test_all_prompts_of_an_example_come_before_the_next_example():
    examples = [Example(text) for text in ("one", "two", "three")]
    templates = [Template("<input> A <mask>"), Template("<input> B <mask>")]
    queries = render(iter(examples), templates, Phase.PREDICT, "paper")
    assert [(query.example, query.prompt) for query in queries] == [
        (example.id, f"paper: {template.source}") for example in examples for template in templates
    ]
    assert {query.phase for query in queries} == {Phase.PREDICT}
