"""A ledger in, a report out."""
