"""Few-shot text classifiers from any language model that shows token probabilities."""

__version__ = "0.1.0"
