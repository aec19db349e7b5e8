"""Texts and prompts in, `MaskedQuery` out; asks nobody."""
