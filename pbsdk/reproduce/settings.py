"""Settings: what to reproduce, checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from pbsdk.data.sampling import SEEDS
from pbsdk.errors import InputError
from pbsdk.queries.pools import load_pool
from pbsdk.queries.templates import Style
from pbsdk.reproduce.methods import DEFAULT_METHODS, METHODS, Method
from pbsdk.reproduce.prompt_sets import PROMPT_SETS
from pbsdk.reproduce.rivals import Rival, find_method

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    """What to reproduce.

    Args:
        datasets: benchmark names, see `pbsdk.reproduce.benchmarks`.
        methods: names from `METHODS`, and what packages have registered (`pbsdk.reproduce.rivals`).
        seeds: the draws.
        prompts: sets of prompts, or pools.
        test_rows: how many test rows, drawn once for all; None for all of them.
        rounds: how many rounds of boosting at most, where validation chooses.
        on_perfect: what boosting does with a learner that makes no error; the paper uses "best".
        style: how texts and prompts are joined; None for the authors' style with their prompts, else "plain".
        per_class: how many texts per class to write the prompts of the set `generated` from; None for all.
        changes: settings of rivals that differ from the published ones, by the rival's name and the setting's.
    """

    datasets: tuple[str, ...]
    methods: tuple[str, ...] = DEFAULT_METHODS
    seeds: tuple[int, ...] = SEEDS
    prompts: tuple[str, ...] = ("paper",)
    test_rows: int | None = None
    rounds: int = 200
    on_perfect: Literal["vote", "best"] = "best"
    style: Style | None = None
    per_class: int | None = None
    changes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("datasets", "methods", "seeds", "prompts"):
            given = getattr(self, name)
            if not given:
                raise InputError(f"there are no {name}; give at least one")
            if len(set(given)) < len(given):
                raise InputError(f"{name} names {next(one for one in given if given.count(one) > 1)} twice")
        rivals = {rival.name for rival in self.rivals}
        for method in self.changes:
            if method not in rivals:
                raise InputError(
                    f"{method} is no rival among the methods, so it has no settings to change; name it in methods"
                )
        for number, least in (("test_rows", 1), ("rounds", 1), ("per_class", 1)):
            value = getattr(self, number)
            if value is not None and value < least:
                raise InputError(f"{number} is {value}; it must be at least {least}")
        for prompts in self.prompts:
            if prompts not in PROMPT_SETS:
                load_pool(prompts)

    @property
    def chosen(self) -> tuple[Method, ...]:
        """The methods themselves, in the order of the tables."""
        others = [method for method in self._found if isinstance(method, Method) and method.name not in METHODS]
        return (*(method for name, method in METHODS.items() if name in self.methods), *others)

    @cached_property
    def rivals(self) -> tuple[Rival, ...]:
        """The methods that ask the model themselves, with their settings."""
        return tuple(
            method.replace(self.changes.get(method.name, {})) for method in self._found if isinstance(method, Rival)
        )

    @cached_property
    def _found(self) -> tuple[Method | Rival, ...]:
        return tuple(map(find_method, self.methods))

    @property
    def sizes(self) -> tuple[int | None, ...]:
        """How many texts per class the methods learn from, each number once."""
        return tuple(dict.fromkeys(method.k for method in self.chosen))

    @property
    def most_prompts(self) -> int:
        """How many prompts the largest method uses, not counting those that refine."""
        return max((method.prompts for method in self.chosen if not method.refined), default=0)

    @property
    def refines(self) -> bool:
        """Whether some method chooses its prompts."""
        return any(method.refined for method in self.chosen)
