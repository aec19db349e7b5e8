"""The model file: a trained classifier as readable JSON.

It holds the prompts as they were typed, what the head learned with the words beside the tokens, how it was trained and
which model answers; no credentials, and no texts but those that prompts show as demonstrations, and the words and short runs
of characters that the head `auto` may read. A digest covers all of it, so that damage is noticed; without that line an edited file
is taken as it is. Version 1 knew the paper's head alone, version 2 no demonstrations; both are still read.
"""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

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

from pbsdk.backend import ModelIdentity, OpenVocabulary, Vocabulary
from pbsdk.errors import InputError, ModelFileError
from pbsdk.foreign import bounded_file, bounded_json, check_digest, digest_of
from pbsdk.learning.estimates import Estimate
from pbsdk.learning.explanation import Explanation
from pbsdk.learning.heads import Fitted, TokenOf, Word, head_named
from pbsdk.queries.templates import Demonstration, Style, Template
from pbsdk.version import __version__
from pbsdk.visible import visible_json

__all__ = ["SavedBackend", "SavedClassifier", "SavedDemonstration", "TrainingFacts", "token_finder"]

Label = StrictBool | StrictInt | StrictFloat | StrictStr
SCHEMA: Literal["pbsdk.ensemble"] = "pbsdk.ensemble"
VERSION = 3
SEVERAL = "multilabel"
"""The head of classifiers whose texts may have several labels."""
MODEL_BYTES = 1 << 28
"""How large a file may be."""


class TrainingFacts(BaseModel):
    """How a classifier came about; a head adds facts of its own."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    n_train: int
    n_validation: int
    seed: int | None
    validation_accuracy: float | None
    largest_share: float | None = None
    """The share of the largest class among the texts that measured the accuracy."""
    texts_per_class: tuple[int, ...] = ()
    """How many labelled texts each class has, those of the validation set among them."""
    weighted: bool = False
    """Whether they count differently."""
    data_digest: str | None = None
    """A digest of the labelled texts, in whatever order they came."""
    confusions: tuple[tuple[int, int, int], ...] = ()
    """(class, the class it was taken for, how many texts) when texts were left out, the most frequent first."""

    @property
    def estimate(self) -> Estimate | None:
        """The accuracy on texts left out, and how far to believe it; None if none was measured."""
        chance, crossed = self.largest_share, (self.model_extra or {}).get("cross_validated_accuracy")
        if chance is None:
            return None
        if crossed is not None:
            return Estimate("cross-validated", crossed, self.n_train + self.n_validation, chance)
        if self.validation_accuracy is None:
            return None
        return Estimate("validation", self.validation_accuracy, self.n_validation, chance)


class SavedDemonstration(BaseModel):
    """A demonstration in a file: what a prompt shows of a training text, and its class."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    texts: Annotated[tuple[str, ...], Field(min_length=1, max_length=2)]
    label: Annotated[int, Field(ge=0)]
    """The place of its class."""
    example: str
    """A digest of the whole text or pair."""


