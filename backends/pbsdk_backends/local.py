"""The adapter `local`: any Hugging Face language model on your own machine.

    connect("local", model="roberta-large")                    # a masked LM by its hub name
    connect("local", model="path/to/folder", device="cuda", precision="bfloat16")

Masked models (RoBERTa, BERT, ModernBERT, ...) take the mask anywhere. Causal models (GPT-2, Llama,
...) answer at the end: what follows the mask is not read, and what queries begin with is read once for all
of them.

The precision is float32 unless you choose another. `precision="fast"` takes what this machine is fastest in, often bfloat16, and its
numbers shift with the shape of the batch: the same query's answer may differ by a few thousandths in another batch. A run that is
replayed from its folder is exact in any precision; two fresh runs agree to the last digit only in float32 on one machine.
"""

from __future__ import annotations

from typing import ClassVar

from pbsdk.backend import Checkup
from pbsdk.errors import MissingExtra

try:
    from huggingface_hub.constants import HF_HUB_CACHE

    from pbsdk_backends._local.files import digest_files, locate, weight_files
    from pbsdk_backends._local.model import TransformersBackend
    from pbsdk_backends._local.outline import keep
    from pbsdk_backends._local.precision import choose_precision
    from pbsdk_backends._local.threads import settle_threads
    from pbsdk_backends._local.weights import choose_device, describe_device, load
except ImportError as error:
    raise MissingExtra(
        f"the adapter `local` needs torch, transformers and safetensors ({error}); "
        'install them: pip install "pbsdk[local]"'
    ) from error

__all__ = ["LocalBackend"]


class LocalBackend(TransformersBackend):
    """A masked or causal language model from the hub or a folder.

    Args:
        model: A hub name such as `roberta-large`, or a folder.
        revision: A branch, tag or commit of a hub model.
        device: `auto` (CUDA, else MPS, else the CPU), `cpu`, `cuda`, `cuda:1`, `mps`.
        precision: `exact` (float32), `fast` (the fastest of float32, bfloat16 and int8 on this machine), or by name `float32`,
            `bfloat16`, `float16`, `int8`.
        threads: Threads of the CPU for all of torch in this process; None counts the cores that are free.
        batch_tokens: Tokens that run together at most; None suits the device.
        max_length: Tokens of a query at most; None is as many as the model reads.
        share_text: Let a causal model read once what queries begin with: demonstrations, and a text for all its prompts.
        chat: Ask by the model's chat template: the user says the text, and the prompt's last words begin the answer.
        check_weights: Read the weight files again for their digest, which is otherwise remembered by size and time stamps.
        local_files_only: Never ask the hub; use what was downloaded before.
    """

    protocol: ClassVar[str] = "local/1"

    @classmethod
    def checkup(cls) -> Checkup:
        """Name the device, and where the hub's models are kept."""
        return Checkup(describe_device(), {"models of the Hugging Face hub": str(HF_HUB_CACHE)})

    def __init__(  # noqa: PLR0913 - settings that are independent, given by keyword
        self,
        model: str = "roberta-large",
        *,
        revision: str | None = None,
        device: str = "auto",
        precision: str = "exact",
        threads: int | None = None,
        batch_tokens: int | None = None,
        max_length: int | None = None,
        share_text: bool = True,
        chat: bool = False,
        check_weights: bool = False,
        local_files_only: bool = False,
    ) -> None:
        place = choose_device(device)
        settle_threads(threads)
        offers = choose_precision(precision, place)
        source = locate(model, revision, local_files_only=local_files_only)
        files = weight_files(source)
        weights = digest_files(files, again=check_weights)
        loaded = load(source, place, offers, weights)
        if chat:
            loaded = loaded.chatting(source.name)
        details = {
            "weights": weights,
            "config": loaded.config_digest,
            **loaded.reading,
        }
        if source.revision is not None:
            details["revision"] = source.revision
        super().__init__(
            loaded,
            source.name,
            details,
            batch_tokens=batch_tokens,
            max_length=max_length,
            share_text=share_text,
        )
        self._options = {
            "model": model if source.revision is not None else str(source.folder.resolve()),
            "revision": source.revision,  # the commit: a branch may have moved on
            "device": device,
            "threads": threads,
            "precision": loaded.precision,  # what is fastest here may not be so elsewhere
            "batch_tokens": batch_tokens,
            "max_length": max_length,
            "share_text": share_text,
            "chat": chat,
            "check_weights": check_weights,
            "local_files_only": local_files_only,
        }
        keep(self, "local", [source.folder], self._options | {"precision": precision})
