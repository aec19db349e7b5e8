"""Answers in, scores out; knows no model and no ledger."""