class SavedBackend(BaseModel):
    """How to connect to the model, without secrets."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str
    options: dict[str, StrictBool | StrictInt | StrictFloat | StrictStr | None]


class SavedClassifier(BaseModel):
    """A trained classifier as a file: everything to predict with, given the model."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=True)

    schema_name: Literal["pbsdk.ensemble"] = Field(default=SCHEMA, alias="schema")
    version: int = VERSION
    pbsdk: str = __version__
    model: dict[str, str]
    """The identity of the model: its name and details."""
    backend: SavedBackend | None = None
    """What `connect` takes to open the model again, if whoever saved it said so."""
    classes: tuple[Label, ...]
    templates: tuple[str, ...]
    """The prompts of the pool, as they were typed."""
    label_names: tuple[str, ...] = ()
    """What prompts call each class; empty if none says it."""
    demonstrations: tuple[tuple[SavedDemonstration, ...], ...] = ()
    """What each prompt shows; empty if none shows any."""
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

    @model_validator(mode="after")
    def _fillings_fit(self) -> Self:
        templates = [Template(source) for source in self.templates]
        if len(self.label_names) != len(self.classes) and any(template.names_classes for template in templates):
            raise ValueError(f"label_names: it needs a name for each of {len(self.classes)} classes")
        if self.demonstrations and len(self.demonstrations) != len(templates):
            raise ValueError(f"demonstrations: it needs those of each of {len(templates)} prompts")
        for template, shown in zip(templates, self.demonstrations or ((),) * len(templates), strict=True):
            fits = all(one.label < len(self.classes) and len(one.texts) == 1 + template.is_pair for one in shown)
            if not fits or (shown and not template.has_examples):
                raise ValueError(f"demonstrations: one doesn't fit the prompt {template.source!r}, or has no class")
        return self

    @classmethod
    def of(  # noqa: PLR0913 - independent settings, all keywords
        cls,
        fitted: Fitted,
        *,
        head: str,
        classes: Iterable[Label],
        templates: Sequence[Template],
        style: Style,
        word: Word,
        identity: ModelIdentity,
        facts: TrainingFacts,
        backend: Mapping[str, Any] | None = None,
    ) -> SavedClassifier:
        """Put together what a file holds; `word` tells what a token says."""
        return cls(
            model=json.loads(identity.to_json()),
            backend=None if backend is None else SavedBackend(**backend),
            classes=tuple(classes),
            templates=tuple(template.source for template in templates),
            label_names=next((template.labels for template in templates if template.labels), ()),
            demonstrations=_saved(templates),
            style=style,
            head=head,
            learned=dict(fitted.state(word)),
            facts=facts,
        )

    @property
    def several(self) -> bool:
        """Whether a text may have several labels, or none."""
        return self.head == SEVERAL

    def fitted(self, token_of: TokenOf = lambda token, _: token) -> Fitted:
        """Return the model itself; `token_of` finds a word in the vocabulary at hand."""
        return head_named(self.head).restore(self.learned, len(self.classes), len(self.templates), token_of)

    def filled_templates(self) -> list[Template]:
        """Return the prompts with the names of the classes and the demonstrations that they had."""
        shown = [tuple(Demonstration(**dict(one)) for one in some) for some in self.demonstrations]
        return [
            Template(source).filled(self.label_names, some)
            for source, some in zip(self.templates, shown or [()] * len(self.templates), strict=True)
        ]

    @property
    def identity(self) -> ModelIdentity:
        """The model that it was trained on."""
        return ModelIdentity.from_json(json.dumps(self.model))

    def warn_of_another(self, identity: ModelIdentity, path: str | Path) -> None:
        """Warn if a model is another than the one it was trained on, and say what differs."""
        difference = identity.differences(self.identity)
        if difference:
            warnings.warn(
                f"{path} was trained on another model than this one ({difference}); its accuracy is not what it was",
                stacklevel=3,
            )

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
        content = self.model_dump(by_alias=True)
        front = {name: content.pop(name) for name in ("schema", "version", "pbsdk")}
        sealed = {**front, "digest": digest_of({**front, **content}), **content}
        text = visible_json(sealed, indent=2) + "\n"  # which writes half characters too, the words of some vocabularies
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
            data = bounded_json(bounded_file(source, MODEL_BYTES))
        except OSError as error:
            raise ModelFileError(f"can't read {source}: {error.strerror or error}; check the path") from error
        except ValueError as error:
            raise ModelFileError(
                f"{source} is not JSON that can be read ({error}); give a file that `save` wrote"
            ) from error
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise ModelFileError(f"{source} is not a saved classifier; give a file that `save` wrote")
        version = data.get("version")
        if isinstance(version, int) and version > VERSION:
            raise ModelFileError(
                f"{source} was written by pbsdk {data.get('pbsdk')} in version {version} of the format, "
                f"and this pbsdk reads up to {VERSION}; update it: pip install -U pbsdk"
            )
        if version not in range(1, VERSION + 1) or isinstance(version, bool):
            raise ModelFileError(f"{source} has no version that exists ({version!r}); save the classifier again")
        try:
            check_digest(data)
        except ValueError as error:
            raise ModelFileError(f"{source} can't be trusted: {error}") from error
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
    """Return a file's content in the present version of the format, without its digest."""
    rest = {name: value for name, value in data.items() if name != "digest"}
    if data["version"] > 1:
        return {**rest, "version": VERSION}
    rest.pop("learners", None)
    return {**rest, "version": VERSION, "head": "boosting", "learned": {"learners": data.get("learners")}}


def _saved(templates: Sequence[Template]) -> tuple[tuple[SavedDemonstration, ...], ...]:
    if not any(template.demonstrations for template in templates):
        return ()
    return tuple(
        tuple(SavedDemonstration(texts=one.texts, label=one.label, example=one.example) for one in t.demonstrations)
        for t in templates
    )


def token_finder(vocabulary: Vocabulary, path: str | Path) -> TokenOf:
    """Return what finds each word of a file in this vocabulary."""

    def token_of(token: int, word: str) -> int:
        if isinstance(vocabulary, OpenVocabulary):
            vocabulary.learn(token, word)
        if token < len(vocabulary) and vocabulary[token] == word:
            return token
        found = vocabulary.get(word)
        if found is None:
            raise ModelFileError(f"{path} uses the word {word!r}, which is not a token of this model; train it anew")
        return found

    return token_of


def _what(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    place = ".".join(str(piece) for piece in first["loc"])[:100]
    return f"{place}: {first['msg']}" if place else first["msg"]
