"""The adapter `ray`: another backend in many processes, on one machine or a cluster, through Ray.

    connect("ray", inner="local", model="roberta-large", actors=4, gpus_per_actor=1)

Each actor opens the inner backend for itself, and pieces of a batch go to whichever actor is free. The model is the same, so
the identity and the answers are the inner backend's: a run folder that was begun on one machine goes on in a cluster, and the other way round.
Ledger, budget and retries stay with whoever asks.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from pbsdk.backend import (
    Abilities,
    Checkup,
    MaskDistribution,
    MaskedLMBackend,
    MaskedQuery,
    ModelIdentity,
    OpenVocabulary,
    Tokens,
    answered_part,
)
from pbsdk.errors import BackendError, BackendUnavailable, InputError, MissingExtra, ModelUnusable, PbsdkError

try:
    import ray

    from pbsdk_backends._ray.cluster import join, refuse_what_never_fits
    from pbsdk_backends._ray.pool import Outcome, Pool
    from pbsdk_backends._ray.worker import Facts, Worker
except ImportError as error:
    raise MissingExtra(f'the adapter `ray` needs ray ({error}); install it: pip install "pbsdk[ray]"') from error

__all__ = ["RayBackend"]

PIECES = 4
"""How many pieces an actor gets of a batch, if all are equally fast."""


class RayBackend(MaskedLMBackend):
    """Another backend in many processes, on one machine or a cluster, through Ray.

    Args:
        inner: The backend that each actor opens.
        actors: How many there are.
        cpus_per_actor: Processor cores that Ray sets aside for each.
        gpus_per_actor: GPUs that Ray sets aside for each; a part of one, such as 0.5, shares it.
        address: `auto` (the cluster that this machine belongs to, or else one started here), `local` (one started here), or an address.
        patience: Seconds to wait while no actor has its model open.
        options: The inner backend's options.
    """

    @classmethod
    def checkup(cls) -> Checkup:
        """Name the engine."""
        return Checkup({"engine": f"ray {version('ray')}"})

    def __init__(  # noqa: PLR0913 - settings that are independent, given by keyword
        self,
        *,
        inner: str = "local",
        actors: int = 1,
        cpus_per_actor: float = 1,
        gpus_per_actor: float = 0,
        address: str = "auto",
        patience: float = 600.0,
        **options: Any,
    ) -> None:
        if inner == "ray":
            raise InputError("inner must be another backend than ray, such as local")
        if isinstance(actors, bool) or not isinstance(actors, int) or actors < 1:
            raise InputError(f"actors must be a whole number of at least 1; not {actors!r}")
        for name, given in (("cpus_per_actor", cpus_per_actor), ("gpus_per_actor", gpus_per_actor)):
            if not isinstance(given, int | float) or given < 0:
                raise InputError(f"{name} must be a number of at least 0; not {given!r}")
        join(address)
        refuse_what_never_fits(actors, cpus_per_actor, gpus_per_actor)
        self._settings: Mapping[str, Any] = {
            "inner": inner,
            "actors": actors,
            "cpus_per_actor": cpus_per_actor,
            "gpus_per_actor": gpus_per_actor,
            "address": address,
            "patience": patience,
            **options,
        }
        # Ray must ask nothing again: who asks counts.
        limits = {"num_cpus": cpus_per_actor, "num_gpus": gpus_per_actor, "max_restarts": 0, "max_task_retries": 0}
        worker = ray.remote(Worker).options(**limits)
        self._lock = threading.Lock()
        self._pool: Pool | None = Pool(lambda: worker.remote(inner, options), actors, patience=patience)
        try:
            facts = _with_a_vocabulary(self._pool.facts(), inner)
        except BaseException:
            self.close()
            raise
        self.identity, self.vocabulary, self.mask_token = facts.identity, facts.vocabulary, facts.mask_token
        self._piece = facts.abilities.batch_size
        batch = {**vars(facts.abilities), "batch_size": self._piece * actors * PIECES}
        self.abilities = Abilities(**batch)

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickle says how to open the model, and holds none of it.
        return _open_again, (dict(self._settings), self.identity)

    def fill(self, queries: Sequence[MaskedQuery], tokens: Tokens | None = None) -> list[MaskDistribution]:
        """Answer each query in order: pieces go to free actors."""
        pieces = [queries[at : at + self._piece] for at in range(0, len(queries), self._piece)]
        with self._lock:
            outcomes = self._opened.ask(pieces, tokens)
        answers: dict[int, MaskDistribution] = {}
        failures: dict[int, BackendError] = {}
        for number, outcome in sorted(outcomes.items()):
            start = number * self._piece
            found, why = _fates(outcome, len(pieces[number]))
            answers |= {start + place: answer for place, answer in found.items()}
            failures |= {start + place: error for place, error in why.items()}
        if failures:
            raise _summary(answers, failures)
        return [answers[place] for place in range(len(queries))]

    def count_tokens(self, query: MaskedQuery) -> int:
        """Return how many tokens the model will read, as the inner backend counts them."""
        with self._lock:
            return self._opened.count(query)[0]

    def most_tokens(self, query: MaskedQuery) -> int:
        """Return the most tokens that asking the query can cost, as the inner backend has it."""
        with self._lock:
            return self._opened.count(query)[1]

    def close(self) -> None:
        """End the actors; a cluster that was started here ends with the process."""
        if self._pool is not None:
            self._pool.close()
        self._pool = None

    @property
    def _opened(self) -> Pool:
        if self._pool is None:
            raise BackendUnavailable("this backend is closed; connect again", retryable=False)
        return self._pool


def _with_a_vocabulary(facts: Facts, inner: str) -> Facts:
    if isinstance(facts.vocabulary, OpenVocabulary):
        raise InputError(
            f"the backend {inner!r} learns its vocabulary from answers, which actors can't share; connect to it "
            "directly, with more workers"
        )
    return facts


def _fates(outcome: Outcome, count: int) -> tuple[dict[int, MaskDistribution], dict[int, BackendError]]:
    """Return a piece's answers, and why others are missing, by their places in it."""
    if isinstance(outcome, BackendError):
        return answered_part(outcome), outcome.each(count)
    if isinstance(outcome, PbsdkError):  # an input that can't work
        raise outcome
    return dict(enumerate(outcome)), {}


def _summary(answers: Mapping[int, MaskDistribution], failures: Mapping[int, BackendError]) -> BackendError:
    """Return one error for a batch, which says what became of each query."""
    worst = next((error for error in failures.values() if error.retryable), next(iter(failures.values())))
    waits = [error.retry_after for error in failures.values() if error.retry_after is not None]
    return type(worst)(
        f"{worst} ({len(failures)} of {len(failures) + len(answers)} queries failed)",
        retryable=worst.retryable,
        may_have_run=any(error.may_have_run for error in failures.values()),
        retry_after=max(waits, default=None),
        answered=answers,
        failures=failures,
    )


def _open_again(settings: Mapping[str, Any], identity: ModelIdentity) -> RayBackend:
    """Open what was pickled, if it is still the same model."""
    backend = RayBackend(**settings)
    difference = backend.identity.differences(identity)
    if difference:
        backend.close()
        raise ModelUnusable(f"this was pickled with another model ({difference}); use the same files")
    return backend
