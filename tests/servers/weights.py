"""SmolLM2 in the forms that servers take: llama.cpp's file, and a folder of weights and tokenizer."""

from functools import cache
from pathlib import Path

from pbsdk.errors import MissingExtra
from pbsdk_backends._local.files import digest_files, find_file
from pbsdk_backends._local.gguf import unpacked
from servers.environment import LeftOut
from servers.trial import MODEL, PLAIN, Way

INSIDE = Path(__file__).parent / "inside"


def model_file() -> Path:
    """Return the model as llama.cpp reads it."""
    try:
        return find_file()
    except MissingExtra as error:
        raise LeftOut(str(error)) from None


@cache
def unpacked_folder() -> Path:
    """Return the model as transformers and vLLM read it."""
    file = model_file()
    return unpacked(file, digest_files([file]))


def by_tensors() -> list[Way]:
    """Return how a server is asked that knows token numbers and tensors."""
    options = {"model": MODEL, "causal": True, "tokenizer": unpacked_folder(), "read_timeout": 300, "deadline": 300}
    return [Way("Open Inference Protocol, plain prompts", "kserve", {**options, "workers": 2}, PLAIN[:4])]
