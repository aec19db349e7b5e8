"""Sets of prompts: the names that `--prompts` takes, and the pools behind them.

They are `paper` (its last table; for causal models, and where the paper prints none, pbsdk's own), `own`
(pbsdk's pool for that kind of text), `shown` (pbsdk's prompts that name the classes and show demonstrations, others in each draw),
`generated` (written for each draw), and any other pool by its name or file.
"""

from __future__ import annotations

from functools import lru_cache

from pbsdk.backend import Abilities
from pbsdk.errors import InputError
from pbsdk.queries.pools import load_pool, pool_names
from pbsdk.queries.templates import Template
from pbsdk.reproduce.benchmarks import published_prompts
from pbsdk.reproduce.figures import OWN_POOLS

__all__ = ["PROMPT_SETS", "pools_of", "prompts_of"]

PROMPT_SETS = ("paper", "own", "shown", "generated")
"""The named sets of prompts; any pool can serve as a set too."""


def pools_of(dataset: str, prompts: str) -> list[str]:
    """Return the pools of a set in the order in which their prompts are used."""
    if prompts not in PROMPT_SETS:
        return [prompts]
    if dataset not in OWN_POOLS:
        raise InputError(f"pbsdk has no pool for {dataset}; name one with prompts=, such as 'topic', or a file")
    if prompts == "shown":
        own = f"{dataset}-shown"
        return [own if own in pool_names() else f"{OWN_POOLS[dataset]}-shown"]
    known = [dataset] if dataset in pool_names() else []
    return [*known, OWN_POOLS[dataset]] if prompts == "paper" else [OWN_POOLS[dataset], *known]


@lru_cache(maxsize=64)
def prompts_of(dataset: str, prompts: str, abilities: Abilities) -> tuple[Template, ...]:
    """Return a set's prompts: its ten, then more, for the methods that use more."""
    templates: list[Template] = []
    for name in pools_of(dataset, prompts):
        templates += load_pool(name).templates(abilities)
        if prompts == "paper" and name == dataset and abilities.mask == "anywhere":
            templates += map(Template, published_prompts(dataset))
    return tuple(dict.fromkeys(templates))
