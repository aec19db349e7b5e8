"""Every extension point: backends and their outlines, heads, methods, prompt writers, servers and engines, found by name.

All of them register as entry points, pbsdk's own as well as anybody else's, and are imported when they are first used.
The error for an unknown name suggests a similar one, and the error for a missing package says what to install. A
package adds a backend, for example, with these lines in its pyproject.toml:

    [project.entry-points."pbsdk.backends"]
    mymodel = "my_package:MyBackend"
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from pbsdk.errors import InputError, MissingExtra, PbsdkError, SetupError, UnknownBackend

__all__ = ["BACKENDS", "ENGINES", "HEADS", "METHODS_GROUP", "OUTLINES", "SERVERS", "WRITERS", "PluginGroup"]


@dataclass(frozen=True)
class PluginGroup:
    """One entry-point group, such as `pbsdk.backends`."""

    group: str
    noun: str
    """What error messages call a member of the group."""
    extras: Mapping[str, str] = field(default_factory=dict)
    """Which of pbsdk's extras each of pbsdk's own members needs."""
    unknown: type[PbsdkError] = SetupError
    """The error raised for an unknown name."""

    def names(self) -> list[str]:
        """Return the registered names, sorted."""
        return sorted(self._entries())

    def load(self, name: str) -> Any:
        """Import and return what is registered under a name."""
        entries = self._entries()
        if name not in entries:
            close = difflib.get_close_matches(name, entries, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise self.unknown(f"no {self.noun} is called {name!r}.{hint} Available: {', '.join(sorted(entries))}")
        try:
            return entries[name].load()
        except MissingExtra:
            raise
        except ImportError as error:
            extra = self.extras.get(name)
            cure = f'pip install "pbsdk[{extra}]"' if extra else f"install what {entries[name].value} needs"
            raise MissingExtra(f"the {self.noun} {name!r} can't be imported ({error}); {cure}") from error

    def _entries(self) -> dict[str, metadata.EntryPoint]:
        return {entry.name: entry for entry in metadata.entry_points(group=self.group)}


_EXTRAS = {
    "gemini": "remote",
    "gguf": "gguf",
    "http": "remote",
    "huggingface": "remote",
    "kserve": "remote",
    "litellm": "litellm",
    "local": "local",
    "openai": "remote",
    "ray": "ray",
    "smollm2": "demo",
}

_RIVALS = dict.fromkeys(
    (
        "bbt",
        "bbtv2",
        "dart",
        "feature-mlp",
        "fine-tuning",
        "linear-probe",
        "lm-bff",
        "lm-bff-demo",
        "rlprompt",
    ),
    "rivals",
)

BACKENDS = PluginGroup("pbsdk.backends", "backend", _EXTRAS, UnknownBackend)
"""Models: subclasses of `MaskedLMBackend`, for `connect`."""

ENGINES = PluginGroup("pbsdk.engines", "engine", {"ray": "ray"}, InputError)
"""Functions that read many files elsewhere, for `pbsdk predict --engine`; the backend of the same name runs the model there."""

HEADS = PluginGroup("pbsdk.heads", "head", unknown=InputError)
"""What turns answered examples into a fitted model with scores, for the classifier's `head`."""

METHODS_GROUP = PluginGroup("pbsdk.methods", "method", _RIVALS, InputError)
"""Rows of the tables beside the project's own, for `pbsdk reproduce --methods`: a `Rival` or a `Method` of `pbsdk.reproduce`."""

OUTLINES = PluginGroup("pbsdk.outlines", "outline", _EXTRAS)
"""Functions that return the backend of the same name, opened with the same options, without the weights; or None."""

SERVERS = PluginGroup("pbsdk.servers", "server", {"http": "serve"})
"""Functions that offer a backend to others, for `pbsdk serve`."""

WRITERS = PluginGroup("pbsdk.writers", "prompt writer", {"t5": "local"}, InputError)
"""Models that write prompts: callables that return a `PromptWriter`, for `open_writer`."""
