"""What the paper reports, and the settings it reports it with.

Figures are means and standard deviations over five draws, in percent, of RoBERTa-large on whole test
sets: accuracy, but F1 for MRPC. They come from the tables of PromptBoosting (Hou et al., ICML 2023):
few-shot classification, number of prompts, ablation, small m, full data and more data sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

__all__ = [
    "FIGURES",
    "MODEL",
    "OWN_POOLS",
    "ROWS",
    "TITLES",
    "TOPS",
    "Figure",
    "figure",
    "rounds_without_validation",
    "small_m",
]

MODEL = "RoBERTa-large"
"""The model behind all the paper's figures."""

TITLES: Mapping[str, str] = MappingProxyType(
    {
        "sst2": "SST-2",
        "mr": "MR",
        "agnews": "AG's News",
        "trec": "TREC",
        "snli": "SNLI",
        "mnli": "MNLI",
        "qnli": "QNLI",
        "rte": "RTE",
        "sst5": "SST-5",
        "cr": "CR",
        "mpqa": "MPQA",
        "subj": "Subj",
        "mrpc": "MRPC",
    }
)
"""The data sets as the paper calls them, in its order."""

TOPS = (20, 8, 5)
"""How many tokens hosted models show: by chat, commonly; at xAI; by completions, at OpenAI."""

ROWS: Mapping[str, str] = MappingProxyType(
    {
        "boosting": "PromptBoosting",
        "boosting-32": "PromptBoosting-32",
        **{f"boosting-{d}": f"PromptBoosting-{d}" for d in (1, 5, 10, 20)},
        "small-m": "PromptBoosting (small m)",
        "refinement": "PromptBoosting (refined prompts)",
        "halving": "PromptBoosting (refined by halving)",
        "voting": "PromptVoting",
        "best-single": "Best single learner",
        "random": "Ensemble (random)",
        "manual": "Ensemble (manual)",
        **{f"k-{k}": f"PromptBoosting, k = {k}" for k in (32, 64, 128, 256)},
        "full": "PromptBoosting, full data",
        "soft": "Regression (soft)",
        "auto": "Auto",
        "auto-text": "Auto (reads the texts too)",
        **{
            f"{method}-top{top}": title.format(top=top)
            for top in TOPS
            for method, title in (
                ("boosting", "PromptBoosting, top {top} tokens"),
                ("soft", "Regression (soft), top {top} tokens"),
                ("auto", "Auto, top {top} tokens"),
                ("auto-text", "Auto, top {top} tokens (reads the texts too)"),
            )
        },
        "tf-idf": "TF-IDF + logistic regression (no model)",
        "hidden-state": "Hidden states + logistic regression (white box, not metered)",
        "fine-tuning": "Fine-tuning",
        "lm-bff": "LM-BFF",
        "lm-bff-demo": "LM-BFF with demonstrations",
        "dart": "DART",
        "feature-mlp": "Feature-MLP",
        "linear-probe": "Linear probe",
        "bbt": "BBT",
        "bbtv2": "BBTv2",
        "rlprompt": "RLPrompt",
    }
)
"""The methods as tables call them, by the names that pbsdk gives them: the paper's rows, then ours, then references and rivals."""

OWN_POOLS: Mapping[str, str] = MappingProxyType(
    {
        "sst2": "sentiment",
        "mr": "sentiment",
        "agnews": "topic",
        "trec": "question-type",
        "snli": "nli",
        "mnli": "nli",
        "qnli": "nli",
        "rte": "nli",
        "sst5": "sentiment",
        "cr": "sentiment",
        "mpqa": "sentiment",
        "subj": "register",
        "mrpc": "similarity",
    }
)
"""Which of pbsdk's own pools suits each data set."""


class Figure(NamedTuple):
    """A mean, and the standard deviation where the paper gives one."""

    mean: float
    deviation: float | None = None


def _row(datasets: str, figures: str) -> dict[str, Figure]:
    """Read a table's row as it is printed: `87.6 (3.0)`, or `-` where there is none."""
    cells = (cell.strip().rstrip(")").split(" (") for cell in figures.split("|"))
    return {
        name: Figure(*map(float, cell)) for name, cell in zip(datasets.split(), cells, strict=True) if cell != ["-"]
    }


_EIGHT = "sst2 mr agnews trec snli mnli qnli rte"
_ALL = f"{_EIGHT} sst5 cr mpqa subj mrpc"

_BOOSTING = _row(
    _ALL,
    "87.6 (3.0)|84.6 (2.5)|85.2 (0.9)|81.6 (4.0)|61.3 (3.5)|52.5 (1.5)|58.0 (3.3)|60.0 (5.5)|"
    "42.3 (1.8)|86.8 (0.8)|72.7 (3.4)|86.1 (4.8)|70.5 (2.9)",
)

