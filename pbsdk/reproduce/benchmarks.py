"""Benchmarks: the paper's data sets by their names.

`named("trec", "train")` reads a data set from the folder that the environment variable PBSDK_DATA
names, or else from the Hugging Face hub through the `datasets` library. Labels are words, the same
from both places. The folder holds `<name>/train.jsonl` and `test.jsonl`, the published draws as
`<name>/16-<seed>/train.jsonl` and `dev.jsonl`, and `<name>/meta.json`, whose `labels` name the classes.

`few_shot_of` gives a draw of k texts per class, the published one where the folder holds it, and
`published_prompts` the pool that the authors published. `LABEL_WORDS` are the words that LM-BFF and the
paper use for the classes.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from pbsdk.data.loading import LabelledTexts, load_hub, load_table
from pbsdk.data.sampling import FewShot, few_shot
from pbsdk.errors import InputError, MissingExtra

__all__ = ["BENCHMARKS", "LABEL_WORDS", "Benchmark", "data_folder", "few_shot_of", "named", "published_prompts"]

_SENTIMENT = {"negative": "terrible", "positive": "great"}
_NLI = {"contradiction": "No", "neutral": "Maybe", "entailment": "Yes"}
_TWO_WAY = {"not_entailment": "No", "entailment": "Yes"}

LABEL_WORDS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "sst2": _SENTIMENT,
        "mr": _SENTIMENT,
        "cr": _SENTIMENT,
        "mpqa": _SENTIMENT,
        "sst5": {
            "very negative": "terrible",
            "negative": "bad",
            "neutral": "okay",
            "positive": "good",
            "very positive": "great",
        },
        "subj": {"subjective": "subjective", "objective": "objective"},
        "agnews": {"World": "World", "Sports": "Sports", "Business": "Business", "Sci/Tech": "Science"},
        "trec": {
            "description": "Description",
            "entity": "Entity",
            "abbreviation": "Expression",
            "human": "Human",
            "location": "Location",
            "number": "Number",
        },
        "snli": _NLI,
        "mnli": _NLI,
        "qnli": _TWO_WAY,
        "rte": _TWO_WAY,
        "mrpc": {"not_equivalent": "No", "equivalent": "Yes"},
    }
)
"""The words that name the classes of each data set when prompts are written."""


@dataclass(frozen=True)
class Benchmark:
    """Where the hub keeps a data set, and how it names things."""

    hub: str
    text: str = "text"
    pair: str | None = None
    label: str = "label"
    config: str | None = None
    names: tuple[str, ...] = ()
    """The classes' names in the order of the hub's numbers; none if its labels are names already."""
    test: str = "test"
    """The split that the literature tests on."""


_GLUE = "nyu-mll/glue"
_POLARITY = ("negative", "positive")
_ENTAILMENT = ("entailment", "neutral", "contradiction")

BENCHMARKS: Mapping[str, Benchmark] = MappingProxyType(
    {
        "sst2": Benchmark(_GLUE, "sentence", config="sst2", names=_POLARITY, test="validation"),
        "sst5": Benchmark("SetFit/sst5", label="label_text"),
        "mr": Benchmark("cornell-movie-review-data/rotten_tomatoes", names=_POLARITY),
        "cr": Benchmark("SetFit/CR", label="label_text"),
        "subj": Benchmark("SetFit/subj", label="label_text"),
        "agnews": Benchmark("fancyzhx/ag_news", names=("World", "Sports", "Business", "Sci/Tech")),
        "trec": Benchmark(
            "CogComp/trec",
            label="coarse_label",
            names=("abbreviation", "entity", "description", "human", "location", "number"),
        ),
        "snli": Benchmark("stanfordnlp/snli", "premise", "hypothesis", names=_ENTAILMENT, test="validation"),
        "mnli": Benchmark(_GLUE, "premise", "hypothesis", config="mnli", names=_ENTAILMENT, test="validation_matched"),
        "qnli": Benchmark(
            _GLUE, "question", "sentence", config="qnli", names=("entailment", "not_entailment"), test="validation"
        ),
        "rte": Benchmark(
            _GLUE, "sentence1", "sentence2", config="rte", names=("entailment", "not_entailment"), test="validation"
        ),
        "mrpc": Benchmark(
            _GLUE, "sentence1", "sentence2", config="mrpc", names=("not_equivalent", "equivalent"), test="validation"
        ),
    }
)
"""The paper's data sets on the hub. MPQA is not there; the hub's MR and SST-2 are split differently from LM-BFF's."""


