"""Few-shot text classifiers from any language model that shows token probabilities.

Ten prompts, one forward pass each an example, and AdaBoost over the words they make likely
(PromptBoosting, ICML 2023); without weights, gradients or hidden states, and with a ledger that
proves how many queries it took.
"""

from pbsdk.audit import AuditReport
from pbsdk.backend import MaskDistribution, MaskedLMBackend, MaskedQuery
from pbsdk.budget import QueryBudget
from pbsdk.classifier import PromptBoostingClassifier
from pbsdk.errors import PbsdkError
from pbsdk.metering import MeteredBackend
from pbsdk.registry import available, connect
from pbsdk.templates import Template
from pbsdk.version import __version__

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
