"""The seam for rivals: methods that ask the model themselves, and perhaps look into it, where a `Method` shares its answers.

A `Rival` is given a `Contest`: the draw, the prompts, the model and a meter of passes. It says beforehand what it needs of the model
(`access`) and which passes it will make (`schedule`), and then yields a `Point` whenever it has tested itself: how far it has come, how it
does on the validation set, and its scores of the test rows. The table has the point that the validation set chooses, the picture all of them.

Anybody can register one, or a `Method` of their own, in the `pyproject.toml` of their package:

    [project.entry-points."pbsdk.methods"]
    mine = "my_package:Mine"

A rival is a frozen dataclass whose fields are its settings, with those that were published as defaults: `--set mine.steps=200` changes one.
"""

from __future__ import annotations

import dataclasses
import difflib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from pbsdk.backend import Floats, Inside, MaskedLMBackend
from pbsdk.errors import InputError
from pbsdk.metering.passes import PassMeter
from pbsdk.plugins import METHODS_GROUP
from pbsdk.queries.examples import Example
from pbsdk.queries.templates import Style, Template
from pbsdk.reproduce.draws import LabelledExamples
from pbsdk.reproduce.methods import METHODS, Method

__all__ = ["Access", "Contest", "Passes", "Point", "Rival", "chosen_point", "find_method", "method_names"]


class Access(StrEnum):
    """What a method needs of a model, each kind more than the one before."""

    TEXT = "text"
    STATES = "hidden states"
    EMBEDDINGS = "embeddings"
    LAYERS = "layers"
    GRADIENTS = "gradients"


class Passes(NamedTuple):
    """Passes that run together: how many each example has, by its name."""

    forward: Counter[str]
    backward: Counter[str]

    @classmethod
    def of(cls, examples: Sequence[Example], forward: int = 1, backward: int = 0) -> Passes:
        """Return the same number of passes for each of these examples; one that is there twice has twice as many."""
        names = Counter(example.id for example in examples)
        return cls(
            Counter({name: many * forward for name, many in names.items()}),
            Counter({name: many * backward for name, many in names.items()}),
        )

    def __add__(self, other: Passes) -> Passes:  # type: ignore[override] # as numbers add, not as tuples do
        return Passes(self.forward + other.forward, self.backward + other.backward)


@dataclass(frozen=True)
class Contest:
    """What a rival is given: one draw of one data set, the model, and a meter."""

    dataset: str
    classes: tuple[str, ...]
    words: tuple[str, ...]
    """LM-BFF's word for each class, or the class's own name."""
    train: LabelledExamples
    validation: LabelledExamples
    test: tuple[Example, ...]
    """The test rows, without their labels."""
    templates: Sequence[Template]
    """The prompts of the run, the best first."""
    style: Style
    seed: int
    backend: MaskedLMBackend
    """The model, unmetered: what looks into it charges the meter."""
    meter: PassMeter
    checkpoint: Path
    """Where to keep what is needed to go on after an interruption; removed when all is done."""
    progress: bool | None = None


@dataclass(frozen=True)
class Point:
    """How far a rival had come when it was tested."""

    forward: float
    """Forward passes that a training example had had, on average."""
    backward: float
    seconds: float
    """How long it had worked, tests left out."""
    accuracy: float
    """On the validation set."""
    loss: float
    """The mean cross-entropy there, which decides between equal accuracies."""
    scores: Floats = field(repr=False)
    """The log-probabilities (N, C) of the test rows."""


def chosen_point(points: Sequence[Point]) -> Point:
    """Return the point that does best on the validation set."""
    return max(points, key=lambda point: (point.accuracy, -point.loss))


class Rival(ABC):
    """A method that asks the model itself. A subclass is a frozen dataclass whose fields are its settings."""

    name: ClassVar[str]
    """What `--methods` calls it: its entry point's name."""
    title: ClassVar[str]
    """What tables call it."""
    access: ClassVar[Access]
    """The most that it needs of the model."""

    @abstractmethod
    def schedule(self, contest: Contest) -> Iterator[Passes]:
        """Yield the passes of each step, tests included: its formula, which the ledger is held to."""

    @abstractmethod
    def compete(self, contest: Contest) -> Iterator[Point]:
        """Learn from the draw, and yield a point whenever it was tested; the last one when it has finished.

        Called again after an interruption, it goes on from its checkpoint, and begins with the points that it had.
        """

    @abstractmethod
    def parameters(self, contest: Contest) -> int:
        """Return how many numbers it trains."""

    def check(self, backend: MaskedLMBackend) -> None:
        """Refuse a model that doesn't show what this needs."""
        if self.access is not Access.TEXT and not isinstance(backend, Inside):
            raise InputError(
                f"{self.name} needs {self.access}, and {backend.identity.name} is only asked from outside; leave {self.name} out, or use a "
                "model that runs in this process, such as smollm2 or local"
            )

    def check_contest(self, contest: Contest) -> None:  # noqa: B027 - most need nothing else
        """Refuse, before anything runs, a contest in which it can't compete."""

    def settings(self) -> dict[str, Any]:
        """Return its settings by name."""
        return {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}  # type: ignore[arg-type] # a dataclass

    def replace(self, changes: Mapping[str, str]) -> Rival:
        """Return it with other settings, written as on a command line."""
        known = self.settings()
        values: dict[str, Any] = {}
        for name, written in changes.items():
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f" (did you mean {close[0]!r}?)" if close else ""
                raise InputError(f"{self.name} has no setting {name!r}{hint}; it has {', '.join(known)}")
            values[name] = _as(type(known[name]), written, f"{self.name}.{name}")
        return dataclasses.replace(self, **values)  # type: ignore[type-var] # a dataclass


def _as(kind: type, written: str, name: str) -> Any:
    """Read a setting's value."""
    try:
        if kind is bool:
            return {"true": True, "false": False}[written.lower()]
        return kind(written)
    except (ValueError, KeyError) as error:
        wanted = {bool: "true or false", int: "a whole number", float: "a number"}.get(kind, kind.__name__)
        raise InputError(f"{name} must be {wanted}, not {written!r}") from error


def method_names() -> list[str]:
    """Return the names of all methods: those of the tables, then what packages have registered."""
    return [*METHODS, *(name for name in METHODS_GROUP.names() if name not in METHODS)]


def find_method(name: str) -> Method | Rival:
    """Return a method by its name; what a package registered is imported here."""
    if name in METHODS:
        return METHODS[name]
    if name not in METHODS_GROUP.names():
        known = method_names()
        close = difflib.get_close_matches(name, known, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise InputError(f"no method is called {name!r}{hint}; available: {', '.join(known)}")
    found = METHODS_GROUP.load(name)
    if isinstance(found, type) and issubclass(found, Rival):
        found = found()
    if not isinstance(found, Method | Rival):
        raise InputError(
            f"{name!r} is registered as a method, but {found!r} is neither a Rival nor a Method of pbsdk's"
        )
    return found