def data_folder() -> Path | None:
    """Return the folder of benchmark data that PBSDK_DATA names; None if it is not set."""
    given = os.environ.get("PBSDK_DATA")
    if not given:
        return None
    folder = Path(given)
    if not folder.is_dir():
        raise InputError(f"PBSDK_DATA is {given}, which is not a folder; set it to the data's folder, or unset it")
    return folder


def named(name: str, split: str = "train") -> LabelledTexts:
    """Load a benchmark data set: `train`, `test`, or a published draw such as `16-13/train`."""
    folder = data_folder()
    if folder is not None and (folder / name / "meta.json").is_file():
        return _from_folder(folder / name, split)
    if name not in BENCHMARKS:
        local = [] if folder is None else [path.parent.name for path in folder.glob("*/meta.json")]
        there = sorted({*BENCHMARKS, *local})
        close = difflib.get_close_matches(name, there, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        others = "; for others, set PBSDK_DATA to a folder that holds them" if folder is None else ""
        raise InputError(f"no data set is called {name!r}{hint}; available: {', '.join(there)}{others}")
    return _from_hub(name, split)


def few_shot_of(name: str, *, k: int = 16, seed: int = 13) -> FewShot:
    """Draw k texts per class for training and up to 16 for validation; the published draw, if it is there.

    A class that has too few rows gives all it has.
    """
    folder = data_folder()
    if folder is not None and (folder / name / f"{k}-{seed}").is_dir():
        return FewShot(named(name, f"{k}-{seed}/train"), named(name, f"{k}-{seed}/dev"))
    return few_shot(named(name), k=k, seed=seed, fewer=True)


def published_prompts(name: str) -> list[str]:
    """Return the prompts that the authors published for a data set, the best first; empty if the folder has none."""
    folder = data_folder()
    path = None if folder is None else folder / "templates" / f"{name}.json"
    if path is None or not path.is_file():
        return []
    try:
        prompts = [_prompt(segments) for segments in json.loads(path.read_text("utf-8"))["paper_full"]]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path.name} can't be read ({error!r}); it needs `paper_full`, a list of prompts") from error
    return list(dict.fromkeys(prompts))


def _prompt(segments: list[str]) -> str:
    """Join segments as in the file: words bring their own space; texts and masks are set apart by one."""
    joined = ""
    for segment in segments:
        marker = {"<text>": "<input>", "<text_pair>": "<input2>", "<mask>": "<mask>"}.get(segment)
        apart = marker is not None and joined and not joined.endswith((" ", "-"))
        joined += (" " if apart else "") + (marker or segment)
    return joined.strip()


def _from_folder(folder: Path, split: str) -> LabelledTexts:
    path = folder / f"{split}.jsonl"
    if not path.is_file():
        splits = sorted(found.relative_to(folder).with_suffix("").as_posix() for found in folder.rglob("*.jsonl"))
        raise InputError(f"{folder.name} has no split {split!r}; it has {', '.join(splits)}")
    try:
        meta = json.loads((folder / "meta.json").read_text("utf-8"))
        names: list[str] = meta["labels"]
        pair = "text_pair" if meta.get("pair") else None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder.name}/meta.json can't be read ({error}); it needs a list `labels`") from error
    data = load_table(path, text="text", pair=pair, label="label", labels=range(len(names)))
    return LabelledTexts(data.examples, [names[label] for label in data.labels])


def _from_hub(name: str, split: str) -> LabelledTexts:
    entry = BENCHMARKS[name]
    if split not in {"train", "test"}:
        raise InputError(
            f"the hub has no split {split!r} of {name}; draw it from the training rows with few_shot(), or set "
            "PBSDK_DATA to a folder that holds the published draws"
        )
    try:
        rows = load_hub(entry.hub, split="train" if split == "train" else entry.test, config=entry.config)
    except MissingExtra as error:
        raise InputError(
            f"the data set {name} is not on this machine; set PBSDK_DATA to a folder that holds {name}/train.jsonl and "
            "meta.json, or pip install datasets to take it from the Hugging Face hub"
        ) from error
    # The hub's own names differ from the literature's, so its numbers are named here; -1 means no label.
    named_labels = [
        label if isinstance(label, str) else entry.names[label] if label >= 0 else None for label in rows[entry.label]
    ]
    columns = {column: rows[column] for column in (entry.text, entry.pair) if column is not None}
    return load_table(
        {**columns, entry.label: named_labels}, text=entry.text, pair=entry.pair, label=entry.label, missing="drop"
    )
