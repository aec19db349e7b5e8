"""Examples for tests that make answers up."""

from pbsdk.queries.examples import Example

__all__ = ["texts"]


def texts(labels):
    """Return an example for each label, all different."""
    return [Example(f"text {k}") for k, _ in enumerate(labels)]
