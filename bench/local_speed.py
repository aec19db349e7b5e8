"""Speed of the local backend: `python bench/local_speed.py texts.jsonl [--part roberta|smollm2|meter]`.

`texts.jsonl` holds one `{"text": ...}` a line, such as AG's News' test file; its first 64 texts are asked
about, and all of it trains the tokenizer of the random model.

- roberta: a RoBERTa-large-shaped model with random weights under one prompt. Ours against length-sorted
  batches of 12 padded to the longest with logits at every position, against transformers' own
  fill-mask pipeline, and against the multiply-adds a second of a plain matrix product.
- smollm2: ten prompts that end in the mask; the text read once for all of them, or once for each.
- meter: the same passes with a ledger on disk, and their replay from it.

All of a part runs in one process. The ways take turns, and each one's best turn counts, so that
other work on the machine disturbs the ratios little. Multiply-adds are those of the real tokens: padding earns
nothing.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, ByteLevelBPETokenizer
from tokenizers.processors import RobertaProcessing
from transformers.utils import logging as transformers_logging

from pbsdk.backend import MaskedLMBackend, MaskedQuery, Part, digest
from pbsdk.metering.meter import MeteredBackend
from pbsdk_backends.local import LocalBackend
from pbsdk_backends.smollm2 import SmolLM2Backend

COLUMNS = 50265
WIDTH = 1024
WIDE = 4096
AUTHORS_BATCH = 12
ENDINGS = [
    " This entry was posted in ",
    " U.S. ",
    " The ",
    " Read more at ",
    " The New York Times ",
    " This is a text about ",
    " Category: ",
    " It belongs in the section ",
    " News of the ",
    " Topic: ",
]


def query(text: str, before: str, after: str = "") -> MaskedQuery:
    """Return a text under a prompt."""
    parts = (Part("input", text), Part("prompt", before), Part("mask"), Part("prompt", after))
    return MaskedQuery(parts, digest(text), f"<input>{before}<mask>{after}")


def take_turns(ways: dict[str, Callable[[], object]], repeat: int) -> dict[str, float]:
    """Return each way's best time in seconds."""
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(repeat):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def build_roberta(folder: Path, texts: Sequence[str], layers: int) -> None:
    """Save a model of RoBERTa-large's shape with random weights, and a tokenizer of its kind."""
    torch.manual_seed(13)
    bpe = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    bpe.train_from_iterator(texts, vocab_size=COLUMNS, show_progress=False, special_tokens=special)
    made: Any = bpe._tokenizer  # noqa: SLF001 - the wrapper hides the tokenizer that transformers takes
    made.post_processor = RobertaProcessing(("</s>", 2), ("<s>", 0))
    names = {"bos": "<s>", "eos": "</s>", "cls": "<s>", "sep": "</s>", "pad": "<pad>", "unk": "<unk>"}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        mask_token=AddedToken("<mask>", lstrip=True, special=True, normalized=False),
        model_max_length=512,
        **{f"{name}_token": token for name, token in names.items()},
    )
    config = transformers.RobertaConfig(
        vocab_size=COLUMNS,
        hidden_size=WIDTH,
        num_hidden_layers=layers,
        num_attention_heads=16,
        intermediate_size=WIDE,
        max_position_embeddings=514,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
    )
    transformers.RobertaForMaskedLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def authors_way(model: Any, tokenizer: Any, texts: Sequence[str]) -> None:
    """Run length-sorted batches of 12 padded to the longest, with logits at every position."""
    encoded = sorted((tokenizer(text)["input_ids"] for text in texts), key=len)
    with torch.inference_mode():
        for start in range(0, len(encoded), AUTHORS_BATCH):
            batch = tokenizer.pad({"input_ids": encoded[start : start + AUTHORS_BATCH]}, return_tensors="pt")
            logits = model(**batch).logits  # (B, T, V)
            logits[batch["input_ids"] == tokenizer.mask_token_id].log_softmax(-1).numpy()


def multiply_adds(lengths: Sequence[int], layers: int) -> int:
    """Count what one answer a text takes: the last layer and the head only at the mask."""
    weights = 4 * WIDTH**2 + 2 * WIDTH * WIDE
    full = sum(length * weights + 2 * length**2 * WIDTH for length in lengths)
    last = sum(2 * length * WIDTH**2 + weights - 2 * WIDTH**2 + 2 * length * WIDTH for length in lengths)
    return full * (layers - 1) + last + len(lengths) * (WIDTH**2 + WIDTH * COLUMNS)


