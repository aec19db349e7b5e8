"""Few-shot text classifiers from any language model that shows token probabilities.

Ten prompts, one forward pass each an example, and AdaBoost over the words they make likely
(PromptBoosting, ICML 2023); without weights, gradients or hidden states, and with a ledger that
proves how many queries it took.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pbsdk.errors import PbsdkError
from pbsdk.version import __version__

if TYPE_CHECKING:
    from pbsdk.audit import AuditReport
    from pbsdk.backend import MaskDistribution, MaskedLMBackend, MaskedQuery
    from pbsdk.budget import QueryBudget
    from pbsdk.classifier import PromptBoostingClassifier
    from pbsdk.metering import MeteredBackend
    from pbsdk.registry import available, connect
    from pbsdk.templates import Template

__all__ = [
    "AuditReport",
    "MaskDistribution",
    "MaskedLMBackend",
    "MaskedQuery",
    "MeteredBackend",
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
    "AuditReport": "pbsdk.audit",
    "MaskDistribution": "pbsdk.backend",
    "MaskedLMBackend": "pbsdk.backend",
    "MaskedQuery": "pbsdk.backend",
    "MeteredBackend": "pbsdk.metering",
    "PromptBoostingClassifier": "pbsdk.classifier",
    "QueryBudget": "pbsdk.budget",
    "Template": "pbsdk.templates",
    "available": "pbsdk.registry",
    "connect": "pbsdk.registry",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pbsdk' has no attribute {name!r}")
    found = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
