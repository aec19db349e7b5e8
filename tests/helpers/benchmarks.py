"""Benchmark data of our own, in the form of the published ones."""

import json

from pbsdk.data.tickets import load_tickets

WORDS = {"billing": "money", "shipping": "deliver", "technical": "app", "account": "account"}
PROMPTS = [
    f"<input> {said} <mask>."
    for said in ("So", "My", "The", "A", "This", "Our", "Any", "One", "Her", "His", "Its", "No")
]


def lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def write_benchmarks(folder):
    """Write two small data sets in the form of benchmark data: tickets by department, and pairs that say the same or not."""
    tickets = load_tickets()
    names = sorted(WORDS.values())
    parts = {"train": ("train", "validation"), "test": ("test",)}
    for split, sources in parts.items():
        found = [getattr(tickets, source) for source in sources]
        rows = [(text, label) for part in found for text, label in zip(part.texts, part.labels, strict=True)]
        lines(folder / "desk" / f"{split}.jsonl", [{"text": t, "label": names.index(WORDS[c])} for t, c in rows])
        texts = [text for text, _ in rows]
        pairs = [{"text": t, "text_pair": t.upper(), "label": 1} for t in texts[:40]]
        pairs += [{"text": t, "text_pair": other, "label": 0} for t, other in zip(texts[40:80], texts, strict=False)]
        lines(folder / "mrpc" / f"{split}.jsonl", pairs)
    (folder / "desk" / "meta.json").write_text(json.dumps({"labels": names}))
    (folder / "mrpc" / "meta.json").write_text(json.dumps({"labels": ["not_equivalent", "equivalent"], "pair": True}))
    (folder / "pool.json").write_text(json.dumps({"prompts": PROMPTS, "prompts_mask_last": []}))
    return folder
