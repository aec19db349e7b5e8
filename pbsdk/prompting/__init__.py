"""Prompts written and chosen."""
