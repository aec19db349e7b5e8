"""Several labels per text on the command line: cells that hold more than one label, or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pbsdk.cli._common import sends
from pbsdk.cli._opening import column_facts
from pbsdk.errors import InputError

if TYPE_CHECKING:
    from pbsdk.data.loading import LabelledTexts
    from pbsdk.metering.meter import MeteredBackend
    from pbsdk.multilabel import MultiLabelPromptClassifier

__all__ = ["SEPARATOR", "fit_several", "fitted_text", "joined", "load_sets", "result_of"]

SEPARATOR = "label_separator"
"""The fact of a model file that says what separates labels in a cell."""


def load_sets(source: str, separator: str, loading: Mapping[str, Any]) -> LabelledTexts:
    """Return the texts of a table with the labels in each cell."""
    from pbsdk.data.loading import load_table

    if not separator:
        raise InputError("--label-separator is empty; give what stands between two labels, such as ';'")
    data = load_table(source, **{**loading, "missing": "keep"})
    cells = ["" if label is None else str(label) for label in data.labels]
    sets = [tuple(filter(None, (part.strip() for part in cell.split(separator)))) for cell in cells]
    return replace(data, labels=sets)


def joined(label: Any, separator: str) -> Any:
    """Return a text's labels as a cell; what is no set of labels stays."""
    return separator.join(map(str, label)) if isinstance(label, tuple) else label


def fit_several(
    lm: MeteredBackend,
    prompts: str,
    settings: Mapping[str, Any],
    sets: Sequence[LabelledTexts],
    separator: str,
) -> MultiLabelPromptClassifier:
    """Fit a classifier to labelled texts, and perhaps a validation set, and let it remember the separator."""
    from pbsdk.multilabel import MultiLabelPromptClassifier

    train, *held_out = [(each.examples, each.labels) for each in sets]
    clf = MultiLabelPromptClassifier(lm, prompts, **settings)
    clf.fit(*train, validation=held_out[0] if held_out else None)
    clf.facts_ = clf.facts_.model_copy(update={SEPARATOR: separator, **column_facts(sets[0])})
    return clf


def result_of(clf: MultiLabelPromptClassifier, lm: MeteredBackend, saved: str) -> dict[str, Any]:
    """Return what a script wants to know of a fit."""
    report, facts = lm.audit(), clf.facts_
    return {
        "model": lm.identity.name,
        "saved": saved,
        "run": str(lm.ledger.folder),
        "train": facts.n_train,
        "validation": facts.n_validation,
        "head": clf.fitted_.facts["each_label_by"],
        "labels": clf.report_.to_dict(),
        "screen": None if clf.screen_ is None else clf.screen_.to_dict(),
        "macro_f1": getattr(facts, "cross_validated_macro_f1", None),
        "words": {str(label): clf.explain().words(label) for label in clf.classes_.tolist()},
        "sent": sends(report),
        "audit": report.to_dict(),
    }


def fitted_text(clf: MultiLabelPromptClassifier, result: Mapping[str, Any]) -> str:
    """Return what a person wants to know of a fit."""
    score = result["macro_f1"]
    measured = "not measured by this head" if score is None else f"macro F1 {score:.1%} on texts left out"
    words = "\n".join(f"  {label:<16}{', '.join(said)}" for label, said in result["words"].items())
    return f"""\
{result["head"]}, several labels per text: learned from {result["train"] + result["validation"]} texts, on {result["model"]}; {measured}

{clf.report_}

Words by which a label is recognised
{words}

{result["audit"]["verdict"]}; {result["sent"]:,} queries sent in all
The classifier is in {result["saved"]} (try: pbsdk card {result["saved"]}),
the record of every query in {result["run"]} (try: pbsdk audit {result["run"]})."""
