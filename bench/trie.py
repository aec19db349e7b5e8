"""What queries share is read once: `python bench/trie.py texts.jsonl [--part pairs|demonstrations]`.

`texts.jsonl` holds one `{"text": ...}` a line, such as AG's News' test file; SmolLM2 answers, in float32.

- pairs: ten prompts for pairs of news sentences of 22 words each, about as long as MRPC's. The pool `similarity` as a
  trie, against ten prompts that put the texts anywhere and share their text by one tree an example. The pool's
  prompts with one row a query show what the trie alone brings.
- demonstrations: ten prompts with a block of some 200 tokens before every text, and without. The block is read
  in the first of the calls and kept.

The ways take turns, a few examples each, and processor time counts, so that other work on the machine disturbs the
ratios little; their range over the turns is printed. The script fails if a target is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from local_speed import ENDINGS

from pbsdk.backend import Abilities, MaskedLMBackend
from pbsdk.queries.examples import Example
from pbsdk.queries.pools import read_pool
from pbsdk.queries.rendering import render
from pbsdk.queries.templates import Template
from pbsdk_backends._local.sharing import Row, tree
from pbsdk_backends._tokens.reading import Reading
from pbsdk_backends.smollm2 import SmolLM2Backend

FASTER = 4.0
MORE_TIME = 1.25
WORDS = 22
BLOCK = 200
ANYWHERE = [
    "Sentence 1: <input>\nSentence 2: <input2>\nThe two sentences are <mask>",
    "<input>\n<input2>\nSame meaning? <mask>",
    '<input> Is this another way to say "<input2>"? <mask>',
    '"<input>" and "<input2>" have meanings that are <mask>',
    "A: <input>\nB: <input2>\nCompared with A, B is <mask>",
    "<input> <input2> These questions are <mask>",
    "One person wrote: <input> Another wrote: <input2> Do they agree? <mask>",
    "Original: <input>\nParaphrase: <input2>\nQuality: <mask>",
    "Are these two duplicates? 1. <input> 2. <input2> Answer: <mask>",
    "<input> In other words: <input2> That is <mask>",
]

Way = tuple[MaskedLMBackend, Sequence[Template]]


class TreePerExample(SmolLM2Backend):
    """Shares within an example alone, ten queries each."""

    def _rows(self, readings: Sequence[Reading]) -> list[Row]:
        return [tree(range(at, at + 10), readings) for at in range(0, len(readings), 10)]


def take_turns(ways: dict[str, Way], examples: Sequence[Example], at_once: int) -> dict[str, list[float]]:
    """Return the seconds of processor time of each way's turns."""
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for start in range(0, len(examples), at_once):
        for name, (backend, prompts) in ways.items():
            queries = render(examples[start : start + at_once], prompts)
            before = time.process_time()
            for _ in backend.stream(queries):
                pass
            spent[name].append(time.process_time() - before)
    return spent


def ratio(long: Sequence[float], short: Sequence[float]) -> tuple[float, str]:
    """Return the ratio of two times, and in words with the range over the turns."""
    each = [one / other for one, other in zip(long, short, strict=True)]
    whole = sum(long) / sum(short)
    return whole, f"{whole:.2f} ({min(each):.2f} to {max(each):.2f})"


def pairs(texts: Sequence[str], count: int) -> bool:
    """Print the table of pairs; say whether the target is reached."""
    cut = [" ".join(text.split()[:WORDS]) for text in texts[: 2 * count]]
    examples = [Example(one, other) for one, other in zip(cut[::2], cut[1::2], strict=True)]
    shipped = read_pool("similarity", Abilities(mask="last"))
    ways: dict[str, Way] = {
        "both texts first, as a trie": (SmolLM2Backend(device="cpu"), shipped),
        "both texts first, a row a query": (SmolLM2Backend(device="cpu", share_text=False), shipped),
        "texts anywhere, a tree an example": (TreePerExample(device="cpu"), [Template(prompt) for prompt in ANYWHERE]),
    }
    trie, apart, before = take_turns(ways, examples, at_once=4).values()
    reached, in_words = ratio(before, trie)
    print(f"\n| {count} pairs, ten prompts | seconds | the trie is faster by | target |\n|---|---|---|---|")
    print(f"| both texts first, as a trie | {sum(trie):.1f} | | |")
    print(f"| both texts first, a row a query | {sum(apart):.1f} | {ratio(apart, trie)[1]} | |")
    print(f"| texts anywhere, a tree an example | {sum(before):.1f} | {in_words} | {FASTER:.0f} |")
    return reached >= FASTER


def demonstrations(texts: Sequence[str], count: int) -> bool:
    """Print the table of demonstrations; say whether the target is reached."""
    backend = SmolLM2Backend(device="cpu")
    examples = [Example(text) for text in texts[:count]]
    block = ""
    for text in texts[count:]:
        block += f"Text: {text}\nTopic: world\n\n"
        tokens = backend.count_tokens(Template(f"{block}<input><mask>").query(Example("")))
        if tokens >= BLOCK:
            break
    ways: dict[str, Way] = {
        "none": (backend, [Template(f"<input>{ending}<mask>") for ending in ENDINGS]),
        "block": (backend, [Template(f"{block}<input>{ending}<mask>") for ending in ENDINGS]),
    }
    none, with_block = take_turns(ways, examples, at_once=16).values()
    reached, in_words = ratio(with_block, none)
    print(f"\n| {count} texts, ten prompts | seconds | ratio | target |\n|---|---|---|---|")
    print(f"| no demonstrations | {sum(none):.1f} | | |")
    print(f"| a block of {tokens} tokens | {sum(with_block):.1f} | {in_words} | at most {MORE_TIME} |")
    return reached <= MORE_TIME


def main() -> None:
    """Run the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path, help='JSON Lines, {"text": ...}')
    parser.add_argument("--part", choices=["pairs", "demonstrations"], action="append")
    parser.add_argument("--pairs", type=int, default=16, help="how many pairs")
    parser.add_argument("--texts-asked", type=int, default=100, help="how many texts with demonstrations")
    options = parser.parse_args()
    with options.texts.open(encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    parts = options.part or ["pairs", "demonstrations"]
    reached = []
    if "pairs" in parts:
        reached.append(pairs(texts, options.pairs))
    if "demonstrations" in parts:
        reached.append(demonstrations(texts, options.texts_asked))
    if not all(reached):
        sys.exit("a target was missed")


if __name__ == "__main__":
    main()
