"""A tokenizer from its files alone, as `Reader` needs it: no transformers, no torch.

`tokenizer.json` says how to tokenise; `tokenizer_config.json` next to it, if it exists, says which of the
special tokens is the mask, and which start and end a text.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from pbsdk.backend import digest
from pbsdk.errors import ModelUnusable

__all__ = ["TokenizerFile"]

_MASKS = ("<mask>", "[MASK]")
_STARTS = ("<s>", "[CLS]", "<|endoftext|>")
_ENDS = ("</s>", "[SEP]", "<|endoftext|>")


class TokenizerFile:
    """The part of a transformers tokenizer that reading needs."""

    def __init__(self, place: str | Path) -> None:
        path = Path(place)
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            text = file.read_text(encoding="utf-8")
            self.backend_tokenizer = Tokenizer.from_str(text)
        except Exception as error:  # noqa: BLE001 - the library raises bare Exception for a file it can't read
            raise ModelUnusable(f"{file} can't be read as a tokenizer ({error}); give a tokenizer.json") from None
        self.digest = digest(text)
        config = file.with_name("tokenizer_config.json")
        self._roles: dict[str, Any] = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
        added = self.backend_tokenizer.get_added_tokens_decoder()
        self.all_special_tokens = [token.content for token in added.values() if token.special]
        self.all_special_ids = [number for number, token in added.items() if token.special]
        self.mask_token_id = self._id("mask_token", _MASKS)
        self.bos_token_id = self._id("bos_token", _STARTS)
        self.eos_token_id = self._id("eos_token", _ENDS)

    def __len__(self) -> int:
        return self.backend_tokenizer.get_vocab_size(with_added_tokens=True)

    @property
    def mask_token(self) -> str | None:
        """How the mask is written."""
        return None if self.mask_token_id is None else self.backend_tokenizer.id_to_token(self.mask_token_id)

    def _id(self, role: str, usual: tuple[str, ...]) -> int | None:
        named = self._roles.get(role)
        word = named.get("content") if isinstance(named, dict) else named
        words = (word,) if isinstance(word, str) else usual
        found = (self.backend_tokenizer.token_to_id(word) for word in words)
        return next((number for number in found if number is not None), None)