def roberta(texts: Sequence[str], repeat: int, layers: int) -> None:
    """Print the table of the masked model."""
    asked = texts[:64]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "roberta-large-shaped"
        build_roberta(folder, texts, layers)
        backend = LocalBackend(str(folder), device="cpu")
        model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    pipeline: Any = transformers.pipeline("fill-mask", model=model, tokenizer=tokenizer, device="cpu")
    queries = [query(text, " It is about ", ".") for text in asked]
    rendered = [one.text("<mask>") for one in queries]
    square = torch.randn(2048, 2048)
    best = take_turns(
        {
            "ours": lambda: list(backend.stream(queries)),
            "batches of 12, logits everywhere": lambda: authors_way(model, tokenizer, rendered),
            'pipeline("fill-mask")': lambda: pipeline(rendered),
            "product": lambda: [square @ square for _ in range(8)],
        },
        repeat,
    )
    rate = multiply_adds([backend.count_tokens(one) for one in queries], layers) / best["ours"]
    plain = 8 * 2048**3 / best.pop("product")
    print(
        f"\n| {len(asked)} texts, one prompt, {layers} layers | seconds | ours is faster by | wanted |\n|---|---|---|---|"
    )
    for (name, seconds), wanted in zip(best.items(), ("", "1.25", "1.3"), strict=True):
        ratio = f"{seconds / best['ours']:.2f}" if wanted else ""
        print(f"| {name} | {seconds:.2f} | {ratio} | {wanted} |")
    print(
        f"\nOurs does {rate / 1e9:.1f} thousand million multiply-adds a second, a plain product {plain / 1e9:.1f}: "
        f"{rate / plain:.0%} (wanted: 70%)."
    )


def smollm2(texts: Sequence[str], repeat: int, count: int) -> None:
    """Print the table of the causal model."""
    queries = [query(text, ending) for text in texts[:count] for ending in ENDINGS]
    shared = SmolLM2Backend(device="cpu")
    apart = SmolLM2Backend(device="cpu", share_text=False)
    best = take_turns(
        {
            "text read once": lambda: list(shared.stream(queries)),
            "text read for each prompt": lambda: list(apart.stream(queries)),
        },
        repeat,
    )
    first, second = best.values()
    print(f"\n| {count} texts, {len(ENDINGS)} prompts | seconds | ratio | wanted |\n|---|---|---|---|")
    print(f"| text read once | {first:.2f} | | |")
    print(f"| text read for each prompt | {second:.2f} | {second / first:.2f} | 4 |")


def meter(texts: Sequence[str], repeat: int, count: int) -> None:
    """Print the table of the meter: what it adds, and how fast a replay is."""
    queries = [query(text, ending) for text in texts[:count] for ending in ENDINGS]
    backend = SmolLM2Backend(device="cpu")
    with tempfile.TemporaryDirectory() as scratch:
        runs = (Path(scratch) / f"run-{turn}" for turn in range(repeat))
        current: list[Path] = []

        def metered() -> None:
            current.append(next(runs))
            drain(backend, current[-1], queries)

        best = take_turns(
            {
                "passes alone": lambda: list(backend.stream(queries)),
                "passes with meter and ledger": metered,
                "replay from disk": lambda: drain(backend, current[-1], queries),
            },
            repeat,
        )
    alone, with_meter, replay = best.values()
    print(f"\n| {len(queries)} passes of SmolLM2 | seconds | | wanted |\n|---|---|---|---|")
    print(f"| passes alone | {alone:.2f} | | |")
    print(f"| passes with meter and ledger | {with_meter:.2f} | {with_meter / alone - 1:+.1%} | at most +5% |")
    print(f"| replay from disk | {replay:.3f} | {alone / replay:.0f} times as fast | 50 |")


def drain(backend: MaskedLMBackend, run: Path, queries: Sequence[MaskedQuery]) -> None:
    """Stream the queries through a meter over the run folder."""
    for _ in MeteredBackend(backend, run, budget=len(ENDINGS)).stream(queries):
        pass


def main() -> None:
    """Run the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path, help='JSON Lines, {"text": ...}')
    parser.add_argument("--part", choices=["roberta", "smollm2", "meter"], action="append")
    parser.add_argument("--repeat", type=int, default=3, help="turns of each way; the best counts")
    parser.add_argument("--layers", type=int, default=24, help="layers of the RoBERTa-shaped model")
    parser.add_argument("--count", type=int, default=64, help="texts for the causal model")
    options = parser.parse_args()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    with options.texts.open(encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    parts = options.part or ["roberta", "smollm2", "meter"]
    if "roberta" in parts:
        roberta(texts, options.repeat, options.layers)
    if "smollm2" in parts:
        smollm2(texts, options.repeat, options.count)
    if "meter" in parts:
        meter(texts, options.repeat, options.count)


if __name__ == "__main__":
    main()
