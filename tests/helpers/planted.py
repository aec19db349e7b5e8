"""Benchmark data with a planted signal: one word of each text gives its class away, and the classes are words of every tiny model."""

import json
import random

CLASSES = ("fast", "old")
CUES = {"fast": ("win", "won"), "old": ("sea", "fell")}
FILLERS = ["the", "and", "a", "is", "it", "was", "on", "of", "to", "as", "about", "fine", "day", "text"]
PROMPTS = ["<input> It is <mask>.", "<input> All of it was <mask>."]


def planted_rows(count, seed):
    """Return texts of a few words, one of which belongs to the class."""
    draw = random.Random(seed)
    rows: dict[str, int] = {}
    while len(rows) < count:
        label = len(rows) % len(CLASSES)
        words = [*(draw.choice(FILLERS) for _ in range(6)), draw.choice(CUES[CLASSES[label]])]
        rows.setdefault(" ".join(words), label)
    return [{"text": text, "label": label} for text, label in rows.items()]


def write_planted(folder, *, k=16, test=40):
    """Write the data set `planted`, its published draw and a pool of prompts."""
    home = folder / "planted"
    (home / f"{k}-13").mkdir(parents=True)
    for name, count, seed in (
        ("train", 200, 1),
        ("test", test, 2),
        (f"{k}-13/train", 2 * k, 3),
        (f"{k}-13/dev", 2 * k, 4),
    ):
        path = home / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in planted_rows(count, seed)), "utf-8")
    (home / "meta.json").write_text(json.dumps({"labels": CLASSES}))
    (folder / "planted-pool.json").write_text(
        json.dumps({"prompts": PROMPTS, "prompts_mask_last": [p.rstrip(".") for p in PROMPTS]})
    )
    return folder
