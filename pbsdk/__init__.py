"""Few-shot text classifiers from any language model that shows token probabilities.

Ten prompts, one forward pass per prompt and example, and AdaBoost over the words they make likely
(PromptBoosting, ICML 2023); without weights, gradients or hidden states, and with a ledger that
proves how many queries it took.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pbsdk.errors import PbsdkError
from pbsdk.version import __version__

if TYPE_CHECKING:
    from pbsdk.audit.report import AuditReport
    from pbsdk.backend import MaskDistribution, MaskedLMBackend, MaskedQuery
    from pbsdk.classifier import PromptBoostingClassifier
    from pbsdk.connecting import available, connect
    from pbsdk.ledger.budget import QueryBudget
    from pbsdk.metering.meter import MeteredBackend
    from pbsdk.multilabel import MultiLabelPromptClassifier
    from pbsdk.queries.templates import Template

__all__ = [
    "AuditReport",
    "MaskDistribution",
    "MaskedLMBackend",
    "MaskedQuery",
    "MeteredBackend",
    "MultiLabelPromptClassifier",
    "PbsdkError",
    "PromptBoostingClassifier",
    "QueryBudget",
    "Template",
    "__version__",
    "available",
    "connect",
]

# Imported when they are first used: `pbsdk --help` and the pytest plugin need neither scikit-learn nor numba.
_HOMES = {
    "AuditReport": "pbsdk.audit.report",
    "MaskDistribution": "pbsdk.backend",
    "MaskedLMBackend": "pbsdk.backend",
    "MaskedQuery": "pbsdk.backend",
    "MeteredBackend": "pbsdk.metering.meter",
    "MultiLabelPromptClassifier": "pbsdk.multilabel",
    "PromptBoostingClassifier": "pbsdk.classifier",
    "QueryBudget": "pbsdk.ledger.budget",
    "Template": "pbsdk.queries.templates",
    "available": "pbsdk.connecting",
    "connect": "pbsdk.connecting",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pbsdk' has no attribute {name!r}")
    found = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
