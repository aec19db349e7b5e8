"""The prompt writer `t5`: LM-BFF's method of writing prompts, by filling gaps.

T5 was trained to fill gaps. There is one gap between a text and the word for its class, and another
after the word: `text <extra_id_0> great <extra_id_1>`. What T5 would put into both, for all training
texts at once, is a prompt with `great` as its mask. The second text of a pair comes at the end.

    encoder   a moving film . <extra_id_0> great <extra_id_1> </s>
    decoder   <pad> <extra_id_0>  It was  <extra_id_1>  .  <extra_id_2>
                                  A                     B

The writer only says how likely the next token is, summed over all examples; the search is pbsdk's.
Each text is encoded once. At each step the decoder runs over (examples x prefixes), one example at a
time, so that all prefixes share the example's keys and values, and a limited number of prefixes at
a time, so that memory stays bounded however wide the beam.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from pbsdk.backend import ModelIdentity
from pbsdk.errors import InputError, MissingExtra, ModelUnusable

try:
    import torch
    import transformers
    from torch import Tensor

    from pbsdk_backends._local.files import Source, digest_files, locate, weight_files
    from pbsdk_backends._local.precision import choose_dtype
    from pbsdk_backends._local.threads import settle_threads
    from pbsdk_backends._local.weights import choose_device, quiet
    from pbsdk_backends._tokens.reading import plain_copy, surface_words
except ImportError as error:
    raise MissingExtra(
        f"the prompt writer `t5` needs torch, transformers and safetensors ({error}); "
        'install them: pip install "pbsdk[local]"'
    ) from error

__all__ = ["T5Writer"]

Floats = npt.NDArray[np.float64]
Prefix = tuple[int, ...]

SENTINELS = ("<extra_id_0>", "<extra_id_1>", "<extra_id_2>")
# Control tokens and pbsdk's markers have brackets or bars; a row of dots is not a prompt.
UNFIT = re.compile(r"[<>\[\]|\ufffd]|\.{4}|^\s*$")


class T5Writer:
    """Writes prompts by filling the gaps around label words with a T5.

    Args:
        model: A T5's hub name, or a folder.
        revision: A branch, tag or commit of a hub model.
        device: `auto` (CUDA, else MPS, else the CPU), `cpu`, `cuda`, `cuda:1`, `mps`.
        precision: `exact` (float32), `fast` (bfloat16 where that is faster), or by name `float32`, `bfloat16`; T5 overflows in
            `float16`.
        batch_tokens: The most tokens in one batch; None chooses by device.
        max_length: The most tokens that the encoder reads; texts are cut, the longer of a pair first.
        local_files_only: Never ask the hub; use what was downloaded before.
    """

    method: ClassVar[str] = "t5"
    mask_last: ClassVar[bool] = False

    def __init__(  # noqa: PLR0913 - settings that are independent, given by keyword
        self,
        model: str = "google-t5/t5-large",
        *,
        revision: str | None = None,
        device: str = "auto",
        precision: str = "exact",
        batch_tokens: int | None = None,
        max_length: int = 512,
        local_files_only: bool = False,
    ) -> None:
        place = choose_device(device)
        settle_threads(None)
        dtype = choose_dtype(precision, place)
        source = locate(model, revision, local_files_only=local_files_only)
        files = weight_files(source)
        self._model, tokenizer = _load(source, place, dtype)
        self._gap, self._middle, self._end = _sentinels(tokenizer, source.name)
        self._plain = plain_copy(tokenizer)
        self._closing = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
        self._words = surface_words(tokenizer, self._model.lm_head.out_features)
        self._unfit = self._find_unfit(tokenizer)
        self._glued = np.array([word[:1].isalnum() for word in self._words])  # (V,)
        self._batch_tokens = batch_tokens or (2048 if place.type == "cpu" else 16384)
        self._max_length = max_length
        self.beam = 100
        self.max_tokens = 20
        self.forwards = 0
        details = {"weights": digest_files(files), "precision": str(dtype).removeprefix("torch.")}
        if source.revision is not None:
            details["revision"] = source.revision
        self.identity = ModelIdentity(source.name, {"adapter": "t5/1", **details, "max_length": str(max_length)})
        self._pairs = False
        self._encoded: list[Tensor] = []

    def open(self, examples: Sequence[tuple[str, ...]], words: Sequence[str]) -> None:
        """Encode the training texts, or pairs of texts, each with its label word."""
        self._pairs = bool(examples) and len(examples[0]) == 2
        with torch.inference_mode():
            self._encoded = [
                self._model.encoder(input_ids=self._tensor([self._filled(texts, word)])).last_hidden_state
                for texts, word in zip(examples, words, strict=True)
            ]

    def extend(self, prefixes: Sequence[Prefix]) -> tuple[Floats, Floats]:
        """Return the summed log-likelihood of every next token, (B, V), and of the end, (B,)."""
        sums = np.zeros((len(prefixes), len(self._words)))  # (B, V)
        with torch.inference_mode():
            for encoded in self._encoded:
                self._add(encoded, prefixes, sums)
        self.forwards += len(self._encoded) * len(prefixes)
        inside_b = np.array([self._middle in prefix for prefix in prefixes])
        ending = np.where(inside_b, sums[:, self._end], -np.inf)
        middle = np.where(inside_b, -np.inf, sums[:, self._middle])
        sums[:, self._unfit] = -np.inf
        sums[:, self._middle] = middle
        if not prefixes[0]:
            sums[:, self._glued] = -np.inf  # a prompt must not continue the text's last word
        return sums, ending

    def prompt(self, prefix: Prefix) -> str:
        """Return a finished prefix as a prompt in pbsdk's notation."""
        at = prefix.index(self._middle)
        before, after = (
            "".join(self._words[token] for token in part).rstrip() for part in (prefix[:at], prefix[at + 1 :])
        )
        return f"<input>{before} <mask>{after}" + (" <input2>" if self._pairs else "")

    def _filled(self, texts: tuple[str, ...], word: str) -> list[int]:
        """Return what the encoder reads: the texts, cut to fit, around the gaps and the label word."""
        label = self._plain.encode(word, add_special_tokens=False).ids
        parts = [self._plain.encode(text, add_special_tokens=False).ids for text in texts]
        room = self._max_length - len(label) - 2 - len(self._closing)
        if room < 0:
            raise InputError(f"max_length={self._max_length} has no room for the label word {word!r}; raise it")
        while sum(map(len, parts)) > room:
            max(reversed(parts), key=len).pop()
        second = parts[1] if len(parts) == 2 else []
        return [*parts[0], self._gap, *label, self._middle, *second, *self._closing]

    def _add(self, encoded: Tensor, prefixes: Sequence[Prefix], sums: Floats) -> None:
        """Add one example's log-likelihoods of every next token after each prefix."""
        cache = transformers.EncoderDecoderCache(transformers.DynamicCache(), transformers.DynamicCache())
        start = self._tensor([[self._model.config.decoder_start_token_id, self._gap]])
        first = self._decode(start, encoded, cache)  # (1, V)
        length = len(prefixes[0])
        if not length:
            sums += first
            return
        rows = max(1, self._batch_tokens // (length + encoded.shape[1]))
        for at in range(0, len(prefixes), rows):
            batch = self._tensor(prefixes[at : at + rows])  # (rows, length)
            shared = copy.deepcopy(cache)
            shared.batch_repeat_interleave(len(batch))
            sums[at : at + rows] += self._decode(batch, encoded.expand(len(batch), -1, -1), shared)

    def _decode(self, ids: Tensor, encoded: Tensor, cache: Any) -> Floats:
        """Return the log-likelihood of every token after `ids`, and let the cache grow by them."""
        state = self._model.decoder(
            input_ids=ids, encoder_hidden_states=encoded, past_key_values=cache, use_cache=True
        ).last_hidden_state[:, -1]
        config = self._model.config
        if getattr(config, "scale_decoder_outputs", config.tie_word_embeddings):
            state = state * self._model.model_dim**-0.5
        logprobs: Floats = self._model.lm_head(state).float().log_softmax(-1).double().cpu().numpy()
        return logprobs

    def _tensor(self, ids: Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor([list(row) for row in ids], device=self._model.device)

    def _find_unfit(self, tokenizer: Any) -> npt.NDArray[np.bool_]:
        unfit = np.array([UNFIT.search(word) is not None for word in self._words])  # (V,)
        unfit[[token for token in tokenizer.all_special_ids if token < len(unfit)]] = True
        return unfit


def _load(source: Source, device: torch.device, dtype: torch.dtype) -> tuple[Any, Any]:
    folder = str(source.folder)
    try:
        with quiet():
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
            model, report = transformers.AutoModelForSeq2SeqLM.from_pretrained(
                folder, use_safetensors=True, trust_remote_code=False, output_loading_info=True
            )
    except Exception as error:
        reason = str(error).strip().split("\n", maxsplit=1)[0].replace(folder, source.name)
        raise ModelUnusable(
            f"{source.name!r} can't be loaded as a T5: {reason} - give a complete T5 for transformers, such as "
            "'google-t5/t5-large'"
        ) from error
    if report["missing_keys"]:
        raise ModelUnusable(f"the weights of {source.name!r} lack {min(report['missing_keys'])!r}; download them again")
    if not hasattr(model, "lm_head") or not hasattr(model, "model_dim"):
        raise ModelUnusable(f"{source.name!r} is a {model.config.model_type}, not a T5; give one, such as 't5-large'")
    return model.to(device=device, dtype=dtype).eval(), tokenizer


def _sentinels(tokenizer: Any, name: str) -> tuple[int, int, int]:
    found = [tokenizer.convert_tokens_to_ids(sentinel) for sentinel in SENTINELS]
    if not tokenizer.is_fast or None in found or tokenizer.unk_token_id in found:
        raise ModelUnusable(
            f"the tokenizer of {name!r} has no {SENTINELS[2]}, so the model can't fill gaps; give a T5 that was trained to"
        )
    return found[0], found[1], found[2]
