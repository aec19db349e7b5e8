"""The model file: a trained classifier as readable JSON.

It holds the prompts as they were typed, what the head learned with the words beside the tokens, how it was trained and
which model answers; no texts and no credentials. Version 1 knew the paper's head alone; it is still read.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
    model_validator,
)

from pbsdk.backend import ModelIdentity
from pbsdk.errors import InputError, ModelFileError
from pbsdk.learning.explanation import Explanation
from pbsdk.learning.heads import Fitted, TokenOf, Word, head_named
from pbsdk.queries.templates import Style
from pbsdk.version import __version__

__all__ = ["SavedClassifier", "TrainingFacts"]

Label = StrictBool | StrictInt | StrictFloat | StrictStr
SCHEMA: Literal["pbsdk.ensemble"] = "pbsdk.ensemble"
VERSION = 2


class TrainingFacts(BaseModel):
    """How a classifier came about; a head adds facts of its own."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    n_train: int
    n_validation: int
    seed: int | None
    validation_accuracy: float | None


class SavedClassifier(BaseModel):
    """A trained classifier as a file: everything to predict with, given the model."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=True)

    schema_name: Literal["pbsdk.ensemble"] = Field(default=SCHEMA, alias="schema")
    version: int = VERSION
    pbsdk: str = __version__
    model: dict[str, str]
    """The identity of the model: its name and details."""
    classes: tuple[Label, ...]
    templates: tuple[str, ...]
    """The prompts of the pool, as they were typed."""
    style: Style
    """How prompts are rendered."""
    head: str
    """The name of the head that reads `learned`."""
    learned: dict[str, Any]
    """What the head learned, in its own form."""
    facts: TrainingFacts

    @model_validator(mode="after")
    def _classes_fit(self) -> Self:
        if len(self.classes) < 2 or len(set(self.classes)) < len(self.classes):
            raise ValueError("it needs at least two classes, each once")
        return self

    @classmethod
    def of(  # noqa: PLR0913 - independent settings, all keywords
        cls,
        fitted: Fitted,
        *,
        head: str,
        classes: Iterable[Label],
        templates: Iterable[str],
        style: Style,
        word: Word,
        identity: ModelIdentity,
        facts: TrainingFacts,
    ) -> SavedClassifier:
        """Put together what a file holds; `word` tells what a token says."""
        return cls(
            model=json.loads(identity.to_json()),
            classes=tuple(classes),
            templates=tuple(templates),
            style=style,
            head=head,
            learned=dict(fitted.state(word)),
            facts=facts,
        )

    def fitted(self, token_of: TokenOf = lambda token, _: token) -> Fitted:
        """Return the model itself; `token_of` finds a word in the vocabulary at hand."""
        return head_named(self.head).restore(self.learned, len(self.classes), len(self.templates), token_of)

    @property
    def identity(self) -> ModelIdentity:
        """The model that it was trained on."""
        return ModelIdentity.from_json(json.dumps(self.model))

    def explain(self) -> Explanation:
        """Return what it learned as a table, in the file's own words."""
        words: dict[int, str] = {}

        def remember(token: int, word: str) -> int:
            words[token] = word
            return token

        return self.fitted(remember).explain(self.classes, self.templates, words.__getitem__)

    def save(self, path: str | Path) -> None:
        """Write the file as a whole or not at all."""
        target = Path(path)
        text = self.model_dump_json(by_alias=True, indent=2) + "\n"
        try:
            handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
            try:
                with open(handle, "w", encoding="utf-8") as file:  # noqa: PTH123 - an open descriptor
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                Path(name).chmod(0o644)
                Path(name).replace(target)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise ModelFileError(
                f"can't write {target}: {error.strerror or error}; choose a folder that exists, can be written and has room"
            ) from error

    @classmethod
    def load(cls, path: str | Path) -> SavedClassifier:
        """Read what `save` wrote."""
        source = Path(path)
        try:
            data = json.loads(source.read_text(encoding="utf-8"))
        except OSError as error:
            raise ModelFileError(f"can't read {source}: {error.strerror or error}; check the path") from error
        except (ValueError, RecursionError) as error:
            raise ModelFileError(f"{source} is not JSON ({error}); give a file that `save` wrote") from error
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise ModelFileError(f"{source} is not a saved classifier; give a file that `save` wrote")
        version = data.get("version")
        if isinstance(version, int) and version > VERSION:
            raise ModelFileError(
                f"{source} was written by pbsdk {data.get('pbsdk')} in version {version} of the format, "
                f"and this pbsdk reads up to {VERSION}; update it: pip install -U pbsdk"
            )
        if version not in (1, VERSION) or isinstance(version, bool):
            raise ModelFileError(f"{source} has no version that exists ({version!r}); save the classifier again")
        try:
            saved = cls.model_validate(_as_of_today(data))
            saved.fitted()
        except InputError as error:
            raise ModelFileError(f"{source} can't be used here: {error}") from error
        except ValueError as error:
            raise ModelFileError(
                f"{source} was changed or damaged ({_what(error)}); save the classifier again"
            ) from error
        return saved


def _as_of_today(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file's content in the present version of the format."""
    if data["version"] == VERSION:
        return dict(data)
    rest = {name: value for name, value in data.items() if name != "learners"}
    return {**rest, "version": VERSION, "head": "boosting", "learned": {"learners": data.get("learners")}}


def _what(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    place = ".".join(str(piece) for piece in first["loc"])
    return f"{place}: {first['msg']}" if place else first["msg"]
