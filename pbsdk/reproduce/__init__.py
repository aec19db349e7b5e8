"""The paper's tables, on any model."""
