"""The command that says what works here: doctor."""

__all__ = ["doctor"]


def doctor() -> None:
    """Say what is installed."""
