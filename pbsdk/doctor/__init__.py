"""The doctor: what is installed here, which backends work, what is on disk."""