_RIVALS = {
    "fine-tuning": _row(
        _ALL,
        "81.4 (3.8)|82.7 (3.6)|86.2 (1.4)|88.8 (2.1)|48.4 (4.8)|45.8 (6.4)|56.3 (1.5)|54.4 (3.9)|"
        "43.9 (2.0)|75.8 (3.2)|72.0 (3.8)|90.8 (1.8)|76.6 (2.5)",
    ),
    "lm-bff": _row(
        _ALL,
        "92.3 (1.5)|87.4 (0.6)|87.1 (1.2)|83.4 (2.7)|76.5 (2.6)|68.7 (2.0)|64.4 (4.6)|66.6 (6.4)|"
        "48.5 (1.5)|89.2 (3.8)|83.7 (2.4)|90.7 (1.9)|76.0 (3.4)",
    ),
    "dart": _row(
        _ALL,
        "93.5 (0.5)|88.2 (1.0)|86.8 (0.5)|87.1 (3.8)|75.8 (1.6)|67.5 (2.6)|66.7 (3.7)|59.0 (2.5)|"
        "48.6 (1.5)|91.8 (0.5)|68.1 (8.9)|90.7 (1.4)|78.3 (4.5)",
    ),
    "bbt": _row(
        _ALL,
        "88.2 (1.7)|82.8 (2.6)|81.2 (2.7)|39.3 (5.2)|44.7 (4.0)|42.3 (2.8)|56.8 (2.0)|49.1 (3.3)|"
        "36.3 (3.6)|86.2 (1.3)|78.4 (2.2)|75.6 (3.2)|73.7 (6.0)",
    ),
    "bbtv2": _row(
        _ALL,
        "88.5 (2.1)|83.7 (1.8)|83.6 (2.0)|63.8 (9.9)|57.4 (2.7)|51.4 (3.3)|58.1 (2.5)|53.2 (7.0)|"
        "38.7 (2.2)|88.5 (1.0)|80.6 (2.7)|78.2 (2.9)|73.6 (7.6)",
    ),
    "rlprompt": _row(
        _ALL,
        "90.5 (1.5)|86.2 (2.5)|76.2 (2.7)|37.3 (3.5)|42.9 (1.8)|40.7 (4.7)|52.1 (2.9)|52.2 (2.2)|"
        "40.1 (1.9)|87.4 (1.7)|69.4 (3.7)|81.9 (1.2)|61.9 (5.1)",
    ),
}
"""The systems that the paper compares with."""

FIGURES: Mapping[str, Mapping[str, Figure]] = MappingProxyType(
    {
        "boosting": _BOOSTING,
        "boosting-32": _row(
            _ALL,
            "87.6 (3.3)|84.7 (2.1)|84.2 (1.1)|84.5 (1.4)|62.0 (2.7)|53.8 (1.2)|58.3 (2.8)|60.3 (2.4)|"
            "44.0 (1.5)|88.1 (1.1)|75.4 (2.3)|90.4 (1.1)|69.2 (5.8)",
        ),
        "boosting-1": _row(
            _EIGHT, "86.1 (1.0)|85.1 (5.0)|73.3 (3.7)|41.3 (4.3)|53.4 (4.0)|49.5 (3.5)|58.0 (2.4)|56.5 (5.7)"
        ),
        "boosting-5": _row(
            _EIGHT, "88.8 (1.9)|87.9 (1.6)|83.5 (4.2)|78.0 (2.5)|59.1 (3.5)|50.9 (4.8)|56.5 (2.1)|57.0 (4.5)"
        ),
        "boosting-10": {name: _BOOSTING[name] for name in _EIGHT.split()},
        "boosting-20": _row(
            _EIGHT, "88.1 (2.6)|84.0 (2.3)|86.4 (1.3)|81.9 (2.7)|60.8 (3.9)|55.2 (1.2)|57.0 (4.4)|57.1 (3.2)"
        ),
        "small-m": _row("agnews rte", "84.4|59.1"),
        "voting": _row(
            _EIGHT, "91.2 (1.2)|87.2 (0.9)|83.5 (1.3)|67.2 (6.7)|55.6 (3.0)|48.9 (2.9)|56.2 (3.0)|54.6 (1.4)"
        ),
        "random": _row(_EIGHT, "50.9|50.0|25.2|17.4|36.5|36.0|49.7|47.3"),
        "manual": _row(_EIGHT, "85.8|83.9|67.1|31.6|41.3|47.4|55.1|50.2"),
        **_RIVALS,
        "full": _row("sst2 mr trec rte", "94.1 (0.3)|89.7 (0.4)|90.5 (1.2)|71.7 (2.0)"),
    }
)
"""Each method's row of the tables."""

_OTHER_PROMPTS = {
    "own": _row("agnews rte", "85.2 (0.8)|60.6 (2.0)"),
    "generated": _row("agnews rte", "85.4 (1.6)|59.1 (5.4)"),
}
"""PromptBoosting with prompts written by people, and with another set that LM-BFF generated."""


def figure(method: str, dataset: str, prompts: str = "paper") -> Figure | None:
    """Return what the paper reports, or None where it reports nothing.

    >>> figure("voting", "trec"), figure("boosting", "rte", "own"), figure("voting", "subj")
    (Figure(mean=67.2, deviation=6.7), Figure(mean=60.6, deviation=2.0), None)
    """
    if method == "boosting" and prompts in _OTHER_PROMPTS:
        return _OTHER_PROMPTS[prompts].get(dataset)
    return FIGURES.get(method, {}).get(dataset) if prompts == "paper" else None


def rounds_without_validation(dataset: str) -> int:
    """Return how many rounds PromptBoosting-32 runs: the authors' numbers, and 50 where they give none."""
    return {"agnews": 20, "qnli": 50, "rte": 50, "snli": 80, "mnli": 90, "trec": 100}.get(dataset, 50)


def small_m(n_classes: int) -> int:
    """Return the smaller number of candidates per class: the paper's for two and four classes.

    >>> small_m(2), small_m(4), small_m(6)
    (10, 5, 3)
    """
    return 10 if n_classes == 2 else 5 if n_classes <= 4 else 3
